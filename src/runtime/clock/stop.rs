//! The stop signal of all threads, and a wait that ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Clone, Debug, Default)]
pub struct Stop {
    called: Arc<AtomicBool>,
    parents: Vec<Arc<AtomicBool>>,
    /// Shared by all of them, so that a wait for a part also ends with the whole.
    changed: Arc<(Mutex<()>, Condvar)>,
}

impl Stop {
    /// A signal for a part of what this one stops.
    pub fn part(&self) -> Self {
        let above = self.parents.iter().chain([&self.called]).map(Arc::clone).collect();
        Self { called: Arc::default(), parents: above, changed: Arc::clone(&self.changed) }
    }

    pub fn call(&self) {
        let _guard = self.changed.0.lock();
        self.called.store(true, Ordering::SeqCst);
        self.changed.1.notify_all();
    }

    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::SeqCst) || self.parents.iter().any(|above| above.load(Ordering::SeqCst))
    }

    pub fn wait_for_call(&self) {
        while !self.wait(Duration::from_secs(3_600)) {}
    }

    /// Waits for the call for at most that long; whether it came.
    pub fn wait(&self, longest: Duration) -> bool {
        let mut guard = self.changed.0.lock();
        self.changed.1.wait_while_for(&mut guard, |()| !self.is_called(), longest);
        self.is_called()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_with_the_whole_and_not_the_other_way_round() {
        let whole = Stop::default();
        let (one, two) = (whole.part(), whole.part());
        one.call();
        assert_eq!((one.is_called(), two.is_called(), whole.is_called()), (true, false, false));
        let within = two.part();
        whole.call();
        assert!(two.wait(Duration::ZERO) && within.wait(Duration::ZERO));
    }

    #[test]
    fn a_wait_for_a_part_ends_with_the_whole() {
        let whole = Stop::default();
        let part = whole.part();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| part.wait(Duration::from_secs(60)));
            whole.call();
            assert!(waiter.join().is_ok_and(|called| called));
        });
    }
}
