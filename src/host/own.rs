//! What the agent itself costs and has open.
//!
//! In: `/proc/self` of the real system, whatever root the rest of the room reads. Out: CPU time, resident
//! memory, open files, mapped files. It does not know when the agent started.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::{bounded, stat, status};
use crate::model::{Bytes, Nanoseconds};

/// The kernel tells CPU time in hundredths of a second on every architecture that has a driver (`USER_HZ`).
const TICK: u64 = 10_000_000;

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

/// Reads it.
pub fn usage() -> io::Result<Own> {
    let this = Path::new("/proc/self");
    let stat = bounded::read(&this.join("stat"), bounded::PROC)?;
    let status = bounded::read(&this.join("status"), bounded::PROC)?;
    let cpu = stat::parse(&stat).ok_or_else(|| malformed("stat"))?.cpu;
    let resident = status::resident(&status).ok_or_else(|| malformed("status"))?;
    // The one through which they are counted is not there a moment later.
    let open_files = (fs::read_dir(this.join("fd"))?.count() as u64).saturating_sub(1);
    Ok(Own { cpu: Nanoseconds(cpu.saturating_mul(TICK)), resident: Bytes(resident), open_files })
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
