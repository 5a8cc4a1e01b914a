//! The spool: what is to be sent, in files that survive the agent, with the place that each reader has reached.
//!
//! A segment goes when all readers are past it, or when the spool is too large or it is too old, and then what a reader still
//! had to send of it is counted as dropped. Where a file cannot be written, its segment is in memory and small, so that a
//! broken disk costs the backlog and not the push.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::segments::{RecordSearch, Segment, Segments, checksum};
use super::{Signal, SpoolPosition, SpoolRecord, Tally};
use crate::model::Nanoseconds;

/// Largest file with the place of a reader.
const MOST_CURSOR: u64 = 4096;

/// The lock of a spool's directory.
#[derive(Debug)]
struct SpoolLock(File);

impl SpoolLock {
    fn acquire(directory: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for SpoolLock {
    /// Unlocks before the file is closed: a child that another thread is starting has it open too until it executes.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Bounds of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Most bytes in all segments.
    pub bytes: u64,
    /// Most time between a record and the latest one.
    pub age: Nanoseconds,
}

/// A reader of one signal.
#[derive(Clone, Debug)]
pub struct SpoolReader {
    /// Its name, which is that of the destination.
    pub name: Arc<str>,
    /// What it reads.
    pub signal: Signal,
    /// Where it counts.
    pub tally: Arc<Tally>,
}

/// A reader with its place.
#[derive(Debug)]
struct PlacedReader {
    reader: SpoolReader,
    /// The next record.
    next: SpoolPosition,
    /// Records before `next` that were put off: sent after the latest.
    backlog: Option<(SpoolPosition, SpoolPosition)>,
    /// Bytes of its records from there on.
    waiting: u64,
}

impl PlacedReader {
    /// Whether it still needs the record at that place.
    fn needs(&self, at: SpoolPosition) -> bool {
        at >= self.next || self.backlog.is_some_and(|(from, to)| (from..to).contains(&at))
    }

    /// Records that so many bytes wait no more.
    fn pass(&mut self, bytes: u64) {
        self.waiting = self.waiting.saturating_sub(bytes);
        self.report();
    }

    fn report(&self) {
        self.reader.tally.waiting.store(self.waiting, Ordering::Relaxed);
    }

    /// The first record that it still needs.
    fn first(&self) -> SpoolPosition {
        self.backlog.map_or(self.next, |(from, _)| from)
    }
}

/// What is to be sent to all destinations.
#[derive(Debug)]
pub struct Spool {
    /// None where everything is in memory.
    directory: Option<PathBuf>,
    limits: SpoolLimits,
    segments: Segments,
    readers: Vec<PlacedReader>,
    /// Held as long as the spool is open.
    _lock: Option<SpoolLock>,
}

impl Spool {
    /// A spool in memory.
    pub fn in_memory(limits: SpoolLimits, readers: Vec<SpoolReader>) -> Self {
        let placed =
            |reader| PlacedReader { reader, next: SpoolPosition::default(), backlog: None, waiting: 0 };
        Self {
            directory: None,
            limits,
            segments: Segments::in_memory(limits.bytes),
            readers: readers.into_iter().map(placed).collect(),
            _lock: None,
        }
    }

    /// Opens the spool in a directory, which is made. A new reader begins at the end.
    ///
    /// # Errors
    /// The directory cannot be used, or another agent uses it.
    pub fn open(directory: &Path, limits: SpoolLimits, readers: Vec<SpoolReader>) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let lock = SpoolLock::acquire(directory)?;
        let mut spool = Self::in_memory(limits, readers);
        (spool.directory, spool._lock) = (Some(directory.to_owned()), Some(lock));
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(number) = name.strip_suffix(".segment").and_then(|number| number.parse().ok()) {
                files.push((number, path));
            } else if name.starts_with("reader-")
                && !spool.readers.iter().any(|one| reader_file(&one.reader) == name)
            {
                // Of a destination that is no longer configured.
                let _ = fs::remove_file(&path);
            }
        }
        spool.segments = Segments::open(directory, files, limits.bytes)?;
        let (first, end) = (spool.segments.first(), spool.segments.end());
        for index in 0..spool.readers.len() {
            let stored = spool.stored_place(&spool.readers[index].reader);
            let placed = &mut spool.readers[index];
            placed.next = stored.unwrap_or(end).clamp(first, end);
            spool.measure_waiting(index);
        }
        // So that a reader that is new now is not taken for new again.
        spool.store_places();
        Ok(spool)
    }

