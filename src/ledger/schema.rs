//! The schema, its version, and the connections on it.
//!
//! Looks before it writes: a file that is not ours, or newer than we are, is left byte for byte.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::process::geteuid;

use super::access;
use super::error::{self, Cause};
use crate::model::Utc;

/// Version of the schema, in `PRAGMA user_version`.
pub(super) const VERSION: i64 = 1;

/// `GPMT`, in `PRAGMA application_id`, by which file(1) and we know the file.
const APPLICATION: i64 = 0x4750_4D54;

const SCHEMA: &str = include_str!("schema.sql");

/// A connection that may write, on a file that is ours or new.
pub(super) fn writer(path: &Path) -> Result<Connection, Cause> {
    access::create(path).map_err(Cause::Unwritable)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    // Or SQLite plans a statement anew whenever another value is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if connection.is_readonly("main")? {
        return Err(Cause::Unwritable(std::io::ErrorKind::PermissionDenied.into()));
    }
    inspect(&connection)?;
    access::close_ledger_to_others(path);
    // After the inspection: switching the journal writes to the file.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA journal_size_limit = 16777216;")?;
    Ok(connection)
}

/// A connection that only reads, on a file that is ours.
pub(super) fn reader(path: &Path) -> Result<Connection, Cause> {
    let Ok(metadata) = path.metadata() else { return Err(Cause::Missing) };
    if metadata.is_dir() {
        return Err(Cause::Directory { path: path.to_owned() });
    }
    open_to_read(path).map_err(|cause| error::reading(cause, metadata.uid(), geteuid().as_raw()))
}

fn open_to_read(path: &Path) -> Result<Connection, Cause> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    if inspect(&connection)? { Ok(connection) } else { Err(Cause::Foreign) }
}

/// Creates the tables unless they are there, in one transaction.
pub(super) fn create(connection: &mut Connection, now: Utc) -> Result<(), Cause> {
    if inspect(connection)? {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute(
        "INSERT INTO ledger (id, created_ns, last_commit_ns) VALUES (1, ?1, ?1)",
        [super::column::stored(now.0)?],
    )?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(())
}

/// Refuses a file that exists and does not begin as an SQLite database does, before anything is created.
pub(super) fn ours_or_empty(path: &Path) -> Result<(), Cause> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Cause::Unwritable(error)),
    };
    let mut head = Vec::new();
    file.by_ref().take(16).read_to_end(&mut head).map_err(Cause::Unwritable)?;
    if head.is_empty() || head == b"SQLite format 3\0" { Ok(()) } else { Err(Cause::Foreign) }
}

/// Whether the file is a ledger (true) or empty (false); refuses all else.
fn inspect(connection: &Connection) -> Result<bool, Cause> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_master")?;
    match (application, version, tables) {
        (APPLICATION, VERSION, _) => Ok(true),
        (APPLICATION, found, _) if found > VERSION => Err(Cause::Newer { found, known: VERSION }),
        (0, 0, 0) => Ok(false),
        _ => Err(Cause::Foreign),
    }
}
