//! Whether the pulse is alive: it beats at every tick, and health is asked of the last beat.
//!
//! It speaks of the agent, never of a GPU: a sick card must not restart the only witness.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Nanoseconds;

/// The last beat of the pulse, and the clock against which its age is told.
pub struct Heartbeat {
    last: AtomicU64,
    now: Box<dyn Fn() -> Nanoseconds + Send + Sync>,
}

impl Heartbeat {
    /// A pulse silent for this long is dead.
    pub const LONGEST_SILENCE: Nanoseconds = Nanoseconds(10_000_000_000);

    /// A pulse on that clock, the boot clock in production; being started counts as a beat.
    pub fn new(now: impl Fn() -> Nanoseconds + Send + Sync + 'static) -> Self {
        let last = AtomicU64::new(now().0);
        Self { last, now: Box::new(now) }
    }

    /// The pulse is alive at this moment.
    pub fn beat(&self) {
        self.last.store((self.now)().0, Ordering::Relaxed);
    }

    /// For how long there was no beat.
    pub fn silence(&self) -> Nanoseconds {
        Nanoseconds((self.now)().0.saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    /// Whether the last beat is recent.
    pub fn is_alive(&self) -> bool {
        self.silence() < Self::LONGEST_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_pulse_is_dead_after_ten_seconds_of_silence_and_alive_at_the_next_beat() {
        let clock = Arc::new(AtomicU64::new(5));
        let read = Arc::clone(&clock);
        let heartbeat = Heartbeat::new(move || Nanoseconds(read.load(Ordering::Relaxed)));
        assert!(heartbeat.is_alive());
        clock.store(10_000_000_004, Ordering::Relaxed);
        assert!(heartbeat.is_alive());
        clock.store(10_000_000_005, Ordering::Relaxed);
        assert!(!heartbeat.is_alive());
        assert_eq!(heartbeat.silence(), Nanoseconds(10_000_000_000));
        heartbeat.beat();
        assert!(heartbeat.is_alive());
    }
}
