//! Reads of bounded length, and text made safe to print.
//!
//! Processes choose names, and a mount or a pipe may stand in place of a file. So no read may let the agent grow or
//! wait, and no name may control a terminal or break a line of a log or a page.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The most bytes that are read of a file in `/proc`; the longest, a v1 cgroup list, stays far below.
pub(super) const PROC: u64 = 64 * 1024;

/// Without `NONBLOCK`, opening a pipe in place of a file would block.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

pub(super) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_open(openat(CWD, path, FLAGS, Mode::empty())?, limit)
}

/// Reads a file in `/proc` that needs the lock of its process's memory, which a stuck process never gives: on a thread
/// that may wait for ever.
pub(super) fn read_waiting(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    read_open(openat(CWD, path, flags, Mode::empty())?, PROC)
}

/// Reads a file in `/proc`, with bytes that are not UTF-8 replaced; empty where it cannot be read.
pub(super) fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&read(path, PROC).unwrap_or_default()).into_owned()
}

pub(super) fn read_in(directory: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    read_open(openat(directory, name, FLAGS, Mode::empty())?, PROC)
}

/// Opens a directory, so that all files read in it belong to the same one.
pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
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

fn read_open(file: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    // Most files are shorter, and then take two reads: one for all bytes, one for the end.
    let mut bytes = Vec::with_capacity(1_024);
    File::from(file).take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text with U+FFFD in place of characters that control a terminal, break a line or change the direction of text.
pub(super) fn printable(text: &str) -> String {
    let is_unprintable = |character: char| {
        character.is_control()
            || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    text.replace(is_unprintable, "\u{fffd}")
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
