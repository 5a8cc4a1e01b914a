//! Reads of bounded length, so that no file can make the agent grow or wait.
//!
//! In: a path, or an open directory and a name in it. Out: at most so many bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The most that is read of a file in `/proc`; the longest, a v1 cgroup list, stays far below.
pub(super) const PROC: u64 = 64 * 1024;

/// Without `NONBLOCK`, opening a pipe in place of a file would block.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// The first `limit` bytes of a file.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    take(openat(CWD, path, FLAGS, Mode::empty())?, limit)
}

/// The first `limit` bytes of a file in an open directory.
pub(super) fn read_in(directory: &OwnedFd, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    take(openat(directory, name, FLAGS, Mode::empty())?, limit)
}

/// Opens a directory, so that all files read in it are of the same one.
pub(super) fn hold(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// The complete lines of a file that was read up to `limit`; a line that the limit cut off is dropped.
pub(super) fn whole_lines(bytes: &[u8], limit: u64) -> impl Iterator<Item = &[u8]> {
    let cut = bytes.len() as u64 >= limit && bytes.last() != Some(&b'\n');
    let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
        _ if !cut => bytes.len(),
        Some(last) => last,
        None => 0,
    };
    bytes[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn take(file: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    // Most files are shorter, and then take two reads: one for all bytes, one for the end.
    let mut bytes = Vec::with_capacity(1_024);
    File::from(file).take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_the_limit_cut_off_is_no_line() {
        let lines = |bytes, limit| whole_lines(bytes, limit).collect::<Vec<_>>();
        assert_eq!(lines(b"one\ntwo\nthr", 11), [b"one", b"two"]);
        assert_eq!(lines(b"one\ntwo\n", 8), [b"one", b"two"]);
        assert_eq!(lines(b"one\n\ntwo", 100), [b"one", b"two"]);
        assert_eq!(lines(b"on", 2), [b""; 0]);
        assert_eq!(lines(b"", 2), [b""; 0]);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("stat");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(read(&pipe, PROC).unwrap_or_default().is_empty());
    }
}
