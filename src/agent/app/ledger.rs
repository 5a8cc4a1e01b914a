//! The ledger thread: commits what is queued, acknowledges it, and records steps of the wall clock.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use parking_lot::Mutex;

use super::{Shared, StartError};
use crate::accounting::batches::{Acknowledged, LedgerBatch, Recovered};
use crate::accounting::ledger::{Cause, Error, Ledger, LedgerQueue, Opening, PendingOrder, Retention};
use crate::accounting::tenants::Decision;
use crate::agent::policy::{AgentPolicy, node_identity};
use crate::config::{Config, RetentionConfig};
use crate::model::{HowHeld, NodeIdentity, Stamp, Utc};
use crate::runtime::clock::{Stop, system_zone};
use crate::runtime::thread::Thread;
use crate::runtime::trace;

#[derive(Default)]
pub(super) struct LedgerChannel {
    pub(super) queue: LedgerQueue,
    /// Whether the file system of the ledger survives a restart of the node; set when the ledger is opened.
    durable: OnceLock<bool>,
    /// The state of the account in a ledger that was opened after the start, until the tick loop takes it.
    opened_late: Mutex<Option<Box<Recovered>>>,
    awaits_clock: AtomicBool,
    errors: AtomicU64,
    /// GPU time of missing windows, in nanoseconds.
    unobserved: AtomicU64,
    /// UTC of the last commit in nanoseconds, 0 before the first.
    last_commit: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
    tick: Mutex<Option<SpanContext>>,
}

impl LedgerChannel {
    pub(super) fn offer(&self, batch: LedgerBatch, tick: SpanContext) {
        *self.tick.lock() = Some(tick);
        self.queue.offer(batch);
    }

    /// Whether the file system of the ledger survives a restart of the node; absent while the ledger is not open.
    pub(super) fn durable(&self) -> Option<bool> {
        self.durable.get().copied()
    }

    /// The state of the account in a ledger that was opened after the start; returned once.
    pub(super) fn take_opened_late(&self) -> Option<Box<Recovered>> {
        self.opened_late.lock().take()
    }

