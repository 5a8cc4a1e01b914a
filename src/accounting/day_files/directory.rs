//! The directory of exports: `cluster=C/date=D/ledger=ID/day.parquet`, as engines that know Hive partitions expect it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::error::ExportError;
use crate::accounting::billing::DayHeader;
use crate::model::Utc;
use crate::runtime::file::{self, Durability};

pub(super) const FILE: &str = "day.parquet";
/// The file of evidence beside it.
const EVIDENCE: &str = "evidence.parquet";
/// Hive's name of the partition without a value.
const NO_CLUSTER: &str = "__HIVE_DEFAULT_PARTITION__";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayPath {
    /// The date, such as `2026-11-01`.
    pub date: String,
    pub ledger: String,
    pub path: PathBuf,
    /// The name of the cluster as it stands in the path.
    pub cluster: String,
}

#[derive(Clone, Copy, Debug)]
pub struct ExportDirectory<'a>(pub &'a Path);

impl ExportDirectory<'_> {
    /// All files, by date and ledger.
    ///
    /// # Errors
    /// The directory cannot be read, or has none.
    pub fn days(self) -> Result<Vec<DayPath>, ExportError> {
        let refused = |path: &Path, error: io::Error| super::error::FileProblem::Io(error).at(path);
        let list = |path: &Path, key: &str| partitions(path, key).map_err(|error| refused(path, error));
        let mut days = Vec::new();
        for (cluster, path) in list(self.0, "cluster=")? {
            for (date, path) in list(&path, "date=")? {
                for (ledger, path) in list(&path, "ledger=")? {
                    let path = path.join(FILE);
                    if path.exists() {
                        let (date, cluster) = (date.clone(), cluster.clone());
                        days.push(DayPath { date, ledger, path, cluster });
                    }
                }
            }
        }
        days.sort();
        if days.is_empty() { Err(ExportError::Empty(self.0.to_owned())) } else { Ok(days) }
    }

    pub fn path_of(self, cluster: Option<&str>, day: Utc, ledger: &str) -> PathBuf {
        self.folder_of(&cluster_name(cluster), day, ledger).join(FILE)
    }

    /// Where the evidence of a day belongs: beside its account.
    pub fn evidence_beside(account: &Path) -> PathBuf {
        account.with_file_name(EVIDENCE)
    }

    fn folder_of(self, cluster: &str, day: Utc, ledger: &str) -> PathBuf {
        let (cluster, day) = (format!("cluster={cluster}"), format!("date={}", date_of(day)));
        self.0.join(cluster).join(day).join(format!("ledger={ledger}"))
    }
}

/// The date in UTC.
pub(super) fn date_of(day: Utc) -> String {
    day.to_string().chars().take(10).collect()
}

/// The directories whose names begin with a key, with the rest of their names.
fn partitions(path: &Path, key: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(value) = name.to_str().and_then(|name| name.strip_prefix(key))
            && entry.path().is_dir()
        {
            found.push((value.to_owned(), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a part of a path is the name of that cluster, however much of it is percent-encoded.
pub(super) fn is_cluster_name(part: &str, cluster: Option<&str>) -> bool {
    let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) else { return part == NO_CLUSTER };
    percent_decode_str(part).decode_utf8().is_ok_and(|name| name == cluster)
}

/// The name of a cluster as part of a path: what is no letter, digit, `-`, `_` or `.` is percent-encoded.
fn cluster_name(cluster: Option<&str>) -> String {
    let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) else { return NO_CLUSTER.to_owned() };
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    utf8_percent_encode(cluster, PLAIN).to_string()
}

/// Writes the file of a day in place of an earlier one: at any time there is the old or the new one, whole.
///
/// # Errors
/// The directory is missing, full, or not writable. It is not created, since a file system may not be mounted.
pub fn write_file(directory: ExportDirectory<'_>, header: &DayHeader, bytes: &[u8]) -> io::Result<()> {
    fs::metadata(directory.0)?;
    let path = directory.path_of(header.cluster.as_deref(), header.day, &header.ledger);
    fs::create_dir_all(path.parent().unwrap_or(directory.0))?;
    replace_file(&path, bytes)
}

/// Writes a file in a directory that exists.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.part"));
    file::replace(path, &part, 0o666, Durability::PowerLoss, |file| file.write_all(bytes))
}

/// Removes the file of that day and ledger from the partitions of other clusters, to which the node belonged before.
///
/// # Errors
/// The directory is not writable.
pub(super) fn remove_other_clusters(directory: ExportDirectory<'_>, header: &DayHeader) -> io::Result<()> {
    let own = cluster_name(header.cluster.as_deref());
    for (cluster, _) in partitions(directory.0, "cluster=")? {
        let folder = directory.folder_of(&cluster, header.day, &header.ledger);
        if cluster != own && folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_part_of_a_path_whatever_its_name() {
        assert_eq!(cluster_name(Some("eu-1.a_b")), "eu-1.a_b");
        assert_eq!(cluster_name(Some("../a/b c")), "..%2Fa%2Fb%20c");
        assert_eq!([cluster_name(None), cluster_name(Some(""))], [NO_CLUSTER, NO_CLUSTER]);
    }

    #[test]
    fn a_file_is_replaced_whole_found_again_and_removed_from_another_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let exports = ExportDirectory(directory.path());
        assert!(matches!(exports.days(), Err(ExportError::Empty(_))));
        let header = DayHeader { ledger: "one".into(), day: Utc(86_400_000_000_000), ..DayHeader::default() };
        for bytes in [b"old", b"new"] {
            write_file(exports, &header, bytes).unwrap();
        }
        let moved = DayHeader { cluster: Some("b".into()), ..header.clone() };
        write_file(exports, &moved, b"moved").unwrap();
        let days = exports.days().unwrap();
        assert_eq!(
            days.iter().map(|day| (&*day.date, &*day.ledger)).collect::<Vec<_>>(),
            [("1970-01-02", "one"); 2]
        );
        remove_other_clusters(exports, &moved).unwrap();
        let days = exports.days().unwrap();
        assert_eq!(days.len(), 1);
        assert_eq!(fs::read(&days[0].path).unwrap(), b"moved");
        let gone = directory.path().join("gone");
        assert!(write_file(ExportDirectory(&gone), &header, b"").is_err() && !gone.exists());
    }
}
