//! Writes the days of a ledger whose files are missing or are of other rows, rates or rules, each with its evidence.

use super::day_bytes::write_day;
use super::day_file::DayFile;
use super::directory::{ExportDirectory, remove_other_clusters, replace_file, write_file};
use super::error::{ExportError, FileProblem};
use super::evidence_file::{self, write_evidence};
use crate::accounting::billing::{DayHeader, DayRevision};
use crate::accounting::ledger::Reader;
use crate::model::Utc;
use crate::runtime::file;

/// How many of the last days are written anew each time, since facts of a holder may come late, as a pod's label.
const RECENT: usize = 2;

/// Writes what has changed, the newest day first; between two files it ends once `is_stopped`. Returns how many files it wrote.
///
/// # Errors
/// The ledger cannot be read; the directory is missing, full or not writable.
pub fn write_days(
    reader: &mut Reader,
    directory: ExportDirectory<'_>,
    is_stopped: impl Fn() -> bool,
) -> Result<usize, ExportError> {
    let at_directory = |error: std::io::Error| FileProblem::Io(error).at(directory.0);
    // Also where there is nothing to write, so that a wrong directory is known at once.
    std::fs::metadata(directory.0).map_err(at_directory)?;
    let (mut written, mut refused) = (0, None);
    for (place, (day, revision)) in reader.days()?.into_iter().rev().enumerate() {
        if is_stopped() {
            break;
        }
        // A day that cannot be made, as one with two currencies, does not keep the others from being written.
        match write_one(reader, directory, (day, revision), place < RECENT) {
            Ok(is_written) => written += usize::from(is_written),
            Err(ExportError::Ledger(error)) => refused = refused.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    refused.map_or(Ok(written), |error| Err(error.into()))
}

/// Writes a day and its evidence where these differ from their files; whether it wrote the day.
fn write_one(
    reader: &mut Reader,
    directory: ExportDirectory<'_>,
    (day, revision): (Utc, DayRevision),
    is_recent: bool,
) -> Result<bool, ExportError> {
    let is_written = write_account(reader, directory, (day, revision), is_recent)?;
    let (cluster, ledger) = reader.day_owner(day)?;
    let path = ExportDirectory::evidence_beside(&directory.path_of(cluster.as_deref(), day, &ledger));
    if is_recent || evidence_file::revision_of(&path) != Some(revision) {
        let evidence = reader.day_evidence(day)?;
        let bytes = write_evidence(&evidence).map_err(|error| FileProblem::Parquet(error).at(&path))?;
        if !file::read(&path).is_ok_and(|known| known == bytes) {
            replace_file(&path, &bytes).map_err(|error| FileProblem::Io(error).at(&path))?;
        }
    }
    Ok(is_written)
}

/// Writes the account of a day where it differs from its file; whether it did.
fn write_account(
    reader: &mut Reader,
    directory: ExportDirectory<'_>,
    (day, revision): (Utc, DayRevision),
    is_recent: bool,
) -> Result<bool, ExportError> {
    let (cluster, ledger) = reader.day_owner(day)?;
    let path = directory.path_of(cluster.as_deref(), day, &ledger);
    let at_directory = |error: std::io::Error| FileProblem::Io(error).at(directory.0);
    let known = DayFile::open(&path).ok().map(DayFile::into_header);
    if let Some(other) = known.as_ref().filter(|known| !reader.was_node(&known.node).unwrap_or(true)) {
        return Err(ExportError::Copied { path, node: other.node.clone() });
    }
    let is_known = known.is_some_and(|known| known.revision == revision);
    let is_kept = is_known && !is_recent;
    if !is_kept {
        let account = reader.day(day)?;
        let bytes = write_day(&account).map_err(|error| FileProblem::Parquet(error).at(&path))?;
        if !(is_known && file::read(&path).is_ok_and(|known| known == bytes)) {
            write_file(directory, &account.header, &bytes).map_err(at_directory)?;
            remove_other_clusters(directory, &account.header).map_err(at_directory)?;
            return Ok(true);
        }
    }
    // A kill may have left the file of another cluster.
    let header = DayHeader { cluster, day, ledger, ..DayHeader::default() };
    remove_other_clusters(directory, &header).map_err(at_directory)?;
    Ok(false)
}
