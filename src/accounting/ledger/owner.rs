//! The owner of a ledger: the only process that writes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, OpenFlags, params};

use super::error::{Cause, Error};
use super::files::LedgerLock;
use super::identity;
use super::migration::VERSION;
use super::node;
use super::recover;
use super::state::LedgerState;
use super::timeline;
use super::{column, counters, expected, files, history, reader, schema, sticky_faults, xids};
use crate::accounting::batches::{AccountTimeline, Recovered};
use crate::accounting::billing::PriceBook;
use crate::accounting::tenants::{Decision, TenantRules};
use crate::model::{HowHeld, Nanoseconds, NodeIdentity, Stamp, Utc};

/// The most by which slewing or a leap second moves the wall clock; more is a step.
const STEP: Nanoseconds = Nanoseconds::SECOND;

#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The kernel's boot id, within which time since boot is continuous. An empty one means a new boot each time.
    pub boot_id: String,
    pub now: Stamp,
    /// Whether the kernel does not report the wall clock as synchronised.
    pub unsynchronised: bool,
    /// The operator's prices and terms; without prices nothing is charged.
    pub book: PriceBook,
    pub tenant_rules: Arc<TenantRules>,
    pub node: NodeIdentity,
    /// Time zone of months; none is UTC.
    pub zone: Option<TimeZone>,
    /// The id of the machine; empty: unknown. A ledger of another machine is a copy.
    pub machine_id: String,
}

#[derive(Debug)]
pub struct Ledger {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) state: LedgerState,
    /// Account time of the last commit that survives a power loss.
    pub(super) synced_at: Option<Utc>,
    /// Size on disk after that commit in bytes, the write-ahead log included.
    pub(super) bytes: u64,
    /// Whether the connection is set so that commits survive a power loss; none while it is unknown.
    pub(super) syncs: Option<bool>,
    pub(super) timeline: AccountTimeline,
    pub(super) zone: TimeZone,
    /// Wall clock - account time at the last recorded step, in nanoseconds.
    lead: i64,
    _lock: LedgerLock,
}

impl Ledger {
    /// Opens or creates a ledger, becomes its owner, and returns the state of its account.
    ///
    /// # Errors
    /// Another process owns it; the file is no ledger; a newer schema; an older one that cannot be copied; a network
    /// filesystem; no permission to write; a boot whose clock cannot be trusted yet. A refused file is not changed.
    pub fn open(path: &Path, opening: &Opening) -> Result<(Self, Recovered), Error> {
        Self::open_and_recover(path, opening).map_err(|cause| cause.at(path, "open the ledger"))
    }

    fn open_and_recover(path: &Path, opening: &Opening) -> Result<(Self, Recovered), Cause> {
        let path = resolve_path(path)?;
        let durable = files::check_durable(path.parent().unwrap_or(Path::new("/")))?;
        let synchronised = !opening.unsynchronised;
        if !path.exists() {
            // A new ledger would begin at the wrong time.
            AccountTimeline::of_boot(opening.now, synchronised, None).ok_or(Cause::ClockNotSet)?;
        }
        let (lock, mut connection, upgraded_from) = open_locked(&path, opening.now.utc)?;
        let (timeline, boot) =
            timeline::resume_timeline(&mut connection, &opening.boot_id, opening.now, synchronised)?;
        identity::resume(&connection, &opening.machine_id)?;
        node::store(&connection, &opening.node)?;
        let decision = Decision {
            book: Some(opening.book.clone()),
            rules: Some(Arc::clone(&opening.tenant_rules)),
            decided: opening.now.boottime,
        };
        history::record(&mut connection, &decision, timeline)?;
        let lead = timeline::recorded_lead(&connection, &opening.boot_id)?;
        let (mut state, gpus) = recover::load(&connection)?;
        state.boot_id.clone_from(&opening.boot_id);
        let inventory = expected::list(&connection)?.into_iter().map(|listed| listed.expected).collect();
        let recovered = Recovered {
            created: state.created,
            last_commit: state.last_commit,
            upgraded_from,
            timeline,
            boot,
            durable,
            has_scheduled: counters::has_scheduled(&connection)?,
            shares: recover::load_shares(&connection, &gpus, boot)?,
            holders: recover::load_holders(&connection, &state, &gpus)?,
            gpus,
            inventory,
            sticky_faults: sticky_faults::load(&connection, &opening.boot_id)?,
            xids: xids::load(&connection, &opening.boot_id)?,
            users: reader::user_names(&connection)?,
            counters: state.counters.iter().map(|(key, live)| (key.clone(), live.counter.clone())).collect(),
            unloaded_sums: state.unloaded_sums.clone(),
            rates: Arc::clone(&state.rates),
            tenant_rules: Arc::clone(&state.tenant_rules),
            imbalance: state.imbalance,
        };
        let ledger = Self {
            connection,
            path,
            state,
            synced_at: None,
            bytes: 0,
            syncs: None,
            timeline,
            zone: opening.zone.clone().unwrap_or(TimeZone::UTC),
            lead,
            _lock: lock,
        };
        Ok((ledger, recovered))
    }

