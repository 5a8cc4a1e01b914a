//! The ledger thread: takes what waits, commits it, acknowledges, and watches the wall clock.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, start_log};
use crate::clock::Stop;
use crate::config::Config;
use crate::ledger::{
    Acknowledged, Error, Ledger, LedgerBatch, LedgerQueue, NodeIdentity, Opening, Recovered,
};
use crate::model::{Stamp, Utc};
use crate::policy::{ActiveConfig, Charge};
use crate::thread::Thread;

/// State of the ledger, which the tick loop publishes.
#[derive(Debug, Default)]
pub(super) struct LedgerStatus {
    /// Whether its file system survives a restart of the node; not known before the ledger is open.
    durable: OnceLock<bool>,
    /// Where the account stands, of a ledger that was opened after the start, until the tick loop takes it.
    opened_late: Mutex<Option<Box<Recovered>>>,
    errors: AtomicU64,
    /// GPU time of windows that never came, in nanoseconds.
    unobserved: AtomicU64,
    /// UTC of the last commit in nanoseconds, 0 before the first.
    last_commit: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl LedgerStatus {
    /// The status of a ledger that was just opened.
    pub(super) fn opened(durable: bool) -> Self {
        let status = Self::default();
        let _ = status.durable.set(durable);
        status
    }

    /// Whether its file system survives a restart of the node; none while the ledger is not open.
    pub(super) fn durable(&self) -> Option<bool> {
        self.durable.get().copied()
    }

    /// Where the account stands, once, of a ledger that was opened after the start.
    pub(super) fn take_opened_late(&self) -> Option<Box<Recovered>> {
        self.opened_late.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn unobserved(&self) -> u64 {
        self.unobserved.load(Ordering::Relaxed)
    }

    /// Counts a ledger that could not be opened, and logs the reason when it is another one.
    fn not_opened(&self, error: &Error, shared: &Shared) {
        self.failed();
        let reason = Some(error.to_string());
        if shared.no_account.reason() != reason {
            tracing::error!(%error, "no account is kept until the ledger can be opened; trying again every 5 s");
            shared.no_account.set(reason);
        }
    }

    fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    fn committed(&self, acknowledged: Acknowledged, now: Utc) {
        self.last_commit.store(now.0, Ordering::Relaxed);
        self.unobserved.fetch_add(acknowledged.unobserved.0, Ordering::Relaxed);
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(acknowledged);
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
pub(super) struct RunningLedger {
    pub(super) path: PathBuf,
    pub(super) queue: Arc<LedgerQueue>,
    pub(super) status: Arc<LedgerStatus>,
    thread: Thread,
}

impl RunningLedger {
    /// Waits until what was queued is on disk.
    pub(super) fn close(self, longest: Duration) {
        self.queue.close();
        if !self.thread.wait(longest) {
            tracing::error!("the ledger did not close in time; at most the last tick is lost");
        }
    }
}

/// Opens the ledger as the configuration says. Only the default directory is ever made: in place of another one
/// a mount may be missing, and a second ledger would bill twice.
fn open(active: &ActiveConfig, shared: &Shared) -> Result<(Ledger, Recovered), Error> {
    let path = &active.config.ledger.path;
    if let Some(directory) = path.parent().filter(|_| *path == Config::default().ledger.path) {
        make_directory(directory);
    }
    let node = &active.config.node;
    let opening = Opening {
        boot_id: shared.host.boot_id().unwrap_or_default(),
        now: shared.clock.now(),
        unsynchronised: !shared.clock_is_synchronised(),
        book: active.book().cloned(),
        node: NodeIdentity {
            name: shared.node.name.to_string(),
            cluster: node.cluster.clone(),
            simulated: shared.simulated.load(Ordering::Relaxed),
        },
    };
    let (ledger, recovered) = Ledger::open(path, &opening)?;
    start_log::ledger(&ledger, &recovered);
    shared.host.users().remember(recovered.users.iter().cloned());
    Ok((ledger, recovered))
}

/// Makes a directory that is closed to other users. Opening the ledger says what is wrong with it.
fn make_directory(directory: &Path) {
    let _ = DirBuilder::new().recursive(true).mode(0o750).create(directory);
}

/// Opens the ledger and starts its thread, unless there is to be none. One that cannot be opened now is tried again
/// by the thread, and the agent serves without an account until then.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(Option<RunningLedger>, Option<Recovered>), StartError> {
    let active = shared.config.active();
    if !active.config.ledger.enabled {
        shared.no_account.set(Some("ledger.enabled is false".into()));
        return Ok((None, None));
    }
    let queue = Arc::new(LedgerQueue::default());
    let (ledger, recovered, status) = match open(&active, shared) {
        Ok((ledger, recovered)) => {
            let status = LedgerStatus::opened(recovered.durable);
            (Some(ledger), Some(recovered), status)
        }
        Err(error) if error.is_wrong_ledger() => return Err(error.into()),
        Err(error) => {
            let status = LedgerStatus::default();
            status.not_opened(&error, shared);
            (None, None, status)
        }
    };
    let path =
        ledger.as_ref().map_or_else(|| active.config.ledger.path.clone(), |it| it.path().to_path_buf());
    let status = Arc::new(status);
    let (queue_by_thread, status_by_thread) = (Arc::clone(&queue), Arc::clone(&status));
    let theirs = Arc::clone(shared);
    // With these it was opened; reloads come later.
    let prices = ChargedPrices { followed: active.charges.len() };
    let run = move || {
        let opened = ledger.map(|ledger| (ledger, prices));
        if let Some((ledger, prices)) = opened.or_else(|| open_later(&status_by_thread, &theirs)) {
            keep(ledger, prices, (&queue_by_thread, &status_by_thread), &theirs);
        }
    };
    let thread = Thread::start_vital("ledger", shared.ends(), run)?;
    Ok((Some(RunningLedger { path, queue, status, thread }), recovered))
}

/// Tries to open the ledger until it can be opened; none where the agent stops before.
fn open_later(status: &LedgerStatus, shared: &Shared) -> Option<(Ledger, ChargedPrices)> {
    const EVERY: Duration = Duration::from_secs(5);
    loop {
        if shared.stop.wait(EVERY) {
            return None;
        }
        let active = shared.config.active();
        match open(&active, shared) {
            Ok((ledger, recovered)) => {
                tracing::info!("the ledger is open now; the account begins");
                let _ = status.durable.set(recovered.durable);
                *status.opened_late.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Box::new(recovered));
                shared.no_account.set(None);
                return Some((ledger, ChargedPrices { followed: active.charges.len() }));
            }
            Err(error) => status.not_opened(&error, shared),
        }
    }
}

fn keep(
    mut ledger: Ledger,
    mut prices: ChargedPrices,
    (queue, status): (&LedgerQueue, &LedgerStatus),
    shared: &Shared,
) {
    const PATIENCE: Duration = Duration::from_secs(1);
    loop {
        // Read before taking: what was offered before the call is still taken.
        let stopping = shared.stop.is_called();
        if !prices.follow(&shared.config.active().charges, &mut ledger, status) {
            rest(&shared.stop);
            if !stopping {
                // A minute that is settled keeps its price: none is, before its price is stored.
                continue;
            }
        }
        let Some(batch) = queue.wait_for_batch(PATIENCE) else {
            if stopping {
                return;
            }
            continue;
        };
        if !commit(&mut ledger, batch, (queue, status), &|| shared.clock.now()) {
            rest(&shared.stop);
        }
    }
}

/// Before the next try. While the agent stops the time is short, and a try costs a line of the log all the same.
fn rest(stop: &Stop) {
    if stop.wait(Duration::from_secs(1)) {
        Stop::default().wait(Duration::from_millis(100));
    }
}

/// What the ledger charges.
struct ChargedPrices {
    /// How many changes it has followed.
    followed: usize,
}

impl ChargedPrices {
    /// Charges what reloads have put in force, each from when it was decided on; false where the disk prevents it.
    fn follow(&mut self, charges: &[Charge], ledger: &mut Ledger, status: &LedgerStatus) -> bool {
        for Charge { book, decided } in charges.iter().skip(self.followed) {
            match ledger.reprice(book.as_ref(), *decided) {
                Ok(()) if ledger.has_waiting_prices() => tracing::info!(
                    "the new prices hold from the next minute on; they are stored once the clock is synchronised"
                ),
                Ok(()) => tracing::info!("the new prices hold from the next minute on"),
                Err(error) => {
                    status.failed();
                    tracing::error!(%error, "the new prices were not stored");
                    if error.may_pass() {
                        return false;
                    }
                }
            }
            self.followed += 1;
        }
        true
    }
}

/// Commits a batch; false where the disk prevents it, and what it prevents is kept for the next try.
fn commit(
    ledger: &mut Ledger,
    batch: LedgerBatch,
    (queue, status): (&LedgerQueue, &LedgerStatus),
    now: &dyn Fn() -> Stamp,
) -> bool {
    match ledger.commit(&batch) {
        Ok(acknowledged) => {
            let now = now();
            status.committed(acknowledged, now.utc);
            watch_clock(ledger, status, now);
            true
        }
        Err(error) if error.may_pass() => {
            status.failed();
            tracing::error!(%error, "a commit failed; it is kept and tried again");
            queue.put_back(batch);
            false
        }
        Err(error) => {
            // A refusal stays one, however often it is asked: what is guilty is dropped, and no more.
            tracing::warn!(%error, "the ledger refused a commit; it is tried GPU by GPU");
            salvage(ledger, batch, (queue, status), now)
        }
    }
}

fn salvage(
    ledger: &mut Ledger,
    batch: LedgerBatch,
    (queue, status): (&LedgerQueue, &LedgerStatus),
    now: &dyn Fn() -> Stamp,
) -> bool {
    let salvage = ledger.commit_by_gpu(batch);
    for acknowledged in salvage.acknowledged {
        status.committed(acknowledged, now().utc);
    }
    for (gpu, error) in &salvage.dropped {
        status.failed();
        tracing::error!(%gpu, %error, "a part of this GPU's account was refused and is dropped");
    }
    for part in salvage.unfinished {
        queue.put_back(part);
    }
    let Some(error) = salvage.prevented else { return true };
    status.failed();
    tracing::error!(%error, "a commit failed; it is kept and tried again");
    false
}

/// After a commit, so that a disk that is full does not log twice a second.
fn watch_clock(ledger: &mut Ledger, status: &LedgerStatus, now: Stamp) {
    match ledger.watch_clock(now) {
        Ok(None) => {}
        Ok(Some(lead)) => {
            tracing::warn!(
                seconds = lead / 1_000_000_000,
                "the wall clock stepped; the account's time did not, and is so far ahead of it"
            );
        }
        Err(error) => {
            status.failed();
            tracing::error!(%error, "a step of the clock was not recorded");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ledger::{AccountTimeline, ClosedWindow, GpuRegistration};
    use crate::model::{Amounts, GpuId, HolderId, Nanoseconds, Parts, Row, Settlement};

    fn window(gpu: &str, from: u64, to: u64) -> ClosedWindow {
        let (rows, carry, weights, flags) = Default::default();
        let settlement = Settlement { from: Utc(from), to: Utc(to), rows, carry, weights, flags };
        ClosedWindow { gpu: gpu.into(), settlement, coarse: false }
    }

    const MINUTE: u64 = 60_000_000_000;

    /// Account time is a minute ahead of time since boot.
    const STARTED: Stamp = Stamp { boottime: Nanoseconds(0), utc: Utc(MINUTE) };

    /// What the page shows after these prices were put in force at these times since boot, in nanoseconds.
    fn reloaded(changes: &[(u64, &str)]) -> ActiveConfig {
        let config = |price: &str| {
            let text = format!("prices: {{currency: USD, rates: [{{gpu_hour: {price}}}]}}");
            crate::config::Config::parse(&text, "test").unwrap()
        };
        let first = ActiveConfig::new(config("1"));
        let timeline = AccountTimeline::starting(STARTED);
        let succeed = |before: ActiveConfig, (decided, price): &(u64, &str)| {
            before.replaced_by(config(price), Nanoseconds(*decided)).dated_by(timeline)
        };
        changes.iter().fold(first, succeed)
    }

    #[test]
    fn page_and_ledger_charge_a_new_price_from_the_same_minute_on_however_late_the_ledger_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        // The second and the third come before the ledger has looked.
        let reloads = [(9 * MINUTE - 1, "2"), (9 * MINUTE + 1, "3"), (10 * MINUTE - 1, "4")];
        let book = reloaded(&[]).book().cloned();
        let opened = Opening { boot_id: "boot".into(), now: STARTED, book, ..Opening::default() };
        let (mut ledger, _) = Ledger::open(&path, &opened).unwrap();
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let sights = vec![GpuRegistration { gpu, model: "".into(), at: Utc(MINUTE) }];
        let mut whole = window("GPU-0", MINUTE, 9 * MINUTE);
        let parts = Parts { waste: 8 * MINUTE, ..Parts::default() };
        let amounts = Amounts { parts, ..Amounts::default() };
        whole.settlement.rows = vec![Row { amounts, ..Row::empty(HolderId::new(HolderId::UNALLOCATED)) }];
        let closed = vec![whole];
        ledger
            .commit(&LedgerBatch {
                now: Utc(9 * MINUTE),
                registrations: sights,
                closed,
                ..LedgerBatch::default()
            })
            .unwrap();
        let active = reloaded(&reloads);
        let mut prices = ChargedPrices { followed: 1 };
        assert!(prices.follow(&active.charges[..2], &mut ledger, &LedgerStatus::opened(true)));
        assert!(prices.follow(&active.charges, &mut ledger, &LedgerStatus::opened(true)));
        let stored = rusqlite::Connection::open(&path).unwrap();
        let mut statement =
            stored.prepare("SELECT from_ns, nano_per_gpu_hour FROM price ORDER BY from_ns").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))).unwrap();
        let charged: Vec<(u64, i128)> =
            rows.map(Result::unwrap).map(|(from, price)| (from.unsigned_abs(), price.into())).collect();
        let shown = |minute: u64| active.policy.prices.iter().rfind(|(from, _)| from.0 <= minute * MINUTE);
        let shown: Vec<(u64, i128)> = [0, 10, 11]
            .map(|minute| {
                shown(minute).map(|(from, price)| (from.0, price.clone().unwrap().nano_per_gpu_hour))
            })
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(charged, shown);
        assert_eq!(charged.last(), Some(&(11 * MINUTE, 4_000_000_000)));
    }

