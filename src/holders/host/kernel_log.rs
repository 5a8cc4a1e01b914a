//! The kernel's log, read record by record from `/dev/kmsg` or a file in its format.
//!
//! Only records of the kernel itself are reported. Records that were overwritten before they could be read are counted.
//! What a record means is decided in `session`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::{Errno, read};

use super::Host;

/// The longest line that is read. The kernel's own records fit (`PRINTKRB_RECORD_MAX` is 1 KiB, with escapes four times
/// that); `/dev/kmsg` refuses a smaller buffer.
const LONGEST: usize = 8 * 1024;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

#[derive(Debug)]
pub struct KernelLog {
    file: OwnedFd,
    buffer: Box<[u8; LONGEST]>,
    /// Length of the incomplete line at the start of the buffer, in bytes.
    kept: usize,
    /// Whether the current line is too long, so that the rest of it is skipped.
    skipping: bool,
    next: Option<u64>,
    lost: u64,
}

impl Host {
    /// Opens the kernel's log at its end, or `from_start` for a log that was created while the agent waited for it.
    pub fn kernel_log(&self, from_start: bool) -> io::Result<KernelLog> {
        KernelLog::open(&self.root.join("dev/kmsg"), from_start)
    }
}

impl KernelLog {
    fn open(path: &Path, from_start: bool) -> io::Result<Self> {
        let file = openat(CWD, path, FLAGS, Mode::empty())?;
        if !from_start {
            seek(&file, SeekFrom::End(0))?;
        }
        Ok(Self { file, buffer: Box::new([0; LONGEST]), kept: 0, skipping: false, next: None, lost: 0 })
    }

