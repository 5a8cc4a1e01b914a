//! A thread of the agent: named, and its end can be waited for with a limit, since one that is stuck must not hold
//! up the others.
//!
//! A panic ends the thread alone; the log's hook tells of it. A thread without which the agent would be deaf or
//! would bill nothing takes the agent with it, in order: then a service manager starts it anew.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::StartError;
use crate::clock::Stop;

/// A running thread.
pub(super) struct Thread {
    done: mpsc::Receiver<()>,
    handle: JoinHandle<()>,
}

/// The first vital thread that ended although the agent had not been told to.
#[derive(Clone, Default)]
pub(super) struct Fallen(Arc<OnceLock<&'static str>>);

impl Fallen {
    pub(super) fn first(&self) -> Option<&'static str> {
        self.0.get().copied()
    }
}

impl Thread {
    /// Starts a named thread.
    pub(super) fn start(
        name: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let (finished, done) = mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                body();
                // Nobody may be waiting.
                let _ = finished.send(());
            })
            .map_err(|source| StartError::Thread { thread: name, source })?;
        Ok(Self { done, handle })
    }

    /// Starts a thread that the agent cannot do without: when it ends before the agent is to stop, however it
    /// ends, the agent stops.
    pub(super) fn start_vital(
        name: &'static str,
        (stop, fallen): (&Stop, &Fallen),
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let (stop, fallen) = (stop.clone(), fallen.clone());
        Self::start(name, move || {
            // What it shared may be half new; the agent only ends with it.
            let outcome = catch_unwind(AssertUnwindSafe(body));
            if outcome.is_err() || !stop.is_called() {
                // The first is told; the others follow from it.
                let _ = fallen.0.set(name);
                stop.call();
            }
        })
    }

    /// Waits for the very end of a thread whose body has ended: what it ran may then be unmapped.
    pub(super) fn join(self) {
        // A panic was told by the hook.
        let _ = self.handle.join();
    }

    /// Whether it ended in time.
    pub(super) fn wait(&self, longest: Duration) -> bool {
        !matches!(self.done.recv_timeout(longest), Err(mpsc::RecvTimeoutError::Timeout))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_vital_thread_that_fails_or_ends_too_soon_takes_the_agent_with_it() {
        let bodies: [fn(); 2] = [|| panic!("a fault of its own"), || {}];
        for body in bodies {
            let (stop, fallen) = (Stop::default(), Fallen::default());
            let thread = Thread::start_vital("io", (&stop, &fallen), body).unwrap();
            assert!(stop.wait(PATIENCE) && thread.wait(PATIENCE));
            assert_eq!(fallen.first(), Some("io"));
        }
    }

    #[test]
    fn a_vital_thread_that_ends_with_the_agent_has_not_failed() {
        let (stop, fallen) = (Stop::default(), Fallen::default());
        let theirs = stop.clone();
        let thread = Thread::start_vital("io", (&stop, &fallen), move || theirs.wait_for_call()).unwrap();
        stop.call();
        assert!(thread.wait(PATIENCE));
        assert_eq!(fallen.first(), None);
    }
}