    /// Records prices and tenant rules in place of the last ones.
    ///
    /// # Errors
    /// The disk.
    pub fn decide(&mut self, decision: &Decision) -> Result<(), Error> {
        self.record(decision).map_err(|cause| cause.at(&self.path, "store the prices and tenant rules"))
    }

    fn record(&mut self, decision: &Decision) -> Result<(), Cause> {
        history::record(&mut self.connection, decision, self.timeline)?;
        let (rates, rules) = history::load(&self.connection)?;
        self.state.rates = Arc::new(rates);
        self.state.tenant_rules = Arc::new(rules);
        self.state.month = None;
        Ok(())
    }

    /// Records how GPUs are held on the node, for bills.
    ///
    /// # Errors
    /// The disk.
    pub fn record_how_held(&mut self, how_held: HowHeld) -> Result<(), Error> {
        node::store_how_held(&self.connection, how_held)
            .map_err(|error| Cause::from(error).at(&self.path, "record how GPUs are held"))
    }

    /// Records a step of the wall clock if that has moved against account time by more than a second since the last step,
    /// and returns wall clock - account time in nanoseconds. Account time does not move. A step while no agent ran is found
    /// by the first call in the same boot.
    ///
    /// # Errors
    /// The disk; the next call finds the step again.
    pub fn watch_clock(&mut self, now: Stamp) -> Result<Option<i64>, Error> {
        let lead = self.timeline.lead(now);
        if lead.abs_diff(self.lead) <= STEP.0 {
            return Ok(None);
        }
        column::stored(self.timeline.at(now.boottime).0)
            .and_then(|at| {
                self.connection.execute(
                    "INSERT INTO clock_step (at_ns, step_ns) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                    params![at, lead],
                )
            })
            .map_err(|error| Cause::from(error).at(&self.path, "record a step of the clock"))?;
        self.lead = lead;
        Ok(Some(lead))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks and opens the ledger of an agent, which is made where it is missing; also returns the copy of an older one. A new file
/// that cannot be written is removed, since an empty one would be taken for a ledger that was lost.
fn open_locked(path: &Path, now: Utc) -> Result<(LedgerLock, Connection, Option<PathBuf>), Cause> {
    schema::check_header(path)?;
    files::check_not_emptied(path).map_err(|error| error.cause)?;
    let is_new = !path.exists();
    let mut lock = LedgerLock::acquire(path)?;
    let opened = schema::open_writer(path, now);
    if is_new && opened.is_err() {
        LedgerLock::remove_unwritten(path);
    }
    let (connection, upgraded_from) = opened?;
    lock.note_made()?;
    Ok((lock, connection, upgraded_from))
}

/// Opens an existing ledger of any schema version that no agent is using, for writing; also returns its real path. The
/// connection is closed before the lock.
pub(super) fn open_unused(path: &Path) -> Result<(PathBuf, LedgerLock, Connection), Cause> {
    schema::check_file(path)?;
    let path = resolve_path(path)?;
    // SQLite would find no write-ahead log beside another name of a live ledger.
    files::check_unowned(&path).map_err(|error| error.cause)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&path, flags)?;
    connection.busy_timeout(schema::BUSY)?;
    // Checked before the lock, which would create a file beside a file that is no ledger.
    schema::ledger_version(&connection)?;
    let lock = LedgerLock::acquire(&path)?;
    Ok((path, lock, connection))
}

/// Opens such a ledger of the newest schema version. An older one is refused: only an agent upgrades it.
pub(super) fn open_current(path: &Path) -> Result<(LedgerLock, Connection), Cause> {
    let (_, lock, connection) = open_unused(path)?;
    match schema::check_version(&connection)? {
        VERSION => {}
        found => return Err(Cause::Older { found, known: VERSION }),
    }
    connection.execute_batch("PRAGMA foreign_keys = ON")?;
    Ok((lock, connection))
}

/// The real path of the file, so that two names of one ledger have the same lock.
pub(super) fn resolve_path(path: &Path) -> Result<PathBuf, Cause> {
    if let Ok(real) = std::fs::canonicalize(path) {
        return Ok(real);
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(Cause::Unwritable(std::io::ErrorKind::IsADirectory.into()))?;
    Ok(std::fs::canonicalize(directory)?.join(name))
}
