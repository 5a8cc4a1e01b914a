//! When the tick loop last ran; `/-/healthy` answers from it.
//!
//! It says nothing of GPUs: a faulty GPU must not restart the agent that reports it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Nanoseconds;

pub struct Liveness {
    last_tick: AtomicU64,
    now: Box<dyn Fn() -> Nanoseconds + Send + Sync>,
}

impl Liveness {
    /// A tick loop without a tick for this long is dead.
    pub const TIMEOUT: Nanoseconds = Nanoseconds(10_000_000_000);

    /// Starts with the present as the last tick; production passes the boot clock.
    pub fn new(now: impl Fn() -> Nanoseconds + Send + Sync + 'static) -> Self {
        let last_tick = AtomicU64::new(now().0);
        Self { last_tick, now: Box::new(now) }
    }

    pub fn record_tick(&self) {
        self.last_tick.store((self.now)().0, Ordering::Relaxed);
    }

    pub fn since_last_tick(&self) -> Nanoseconds {
        Nanoseconds((self.now)().0.saturating_sub(self.last_tick.load(Ordering::Relaxed)))
    }

    pub fn is_alive(&self) -> bool {
        self.since_last_tick() < Self::TIMEOUT
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
        let liveness = Liveness::new(move || Nanoseconds(read.load(Ordering::Relaxed)));
        assert!(liveness.is_alive());
        clock.store(10_000_000_004, Ordering::Relaxed);
        assert!(liveness.is_alive());
        clock.store(10_000_000_005, Ordering::Relaxed);
        assert!(!liveness.is_alive());
        assert_eq!(liveness.since_last_tick(), Nanoseconds(10_000_000_000));
        liveness.record_tick();
        assert!(liveness.is_alive());
    }
}