    /// Whether the ledger is not opened yet because the wall clock cannot be trusted since the boot.
    pub(super) fn awaits_clock(&self) -> bool {
        self.awaits_clock.load(Ordering::Relaxed)
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn unobserved(&self) -> u64 {
        self.unobserved.load(Ordering::Relaxed)
    }

    pub(super) fn last_commit(&self) -> Option<u64> {
        Some(self.last_commit.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    pub(super) fn take_acknowledged(&self) -> Vec<Acknowledged> {
        std::mem::take(&mut self.acknowledged.lock())
    }

    fn set_durable(&self, durable: bool) {
        // It is set once, because the ledger is opened once.
        let _ = self.durable.set(durable);
    }

    fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed attempt to open the ledger, and logs the reason if it is a new one. To wait for the clock is no failure.
    fn note_open_error(&self, error: &Error, shared: &Shared) {
        let awaits_clock = matches!(error.cause, Cause::ClockNotSet);
        self.awaits_clock.store(awaits_clock, Ordering::Relaxed);
        if !awaits_clock {
            self.count_error();
        }
        let reason = Some(error.to_string());
        let mut no_account = shared.status.no_account.lock();
        if *no_account != reason {
            if awaits_clock {
                tracing::warn!(
                    "{}; the time until then is __unobserved__, and a new account begins then",
                    error.cause
                );
            } else {
                tracing::error!(%error, "the ledger cannot be opened: usage is not billed until it can; retrying every 5 s");
            }
            *no_account = reason;
        }
    }

    fn acknowledge(&self, acknowledged: Acknowledged, now: Utc) {
        self.last_commit.store(now.0, Ordering::Relaxed);
        self.unobserved.fetch_add(acknowledged.unobserved.0, Ordering::Relaxed);
        self.acknowledged.lock().push(acknowledged);
    }
}

pub(super) struct RunningLedger {
    pub(super) path: PathBuf,
    pub(super) statements: mpsc::Sender<PendingOrder>,
    pub(super) channel: Arc<LedgerChannel>,
    thread: Thread,
}

impl RunningLedger {
    /// Waits until everything that is queued is on disk.
    pub(super) fn close(self, timeout: Duration) {
        self.channel.queue.close();
        if !self.thread.wait(timeout) {
            tracing::error!("the ledger did not close in time; at most the last tick is lost");
        }
    }
}

/// Opens the ledger of the configuration. Only the default directory is ever created: if another one is missing, a
/// filesystem may not be mounted, and a second ledger would bill twice.
fn open(policy: &AgentPolicy, shared: &Shared) -> Result<(Ledger, Recovered), Error> {
    let path = &policy.config.ledger.path;
    if let Some(directory) = path.parent().filter(|_| *path == Config::default().ledger.path) {
        create_directory(directory);
    }
    let opening = Opening {
        boot_id: shared.host.boot_id().unwrap_or_default(),
        now: shared.clock.now(),
        unsynchronised: !shared.clock_is_synchronised(),
        book: policy.book().clone(),
        tenant_rules: policy.tenant_rules(),
        node: NodeIdentity {
            simulated: shared.simulated.load(Ordering::Relaxed),
            ..node_identity(&policy.config, &shared.node.name)
        },
        zone: Some(policy.config.billing.time_zone.clone().unwrap_or_else(system_zone)),
        machine_id: shared.host.machine_id(),
    };
    let (ledger, recovered) = Ledger::open(path, &opening)?;
    log_opened(&ledger, &recovered);
    if recovered.has_scheduled {
        // The caller logs how GPUs are held.
        let _ = shared.policy.find_scheduler();
    }
    shared.host.users().remember(recovered.users.iter().cloned());
    Ok((ledger, recovered))
}

/// Creates a directory that is closed to other users; if that fails, opening the ledger reports it.
fn create_directory(directory: &Path) {
    let _ = DirBuilder::new().recursive(true).mode(0o750).create(directory);
}

fn log_opened(ledger: &Ledger, recovered: &Recovered) {
    let last_commit = if recovered.gpus.is_empty() {
        "none: no GPU has an account in it yet".to_owned()
    } else {
        recovered.last_commit.to_string()
    };
    tracing::info!(
        path = %ledger.path().display(),
        last_commit,
        gpus = recovered.gpus.len(),
        durable = recovered.durable,
        "ledger opened"
    );
    if let Some(copy) = &recovered.upgraded_from {
        tracing::info!(
            copy = %copy.display(),
            "the schema of the ledger was upgraded; to return to an earlier release use gpumeter ledger restore"
        );
    }
}

/// Opens the ledger and starts its thread, if the ledger is enabled. If it cannot be opened now, the thread tries again,
/// and the agent serves without an account until then.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(Option<RunningLedger>, Option<Recovered>), StartError> {
    let policy = shared.policy.now();
    if !policy.config.ledger.enabled {
        *shared.status.no_account.lock() = Some("ledger.enabled is false".into());
        return Ok((None, None));
    }
    let channel = Arc::new(LedgerChannel::default());
    let (ledger, recovered) = match open(&policy, shared) {
        Ok((ledger, recovered)) => {
            channel.set_durable(recovered.durable);
            (Some(ledger), Some(recovered))
        }
        Err(error) if error.is_wrong_ledger() => return Err(error.into()),
        Err(error) => {
            channel.note_open_error(&error, shared);
            (None, None)
        }
    };
    let path =
        ledger.as_ref().map_or_else(|| policy.config.ledger.path.clone(), |it| it.path().to_path_buf());
    let (statements, orders) = mpsc::channel();
    let run = {
        let (channel, shared) = (Arc::clone(&channel), Arc::clone(shared));
        // The ledger was opened with these prices and tenant rules; reloads come later.
        let recorded = policy.decisions.len();
        move || {
            let opened = ledger.map(|ledger| (ledger, recorded));
            if let Some((ledger, recorded)) = opened.or_else(|| open_later(&channel, &shared)) {
                let writer = LedgerWriter {
                    ledger,
                    recorded,
                    channel: &channel,
                    how_held: None,
                    knows_month: false,
                    retains: true,
                };
                writer.run(&shared, &orders);
            }
        }
    };
    let thread = Thread::start_vital("ledger", &shared.vital, run)?;
    Ok((Some(RunningLedger { path, statements, channel, thread }), recovered))
}

/// Tries to open the ledger until it succeeds or the agent stops; also returns how many decisions it was opened with.
fn open_later(channel: &LedgerChannel, shared: &Shared) -> Option<(Ledger, usize)> {
    const RETRY_INTERVAL: Duration = Duration::from_secs(5);
    while !shared.stop.wait(RETRY_INTERVAL) {
        let policy = shared.policy.now();
        match open(&policy, shared) {
            Ok((ledger, recovered)) => {
                tracing::info!("the ledger is open now; usage is billed from here on");
                let how_held = shared.policy.now().how_held();
                if how_held != policy.how_held() {
                    super::log_how_held(how_held);
                }
                channel.awaits_clock.store(false, Ordering::Relaxed);
                channel.set_durable(recovered.durable);
                *channel.opened_late.lock() = Some(Box::new(recovered));
                *shared.status.no_account.lock() = None;
                return Some((ledger, policy.decisions.len()));
            }
            Err(error) => channel.note_open_error(&error, shared),
        }
    }
    None
}

/// Waits before another attempt; while the agent stops the wait is short, but not zero, as each attempt logs a line.
fn wait_for_retry(stop: &Stop) {
    if stop.wait(Duration::from_secs(1)) {
        Stop::default().wait(Duration::from_millis(100));
    }
}

struct LedgerWriter<'a> {
    ledger: Ledger,
    recorded: usize,
    channel: &'a LedgerChannel,
    how_held: Option<HowHeld>,
    knows_month: bool,
    /// Whether old rows may wait to be summed up or deleted.
    retains: bool,
}

impl LedgerWriter<'_> {
    /// Writes until the agent has stopped and the queue is empty.
    fn run(mut self, shared: &Shared, orders: &mpsc::Receiver<PendingOrder>) {
        const BATCH_TIMEOUT: Duration = Duration::from_secs(1);
        // Between two steps of retention, so that a long backlog takes a small share of a processor.
        const STEP_INTERVAL: Duration = Duration::from_millis(50);
        loop {
            // Read before the batch is taken, so that everything queued before the stop is written.
            let is_stopping = shared.stop.is_called();
            if !self.store_decisions(&shared.policy.now().decisions) {
                wait_for_retry(&shared.stop);
                if !is_stopping {
                    // No minute is settled before its price and its tenant rules are stored.
                    continue;
                }
            }
            self.store_how_held(shared.policy.now().how_held());
            for PendingOrder { order, reply } in orders.try_iter() {
                // The client may have left.
                let _ = reply.send(self.ledger.record_statement(&order).map_err(|error| error.to_string()));
            }
            let timeout = if self.retains { STEP_INTERVAL } else { BATCH_TIMEOUT };
            let Some(batch) = self.channel.queue.wait_for_batch(timeout) else {
                if is_stopping {
                    return;
                }
                if self.retains {
                    self.retain(&shared.policy.now().config);
                }
                continue;
            };
            // Time that is settled makes other rows old.
            self.retains |= !batch.closed.is_empty();
            if !self.commit(batch, &|| shared.clock.now()) {
                wait_for_retry(&shared.stop);
            }
        }
    }

