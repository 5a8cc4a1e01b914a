//! The export thread: writes the closed account into a directory, a file per day, and tries again for ever where it cannot.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::ledger::{LedgerChannel, RunningLedger};
use super::{Shared, StartError};
use crate::accounting::day_files::{ExportDirectory, write_days};
use crate::accounting::ledger::Reader;
use crate::model::Nanoseconds;
use crate::runtime::thread::Thread;

/// The longest pause before a failed pass is repeated.
const RETRY_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(30);

pub(super) struct RunningExports {
    pub(super) state: Arc<ExportState>,
    thread: Thread,
    ledger_closed: mpsc::Sender<()>,
    on_stop: Duration,
}

/// The state of exports that the tick loop publishes.
#[derive(Debug, Default)]
pub(super) struct ExportState {
    /// Time since boot at which everything closed was exported, in nanoseconds.
    complete: AtomicU64,
}

impl ExportState {
    /// How long ago everything closed was exported; at first, how long ago the agent started.
    pub(super) fn age(&self, now: Nanoseconds) -> Nanoseconds {
        Nanoseconds(now.0.saturating_sub(self.complete.load(Ordering::Relaxed)))
    }
}

impl RunningExports {
    /// Writes what the closed ledger has, for at most the configured time.
    pub(super) fn close(self) {
        // Fails where the thread has ended.
        let _ = self.ledger_closed.send(());
        if !self.thread.wait(self.on_stop) {
            tracing::warn!(
                "the last exports were not written in time (ledger.export.on_stop); the next start writes them"
            );
        }
    }
}

/// Starts the thread, if a directory is configured and there is a ledger.
pub(super) fn start(
    ledger: Option<&RunningLedger>,
    shared: &Arc<Shared>,
) -> Result<Option<RunningExports>, StartError> {
    let config = &shared.policy.now().config.ledger.export;
    let (Some(ledger), Some(directory)) = (ledger, &config.directory) else { return Ok(None) };
    let state = Arc::new(ExportState::default());
    state.complete.store(shared.clock.now().boottime.0, Ordering::Relaxed);
    let (ledger_closed, is_closed) = mpsc::channel();
    let mut writer = ExportWriter {
        ledger: ledger.path.clone(),
        channel: Arc::clone(&ledger.channel),
        directory: directory.clone(),
        state: Arc::clone(&state),
        shared: Arc::clone(shared),
        last_error: None,
    };
    let interval = config.interval;
    let thread = Thread::start("exports", move || {
        writer.run(interval);
        // The last commit comes after the stop.
        if is_closed.recv().is_ok() {
            writer.write_all(false);
        }
    })?;
    Ok(Some(RunningExports { state, thread, ledger_closed, on_stop: Duration::from_nanos(config.on_stop.0) }))
}

struct ExportWriter {
    ledger: PathBuf,
    channel: Arc<LedgerChannel>,
    directory: PathBuf,
    state: Arc<ExportState>,
    shared: Arc<Shared>,
    last_error: Option<String>,
}

impl ExportWriter {
    fn run(&mut self, interval: Nanoseconds) {
        loop {
            let wait = if self.write_all(true) { interval } else { interval.min(RETRY_INTERVAL) };
            if self.shared.stop.wait(Duration::from_nanos(wait.0)) {
                return;
            }
        }
    }

    /// Writes all days that differ from their files; false where that failed. Between two files it ends where the agent stops
    /// and `is_interruptible`.
    fn write_all(&mut self, is_interruptible: bool) -> bool {
        let begun = self.shared.clock.now().boottime;
        match self.write_days(is_interruptible) {
            Ok(written) => {
                if self.last_error.take().is_some() {
                    tracing::info!(files = written, "exports are written again");
                }
                self.state.complete.store(begun.0, Ordering::Relaxed);
                true
            }
            Err(problem) => {
                if self.last_error.as_ref() != Some(&problem) {
                    tracing::error!(
                        error = problem,
                        directory = %self.directory.display(),
                        "exports cannot be written; the account goes on, and they are written once that is possible"
                    );
                    self.last_error = Some(problem);
                }
                false
            }
        }
    }

    fn write_days(&self, is_interruptible: bool) -> Result<usize, String> {
        if self.channel.durable().is_none() {
            return Err("the ledger is not open yet".to_owned());
        }
        let is_stopped = || is_interruptible && self.shared.stop.is_called();
        let mut reader = Reader::open(&self.ledger).map_err(|error| error.to_string())?;
        write_days(&mut reader, ExportDirectory(&self.directory), is_stopped)
            .map_err(|error| error.to_string())
    }
}
