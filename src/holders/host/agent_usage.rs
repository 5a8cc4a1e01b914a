//! CPU time, memory, open and mapped files of the agent itself, from `/proc/self` of the real system.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit};

use crate::model::{Bytes, Nanoseconds};
use crate::runtime::clock::processor_time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentUsage {
    /// User and system time of all threads since the start.
    pub cpu: Nanoseconds,
    pub resident: Bytes,
    pub addressed: Bytes,
    pub open_files: u64,
}

/// Reads the use in every tick: files of `/proc` stay open, and `stat` and `status` are avoided, since the kernel visits
/// every thread for them.
#[derive(Debug)]
pub struct AgentUsageReader {
    memory: File,
    files: File,
}

impl AgentUsageReader {
    pub fn open() -> io::Result<Self> {
        Ok(Self { memory: File::open("/proc/self/statm")?, files: File::open(FILES)? })
    }

    pub fn read(&self) -> io::Result<AgentUsage> {
        let mut memory = [0; 256];
        let length = self.memory.read_at(&mut memory, 0)?;
        let memory = memory.get(..length).unwrap_or_default();
        let (addressed, resident) = parse_statm(memory).ok_or_else(|| {
            let text = "/proc/self/statm is not what proc(5) describes; is proc mounted there?";
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        let open_files = count_open(&self.files.metadata()?, Path::new(FILES))?;
        Ok(AgentUsage { cpu: processor_time(), resident, addressed, open_files })
    }
}

const FILES: &str = "/proc/self/fd";

/// The number of files in a directory of descriptors. Reading the directory adds one.
fn count_open(metadata: &Metadata, directory: &Path) -> io::Result<u64> {
    match reported_count(metadata) {
        Some(count) => Ok(count),
        None => Ok(listed_count(directory)?.saturating_sub(1)),
    }
}

/// The directory's size, which is the number of its files since Linux 6.2, and 0 before.
fn reported_count(directory: &Metadata) -> Option<u64> {
    Some(directory.len()).filter(|count| *count > 0)
}

fn listed_count(directory: &Path) -> io::Result<u64> {
    Ok(fs::read_dir(directory)?.count() as u64)
}

/// Virtual and resident memory: the first two numbers, in pages.
fn parse_statm(statm: &[u8]) -> Option<(Bytes, Bytes)> {
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    let mut numbers = std::str::from_utf8(statm).ok()?.split_ascii_whitespace();
    let mut size = || Some(Bytes(numbers.next()?.parse::<u64>().ok()?.checked_mul(page)?));
    Some((size()?, size()?))
}

/// The paths of the open files, one per descriptor.
pub fn open_files() -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(FILES)?;
    // A file that was closed meanwhile is skipped.
    Ok(entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect())
}

pub fn mapped_files() -> io::Result<BTreeSet<PathBuf>> {
    let maps = BufReader::new(fs::File::open("/proc/self/maps")?);
    let mut files = BTreeSet::new();
    for line in maps.split(b'\n') {
        let line = line?;
        // The fields before the path have no slash.
        let Some(start) = line.iter().position(|byte| *byte == b'/') else { continue };
        files.insert(PathBuf::from(String::from_utf8_lossy(&line[start..]).into_owned()));
    }
    Ok(files)
}

/// The soft limit of open files; none where there is no limit.
pub fn open_files_limit() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).current
}

/// Raises the soft limit of open files to the hard limit. systemd keeps the soft limit low for programs that call
/// `select`. Children would inherit it, so none is started afterwards.
pub fn raise_open_files_limit() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Whether the check holds at some moment of another process, which opens and closes libraries only while it starts; other
    /// tests open files in this one.
    fn holds_of_a_child(check: impl Fn(&Path) -> bool) -> bool {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let directory = Path::new("/proc").join(child.id().to_string());
        let holds = (0..1_000).any(|_| check(&directory));
        child.kill().unwrap();
        child.wait().unwrap();
        holds
    }

    #[test]
    fn what_the_kernel_tells_of_open_files_is_what_it_lists() {
        assert!(holds_of_a_child(|directory| {
            let files = directory.join("fd");
            let listed = listed_count(&files).unwrap();
            listed >= 3 && reported_count(&fs::metadata(&files).unwrap()).is_none_or(|told| told == listed)
        }));
    }

    #[test]
    fn a_kernel_that_does_not_tell_how_many_files_are_open_is_counted_after() {
        assert!(holds_of_a_child(|directory| {
            // As old kernels do, `/proc` says 0 of its other directories.
            let old = directory.join("fdinfo");
            let metadata = fs::metadata(&old).unwrap();
            assert_eq!(reported_count(&metadata), None);
            // One less, which the agent adds to its own files by reading; a child's it does not.
            count_open(&metadata, &old).unwrap() + 1 == listed_count(&directory.join("fd")).unwrap()
        }));
    }

    #[test]
    fn memory_is_told_in_pages() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(
            parse_statm(b"9000 1024 700 5 0 900 0\n"),
            Some((Bytes(9_000 * page), Bytes(1_024 * page)))
        );
        assert_eq!(parse_statm(b"9000"), None);
        assert_eq!(parse_statm(b"9000 18446744073709551615 0"), None);
    }
}
