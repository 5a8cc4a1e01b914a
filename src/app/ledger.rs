//! The ledger thread: takes what waits, commits it, and acknowledges.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, Thread, policy};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::ledger::{Acknowledged, Error, Ledger, Opening, Queue, Recovered};

/// How the ledger fares, for the pulse to tell.
#[derive(Debug)]
pub(super) struct LedgerStatus {
    /// Whether its file system survives a restart of the node.
    pub(super) durable: bool,
    errors: AtomicU64,
    /// UTC of the last commit in nanoseconds, 0 before the first.
    last_commit: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl LedgerStatus {
    /// The status of a ledger that was just opened.
    pub(super) fn new(durable: bool) -> Self {
        Self {
            durable,
            errors: AtomicU64::new(0),
            last_commit: AtomicU64::new(0),
            acknowledged: Mutex::default(),
        }
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn last_commit(&self) -> Option<u64> {
        Some(self.last_commit.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// What was committed since the last look.
    pub(super) fn take(&self) -> Vec<Acknowledged> {
        std::mem::take(&mut self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The running ledger thread.
pub(super) struct Running {
    pub(super) path: PathBuf,
    pub(super) queue: Arc<Queue>,
    pub(super) status: Arc<LedgerStatus>,
    thread: Thread,
}

impl Running {
    /// Waits until what was queued is on disk.
    pub(super) fn close(self, longest: Duration) {
        if !self.thread.wait(longest) {
            tracing::error!("the ledger did not close in time; at most the last tick is lost");
        }
    }
}

/// How a ledger is opened under a configuration.
fn opening(config: &Config, host: &Host, clock: &Clock) -> Opening {
    Opening { boot_id: host.boot_id().unwrap_or_default(), now: clock.now(), book: policy::book(config) }
}

/// Opens the ledger, if there is to be one; its directory is made.
pub(super) fn open(
    config: &Config,
    host: &Host,
    clock: &Clock,
) -> Result<Option<(Ledger, Recovered)>, StartError> {
    if !config.ledger.enabled {
        return Ok(None);
    }
    let path = &config.ledger.path;
    if let Some(directory) = path.parent() {
        // Opening says what is wrong with the directory, with the path of the ledger.
        let _ = std::fs::create_dir_all(directory);
    }
    Ok(Some(Ledger::open(path, &opening(config, host, clock))?))
}

/// Starts the thread.
pub(super) fn start(
    ledger: Ledger,
    status: Arc<LedgerStatus>,
    shared: &Arc<Shared>,
) -> Result<Running, StartError> {
    let queue = Arc::new(Queue::default());
    let path = ledger.path().to_path_buf();
    let (queue_by_thread, status_by_thread) = (Arc::clone(&queue), Arc::clone(&status));
    let shared = Arc::clone(shared);
    let thread = Thread::start("ledger", move || keep(ledger, &queue_by_thread, &status_by_thread, &shared))?;
    Ok(Running { path, queue, status, thread })
}

fn keep(mut ledger: Ledger, queue: &Queue, status: &LedgerStatus, shared: &Shared) {
    const PATIENCE: Duration = Duration::from_millis(100);
    loop {
        // Read before taking: what was offered before the call is still taken.
        let stopping = shared.stop.is_called();
        match queue.take(PATIENCE) {
            Some(batch) => match ledger.commit(&batch) {
                Ok(acknowledged) => {
                    let now = shared.clock.now().utc.0;
                    status.last_commit.store(now, Ordering::Relaxed);
                    status.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(acknowledged);
                }
                Err(error) => refused(&error, batch, queue, status, shared),
            },
            None if stopping => return,
            None => {}
        }
    }
}

/// Keeps what could not be committed and tries again.
fn refused(
    error: &Error,
    batch: crate::ledger::Batch,
    queue: &Queue,
    status: &LedgerStatus,
    shared: &Shared,
) {
    status.errors.fetch_add(1, Ordering::Relaxed);
    if !error.may_pass() {
        // A refusal stays one, however often it is asked; the next start goes on from what is committed.
        tracing::error!(%error, "the ledger refused a commit");
        return;
    }
    tracing::error!(%error, "a commit failed; it is kept and tried again");
    queue.put_back(batch);
    shared.stop.wait(Duration::from_secs(1));
}
