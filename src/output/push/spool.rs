//! The spool: requests that wait for their destinations, in an SQLite file that survives the agent.
//!
//! ```text
//! append --> record  (id, at, points, body)     one row per request
//!            waiting (record, reader)           one row per destination that still has to get it
//! peek   <-- the oldest row of a reader, or the newest where the latest points go first
//! finish --> the row goes, and the request with its last row
//! ```
//!
//! A request that is too much or too old goes with all its rows, whose points are counted as dropped. Where the file cannot
//! be used, the latest requests wait in memory, so that a broken disk costs the backlog and not the push; the file is tried
//! again each minute. A file that SQLite calls damaged is set aside.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

use super::{Destination, PushBatch, Signal, compress};
use crate::model::{Nanoseconds, Utc};

const FILE: &str = "spool.db";
/// How long a file that another agent has open is waited for, as while that agent stops.
const BUSY: Duration = Duration::from_secs(1);
const PAGE: u64 = 4096;
/// Most bytes that wait in memory where the file cannot be used.
const MOST_IN_MEMORY: u64 = 2 << 20;
/// Unused pages are given back to the disk from this number on.
const MOST_UNUSED: u64 = 1024;
const RETRY: Nanoseconds = Nanoseconds::from_seconds(60);

/// The lock is held as long as the file is open, so that no two agents send from one spool. In this mode the index of the
/// write-ahead log is in memory and not in a shared file.
const SETUP: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA journal_size_limit = 4194304;
    PRAGMA cache_size = -512;
    CREATE TABLE IF NOT EXISTS record (
        id INTEGER PRIMARY KEY,
        at_ns INTEGER NOT NULL,
        points INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS waiting (
        record INTEGER NOT NULL,
        reader TEXT NOT NULL,
        PRIMARY KEY (record, reader)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS waiting_of_reader ON waiting (reader, record);
";

const MEMORY: &str = ":memory:";

/// What a reader is sent next.
const OLDEST: &str = "
    SELECT id, at_ns, points, body FROM waiting JOIN record ON id = record
    WHERE reader = ?1 ORDER BY record LIMIT 1";
/// The same where the latest points go first.
const NEWEST: &str = "
    SELECT id, at_ns, points, body FROM waiting JOIN record ON id = record
    WHERE reader = ?1 ORDER BY record DESC LIMIT 1";
const ALL: &str = "
    SELECT id, at_ns, points, body, reader FROM waiting JOIN record ON id = record ORDER BY record";
/// How much waits for a reader.
const SIZES: &str = "
    SELECT points, length(body) FROM waiting JOIN record ON id = record WHERE reader = ?1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Most bytes of the file; its write-ahead log has up to 4 MiB more.
    pub bytes: u64,
    /// Most time between a request and the latest one.
    pub age: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolRecord {
    /// Larger than those before. It is the time at which the snapshot was taken where that is free, so that a file and what
    /// waited in memory meanwhile have no number in common.
    pub(super) id: i64,
    /// The time of its snapshot.
    pub at: Utc,
    pub points: u64,
    /// The request, compressed by gzip.
    pub body: Bytes,
}

impl SpoolRecord {
    fn of_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get("id")?,
            at: Utc(row.get::<_, i64>("at_ns")?.cast_unsigned()),
            points: row.get::<_, i64>("points")?.cast_unsigned(),
            body: row.get::<_, Vec<u8>>("body")?.into(),
        })
    }

    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql =
            "INSERT INTO record (id, at_ns, points, body) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
        let (at, points) = (self.at.0.cast_signed(), self.points.cast_signed());
        connection.prepare_cached(sql)?.execute(params![self.id, at, points, &*self.body])?;
        Ok(())
    }

    fn insert_waiting(&self, connection: &Connection, reader: &str) -> rusqlite::Result<()> {
        // A commit that reports an error may be in the file all the same.
        let sql = "INSERT INTO waiting (record, reader) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        connection.prepare_cached(sql)?.execute(params![self.id, reader])?;
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct SpoolHealth {
    pub damaged: AtomicU64,
    pub errors: AtomicU64,
}

#[derive(Debug)]
pub struct Spool {
    file: PathBuf,
    limits: SpoolLimits,
    readers: Vec<SpoolReader>,
    connection: Connection,
    /// Whether that is the file, and not its stand-in in memory.
    is_in_file: bool,
    retry_at: Utc,
    last_id: i64,
    health: Arc<SpoolHealth>,
}

#[derive(Debug)]
struct SpoolReader {
    destination: Destination,
    points: u64,
    bytes: u64,
}

impl SpoolReader {
    fn new(destination: &Destination) -> Self {
        Self { destination: destination.clone(), points: 0, bytes: 0 }
    }

    fn begin_waiting(&mut self, points: u64, bytes: u64) {
        self.points += points;
        self.bytes += bytes;
        self.destination.tally().waiting.store(self.bytes, Ordering::Relaxed);
    }

    fn end_waiting(&mut self, points: u64, bytes: u64) {
        self.points = self.points.saturating_sub(points);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.destination.tally().waiting.store(self.bytes, Ordering::Relaxed);
    }
}

impl Spool {
    /// Opens the spool in a directory. A destination that is new gets what comes from now on; what waited for one that is no
    /// longer configured is forgotten. A file that cannot be used is logged.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn open(
        directory: &Path,
        limits: SpoolLimits,
        destinations: &[Destination],
    ) -> rusqlite::Result<Self> {
        let mut spool = Self {
            file: directory.join(FILE),
            limits,
            readers: destinations.iter().map(SpoolReader::new).collect(),
            connection: open(MEMORY)?,
            is_in_file: false,
            retry_at: Utc(0),
            last_id: 0,
            health: Arc::default(),
        };
        spool.use_file(true);
        Ok(spool)
    }

    pub const fn health(&self) -> &Arc<SpoolHealth> {
        &self.health
    }

    /// Appends a request. It is never lost for lack of a disk, only for lack of room.
    pub fn append(&mut self, batch: &PushBatch) {
        self.return_to_file(batch.at);
        self.last_id = batch.at.0.cast_signed().max(self.last_id + 1);
        let body = compress(&batch.body);
        let record = SpoolRecord { id: self.last_id, at: batch.at, points: batch.points, body };
        let mut appended = self.try_append(&record, batch.signal);
        if let Err(error) = appended {
            self.leave_file(&error);
            appended = self.try_append(&record, batch.signal);
        }
        if appended.is_err() {
            let readers = self.readers.iter().filter(|one| one.destination.signal == batch.signal);
            readers.for_each(|one| one.destination.tally().drop_points(record.points));
        }
    }

    fn try_append(&mut self, record: &SpoolRecord, signal: Signal) -> rusqlite::Result<()> {
        let most = if self.is_in_file { self.limits.bytes } else { self.limits.bytes.min(MOST_IN_MEMORY) };
        let transaction = self.connection.transaction()?;
        let dropped = drop_excess(&transaction, record, most, self.limits.age)?;
        record.insert(&transaction)?;
        for reader in self.readers.iter().filter(|one| one.destination.signal == signal) {
            record.insert_waiting(&transaction, reader.destination.name())?;
        }
        transaction.commit()?;
        // Counted once it is stored: what is rolled back is neither dropped nor waits.
        for reader in &mut self.readers {
            for one in &dropped {
                if one.reader == **reader.destination.name() {
                    reader.end_waiting(one.points, one.bytes);
                    reader.destination.tally().drop_points(one.points);
                }
            }
            if reader.destination.signal == signal {
                reader.begin_waiting(record.points, record.body.len() as u64);
            }
        }
        Ok(())
    }

    pub fn peek(&mut self, reader: usize) -> Option<SpoolRecord> {
        let destination = &self.readers.get(reader)?.destination;
        let sql = if destination.settings.live_first { NEWEST } else { OLDEST };
        let found = self.connection.prepare_cached(sql).and_then(|mut statement| {
            statement.query_row([&**destination.name()], SpoolRecord::of_row).optional()
        });
        found.unwrap_or_else(|error| {
            self.leave_file(&error);
            None
        })
    }

    /// Removes a request for a reader; false if it was dropped meanwhile, so that its points are counted already.
    pub fn finish(&mut self, reader: usize, record: &SpoolRecord) -> bool {
        let Some(reader) = self.readers.get_mut(reader) else { return false };
        let removed = remove_waiting(&mut self.connection, reader.destination.name(), record.id);
        if !matches!(removed, Ok(false)) {
            reader.end_waiting(record.points, record.body.len() as u64);
        }
        removed.unwrap_or_else(|error| {
            self.leave_file(&error);
            true
        })
    }

    /// Opens the file, and adds to it what waits in memory. A failure is logged only the first time.
    fn use_file(&mut self, is_first: bool) {
        let mut readers = self.empty_readers();
        let opened = open(&self.file).and_then(|mut file| {
            let last_id = prepare_file(&mut file, &mut readers, &self.connection)?;
            Ok((file, last_id))
        });
        match opened {
            Ok((file, last_id)) => {
                self.connection = file;
                self.is_in_file = true;
                self.last_id = self.last_id.max(last_id);
                self.readers = readers;
                self.readers.iter_mut().for_each(|one| one.begin_waiting(0, 0));
            }
            Err(error) => self.record_failure(&error, &readers, is_first),
        }
    }

    fn return_to_file(&mut self, now: Utc) {
        if self.is_in_file || now < self.retry_at {
            return;
        }
        self.retry_at = Utc(now.0 + RETRY.0);
        self.use_file(false);
        if self.is_in_file {
            tracing::info!(file = %self.file.display(), "the OTLP spool is in its file again");
        }
    }

    /// Goes on in memory after an operation on the file has failed. What waits there is sent once the file can be used again.
    fn leave_file(&mut self, error: &rusqlite::Error) {
        if !self.is_in_file {
            return;
        }
        let Ok(memory) = open(MEMORY) else { return };
        // The file is closed before it may be renamed.
        self.connection = memory;
        self.is_in_file = false;
        // The number of the last request is its time, or little more.
        self.retry_at = Utc(self.last_id.cast_unsigned() + RETRY.0);
        let empty = self.empty_readers();
        let left = std::mem::replace(&mut self.readers, empty);
        self.readers.iter_mut().for_each(|one| one.begin_waiting(0, 0));
        self.record_failure(error, &left, true);
    }

    fn empty_readers(&self) -> Vec<SpoolReader> {
        self.readers.iter().map(|one| SpoolReader::new(&one.destination)).collect()
    }

    /// Counts a failure of the file. One that is damaged is set aside, and what is known to wait in it is dropped.
    fn record_failure(&self, error: &rusqlite::Error, waiting: &[SpoolReader], is_first: bool) {
        self.health.errors.fetch_add(1, Ordering::Relaxed);
        let file = self.file.display();
        let remedy = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                tracing::error!(
                    %file, %error,
                    "the OTLP spool is damaged; it is kept as {FILE}.damaged, what waited in it is counted as dropped as far as \
                     it can be read, and a new one is begun within a minute"
                );
                waiting.iter().for_each(|one| one.destination.tally().drop_points(one.points));
                return self.set_file_aside();
            }
            Some(ErrorCode::DatabaseBusy) => {
                "stop the other agent that has it open, or give each a directory"
            }
            Some(ErrorCode::DiskFull) => "free space on its disk",
            _ => "make its directory writable for the agent, or correct otlp.spool.directory",
        };
        if is_first {
            tracing::error!(
                %file, %error, remedy,
                "the OTLP spool cannot be used, so only the last {} MiB wait for a destination that is away; the file is tried \
                 again each minute",
                MOST_IN_MEMORY >> 20
            );
        }
    }

    fn set_file_aside(&self) {
        let bytes = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        self.health.damaged.fetch_add(bytes, Ordering::Relaxed);
        for suffix in ["", "-wal"] {
            let name = |end: &str| self.file.with_file_name(format!("{FILE}{end}{suffix}"));
            // One that cannot be renamed is tried again, and fails again.
            let _ = std::fs::rename(name(""), name(".damaged"));
        }
    }
}

