//! The owner of a ledger: opens it, holds the lock, and is the only one that writes.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::book::{self, Book};
use super::error::{Cause, Error};
use super::lock::Lock;
use super::recover::{self, Recovered};
use super::state::State;
use super::timeline::{self, Anchor, Timeline};
use super::{column, counters, expected, latch, place, reader, schema};
use crate::model::{Nanoseconds, Stamp, Utc};

/// A wall clock that moves by no more was slewed, or saw a leap second.
const STEP: Nanoseconds = Nanoseconds::SECOND;

/// Who opens a ledger, and when.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The kernel's boot id; time since boot is continuous within one. An empty one is a new boot each time.
    pub boot_id: String,
    /// This moment.
    pub now: Stamp,
    /// Whether the wall clock is not known to be synchronised, by the kernel's word.
    pub unsynchronised: bool,
    /// The operator's prices; without them there is no money anywhere.
    pub book: Option<Book>,
}

/// A ledger that this process owns.
#[derive(Debug)]
pub struct Ledger {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) state: State,
    /// Account time of the last commit that survives a power loss.
    pub(super) synced_at: Option<Utc>,
    /// Bytes on disk after it, the write-ahead log included.
    pub(super) bytes: u64,
    /// Whether the connection was last told to let commits survive one.
    pub(super) syncs: Option<bool>,
    timeline: Timeline,
    /// The lead of the wall clock at the last step that was recorded.
    lead: i64,
    _lock: Lock,
}

impl Ledger {
    /// Opens or creates a ledger and becomes its owner; says where its account stands.
    ///
    /// # Errors
    /// Owned by another process, not a ledger, a newer schema, a network filesystem, a place that cannot
    /// be written, a price book that cannot be stored. A file that is refused is left as it was.
    pub fn open(path: &Path, opening: &Opening) -> Result<(Self, Recovered), Error> {
        Self::opened(path, opening).map_err(|cause| cause.at(path, "open the ledger"))
    }

    fn opened(path: &Path, opening: &Opening) -> Result<(Self, Recovered), Cause> {
        let path = resolved(path)?;
        let durable = place::durable(path.parent().unwrap_or(Path::new("/")))?;
        schema::ours_or_empty(&path)?;
        let lock = Lock::take(&path)?;
        let mut connection = schema::writer(&path)?;
        schema::create(&mut connection, opening.now.utc)?;
        expected::create(&connection)?;
        latch::create(&connection)?;
        timeline::create(&connection)?;
        counters::add_tenants(&mut connection)?;
        let clock = (opening.now, !opening.unsynchronised);
        let (timeline, boot) = timeline::resume(&mut connection, &opening.boot_id, clock)?;
        book::adopt(&mut connection, opening.book.as_ref(), timeline.at(opening.now.boottime))?;
        let lead = timeline::recorded_lead(&connection, &opening.boot_id)?;
        let (mut state, gpus) = recover::load(&connection)?;
        state.boot_id.clone_from(&opening.boot_id);
        let inventory = expected::list(&connection)?.into_iter().map(|listed| listed.expected).collect();
        let recovered = Recovered {
            created: state.created,
            timeline,
            boot,
            durable,
            gpus,
            inventory,
            latched: latch::load(&connection, &opening.boot_id)?,
            users: reader::user_names(&connection)?,
            counters: state.counters.iter().map(|(key, live)| (key.clone(), live.counter.clone())).collect(),
            at_rest: state.at_rest.clone(),
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
            lead,
            _lock: lock,
        };
        Ok((ledger, recovered))
    }

    /// Makes `book` the prices from the next whole minute after `now` on; none ends all money there.
    ///
    /// # Errors
    /// A price that cannot be stored; the disk.
    pub fn reprice(&mut self, book: Option<&Book>, now: Utc) -> Result<(), Error> {
        book::adopt(&mut self.connection, book, now)
            .and_then(|()| Ok(book::versions(&self.connection)?))
            .map(|versions| self.state.prices = versions)
            .map_err(|cause| cause.at(&self.path, "store the prices"))
    }

    /// Looks at the wall clock; where it has moved against account time by more than a second since the last
    /// step, that is recorded as a step, and what it now is ahead is told, in nanoseconds. Account time does
    /// not move. A step while no agent ran in this boot is found by the next one's first look.
    ///
    /// # Errors
    /// The disk; the next look finds the step again.
    pub fn watch_clock(&mut self, now: Stamp) -> Result<Option<i64>, Error> {
        if self.timeline.provisional_since.is_some() {
            return Ok(None);
        }
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

    /// Fixes the offset of this boot and moves what was committed on its provisional axis; once only.
    pub(super) fn fix(&mut self, anchor: &Anchor) -> Result<(), Cause> {
        if self.timeline.provisional_since.is_none() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        timeline::fix(&transaction, &self.state.boot_id, anchor)?;
        transaction.commit()?;
        let (mut state, _) = recover::load(&self.connection)?;
        state.boot_id = std::mem::take(&mut self.state.boot_id);
        (self.state, self.timeline, self.synced_at) = (state, Timeline::fixed_by(anchor), None);
        Ok(())
    }

    /// The file, by its real name.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The real name of the file, so that two names of one ledger find the same lock.
fn resolved(path: &Path) -> Result<PathBuf, Cause> {
    if let Ok(real) = std::fs::canonicalize(path) {
        return Ok(real);
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(Cause::Unwritable(std::io::ErrorKind::IsADirectory.into()))?;
    Ok(std::fs::canonicalize(directory).map_err(Cause::Unwritable)?.join(name))
}
