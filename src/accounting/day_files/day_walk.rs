//! The walk over the files of a period, one file after the other, for what is added up from all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::directory::{DayPath, date_of};
use super::error::{ExportError, FileProblem};
use super::fleet::{ExportSource, SurveyedFiles, survey};
use crate::model::{DAY, Utc};
use crate::runtime::thread::map_in_order;

/// What was not read.
pub(super) struct UnreadFiles {
    /// How many damaged files were left out.
    pub(super) skipped: usize,
    /// Whether a GPU is in several ledgers on one day.
    pub(super) has_shared: bool,
}

/// Reads the files of a period at once, each with the GPUs of its date that several ledgers have, and adds them in order; tells after
/// each file how many were read, and how many there are.
///
/// # Errors
/// A file that cannot be read; an error of `step` or `add`.
pub(super) fn read_days<T: Send>(
    source: &ExportSource<'_>,
    [from, to]: [Utc; 2],
    mut step: impl FnMut(usize, usize) -> Result<(), ExportError>,
    read: impl Fn(&DayPath, &BTreeSet<Arc<str>>) -> Result<T, FileProblem> + Sync,
    mut add: impl FnMut(T) -> Result<(), ExportError>,
) -> Result<UnreadFiles, ExportError> {
    let all = source.days()?;
    let is_inside = |day: &DayPath| date_of(from.floor(DAY)) <= day.date && day.date < date_of(to.ceil(DAY));
    let files = all.into_iter().filter(is_inside).collect();
    let is_skipped = |problem: &FileProblem| source.skip_damaged && problem.is_damage();
    let SurveyedFiles { files, shared, skipped } = survey(files, is_skipped, &mut step)?;
    let (mut skipped, none) = (skipped.len(), BTreeSet::new());
    map_in_order(
        &files,
        |day| read(day, shared.get(&*day.date).unwrap_or(&none)),
        |place, read| {
            match read {
                Ok(read) => add(read)?,
                Err(problem) if is_skipped(&problem) => skipped += 1,
                Err(problem) => return Err(problem.at(&files[place].path)),
            }
            step(place + 1, files.len())
        },
    )?;
    Ok(UnreadFiles { skipped, has_shared: !shared.is_empty() })
}
