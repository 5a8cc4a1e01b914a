//! The word that ends every thread, and a wait that hears it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Called once, heard by every thread that waits.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Tells everybody to stop.
    pub fn call(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it was called.
    pub fn is_called(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the call, however long it takes.
    pub fn wait_for_call(&self) {
        while !self.wait(Duration::from_secs(3_600)) {}
    }

    /// Waits for the call for at most that long; whether it came.
    pub fn wait(&self, longest: Duration) -> bool {
        let called = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (called, _) = self
            .0
            .1
            .wait_timeout_while(called, longest, |called| !*called)
            .unwrap_or_else(PoisonError::into_inner);
        *called
    }
}