    #[test]
    fn a_directory_that_the_agent_makes_for_the_ledger_is_closed_to_other_users() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("gpumeter");
        make_directory(&made);
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o007, 0);
    }

    #[test]
    fn a_refusal_is_counted_and_the_other_gpus_account_and_the_clock_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let mut now = Stamp { boottime: Nanoseconds(5_000_000_000), utc: Utc(1_000_000_000_000) };
        let opening = Opening { boot_id: "boot".into(), now, ..Opening::default() };
        let (mut ledger, _) = Ledger::open(&directory.path().join("ledger.db"), &opening).unwrap();
        let (queue, status) = (LedgerQueue::default(), LedgerStatus::opened(true));
        let sights = ["GPU-0", "GPU-1"].map(|uuid| GpuRegistration {
            gpu: GpuId { index: 0, uuid: uuid.into() },
            model: "".into(),
            at: Utc(10),
        });
        let closed = vec![window("GPU-0", 5, 20), window("GPU-1", 10, 20)];
        let batch =
            LedgerBatch { now: Utc(20), registrations: sights.into(), closed, ..LedgerBatch::default() };
        assert!(commit(&mut ledger, batch, (&queue, &status), &|| now));
        assert_eq!((status.errors(), status.unobserved()), (1, 0));
        assert_eq!(queue.wait_for_batch(Duration::ZERO), None, "a refusal is not kept");
        let settled: Vec<_> = status.take().into_iter().flat_map(|told| told.slots.into_keys()).collect();
        assert_eq!(settled, ["GPU-1".into()]);
        now.utc = Utc(now.utc.0 + 3_000_000_000);
        let batch = LedgerBatch { closed: vec![window("GPU-0", 20, 30)], ..LedgerBatch::default() };
        assert!(commit(&mut ledger, batch, (&queue, &status), &|| now));
        assert_eq!((status.errors(), status.unobserved()), (1, 10));
        assert_eq!(ledger.watch_clock(now).unwrap(), None, "the step is recorded already");
    }
}
