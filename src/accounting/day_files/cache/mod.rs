//! The sums of a directory of exports, kept in an SQLite file that may be deleted: what the costs of a fleet are read from.
//!
//! The unit is a date in UTC. One whose files have changed is summed anew by what makes bills over exports, cut at the hours of
//! one time zone.

mod facts;
mod fill;
mod find;
mod rank;
mod reduce;
mod report;
mod store;
mod sums;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;
use rusqlite::{Connection, OpenFlags};

pub use fill::{LookScope, Looked};
pub use report::CostCacheReader;
pub(super) use sums::DateSums;

use self::store::{BY_HOUR, BY_NODE, BY_WORKLOAD, SCHEMA, TABLES};
use super::control::digest_of;
use super::error::ExportError;
use crate::accounting::billing::{MoneyOverflow, SumOverflow, zone_name};
use crate::model::Utc;
use crate::runtime::file::{Lock, NotLocked};

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}: another gpumeter fleet has this cache; give this one another directory with CACHE_DIRECTORY", .0.display())]
    Locked(PathBuf),
    #[error("{}: there is no file cluster=*/date=*/ledger=*/day.parquet below it", .0.display())]
    Empty(PathBuf),
    #[error("the cache: {0}")]
    Sql(#[from] rusqlite::Error),
    #[error("the cache: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Sum(#[from] SumOverflow),
    /// The request asks for what there is not.
    #[error("{0}")]
    Request(String),
    #[error("the first look is not over yet; /-/ready tells how far it is")]
    Unfilled,
}

impl From<MoneyOverflow> for CacheError {
    fn from(overflow: MoneyOverflow) -> Self {
        Self::Sum(overflow.into())
    }
}

/// A name for the cache of a directory.
pub fn cache_name(exports: &Path) -> String {
    let exports = fs::canonicalize(exports).unwrap_or_else(|_| exports.to_owned());
    let digest = digest_of(exports.as_os_str().as_bytes());
    format!("fleet-{}", digest.get(..16).unwrap_or_default())
}

/// How long a lock of the cache is waited for: a server that was stopped has it for a moment.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a read waits for a write.
const BUSY: Duration = Duration::from_secs(5);

/// The cache of a directory; it alone writes its file.
#[derive(Debug)]
pub struct CostCache {
    connection: Connection,
    exports: PathBuf,
    zone: TimeZone,
    path: PathBuf,
    _lock: Lock,
}

impl CostCache {
    /// Opens the cache of `exports` in a directory, and creates both. One of another schema, of other exports or of another time
    /// zone, or one that cannot be read, is deleted.
    ///
    /// # Errors
    /// The directory is not writable; another process has the cache.
    pub fn open(directory: &Path, exports: &Path, zone: TimeZone, now: Utc) -> Result<Self, CacheError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| CacheError::File { path, error }
        };
        // It names users and what they are charged.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
        let lock_path = directory.join("fleet.lock");
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        let lock = Lock::take(lock, PATIENCE).map_err(|error| match error {
            NotLocked::Held { .. } => CacheError::Locked(directory.to_owned()),
            NotLocked::Unavailable(error) => failed(&lock_path)(error),
        })?;
        let path = directory.join("fleet.db");
        let root = fs::canonicalize(exports).map_err(failed(exports))?;
        let made_for = format!("{SCHEMA} {} {}", zone_name(&zone, now), root.display());
        let connection = match open_file(&path, &made_for) {
            Ok(connection) => connection,
            Err(reason) => {
                tracing::info!(%reason, cache = %path.display(), "the cache is filled anew");
                remove(&path).map_err(failed(&path))?;
                open_file(&path, &made_for)?
            }
        };
        Ok(Self { connection, exports: exports.to_owned(), zone, path, _lock: lock })
    }

    /// How many files cannot be read.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn unreadable(&self) -> Result<u64, CacheError> {
        let sql = "SELECT count(*) FROM file WHERE problem IS NOT NULL";
        let count: i64 = self.connection.query_row(sql, [], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    /// A reader of what was committed, for any thread.
    pub fn reader(&self) -> CostCacheReader {
        CostCacheReader { path: self.path.clone(), zone: self.zone.clone() }
    }
}

/// Opens the file of a cache that was made for that, or makes an empty one.
fn open_file(path: &Path, made_for: &str) -> Result<Connection, CacheError> {
    let failed = |error| CacheError::File { path: path.to_owned(), error };
    // SQLite would make it readable by every user.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY",
    )?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables == 0 {
        let sums = [BY_NODE, BY_WORKLOAD, BY_HOUR].map(|table| table.create()).concat();
        connection.execute_batch(&format!("BEGIN; {TABLES} {sums}"))?;
        connection.execute("INSERT INTO made_for (text) VALUES (?)", [made_for])?;
        connection.execute_batch("COMMIT")?;
    }
    let found: String = connection.query_row("SELECT text FROM made_for", [], |row| row.get(0))?;
    if found != made_for {
        return Err(CacheError::Request(format!("it was made for {found}")));
    }
    Ok(connection)
}

fn remove(path: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
