//! Shrinks a ledger that no agent is using: deleted rows leave free pages, which SQLite uses again but keeps.

use std::path::Path;

use super::error::{Cause, Error};
use super::files::{bytes_on_disk, megabytes};
use super::owner;

/// Gives the free pages of a ledger of any schema version back to the file system. Returns what it took and takes, in words.
///
/// # Errors
/// A running agent owns the ledger; the file is no ledger; the disk, which needs room for a second copy.
pub fn compact(path: &Path) -> Result<String, Error> {
    rewrite(path).map_err(|cause| cause.at(path, "compact the ledger"))
}

fn rewrite(path: &Path) -> Result<String, Cause> {
    let (path, _lock, connection) = owner::open_unused(path)?;
    let before = bytes_on_disk(&path);
    connection.execute_batch("VACUUM")?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)?;
    let [before, now] = [before, bytes_on_disk(&path)].map(megabytes);
    Ok(format!("{}: {before} before, {now} now\n", path.display()))
}