    /// Stores how GPUs are held where that has changed. After a failure, which is logged, the next start stores it.
    fn store_how_held(&mut self, how_held: HowHeld) {
        if self.how_held.replace(how_held) == Some(how_held) {
            return;
        }
        if let Err(error) = self.ledger.record_how_held(how_held) {
            self.channel.count_error();
            tracing::error!(%error, "bills do not say how GPUs are held");
        }
    }

    /// Stores the prices and tenant rules of reloads, each in force from the time of its reload; false if the disk prevents
    /// it. What is already stored is not stored again.
    fn store_decisions(&mut self, decisions: &[Decision]) -> bool {
        for decision in decisions.iter().skip(self.recorded) {
            match self.ledger.decide(decision) {
                Ok(()) => tracing::info!(
                    "the new prices and tenant rules are recorded: from the next quarter hour on, or from their `from`"
                ),
                Err(error) => {
                    self.channel.count_error();
                    if error.may_pass() {
                        tracing::error!(%error, "the new prices and tenant rules could not be stored yet; retrying");
                        return false;
                    }
                    tracing::error!(
                        %error,
                        "the new prices and tenant rules were rejected by the ledger; bills keep the old ones"
                    );
                }
            }
            self.recorded += 1;
        }
        true
    }

    /// Takes a step of retention; after a failure the next window that closes brings another attempt.
    fn retain(&mut self, config: &Config) {
        let RetentionConfig { minutes, quarter_hours } = config.ledger.retention;
        self.retains = self.ledger.retain(Retention { minutes, quarter_hours }).unwrap_or_else(|error| {
            self.channel.count_error();
            tracing::error!(%error, "old minutes could not be summed up or deleted; trying again");
            false
        });
    }

    /// Commits a batch; false if the disk prevents it, and then the batch is queued again.
    fn commit(&mut self, batch: LedgerBatch, now: &dyn Fn() -> Stamp) -> bool {
        let tick = self.channel.tick.lock().take();
        let _span = trace::begin_child("commit", &tick.unwrap_or(SpanContext::NONE));
        match self.ledger.commit(&batch) {
            Ok(acknowledged) => {
                let acknowledged = self.with_month(acknowledged);
                let now = now();
                self.channel.acknowledge(acknowledged, now.utc);
                self.watch_clock(now);
                true
            }
            Err(error) if error.may_pass() => {
                self.channel.queue.put_back(batch);
                self.note_retry(&error)
            }
            Err(error) => {
                // Trying the same batch again would not help; only the refused part is dropped.
                tracing::warn!(%error, "the ledger rejected a batch; writing it again one GPU at a time");
                self.salvage(batch, now)
            }
        }
    }