fn open(path: impl AsRef<Path>) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch(SETUP)?;
    Ok(connection)
}

/// Forgets readers that are no longer there, counts what waits for the others, and adds what waits in memory; returns the
/// largest number of a request.
fn prepare_file(
    file: &mut Connection,
    readers: &mut [SpoolReader],
    memory: &Connection,
) -> rusqlite::Result<i64> {
    let transaction = file.transaction()?;
    let names: Vec<String> = transaction
        .prepare("SELECT DISTINCT reader FROM waiting")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let is_configured = |name: &str| readers.iter().any(|one| **one.destination.name() == *name);
    for name in names.iter().filter(|name| !is_configured(name)) {
        transaction.execute("DELETE FROM waiting WHERE reader = ?1", [name])?;
    }
    transaction.execute("DELETE FROM record WHERE id NOT IN (SELECT record FROM waiting)", [])?;
    {
        let mut statement = memory.prepare(ALL)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let record = SpoolRecord::of_row(row)?;
            record.insert(&transaction)?;
            record.insert_waiting(&transaction, &row.get::<_, String>("reader")?)?;
        }
    }
    for reader in readers {
        let mut statement = transaction.prepare_cached(SIZES)?;
        let mut rows = statement.query([&**reader.destination.name()])?;
        while let Some(row) = rows.next()? {
            reader.points += row.get::<_, i64>(0)?.cast_unsigned();
            reader.bytes += row.get::<_, i64>(1)?.cast_unsigned();
        }
    }
    let last_id: Option<i64> = transaction.query_row("SELECT max(id) FROM record", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(last_id.unwrap_or(0))
}

