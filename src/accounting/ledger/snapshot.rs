//! Copies a ledger, whether an agent writes it or not.

use std::path::Path;

use super::error::{Cause, Error};
use super::files::{self, megabytes, with_suffix};
use super::{migration, owner, schema};
use crate::model::Nanoseconds;

/// Writes a consistent copy of a ledger of any released schema version into a new file, without its write-ahead log. The ledger is
/// only read. Returns what was written, in words.
///
/// # Errors
/// There is no ledger that this user can read; the file exists, or cannot be written.
pub fn snapshot(path: &Path, file: &Path) -> Result<String, Error> {
    files::check_name(path).map_err(|cause| cause.at(path, "read the ledger"))?;
    let ledger = schema::open_any(path).map_err(|cause| cause.at(path, "read the ledger"))?;
    write(&ledger, file).map_err(|cause| cause.at(file, "write a snapshot"))
}

fn write(ledger: &rusqlite::Connection, file: &Path) -> Result<String, Cause> {
    if file.symlink_metadata().is_ok() {
        return Err(Cause::Exists);
    }
    let file = owner::resolve_path(file)?;
    migration::save_as(ledger, &with_suffix(&file, ".gpumeter-part"), &file)?;
    let until = migration::last_commit(&schema::open_any(&file)?)?.floor(Nanoseconds::SECOND);
    let size = megabytes(file.metadata()?.len());
    Ok(format!("{}: the ledger as it was at {until}, {size}\n", file.display()))
}