    /// Appends a record. It is never lost for lack of a disk, only for lack of room.
    pub fn append(&mut self, record: &SpoolRecord) {
        let length = record.length();
        for placed in self.readers.iter_mut().filter(|one| one.reader.signal == record.signal) {
            placed.waiting += length;
            placed.report();
        }
        if !self.segments.append(record) {
            for placed in self.readers.iter_mut().filter(|one| one.reader.signal == record.signal) {
                placed.reader.tally.drop_points(record.points.into());
                placed.pass(length);
            }
        }
        while let Some(oldest) = self.segments.take_excess(record.at, self.limits.age) {
            self.drop_segment(&oldest);
        }
    }

    /// Removes a segment, and counts what readers had to send of it.
    fn drop_segment(&mut self, segment: &Segment) {
        let after = SpoolPosition { segment: segment.number + 1, offset: 0 };
        for placed in &mut self.readers {
            for (at, header) in segment.headers() {
                if header.signal == placed.reader.signal && placed.needs(at) {
                    placed.reader.tally.drop_points(header.points.into());
                    placed.pass(header.end(0));
                }
            }
            placed.next = placed.next.max(after);
            placed.backlog =
                placed.backlog.map(|(from, to)| (from.max(after), to)).filter(|(from, to)| from < to);
        }
        segment.remove();
    }

    /// The record of a reader after `skip` others, and the place behind it.
    pub fn peek(&mut self, reader: usize, skip: usize) -> Option<(SpoolPosition, SpoolRecord)> {
        let end = self.segments.end();
        let (next, signal) = self.readers.get(reader).map(|one| (one.next, one.reader.signal))?;
        let RecordSearch { start, found, damaged } = self.segments.find(next, end, signal, skip);
        if skip == 0 {
            // What is another signal's, or damaged, is passed once.
            self.segments.damaged += damaged;
            let placed = self.readers.get_mut(reader)?;
            placed.next = start;
            if damaged > 0 {
                self.measure_waiting(reader);
            }
        }
        found
    }

    /// The first record of what a reader has put off, and the place behind it.
    pub fn peek_backlog(&mut self, reader: usize) -> Option<(SpoolPosition, SpoolRecord)> {
        let placed = self.readers.get(reader)?;
        let ((from, to), signal) = (placed.backlog?, placed.reader.signal);
        let RecordSearch { start, found, damaged } = self.segments.find(from, to, signal, 0);
        self.segments.damaged += damaged;
        self.readers.get_mut(reader)?.backlog = found.is_some().then_some((start, to));
        found
    }

    /// Records that a reader is past a record, which ends at that place.
    pub fn advance(&mut self, reader: usize, (past, record): (SpoolPosition, &SpoolRecord)) {
        let Some(placed) = self.readers.get_mut(reader) else { return };
        placed.next = placed.next.max(past);
        placed.pass(record.length());
        self.store_place(reader);
    }

    /// Records that a reader is past a record of what it has put off, which ends at that place.
    pub fn advance_backlog(&mut self, reader: usize, (past, record): (SpoolPosition, &SpoolRecord)) {
        let Some(placed) = self.readers.get_mut(reader) else { return };
        placed.backlog = placed.backlog.map(|(_, to)| (past, to)).filter(|(from, to)| from < to);
        placed.pass(record.length());
        self.store_place(reader);
    }

    /// Puts off everything that waits for a reader: it is sent after what comes from now on.
    pub fn put_off(&mut self, reader: usize) {
        let end = self.segments.end();
        let Some(placed) = self.readers.get_mut(reader) else { return };
        let first = placed.first();
        if placed.next < end {
            (placed.next, placed.backlog) = (end, Some((first, end)));
            // What was sent since the last time is sent again.
            self.measure_waiting(reader);
        }
    }

    /// Whether something waits for a reader.
    pub fn has_backlog(&self, reader: usize) -> bool {
        self.readers.get(reader).is_some_and(|one| one.backlog.is_some())
    }

