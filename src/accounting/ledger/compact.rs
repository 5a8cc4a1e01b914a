//! Shrinks a ledger that no agent is using: deleted rows leave free pages, which SQLite uses again but keeps.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::{Cause, Error};
use super::files::{bytes_on_disk, megabytes};
use super::owner;

/// Result of [`compact`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    pub path: PathBuf,
    /// What it took before, with its write-ahead log.
    pub before: u64,
    pub now: u64,
}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, before, now } = self;
        writeln!(f, "{}: {} before, {} now", path.display(), megabytes(*before), megabytes(*now))
    }
}

/// Gives the free pages of a ledger of any schema version back to the file system.
///
/// # Errors
/// A running agent owns the ledger; the file is no ledger; the disk, which needs room for a second copy.
pub fn compact(path: &Path) -> Result<Compacted, Error> {
    rewrite(path).map_err(|cause| cause.at(path, "compact the ledger"))
}

fn rewrite(path: &Path) -> Result<Compacted, Cause> {
    let (path, _lock, connection) = owner::open_unused(path)?;
    let before = bytes_on_disk(&path);
    connection.execute_batch("VACUUM")?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)?;
    let now = bytes_on_disk(&path);
    Ok(Compacted { path, before, now })
}
