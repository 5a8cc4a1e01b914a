//! Named threads whose end can be waited for with a timeout, since a stuck thread must not block the others.
//!
//! A panic, which the panic hook logs, ends only its thread, and those of resolvers begin anew. When a vital thread fails, the agent stops in order and a service
//! manager restarts it, because without that thread it would handle no signals or bill nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::runtime::clock::Stop;

#[derive(Debug, thiserror::Error)]
#[error("starting the {thread} thread: {source}")]
pub struct Error {
    thread: &'static str,
    source: std::io::Error,
}

pub(crate) struct Thread {
    done: mpsc::Receiver<()>,
    handle: JoinHandle<()>,
}

/// Stops the agent when a vital thread ends before that.
#[derive(Clone)]
pub(crate) struct VitalThreads {
    stop: Stop,
    first_failure: Arc<OnceLock<&'static str>>,
}

impl VitalThreads {
    pub(crate) fn new(stop: Stop) -> Self {
        Self { stop, first_failure: Arc::default() }
    }

    pub(crate) fn first_failure(&self) -> Option<&'static str> {
        self.first_failure.get().copied()
    }
}

impl Thread {
    pub(crate) fn start(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let (finished, done) = mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                body();
                // Fails if nothing waits for the thread.
                let _ = finished.send(());
            })
            .map_err(|source| Error { thread: name, source })?;
        Ok(Self { done, handle })
    }

    /// Starts a thread whose end, in whatever way, stops the agent.
    pub(crate) fn start_vital(
        name: &'static str,
        vital: &VitalThreads,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let vital = vital.clone();
        Self::start(name, move || {
            // Shared state may be half updated after a panic, but the agent only stops with it.
            let outcome = catch_unwind(AssertUnwindSafe(body));
            if outcome.is_err() || !vital.stop.is_called() {
                // Only the first failure is kept; later ones follow from it.
                let _ = vital.first_failure.set(name);
                vital.stop.call();
            }
        })
    }

    /// Starts a thread whose body begins anew a second after each panic, until the agent stops.
    pub(crate) fn start_again(
        name: &'static str,
        stop: &Stop,
        mut body: impl FnMut() + Send + 'static,
    ) -> Result<Self, Error> {
        const PAUSE: Duration = Duration::from_secs(1);
        let stop = stop.clone();
        Self::start(
            name,
            move || while catch_unwind(AssertUnwindSafe(&mut body)).is_err() && !stop.wait(PAUSE) {},
        )
    }

    /// Waits until the thread itself has ended, so that the library which it called may be unmapped.
    pub(crate) fn join(self) {
        // The panic hook has logged a panic.
        let _ = self.handle.join();
    }

    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        !matches!(self.done.recv_timeout(timeout), Err(mpsc::RecvTimeoutError::Timeout))
    }
}

/// Maps items on as many threads as there are processors, and gives the results in the order of the items to `take`, until that
/// fails. Few results wait at any time.
pub(crate) fn map_in_order<T: Sync, R: Send, E>(
    items: &[T],
    map: impl Fn(&T) -> R + Sync,
    take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    const WAITING: usize = 4;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    map_on([workers, WAITING], items, map, take)
}

/// Maps items one by one, each while `take` has the result of the one before, for results that are large.
pub(crate) fn map_ahead<T: Sync, R: Send, E>(
    items: &[T],
    map: impl Fn(&T) -> R + Sync,
    take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    map_on([1, 0], items, map, take)
}

/// `waiting` is how many results of each thread wait at any time, besides the one that it has made.
fn map_on<T: Sync, R: Send, E>(
    [workers, waiting]: [usize; 2],
    items: &[T],
    map: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let workers = workers.min(items.len());
    let map = &map;
    std::thread::scope(|scope| {
        // Each thread has every nth item, so that the next result is always that of a known thread.
        let results: Vec<mpsc::Receiver<R>> = (0..workers)
            .map(|worker| {
                let (sender, results) = mpsc::sync_channel(waiting);
                scope.spawn(move || {
                    for item in items.iter().skip(worker).step_by(workers) {
                        // Nobody takes more results.
                        if sender.send(map(item)).is_err() {
                            return;
                        }
                    }
                });
                results
            })
            .collect();
        for place in 0..items.len() {
            // A thread that panicked ends the scope with its panic.
            let Ok(result) = results[place % workers].recv() else { break };
            take(place, result)?;
        }
        Ok(())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn results_come_in_the_order_of_the_items_and_end_where_one_is_refused() {
        let items: Vec<u64> = (0..100).collect();
        for (refused, is_ahead) in [(7, false), (100, false), (7, true), (100, true)] {
            let mut taken = Vec::new();
            let take = |place, result| {
                taken.push((place as u64, result));
                if taken.len() == refused + 1 { Err(place) } else { Ok(()) }
            };
            let double = |item: &u64| item * 2;
            let ended =
                if is_ahead { map_ahead(&items, double, take) } else { map_in_order(&items, double, take) };
            assert_eq!(ended, if refused < 100 { Err(refused) } else { Ok(()) });
            assert!(taken.iter().all(|(place, result)| *result == place * 2), "{taken:?}");
            assert_eq!(taken.len(), items.len().min(refused + 1));
        }
        assert_eq!(map_in_order(&[], |item: &u64| *item, |_, _| Err(())), Ok(()));
    }

    #[test]
    fn a_vital_thread_that_fails_or_ends_too_early_stops_the_agent() {
        let bodies: [fn(); 2] = [|| panic!("a fault of its own"), || {}];
        for body in bodies {
            let stop = Stop::default();
            let vital = VitalThreads::new(stop.clone());
            let thread = Thread::start_vital("io", &vital, body).unwrap();
            assert!(stop.wait(TIMEOUT) && thread.wait(TIMEOUT));
            assert_eq!(vital.first_failure(), Some("io"));
        }
    }

    #[test]
    fn a_thread_that_begins_anew_does_so_after_a_panic_and_ends_with_its_body() {
        let (begun, runs) = mpsc::channel();
        let mut count = 0;
        let thread = Thread::start_again("pods", &Stop::default(), move || {
            count += 1;
            begun.send(count).unwrap();
            assert!(count == 3, "a fault of its own");
        });
        assert!(thread.unwrap().wait(TIMEOUT));
        assert_eq!(runs.iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_vital_thread_that_ends_with_the_agent_has_not_failed() {
        let stop = Stop::default();
        let (vital, by_thread) = (VitalThreads::new(stop.clone()), stop.clone());
        let thread = Thread::start_vital("io", &vital, move || by_thread.wait_for_call()).unwrap();
        stop.call();
        assert!(thread.wait(TIMEOUT));
        assert_eq!(vital.first_failure(), None);
    }
}