    fn store_place(&mut self, reader: usize) {
        let Some(placed) = self.readers.get(reader) else { return };
        if let Some(directory) = &self.directory {
            let (file, first) = (reader_file(&placed.reader), placed.first());
            let text = format!("{} {} {}", first.segment, first.offset, placed.reader.name);
            let text = format!("{:08x} {text}\n", checksum(text.as_bytes()));
            let (new, path) = (directory.join(format!("{file}.new")), directory.join(file));
            // A place that is lost or old only means that something is sent twice.
            if fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).is_err() {
                self.segments.errors += 1;
            }
        }
        let needed = self.readers.iter().map(PlacedReader::first).min().unwrap_or_default();
        self.segments.trim(needed.segment);
    }

    fn stored_place(&self, reader: &SpoolReader) -> Option<SpoolPosition> {
        let path = self.directory.as_ref()?.join(reader_file(reader));
        let mut text = String::new();
        // A reader whose place cannot be read begins at the first record, so that nothing is lost.
        let unreadable = Some(SpoolPosition::default());
        match File::open(path).map(|file| file.take(MOST_CURSOR).read_to_string(&mut text)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return unreadable,
        }
        let place = || {
            let (crc, text) = text.trim_end().split_once(' ')?;
            if u32::from_str_radix(crc, 16) != Ok(checksum(text.as_bytes())) {
                return None;
            }
            let mut parts = text.splitn(3, ' ');
            let segment = parts.next()?.parse().ok()?;
            let offset = parts.next()?.parse().ok()?;
            (parts.next() == Some(&*reader.name)).then_some(SpoolPosition { segment, offset })
        };
        place().or(unreadable)
    }

    /// Keeps a copy of what no destination takes, for whoever looks for the reason; the copy is overwritten by later ones.
    pub fn set_aside(&self, record: &SpoolRecord) {
        const MOST_COPIES: u64 = 8;
        let Some(directory) = &self.directory else { return };
        let file = format!("refused-{}.pb.gz", record.at.0 / 1_000_000_000 % MOST_COPIES);
        let _ = File::create(directory.join(file)).and_then(|mut file| file.write_all(&record.body));
    }

    /// Counts what waits for a reader, by all headers from its place on.
    fn measure_waiting(&mut self, reader: usize) {
        let Some(placed) = self.readers.get_mut(reader) else { return };
        let signal = placed.reader.signal;
        let needed = self.segments.headers(placed.first().segment);
        let needed = needed.filter(|(at, header)| header.signal == signal && placed.needs(*at));
        placed.waiting = needed.map(|(_, header)| header.end(0)).sum();
        placed.report();
    }

    /// Stores the places of all readers.
    pub fn store_places(&mut self) {
        (0..self.readers.len()).for_each(|reader| self.store_place(reader));
    }

    /// Bytes that were damaged, and failed writes.
    pub const fn problems(&self) -> (u64, u64) {
        (self.segments.damaged, self.segments.errors)
    }
}

