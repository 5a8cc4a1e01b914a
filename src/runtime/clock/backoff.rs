//! When something that failed is tried again.

use crate::model::Nanoseconds;

/// A second after the first failure, then after twice the last pause, at most after a minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    next: Nanoseconds,
    /// The pause since the last failure; zero while tries succeed.
    pause: Nanoseconds,
}

impl Backoff {
    const LONGEST: Nanoseconds = Nanoseconds::from_seconds(60);

    /// Whether it is time for the next try.
    pub fn is_due(&self, now: Nanoseconds) -> bool {
        now >= self.next
    }

    pub fn has_failed(&self) -> bool {
        self.pause > Nanoseconds(0)
    }

    /// Plans the next try after a success.
    pub fn succeed(&mut self, now: Nanoseconds, period: Nanoseconds) {
        self.pause = Nanoseconds(0);
        self.next = now + period;
    }

    /// Plans the next try after a failure.
    pub fn fail(&mut self, now: Nanoseconds) {
        self.pause = Nanoseconds((self.pause.0 * 2).clamp(Nanoseconds::SECOND.0, Self::LONGEST.0));
        self.next = now + self.pause;
    }
}