/// What a reader had to get of a request that was dropped.
struct Dropped {
    reader: String,
    points: u64,
    bytes: u64,
}

impl Dropped {
    fn of_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            reader: row.get("reader")?,
            points: row.get::<_, i64>("points")?.cast_unsigned(),
            bytes: row.get::<_, i64>("length(body)")?.cast_unsigned(),
        })
    }
}

/// Removes the oldest requests until a new one has room and none is older than it by more than `age`.
fn drop_excess(
    connection: &Connection,
    new: &SpoolRecord,
    most: u64,
    age: Nanoseconds,
) -> rusqlite::Result<Vec<Dropped>> {
    let mut dropped = Vec::new();
    // With the pages of its rows.
    let needed = new.body.len() as u64 + 4 * PAGE;
    let oldest_kept = new.at.0.saturating_sub(age.0);
    loop {
        let has_room = used_bytes(connection)? + needed <= most;
        let sql = "SELECT id FROM record WHERE ?1 OR at_ns < ?2 ORDER BY id LIMIT 1";
        let mut excess = connection.prepare_cached(sql)?;
        let excess =
            excess.query_row(params![!has_room, oldest_kept.cast_signed()], |row| row.get::<_, i64>(0));
        let Some(id) = excess.optional()? else { return Ok(dropped) };
        let mut lost = connection.prepare_cached(
            "SELECT reader, points, length(body) FROM waiting JOIN record ON id = record WHERE record = ?1",
        )?;
        for one in lost.query_map([id], Dropped::of_row)? {
            dropped.push(one?);
        }
        connection.execute("DELETE FROM waiting WHERE record = ?1", [id])?;
        connection.execute("DELETE FROM record WHERE id = ?1", [id])?;
    }
}

