//! Opens connections to a ledger. A file that is no ledger, or newer than this agent, is not changed.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::process::geteuid;

use super::error::{self, Cause};
use super::files;
use super::migration::{self, FIRST, VERSION};
use crate::model::Utc;
use crate::runtime::file;

/// `GPMT` in `PRAGMA application_id`, by which file(1) and the agent recognise a ledger.
pub(super) const APPLICATION: i64 = 0x4750_4D54;

/// How long a statement waits while another program is writing.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// Opens a ledger for writing and brings it to the newest version; a new one is created at `now`. Returns also the copy of a
/// ledger that was upgraded.
pub(super) fn open_writer(path: &Path, now: Utc) -> Result<(Connection, Option<PathBuf>), Cause> {
    files::create(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Otherwise SQLite plans a statement again whenever another value is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if connection.is_readonly("main")? {
        return Err(Cause::Unwritable(std::io::ErrorKind::PermissionDenied.into()));
    }
    check_version(&connection)?;
    files::close_ledger_to_others(path);
    // Switching the journal writes to the file, so it follows the check.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch("PRAGMA journal_size_limit = 16777216")?;
    let copy = migration::migrate(&mut connection, path, now)?;
    connection.execute_batch("PRAGMA foreign_keys = ON")?;
    Ok((connection, copy))
}

/// Opens a ledger for reading; of an older one, a migrated copy in memory.
pub(super) fn open_reader(path: &Path) -> Result<Connection, Cause> {
    open_to_read(path, |connection| match check_version(&connection)? {
        0 => Err(Cause::Foreign),
        VERSION => Ok(connection),
        _ => migration::migrated_copy(&connection),
    })
}

/// Opens a ledger of any released schema version for reading, a newer one too.
pub(super) fn open_any(path: &Path) -> Result<Connection, Cause> {
    open_to_read(path, |connection| ledger_version(&connection).map(|_| connection))
}

fn open_to_read(
    path: &Path,
    check: fn(Connection) -> Result<Connection, Cause>,
) -> Result<Connection, Cause> {
    let metadata = check_file(path)?;
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        check(connection)
    };
    open().map_err(|cause| error::name_users(cause, metadata.uid(), geteuid().as_raw()))
}

/// The metadata of an existing ledger, before it is opened; SQLite would wait for a named pipe.
pub(super) fn check_file(path: &Path) -> Result<Metadata, Cause> {
    let metadata = path.metadata().map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Cause::Unopenable(error),
        _ => Cause::Missing,
    })?;
    if metadata.is_dir() {
        return Err(Cause::Directory { path: path.to_owned() });
    }
    file::check(path).map_err(Cause::Irregular)?;
    Ok(metadata)
}

/// Refuses an existing file that does not begin like an SQLite database, before anything is created.
pub(super) fn check_header(path: &Path) -> Result<(), Cause> {
    let mut file = match file::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return Err(Cause::Irregular(error));
        }
        Err(error) => return Err(Cause::Unwritable(error)),
    };
    let mut head = Vec::new();
    file.by_ref().take(16).read_to_end(&mut head)?;
    if head.is_empty() || head == b"SQLite format 3\0" { Ok(()) } else { Err(Cause::Foreign) }
}

/// The schema version of a ledger that this agent knows, 0 of an empty file; refuses all other files.
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

/// The released schema version of a ledger, which may be newer than this agent; refuses all other files.
pub(super) fn ledger_version(connection: &Connection) -> Result<i64, Cause> {
    match (number(connection, "PRAGMA application_id")?, version(connection)?) {
        (APPLICATION, found @ 1..FIRST) => Err(Cause::Unreleased { found, first: FIRST }),
        (APPLICATION, version @ FIRST..) => Ok(version),
        _ => Err(Cause::Foreign),
    }
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    number(connection, "PRAGMA user_version")
}

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.query_row(sql, [], |row| row.get(0))
}