    /// Reports the texts of new records, at most one buffer of them. Returns whether there may be more.
    pub fn read(&mut self, mut report: impl FnMut(&str)) -> io::Result<bool> {
        match read(&self.file, &mut self.buffer[self.kept..]) {
            Ok(0) => self.restart_if_truncated(),
            Ok(count) => {
                self.kept += count;
                self.report_lines(&mut report);
                Ok(true)
            }
            // Records were overwritten; the next read goes on at the oldest one left.
            Err(Errno::PIPE) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            // The kernel skips a record that does not fit into the buffer.
            Err(Errno::INVAL) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for records, for so many seconds at most; true if none came. A regular file is always readable.
    pub fn is_idle_for(&self, seconds: u32) -> io::Result<bool> {
        let time = Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&time)) {
            Ok(ready) => Ok(ready == 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns how many records were overwritten unread since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Starts at the beginning again if a regular file was truncated.
    fn restart_if_truncated(&mut self) -> io::Result<bool> {
        let (length, offset) = (fstat(&self.file)?.st_size, seek(&self.file, SeekFrom::Current(0))?);
        let is_truncated = u64::try_from(length).is_ok_and(|length| length < offset);
        if is_truncated {
            seek(&self.file, SeekFrom::Start(0))?;
            (self.kept, self.skipping, self.next) = (0, false, None);
        }
        Ok(is_truncated)
    }

    fn report_lines(&mut self, report: &mut impl FnMut(&str)) {
        let Self { buffer, kept, skipping, next, lost, .. } = self;
        let mut start = 0;
        while let Some(length) = buffer[start..*kept].iter().position(|byte| *byte == b'\n') {
            let line = &buffer[start..start + length];
            start += length + 1;
            if std::mem::take(skipping) {
                continue;
            }
            let Some((number, text)) = parse_record(line) else { continue };
            *lost += next.map_or(0, |expected| number.saturating_sub(expected));
            *next = number.checked_add(1);
            if let Some(text) = text {
                report(&String::from_utf8_lossy(text));
            }
        }
        buffer.copy_within(start..*kept, 0);
        *kept -= start;
        if *kept == LONGEST {
            (*kept, *skipping) = (0, true);
        }
    }
}

/// Number of a record `priority,number,time,flags;text`, and its text if the kernel itself wrote it: records of
/// processes have another facility than 0. Lines that begin with a blank belong to the record before.
fn parse_record(line: &[u8]) -> Option<(u64, Option<&[u8]>)> {
    let semicolon = line.iter().position(|byte| *byte == b';')?;
    let head = std::str::from_utf8(&line[..semicolon]).ok()?;
    let mut fields = head.split(',');
    let priority: u64 = fields.next()?.parse().ok()?;
    let number: u64 = fields.next()?.parse().ok()?;
    Some((number, (priority >> 3 == 0).then_some(&line[semicolon + 1..])))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::path::PathBuf;

    use rustix::fs::{FileType, mknodat};

    use super::*;

    struct TestLog {
        directory: tempfile::TempDir,
    }

    impl TestLog {
        fn new() -> Self {
            let place = Self { directory: tempfile::tempdir().unwrap() };
            place.append(b"6,1,10,-;before\n");
            place
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("kmsg")
        }

        fn append(&self, bytes: &[u8]) {
            let mut file = OpenOptions::new().append(true).create(true).open(self.path()).unwrap();
            file.write_all(bytes).unwrap();
        }
    }

    fn all(log: &mut KernelLog) -> Vec<String> {
        let mut texts = Vec::new();
        while log.read(|text| texts.push(text.to_owned())).unwrap() {}
        texts
    }

    #[test]
    fn only_what_comes_after_the_opening_is_told_and_only_of_the_kernel() {
        let place = TestLog::new();
        let mut log = KernelLog::open(&place.path(), false).unwrap();
        assert_eq!(all(&mut log), [""; 0]);
        place.append(b"4,2,20,-;one\n SUBSYSTEM=pci\n12,3,20,-;written by a process\n3,4,21,c,x=1;tw");
        assert_eq!(all(&mut log), ["one"]);
        place.append(b"o\nnot a record\n;\n,,;x\n");
        assert_eq!(all(&mut log), ["two"]);
        assert_eq!(log.take_lost(), 0);
    }

    #[test]
    fn a_log_that_came_later_is_told_whole_and_one_that_was_cut_again() {
        let place = TestLog::new();
        let mut log = KernelLog::open(&place.path(), true).unwrap();
        assert_eq!(all(&mut log), ["before"]);
        std::fs::write(place.path(), b"6,1,1,-;new\n").unwrap();
        assert_eq!(all(&mut log), ["new"]);
    }

    #[test]
    fn a_log_is_silent_until_it_speaks_and_a_file_never_is() {
        let place = TestLog::new();
        let path = place.directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut log = KernelLog::open(&path, true).unwrap();
        assert!(log.is_idle_for(0).unwrap());
        writer.write_all(b"4,1,1,-;seen\n").unwrap();
        assert!(!log.is_idle_for(60).unwrap());
        assert_eq!(all(&mut log), ["seen"]);
        assert!(log.is_idle_for(0).unwrap());
        assert!(!KernelLog::open(&place.path(), false).unwrap().is_idle_for(60).unwrap());
    }

    #[test]
    fn overwritten_records_are_counted_by_the_gap_in_their_numbers() {
        let place = TestLog::new();
        let mut log = KernelLog::open(&place.path(), false).unwrap();
        place.append(b"4,7,20,-;one\n4,18,20,-;two\n4,17,20,-;older\n");
        assert_eq!(all(&mut log).len(), 3);
        assert_eq!(log.take_lost(), 10);
        assert_eq!(log.take_lost(), 0);
    }

    #[test]
    fn a_line_without_end_and_any_bytes_are_passed_over() {
        let place = TestLog::new();
        let mut log = KernelLog::open(&place.path(), false).unwrap();
        place.append(&[b'x'; 3 * LONGEST]);
        place.append(b" 4,1,1,-;hidden\n4,2,1,-;\xff\xfe\x00\n4,3,1,-;seen\n");
        let texts = all(&mut log);
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert_eq!(texts[1], "seen");
    }
}