    /// Commits a refused batch GPU by GPU.
    fn salvage(&mut self, batch: LedgerBatch, now: &dyn Fn() -> Stamp) -> bool {
        let salvage = self.ledger.commit_by_gpu(batch);
        for acknowledged in salvage.acknowledged {
            let acknowledged = self.with_month(acknowledged);
            self.channel.acknowledge(acknowledged, now().utc);
        }
        for (gpu, error) in &salvage.dropped {
            self.channel.count_error();
            tracing::error!(%gpu, %error, "a part of this GPU's usage was rejected by the ledger and is lost");
        }
        for part in salvage.unfinished {
            self.channel.queue.put_back(part);
        }
        salvage.prevented.is_none_or(|error| self.note_retry(&error))
    }

    /// Adds what tenants are charged in the month so far; a failure leaves it out until the next window closes.
    fn with_month(&mut self, mut acknowledged: Acknowledged) -> Acknowledged {
        if self.knows_month && acknowledged.slots.is_empty() {
            return acknowledged;
        }
        self.knows_month = true;
        match self.ledger.month_costs() {
            Ok(month) => acknowledged.month = month,
            Err(error) => {
                self.channel.count_error();
                tracing::error!(%error, "the costs of the month are not known; gpu_tenant_cost_month_to_date is left out");
            }
        }
        acknowledged
    }

    fn note_retry(&self, error: &Error) -> bool {
        self.channel.count_error();
        tracing::error!(%error, "writing to the ledger failed; the data is kept in memory and retried");
        false
    }

    /// Records a step of the wall clock; called after commits only, so that a full disk does not log twice per second.
    fn watch_clock(&mut self, now: Stamp) {
        match self.ledger.watch_clock(now) {
            Ok(None) => {}
            Ok(Some(lead)) => {
                tracing::warn!(
                    seconds = lead / 1_000_000_000,
                    "the wall clock was changed; bills keep using the old time. `seconds` = wall clock minus bill time \
                     (negative: the wall clock is behind)"
                );
            }
            Err(error) => {
                self.channel.count_error();
                tracing::error!(%error, "a step of the clock was not recorded");
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::accounting::batches::{ClosedWindow, GpuRegistration};
    use crate::model::{GpuId, Nanoseconds, Settlement};

    fn window(gpu: &str, from: u64, to: u64) -> ClosedWindow {
        let (rows, carry, weights, flags) = Default::default();
        let settlement =
            Settlement { from: Utc(from), to: Utc(to), rows, carry, weights, flags, ..Settlement::default() };
        ClosedWindow { gpu: gpu.into(), settlement, coarse: false }
    }

    #[test]
    fn the_created_directory_of_the_ledger_is_closed_to_other_users() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("gpumeter");
        create_directory(&made);
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o007, 0);
    }

    #[test]
    fn a_refusal_is_counted_and_the_other_gpus_account_and_the_clock_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let mut now = Stamp { boottime: Nanoseconds(5_000_000_000), utc: Utc(1_000_000_000_000) };
        let opening = Opening { boot_id: "boot".into(), now, ..Opening::default() };
        let (ledger, _) = Ledger::open(&directory.path().join("ledger.db"), &opening).unwrap();
        let channel = LedgerChannel::default();
        let mut writer = LedgerWriter {
            ledger,
            recorded: 0,
            channel: &channel,
            how_held: None,
            knows_month: false,
            retains: true,
        };
        let sights = ["GPU-0", "GPU-1"].map(|uuid| GpuRegistration {
            gpu: GpuId { index: 0, uuid: uuid.into() },
            model: "".into(),
            memory: None,
            at: Utc(10),
        });
        let closed = vec![window("GPU-0", 5, 20), window("GPU-1", 10, 20)];
        let batch =
            LedgerBatch { now: Utc(20), registrations: sights.into(), closed, ..LedgerBatch::default() };
        assert!(writer.commit(batch, &|| now));
        assert_eq!((channel.errors(), channel.unobserved()), (1, 0));
        assert_eq!(channel.queue.wait_for_batch(Duration::ZERO), None, "a refusal is not kept");
        let settled: Vec<_> =
            channel.take_acknowledged().into_iter().flat_map(|one| one.slots.into_keys()).collect();
        assert_eq!(settled, ["GPU-1".into()]);
        now.utc = Utc(now.utc.0 + 3_000_000_000);
        let batch = LedgerBatch { closed: vec![window("GPU-0", 20, 30)], ..LedgerBatch::default() };
        assert!(writer.commit(batch, &|| now));
        assert_eq!((channel.errors(), channel.unobserved()), (1, 10));
        assert_eq!(writer.ledger.watch_clock(now).unwrap(), None, "the step is recorded already");
    }
}
