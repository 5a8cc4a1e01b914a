//! When the tick loop last ran; `/-/healthy` answers from it.
//!
//! It says nothing of GPUs: a faulty GPU must not restart the agent that reports it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Nanoseconds;

/// The time of the last tick, and the clock that gives its age.
pub struct Heartbeat {
    last: AtomicU64,
    now: Box<dyn Fn() -> Nanoseconds + Send + Sync>,
}

impl Heartbeat {
    /// A tick loop without a tick for this long is dead.
    pub const LONGEST_SILENCE: Nanoseconds = Nanoseconds(10_000_000_000);

    /// Starts with the present as the last tick; production passes the boot clock.
    pub fn new(now: impl Fn() -> Nanoseconds + Send + Sync + 'static) -> Self {
        let last = AtomicU64::new(now().0);
        Self { last, now: Box::new(now) }
    }

    /// Records a tick at this moment.
    pub fn beat(&self) {
        self.last.store((self.now)().0, Ordering::Relaxed);
    }

    /// Time since the last tick.
    pub fn silence(&self) -> Nanoseconds {
        Nanoseconds((self.now)().0.saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    /// Whether the last tick is recent.
    pub fn is_alive(&self) -> bool {
        self.silence() < Self::LONGEST_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_tick_loop_is_dead_after_ten_seconds_without_a_tick_and_alive_after_the_next() {
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