fn reader_file(reader: &SpoolReader) -> String {
    format!("reader-{:08x}", checksum(reader.name.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::segments::HEADER;
    use super::*;
    use crate::model::Utc;

    const LIMITS: SpoolLimits = SpoolLimits { bytes: 1 << 20, age: Nanoseconds::from_seconds(3_600) };

    fn reader(name: &str) -> SpoolReader {
        SpoolReader { name: name.into(), signal: Signal::Metrics, tally: Arc::default() }
    }

    fn record(second: u64, size: usize) -> SpoolRecord {
        let body = vec![second as u8; size].into();
        SpoolRecord { signal: Signal::Metrics, points: 10, at: Utc(second * 1_000_000_000), body }
    }

    fn seconds(spool: &mut Spool, reader: usize) -> Vec<u64> {
        let mut seconds = Vec::new();
        while let Some((place, record)) = spool.peek(reader, 0) {
            seconds.push(record.at.0 / 1_000_000_000);
            spool.advance(reader, (place, &record));
        }
        seconds
    }

    #[test]
    fn records_come_back_in_order_after_a_restart_and_each_reader_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Spool::open(directory.path(), LIMITS, vec![reader("a"), reader("b")]).unwrap();
        let mut spool = open();
        (1..=5).for_each(|second| spool.append(&record(second, 100)));
        spool.store_places();
        let (place, first) = spool.peek(0, 0).unwrap();
        assert_eq!(first, record(1, 100));
        spool.advance(0, (place, &first));
        drop(spool);
        let mut spool = open();
        assert_eq!((seconds(&mut spool, 0), seconds(&mut spool, 1)), (vec![2, 3, 4, 5], vec![1, 2, 3, 4, 5]));
        // A destination that is new gets what comes from now on.
        drop(spool);
        let mut spool = Spool::open(directory.path(), LIMITS, vec![reader("c")]).unwrap();
        spool.append(&record(6, 100));
        assert_eq!(seconds(&mut spool, 0), [6]);
    }

    #[test]
    fn a_file_cut_at_any_byte_loses_no_whole_record_and_what_is_cut_is_counted() {
        let whole = (HEADER + 20) as u64;
        for cut in 0..=3 * whole {
            let directory = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(directory.path(), LIMITS, vec![reader("a")]).unwrap();
            (1..=3).for_each(|second| spool.append(&record(second, 20)));
            spool.store_places();
            drop(spool);
            let file = directory.path().join("000000000001.segment");
            OpenOptions::new().write(true).open(&file).unwrap().set_len(cut).unwrap();
            let mut spool = Spool::open(directory.path(), LIMITS, vec![reader("a")]).unwrap();
            assert_eq!(spool.problems().0, cut % whole);
            spool.append(&record(9, 20));
            let expected: Vec<u64> = (1..=cut / whole).chain([9]).collect();
            assert_eq!(seconds(&mut spool, 0), expected, "{cut}");
        }
    }

    #[test]
    fn a_flipped_byte_is_noticed_and_what_follows_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(directory.path(), LIMITS, vec![reader("a")]).unwrap();
        (1..=3).for_each(|second| spool.append(&record(second, 20)));
        let file =
            OpenOptions::new().write(true).open(directory.path().join("000000000001.segment")).unwrap();
        file.write_all_at(b"x", (HEADER + 20 + HEADER + 3) as u64).unwrap();
        assert_eq!(seconds(&mut spool, 0), [1, 3]);
        assert_eq!(spool.problems().0, (HEADER + 20) as u64);
    }

    #[test]
    fn what_is_too_much_or_too_old_is_dropped_from_the_oldest_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let one = reader("a");
        let mut spool = Spool::open(directory.path(), LIMITS, vec![one.clone()]).unwrap();
        (1..=1_100).for_each(|second| spool.append(&record(second, 1_000)));
        let rest = spool.segments.bytes() / (HEADER as u64 + 1_000);
        assert!((700..1_100).contains(&rest), "{rest}");
        assert_eq!(one.tally.counts().dropped, 10 * (1_100 - rest));
        assert_eq!(one.tally.waiting.load(Ordering::Relaxed), spool.segments.bytes());
        // Two hours later everything in full segments is too old.
        spool.append(&record(1_100 + 7_200, 1_000));
        let left = seconds(&mut spool, 0).len() as u64;
        assert!(left < 300, "{left}");
        assert_eq!(one.tally.counts().dropped, 10 * (1_101 - left));
        assert!(fs::read_dir(directory.path()).unwrap().count() <= 4);
    }

    #[test]
    fn a_disk_that_cannot_be_written_costs_the_backlog_and_not_the_push() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("spool");
        let mut spool = Spool::open(&inner, LIMITS, vec![reader("a")]).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        (1..=3).for_each(|second| spool.append(&record(second, 20)));
        assert_eq!(seconds(&mut spool, 0), [1, 2, 3]);
        assert!(spool.problems().1 > 0);
    }

    #[test]
    fn what_is_put_off_is_sent_after_what_comes_later() {
        let mut spool = Spool::in_memory(LIMITS, vec![reader("a")]);
        (1..=2).for_each(|second| spool.append(&record(second, 20)));
        spool.put_off(0);
        spool.append(&record(3, 20));
        assert_eq!(seconds(&mut spool, 0), [3]);
        let mut late = Vec::new();
        while let Some((place, record)) = spool.peek_backlog(0) {
            late.push(record.at.0 / 1_000_000_000);
            spool.advance_backlog(0, (place, &record));
        }
        assert_eq!((late, spool.has_backlog(0)), (vec![1, 2], false));
    }
}
