//! The files of a directory of exports that somebody else writes: links and special files are named and never followed.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::directory::{DayPath, FILE};
use crate::model::{DAY, Utc};

/// What is found below a directory.
#[derive(Debug, Default)]
pub(super) struct ExportTree {
    /// By date in UTC.
    pub(super) dates: BTreeMap<Date, Vec<TreeFile>>,
    /// What is there and is not read, in words.
    pub(super) refused: Vec<String>,
    pub(super) clusters: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeFile {
    pub(super) day: DayPath,
    /// A text that changes with the file: its size, and when it and its inode were changed; none of what is no regular file.
    pub(super) state: Option<String>,
}

impl TreeFile {
    /// The state by which it is known again.
    pub(super) fn known_state(&self) -> &str {
        self.state.as_deref().unwrap_or("irregular")
    }
}

impl ExportTree {
    /// Looks at all files of the dates that are wanted, up to tomorrow.
    ///
    /// # Errors
    /// A directory cannot be read. Then nothing is known of the files below it.
    pub(super) fn read(
        root: &Path,
        now: Utc,
        is_wanted: impl Fn(Date) -> bool,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut tree = Self::default();
        let last = Timestamp::from(now.plus(DAY)).to_zoned(TimeZone::UTC).date();
        let clusters = tree.folders(root, "cluster=")?;
        tree.clusters = clusters.len();
        for (cluster, path) in clusters {
            for (date, path) in tree.folders(&path, "date=")? {
                let Some(day) = date.parse::<Date>().ok().filter(|day| day.to_string() == date) else {
                    tree.refused.push(format!("{} is no date", path.display()));
                    continue;
                };
                if day > last {
                    tree.refused.push(format!("date={day}: it is in the future"));
                    continue;
                }
                if !is_wanted(day) {
                    continue;
                }
                for (ledger, folder) in tree.folders(&path, "ledger=")? {
                    let path = folder.join(FILE);
                    if let Some(state) = state_of(&path)? {
                        let day_path = DayPath { date: date.clone(), ledger, path, cluster: cluster.clone() };
                        tree.dates.entry(day).or_default().push(TreeFile { day: day_path, state });
                    }
                }
            }
        }
        tree.dates.values_mut().for_each(|files| files.sort_by(|one, other| one.day.cmp(&other.day)));
        Ok(tree)
    }

    /// The directories whose names begin with a key, with the rest of their names.
    fn folders(&mut self, path: &Path, key: &str) -> Result<Vec<(String, PathBuf)>, (PathBuf, io::Error)> {
        let failed = |error| (path.to_owned(), error);
        let entries = fs::read_dir(path).map_err(failed)?.collect::<Result<Vec<DirEntry>, _>>();
        let mut found = Vec::new();
        for entry in entries.map_err(failed)? {
            let name = entry.file_name();
            let Some(value) = name.to_str().and_then(|name| name.strip_prefix(key)) else { continue };
            if entry.file_type().map_err(failed)?.is_dir() {
                found.push((value.to_owned(), entry.path()));
            } else {
                self.refused
                    .push(format!("{} is no directory, and links are not followed", entry.path().display()));
            }
        }
        found.sort();
        Ok(found)
    }
}

/// The state of a file, none where it is no regular one; none where there is nothing.
pub(super) fn state_of(path: &Path) -> Result<Option<Option<String>>, (PathBuf, io::Error)> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {
            let (size, modified, changed) = (found.size(), found.mtime(), found.ctime());
            let [modified_ns, changed_ns] = [found.mtime_nsec(), found.ctime_nsec()];
            Ok(Some(Some(format!("{size} {modified}.{modified_ns:09} {changed}.{changed_ns:09}"))))
        }
        Ok(_) => Ok(Some(None)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err((path.to_owned(), error)),
    }
}
