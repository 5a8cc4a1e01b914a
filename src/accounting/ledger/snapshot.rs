//! Copies a ledger, whether an agent writes it or not.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::{Cause, Error};
use super::files::{self, megabytes, with_suffix};
use super::{migration, owner, schema};
use crate::model::{Nanoseconds, Utc};

/// Result of [`snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCopy {
    pub file: PathBuf,
    /// Time of its last commit.
    pub until: Utc,
    pub bytes: u64,
}

impl fmt::Display for LedgerCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, until, bytes } = self;
        writeln!(
            f,
            "{}: the ledger as it was at {}, {}",
            file.display(),
            until.floor(Nanoseconds::SECOND),
            megabytes(*bytes)
        )
    }
}

/// Writes a consistent copy of a ledger of any released schema version into a new file, without its write-ahead log. The ledger is
/// only read.
///
/// # Errors
/// There is no ledger that this user can read; the file exists, or cannot be written.
pub fn snapshot(path: &Path, file: &Path) -> Result<LedgerCopy, Error> {
    files::check_name(path).map_err(|cause| cause.at(path, "read the ledger"))?;
    let ledger = schema::open_any(path).map_err(|cause| cause.at(path, "read the ledger"))?;
    write(&ledger, file).map_err(|cause| cause.at(file, "write a snapshot"))
}

fn write(ledger: &rusqlite::Connection, file: &Path) -> Result<LedgerCopy, Cause> {
    if file.symlink_metadata().is_ok() {
        return Err(Cause::Exists);
    }
    let file = owner::resolve_path(file)?;
    migration::save_as(ledger, &with_suffix(&file, ".gpumeter-part"), &file)?;
    let until = migration::last_commit(&schema::open_any(&file)?)?;
    let bytes = file.metadata()?.len();
    Ok(LedgerCopy { file, until, bytes })
}
