//! Writes the days of a ledger whose files are missing or are of other rows, rates or rules.

use super::day_file::{DayFile, write_day};
use super::directory::{ExportDirectory, remove_other_clusters, write_file};
use super::error::{ExportError, FileProblem};
use crate::ledger::Reader;

/// How many of the last days are made anew each time, since what was not known of a holder, such as a pod's label, may be added.
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
    let mut written = 0;
    for (place, (day, revision)) in reader.days()?.into_iter().rev().enumerate() {
        if is_stopped() {
            break;
        }
        let (cluster, ledger) = reader.day_owner(day)?;
        let path = directory.path_of(cluster.as_deref(), day, &ledger);
        let is_known = DayFile::open(&path).is_ok_and(|file| file.header().revision == revision);
        if is_known && place >= RECENT {
            continue;
        }
        let account = reader.day(day)?;
        let bytes = write_day(&account).map_err(|error| FileProblem::Parquet(error).at(&path))?;
        if is_known && std::fs::read(&path).is_ok_and(|known| known == bytes) {
            continue;
        }
        write_file(directory, &account.header, &bytes).map_err(at_directory)?;
        remove_other_clusters(directory, &account.header).map_err(at_directory)?;
        written += 1;
    }
    Ok(written)
}
