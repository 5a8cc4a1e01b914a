//! What the agent itself costs and has open.
//!
//! In: `/proc/self` of the real system, whatever root the rest of the room reads. Out: CPU time, resident
//! memory, open files, mapped files. It does not know when the agent started.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::bounded;
use crate::clock::processor_time;
use crate::model::{Bytes, Nanoseconds};

/// What the agent has used and uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// User and system time since its start, of all threads.
    pub cpu: Nanoseconds,
    /// Resident memory.
    pub resident: Bytes,
    /// Open file descriptors.
    pub open_files: u64,
}

/// Reads it, in the cheapest ways that there are: `stat` and `status` look at every thread.
pub fn usage() -> io::Result<Own> {
    let this = Path::new("/proc/self");
    let memory = bounded::read(&this.join("statm"), bounded::PROC)?;
    let resident = resident(&memory).ok_or_else(|| malformed("statm"))?;
    Ok(Own { cpu: processor_time(), resident, open_files: count_open(&this.join("fd"))? })
}

/// Since Linux 6.2 the directory's size is the number of its files.
fn count_open(directory: &Path) -> io::Result<u64> {
    match fs::metadata(directory)?.len() {
        // The one through which they are counted is not there a moment later.
        0 => Ok((fs::read_dir(directory)?.count() as u64).saturating_sub(1)),
        count => Ok(count),
    }
}

/// The second number is that of resident pages.
fn resident(statm: &[u8]) -> Option<Bytes> {
    let pages: u64 = std::str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes(pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)?))
}

/// The files that are open, each as often as it is.
pub fn open_files() -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/proc/self/fd")?;
    // One that is closed meanwhile is none.
    Ok(entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect())
}

/// The files that are mapped into memory.
pub fn mapped_files() -> io::Result<BTreeSet<PathBuf>> {
    let maps = BufReader::new(fs::File::open("/proc/self/maps")?);
    let mut files = BTreeSet::new();
    for line in maps.split(b'\n') {
        let line = line?;
        // Addresses, rights, offset, device and inode hold no slash but the device's colon.
        let Some(start) = line.iter().position(|byte| *byte == b'/') else { continue };
        files.insert(PathBuf::from(String::from_utf8_lossy(&line[start..]).into_owned()));
    }
    Ok(files)
}

/// The most files that it may have open.
pub fn most_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn malformed(file: &str) -> io::Error {
    let text = format!("/proc/self/{file} is not what proc(5) describes; is proc mounted there?");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_tell_how_many_files_are_open_is_counted_after() {
        let place = Path::new("/proc/self/fd");
        let told = count_open(place).unwrap();
        let counted = fs::read_dir(place).unwrap().count() as u64 - 1;
        assert!(told.abs_diff(counted) < 16, "{told} and {counted}, while other tests open files");
        // As old kernels do, `/proc` says 0 of its other directories.
        let tasks = Path::new("/proc/self/fdinfo");
        assert_eq!(fs::metadata(tasks).unwrap().len(), 0);
        assert!(count_open(tasks).unwrap().abs_diff(counted) < 16);
    }

    #[test]
    fn resident_memory_is_the_second_number_in_pages() {
        assert_eq!(
            resident(b"9000 1024 700 5 0 900 0\n"),
            Some(Bytes(1024 * rustix::param::page_size() as u64))
        );
        assert_eq!(resident(b"9000"), None);
        assert_eq!(resident(b"9000 18446744073709551615 0"), None);
    }
}
