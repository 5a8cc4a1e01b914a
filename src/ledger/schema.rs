//! The connections on a ledger, and what kind of file it is.
//!
//! Looks before it writes: a file that is not ours, or newer than we are, is left byte for byte.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::process::geteuid;

use super::access;
use super::error::{self, Cause};
use super::migration::{self, VERSION};
use crate::model::Utc;

/// `GPMT`, in `PRAGMA application_id`, by which file(1) and we know the file.
pub(super) const APPLICATION: i64 = 0x4750_4D54;

/// How long a statement waits for another program that writes.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// A connection that may write, on a file that is ours at the newest version; a new one is created at `now`. Beside it
/// the copy of one that was upgraded for that.
pub(super) fn open_writer(path: &Path, now: Utc) -> Result<(Connection, Option<PathBuf>), Cause> {
    access::create(path).map_err(Cause::Unwritable)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Or SQLite plans a statement anew whenever another value is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if connection.is_readonly("main")? {
        return Err(Cause::Unwritable(std::io::ErrorKind::PermissionDenied.into()));
    }
    check_version(&connection)?;
    access::close_ledger_to_others(path);
    // After the inspection: switching the journal writes to the file.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch("PRAGMA journal_size_limit = 16777216")?;
    let copy = migration::migrate(&mut connection, path, now)?;
    connection.execute_batch("PRAGMA foreign_keys = ON")?;
    Ok((connection, copy))
}

/// A connection that only reads, on a file that is ours or on a copy of an older one.
pub(super) fn open_reader(path: &Path) -> Result<Connection, Cause> {
    let Ok(metadata) = path.metadata() else { return Err(Cause::Missing) };
    if metadata.is_dir() {
        return Err(Cause::Directory { path: path.to_owned() });
    }
    open_to_read(path).map_err(|cause| error::reading(cause, metadata.uid(), geteuid().as_raw()))
}

fn open_to_read(path: &Path) -> Result<Connection, Cause> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    match check_version(&connection)? {
        0 => Err(Cause::Foreign),
        VERSION => Ok(connection),
        _ => migration::migrated_copy(&connection),
    }
}

/// Refuses a file that exists and does not begin as an SQLite database does, before anything is created.
pub(super) fn check_header(path: &Path) -> Result<(), Cause> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Cause::Unwritable(error)),
    };
    let mut head = Vec::new();
    file.by_ref().take(16).read_to_end(&mut head).map_err(Cause::Unwritable)?;
    if head.is_empty() || head == b"SQLite format 3\0" { Ok(()) } else { Err(Cause::Foreign) }
}

/// The version of a ledger that this agent knows, 0 of an empty file; refuses all else.
pub(super) fn check_version(connection: &Connection) -> Result<i64, Cause> {
    let tables = number(connection, "SELECT count(*) FROM sqlite_master")?;
    if (number(connection, "PRAGMA application_id")?, version(connection)?, tables) == (0, 0, 0) {
        return Ok(0);
    }
    match ledger_version(connection)? {
        found if found > VERSION => Err(Cause::Newer { found, known: VERSION }),
        found => Ok(found),
    }
}

/// The version of any ledger; refuses all else.
pub(super) fn ledger_version(connection: &Connection) -> Result<i64, Cause> {
    match (number(connection, "PRAGMA application_id")?, version(connection)?) {
        (APPLICATION, version) if version > 0 => Ok(version),
        _ => Err(Cause::Foreign),
    }
}

/// What `PRAGMA user_version` says.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    number(connection, "PRAGMA user_version")
}

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.query_row(sql, [], |row| row.get(0))
}