/// Removes a request for a reader, and the request itself after the last one; false if it did not wait.
fn remove_waiting(connection: &mut Connection, reader: &str, id: i64) -> rusqlite::Result<bool> {
    let transaction = connection.transaction()?;
    let count = transaction
        .prepare_cached("DELETE FROM waiting WHERE record = ?1 AND reader = ?2")?
        .execute(params![id, reader])?;
    transaction
        .prepare_cached(
            "DELETE FROM record WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM waiting WHERE record = ?1)",
        )?
        .execute([id])?;
    transaction.commit()?;
    if pragma(connection, "freelist_count")? > MOST_UNUSED {
        // A step gives back one page.
        let mut vacuum = connection.prepare_cached("PRAGMA incremental_vacuum")?;
        let mut steps = vacuum.query([])?;
        while steps.next()?.is_some() {}
    }
    Ok(count > 0)
}

fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    Ok((pragma(connection, "page_count")? - pragma(connection, "freelist_count")?) * PAGE)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use opentelemetry::trace::SpanContext;

    use super::*;
    use crate::config::OtlpDestination;

    const LIMITS: SpoolLimits = SpoolLimits { bytes: 1 << 20, age: Nanoseconds::from_seconds(3_600) };

    fn destination(host: &str, live_first: bool) -> Destination {
        let endpoint = format!("http://{host}:4318").parse().unwrap();
        Destination::new(&OtlpDestination { live_first, ..OtlpDestination::at(endpoint) }, Signal::Metrics)
    }

    fn batch(second: u64, size: usize) -> PushBatch {
        // A sequence that does not compress.
        let mut state = second;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        PushBatch {
            signal: Signal::Metrics,
            at: Utc(second * 1_000_000_000),
            body: (0..size).map(|_| random()).collect(),
            points: 10,
            cause: SpanContext::NONE,
        }
    }

    fn seconds(spool: &mut Spool, reader: usize) -> Vec<u64> {
        let mut seconds = Vec::new();
        while let Some(record) = spool.peek(reader) {
            seconds.push(record.at.0 / 1_000_000_000);
            assert!(spool.finish(reader, &record));
        }
        seconds
    }

    fn counts(spool: &Spool) -> (u64, u64) {
        (spool.health.damaged.load(Ordering::Relaxed), spool.health.errors.load(Ordering::Relaxed))
    }

    fn waiting(destination: &Destination) -> u64 {
        destination.tally().waiting.load(Ordering::Relaxed)
    }

    #[test]
    fn requests_come_back_in_order_after_a_restart_and_each_reader_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let destinations = [destination("a", false), destination("b", false)];
        let open = || Spool::open(directory.path(), LIMITS, &destinations).unwrap();
        let mut spool = open();
        (1..=5).for_each(|second| spool.append(&batch(second, 100)));
        let first = spool.peek(0).unwrap();
        assert_eq!(
            (first.at, first.points, &first.body),
            (Utc(1_000_000_000), 10, &compress(&batch(1, 100).body))
        );
        assert!(spool.finish(0, &first));
        let waited = destinations.each_ref().map(waiting);
        drop(spool);
        let mut spool = open();
        assert_eq!(destinations.each_ref().map(waiting), waited);
        assert_eq!((seconds(&mut spool, 0), seconds(&mut spool, 1)), (vec![2, 3, 4, 5], vec![1, 2, 3, 4, 5]));
        assert_eq!(destinations.each_ref().map(waiting), [0, 0]);
        // A destination that is new gets what comes from now on, and what waits for one that is gone is forgotten.
        spool.append(&batch(6, 100));
        drop(spool);
        let mut spool = Spool::open(directory.path(), LIMITS, &[destination("c", false)]).unwrap();
        spool.append(&batch(7, 100));
        assert_eq!(seconds(&mut spool, 0), [7]);
        assert_eq!(oldest_id(&spool), None);
    }

    fn oldest_id(spool: &Spool) -> Option<i64> {
        spool.connection.query_row("SELECT min(id) FROM record", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn what_is_too_much_or_too_old_is_dropped_from_the_oldest_and_counted_once() {
        let directory = tempfile::tempdir().unwrap();
        let one = destination("a", false);
        let mut spool = Spool::open(directory.path(), LIMITS, std::slice::from_ref(&one)).unwrap();
        spool.append(&batch(1, 1_000));
        let sent = spool.peek(0).unwrap();
        (2..=1_100).for_each(|second| spool.append(&batch(second, 1_000)));
        // It was dropped while it was being sent.
        assert!(!spool.finish(0, &sent));
        let rest = 1_100 - one.tally().counts().dropped / 10;
        assert!((600..1_100).contains(&rest), "{rest}");
        assert!(used_bytes(&spool.connection).unwrap() <= LIMITS.bytes);
        assert!((rest * 1_000..rest * 1_100).contains(&waiting(&one)), "{}", waiting(&one));
        // Two hours later everything else is too old.
        spool.append(&batch(1_100 + 7_200, 1_000));
        assert_eq!(seconds(&mut spool, 0), [8_300]);
        assert_eq!((one.tally().counts().dropped, waiting(&one)), (11_000, 0));
    }

    #[test]
    fn a_backlog_that_was_sent_gives_its_disk_back() {
        let directory = tempfile::tempdir().unwrap();
        let limits = SpoolLimits { bytes: 64 << 20, ..LIMITS };
        let mut spool = Spool::open(directory.path(), limits, &[destination("a", false)]).unwrap();
        (1..=60).for_each(|second| spool.append(&batch(second, 200_000)));
        let most = pragma(&spool.connection, "page_count").unwrap();
        assert_eq!(seconds(&mut spool, 0).len(), 60);
        let rest = pragma(&spool.connection, "page_count").unwrap();
        assert!(most > 2_900 && rest < 1_100, "{most} {rest}");
        drop(spool);
        assert!(fs::metadata(directory.path().join(FILE)).unwrap().len() < 5 << 20);
    }

    #[test]
    fn a_file_that_cannot_be_used_costs_the_backlog_and_not_the_push() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("spool");
        let one = destination("a", false);
        let mut spool = Spool::open(&inner, LIMITS, std::slice::from_ref(&one)).unwrap();
        assert_eq!(counts(&spool), (0, 1));
        (1..=3).for_each(|second| spool.append(&batch(second, 20)));
        let first = spool.peek(0).unwrap();
        fs::create_dir(&inner).unwrap();
        // A minute later it can be used, and has what waited in memory.
        (61..=63).for_each(|second| spool.append(&batch(second, 20)));
        assert!(spool.is_in_file);
        assert!(spool.finish(0, &first));
        drop(spool);
        let mut spool = Spool::open(&inner, LIMITS, std::slice::from_ref(&one)).unwrap();
        assert_eq!(seconds(&mut spool, 0), [2, 3, 61, 62, 63]);
        assert_eq!((one.tally().counts().dropped, waiting(&one)), (0, 0));
    }

    #[test]
    fn a_disk_that_is_full_meanwhile_loses_nothing_that_waits() {
        let directory = tempfile::tempdir().unwrap();
        let one = destination("a", false);
        let mut spool = Spool::open(directory.path(), LIMITS, std::slice::from_ref(&one)).unwrap();
        spool.append(&batch(1, 20));
        spool.connection.execute_batch("PRAGMA max_page_count = 1").unwrap();
        (2..=3).for_each(|second| spool.append(&batch(second, 200_000)));
        assert!(!spool.is_in_file && counts(&spool) == (0, 1));
        // What waits in the file is sent when that can be used again.
        assert_eq!(seconds(&mut spool, 0), [2, 3]);
        spool.append(&batch(100, 20));
        assert!(spool.is_in_file);
        assert_eq!((seconds(&mut spool, 0), one.tally().counts().dropped), (vec![1, 100], 0));
    }

    #[test]
    fn two_agents_do_not_send_from_one_spool() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Spool::open(directory.path(), LIMITS, &[destination("a", false)]).unwrap();
        let mut second = Spool::open(directory.path(), LIMITS, &[destination("a", false)]).unwrap();
        assert!(first.is_in_file && !second.is_in_file);
        first.append(&batch(1, 20));
        second.append(&batch(2, 20));
        assert_eq!((seconds(&mut first, 0), seconds(&mut second, 0)), (vec![1], vec![2]));
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_what_waited_in_it_is_counted_as_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (file, aside) = (directory.path().join(FILE), directory.path().join("spool.db.damaged"));
        let one = destination("a", false);
        let open = || Spool::open(directory.path(), LIMITS, std::slice::from_ref(&one)).unwrap();
        // Found when it is opened: the pages of the last requests are overwritten.
        let mut spool = open();
        (1..=100).for_each(|second| spool.append(&batch(second, 1_000)));
        drop(spool);
        let mut bytes = fs::read(&file).unwrap();
        let length = bytes.len();
        bytes[length / 2..].fill(0x5a);
        fs::write(&file, &bytes).unwrap();
        let mut spool = open();
        assert_eq!(counts(&spool), (length as u64, 1));
        assert!(fs::read(&aside).unwrap().ends_with(&bytes[length / 2..]));
        // A new one is begun.
        (200..=203).for_each(|second| spool.append(&batch(second, 20)));
        assert!(spool.is_in_file && one.tally().counts().dropped <= 1_000);
        // Found while it is in use.
        let before = one.tally().counts().dropped;
        drop(spool);
        let mut spool = open();
        spool.connection.execute_batch("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 9999 WHERE name = 'record'; PRAGMA writable_schema = RESET").unwrap();
        assert_eq!(spool.peek(0), None);
        assert_eq!((counts(&spool).1, one.tally().counts().dropped - before, waiting(&one)), (1, 40, 0));
        spool.append(&batch(300, 20));
        assert_eq!(seconds(&mut spool, 0), [300]);
    }

    #[test]
    fn a_file_of_something_else_is_set_aside_and_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), vec![b'x'; 10_000]).unwrap();
        let mut spool = Spool::open(directory.path(), LIMITS, &[destination("a", false)]).unwrap();
        spool.append(&batch(1, 20));
        assert_eq!(seconds(&mut spool, 0), [1]);
        assert!(fs::read(directory.path().join("spool.db.damaged")).unwrap() == [b'x'; 10_000]);
    }

    #[test]
    fn where_the_latest_points_go_first_the_newest_request_does() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(directory.path(), LIMITS, &[destination("a", true)]).unwrap();
        (1..=3).for_each(|second| spool.append(&batch(second, 20)));
        assert_eq!(seconds(&mut spool, 0), [3, 2, 1]);
    }
}
