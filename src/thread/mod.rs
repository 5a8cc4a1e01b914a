//! A thread of the agent: named, and its end can be waited for with a limit, since one that is stuck must not hold
//! up the others.
//!
//! A panic ends only its thread; the panic hook logs it. When a vital thread fails, the agent stops in order, and a
//! service manager starts it again: without that thread it would hear no signal or bill nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Stop;

/// A thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("starting the {thread} thread: {source}")]
pub struct Error {
    thread: &'static str,
    source: std::io::Error,
}

/// A running thread.
pub(crate) struct Thread {
    done: mpsc::Receiver<()>,
    handle: JoinHandle<()>,
}

/// The first vital thread that ended before the agent was told to stop.
#[derive(Clone, Default)]
pub(crate) struct FirstFailure(Arc<OnceLock<&'static str>>);

impl FirstFailure {
    pub(crate) fn name(&self) -> Option<&'static str> {
        self.0.get().copied()
    }
}

impl Thread {
    /// Starts a named thread.
    pub(crate) fn start(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let (finished, done) = mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                body();
                // Nobody may be waiting.
                let _ = finished.send(());
            })
            .map_err(|source| Error { thread: name, source })?;
        Ok(Self { done, handle })
    }

    /// Starts a thread that the agent cannot do without: when it ends before the agent is to stop, however it
    /// ends, the agent stops.
    pub(crate) fn start_vital(
        name: &'static str,
        (stop, failure): (&Stop, &FirstFailure),
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let (stop, failure) = (stop.clone(), failure.clone());
        Self::start(name, move || {
            // Shared state may be half updated after a panic; the agent only stops with it.
            let outcome = catch_unwind(AssertUnwindSafe(body));
            if outcome.is_err() || !stop.is_called() {
                // The first failure is reported; later ones follow from it.
                let _ = failure.0.set(name);
                stop.call();
            }
        })
    }

    /// Waits for the very end of a thread whose body has ended: what it ran may then be unmapped.
    pub(crate) fn join(self) {
        // The panic hook has logged a panic.
        let _ = self.handle.join();
    }

    /// Whether it ended in time.
    pub(crate) fn wait(&self, longest: Duration) -> bool {
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
            let (stop, failure) = (Stop::default(), FirstFailure::default());
            let thread = Thread::start_vital("io", (&stop, &failure), body).unwrap();
            assert!(stop.wait(PATIENCE) && thread.wait(PATIENCE));
            assert_eq!(failure.name(), Some("io"));
        }
    }

    #[test]
    fn a_vital_thread_that_ends_with_the_agent_has_not_failed() {
        let (stop, failure) = (Stop::default(), FirstFailure::default());
        let theirs = stop.clone();
        let thread = Thread::start_vital("io", (&stop, &failure), move || theirs.wait_for_call()).unwrap();
        stop.call();
        assert!(thread.wait(PATIENCE));
        assert_eq!(failure.name(), None);
    }
}
