//! The spool: what is to be sent, in files that survive the agent, with the place that each reader has reached.
//!
//! A record is a header (length, CRC-32, time, points, signal) and a compressed request. Records are appended to segments
//! of some MiB; a segment goes when all readers are past it, or when the spool is too large or it is too old, and then what
//! a reader still had to send of it is counted as dropped. Where a file cannot be written, its segment is in memory and
//! small, so that a broken disk costs the backlog and not the push.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use flate2::Crc;

use super::{Signal, Tally};
use crate::model::{Nanoseconds, Utc};

/// Bytes of a header.
const HEADER: usize = 24;
/// Longest compressed request. The sender makes them shorter than 1 MiB before compression.
const MOST_BODY: usize = 8 << 20;
/// Largest segment, in a file and in memory.
const MOST_SEGMENT: u64 = 4 << 20;
const MOST_IN_MEMORY: u64 = 1 << 20;
/// Largest file with the place of a reader.
const MOST_CURSOR: u64 = 4096;

/// A compressed request, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolRecord {
    /// What it holds.
    pub signal: Signal,
    /// Data points or events in it.
    pub points: u32,
    /// The time of the snapshot that it is of.
    pub at: Utc,
    /// The request, compressed by gzip.
    pub body: Bytes,
}

impl SpoolRecord {
    /// Its bytes in a segment.
    fn length(&self) -> u64 {
        (HEADER + self.body.len()) as u64
    }
}

/// A place between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpoolPosition {
    segment: u64,
    offset: u64,
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

#[derive(Debug)]
enum Storage {
    File(PathBuf),
    Memory(Vec<u8>),
}

#[derive(Debug)]
struct Segment {
    number: u64,
    length: u64,
    /// The time of its latest record.
    latest: Utc,
    storage: Storage,
}

impl Segment {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.storage {
            Storage::File(path) => File::open(path)?.read_exact_at(into, offset),
            Storage::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = bytes.get(start..start.saturating_add(into.len()));
                into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// The header at that place; none at the end, and where something else stands there.
    fn header(&self, offset: u64) -> Option<Header> {
        let mut bytes = [0; HEADER];
        if offset + HEADER as u64 > self.length {
            return None;
        }
        self.read_at(offset, &mut bytes).ok()?;
        let header = Header::decode(&bytes)?;
        (offset + HEADER as u64 + u64::from(header.length) <= self.length).then_some(header)
    }

    fn body(&self, offset: u64, header: &Header) -> Option<Vec<u8>> {
        let mut body = vec![0; header.length as usize];
        self.read_at(offset + HEADER as u64, &mut body).ok()?;
        (header.checksum(&body) == header.crc).then_some(body)
    }

    fn remove(&self) {
        if let Storage::File(path) = &self.storage {
            // It is tried again when the agent starts.
            let _ = fs::remove_file(path);
        }
    }
}

#[derive(Debug)]
struct Header {
    length: u32,
    crc: u32,
    at: Utc,
    points: u32,
    signal: Signal,
}

impl Header {
    fn of(record: &SpoolRecord) -> Self {
        let length = u32::try_from(record.body.len()).unwrap_or(u32::MAX);
        let mut header = Self { length, crc: 0, at: record.at, points: record.points, signal: record.signal };
        header.crc = header.checksum(&record.body);
        header
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.at.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.points.to_le_bytes());
        bytes[20] = self.signal as u8;
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |start: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[start..start + 4]);
            u32::from_le_bytes(word)
        };
        let at = u64::from(word(8)) | u64::from(word(12)) << 32;
        let signal = Signal::ALL.into_iter().find(|signal| *signal as u8 == bytes[20])?;
        let length = word(0);
        let is_valid = length as usize <= MOST_BODY && bytes[21..] == [0; 3];
        is_valid.then_some(Self { length, crc: word(4), at: Utc(at), points: word(16), signal })
    }

    fn checksum(&self, body: &[u8]) -> u32 {
        let mut crc = Crc::new();
        let header = Self { crc: 0, ..*self }.encode();
        crc.update(&header);
        crc.update(body);
        crc.sum()
    }

    fn end(&self, offset: u64) -> u64 {
        offset + HEADER as u64 + u64::from(self.length)
    }
}

/// The result of a search for a record.
struct RecordSearch {
    /// The place before the record, or else the end.
    start: SpoolPosition,
    found: Option<(SpoolPosition, SpoolRecord)>,
    /// Bytes passed that cannot be read.
    damaged: u64,
}

/// What is to be sent to all destinations.
#[derive(Debug)]
pub struct Spool {
    /// None where everything is in memory.
    directory: Option<PathBuf>,
    limits: SpoolLimits,
    segments: VecDeque<Segment>,
    readers: Vec<PlacedReader>,
    /// The file of the last segment, open for writing.
    file: Option<File>,
    /// Held as long as the spool is open.
    _lock: Option<File>,
    /// Bytes that were cut off or skipped because their checksum is wrong.
    damaged: u64,
    /// Failed writes.
    errors: u64,
}

impl Spool {
    /// A spool in memory.
    pub fn in_memory(limits: SpoolLimits, readers: Vec<SpoolReader>) -> Self {
        let placed =
            |reader| PlacedReader { reader, next: SpoolPosition::default(), backlog: None, waiting: 0 };
        Self {
            directory: None,
            limits,
            segments: VecDeque::new(),
            readers: readers.into_iter().map(placed).collect(),
            file: None,
            _lock: None,
            damaged: 0,
            errors: 0,
        }
    }

    /// Opens the spool in a directory, which is made. A new reader begins at the end.
    ///
    /// # Errors
    /// The directory cannot be used, or another agent uses it.
    pub fn open(directory: &Path, limits: SpoolLimits, readers: Vec<SpoolReader>) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let mut spool = Self::in_memory(limits, readers);
        (spool.directory, spool._lock) = (Some(directory.to_owned()), Some(lock));
        let mut numbers = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(number) = name.strip_suffix(".segment").and_then(|number| number.parse().ok()) {
                numbers.push((number, path));
            } else if name.starts_with("reader-")
                && !spool.readers.iter().any(|one| reader_file(&one.reader) == name)
            {
                // Of a destination that is no longer configured.
                let _ = fs::remove_file(&path);
            }
        }
        numbers.sort_unstable();
        for (number, path) in numbers {
            spool.add_segment(number, path)?;
        }
        spool.cut_tail()?;
        let end = spool.end();
        for index in 0..spool.readers.len() {
            let stored = spool.stored_place(&spool.readers[index].reader);
            let first = spool.first();
            let placed = &mut spool.readers[index];
            placed.next = stored.unwrap_or(end).clamp(first, end);
            spool.measure_waiting(index);
        }
        // So that a reader that is new now is not taken for new again.
        spool.store_places();
        Ok(spool)
    }

    fn add_segment(&mut self, number: u64, path: PathBuf) -> io::Result<()> {
        let length = fs::metadata(&path)?.len();
        let mut segment = Segment { number, length, latest: Utc(0), storage: Storage::File(path) };
        let mut offset = 0;
        while let Some(header) = segment.header(offset) {
            segment.latest = segment.latest.max(header.at);
            offset = header.end(offset);
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// Cuts off what a kill has left half written at the end of the last segment.
    fn cut_tail(&mut self) -> io::Result<()> {
        let Some(last) = self.segments.back_mut() else { return Ok(()) };
        let mut offset = 0;
        while let Some(header) = last.header(offset).filter(|header| last.body(offset, header).is_some()) {
            offset = header.end(offset);
        }
        self.damaged += last.length - offset;
        if let Storage::File(path) = &last.storage {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(offset)?;
            last.length = offset;
            self.file = Some(file);
        }
        Ok(())
    }

    /// The place before the first record.
    fn first(&self) -> SpoolPosition {
        let segment = self.segments.front().map_or(0, |segment| segment.number);
        SpoolPosition { segment, offset: 0 }
    }

    /// The place behind the last record.
    fn end(&self) -> SpoolPosition {
        let last = self.segments.back();
        last.map_or_else(SpoolPosition::default, |last| SpoolPosition {
            segment: last.number,
            offset: last.length,
        })
    }

    /// Appends a record. It is never lost for lack of a disk, only for lack of room.
    pub fn append(&mut self, record: &SpoolRecord) {
        let header = Header::of(record).encode();
        let length = record.length();
        for placed in self.readers.iter_mut().filter(|one| one.reader.signal == record.signal) {
            placed.waiting += length;
            placed.report();
        }
        if !self.append_to_last(&header, record, length) {
            self.add_last();
            if !self.append_to_last(&header, record, length) {
                self.errors += 1;
                for placed in self.readers.iter_mut().filter(|one| one.reader.signal == record.signal) {
                    placed.reader.tally.drop_points(record.points.into());
                    placed.pass(length);
                }
            }
        }
        self.enforce_limits(record.at);
    }

    /// False if the last segment is full, or cannot be written.
    fn append_to_last(&mut self, header: &[u8; HEADER], record: &SpoolRecord, length: u64) -> bool {
        let room = (self.limits.bytes / 4).min(MOST_SEGMENT);
        let Some(last) = self.segments.back_mut() else { return false };
        match &mut last.storage {
            Storage::Memory(bytes) => {
                if !bytes.is_empty() && last.length + length > room.min(MOST_IN_MEMORY) {
                    return false;
                }
                bytes.extend_from_slice(header);
                bytes.extend_from_slice(&record.body);
            }
            Storage::File(_) => {
                let Some(file) = &self.file else { return false };
                if last.length > 0 && last.length + length > room {
                    return false;
                }
                // In one write, so that a kill leaves all of it or nothing.
                let written = [header, &*record.body].concat();
                let outcome = file.write_all_at(&written, last.length).and_then(|()| file.sync_data());
                if outcome.is_err() {
                    self.errors += 1;
                    // What was written in part must not be followed by a record.
                    let _ = file.set_len(last.length);
                    self.file = None;
                    return false;
                }
            }
        }
        last.length += length;
        last.latest = last.latest.max(record.at);
        true
    }

    /// Begins a segment: in a file, or else in memory.
    fn add_last(&mut self) {
        let number = self.segments.back().map_or(1, |last| last.number + 1);
        let has_error = self.file.is_none()
            && self.segments.back().is_some_and(|last| matches!(last.storage, Storage::File(_)));
        let path = self.directory.as_ref().map(|directory| directory.join(format!("{number:012}.segment")));
        self.file = None;
        let storage = match path.filter(|_| !has_error) {
            Some(path) => match OpenOptions::new().create(true).truncate(true).write(true).open(&path) {
                Ok(file) => {
                    self.file = Some(file);
                    Storage::File(path)
                }
                Err(_) => {
                    self.errors += 1;
                    Storage::Memory(Vec::new())
                }
            },
            None => Storage::Memory(Vec::new()),
        };
        self.segments.push_back(Segment { number, length: 0, latest: Utc(0), storage });
    }

    /// Removes what is too much or too old.
    fn enforce_limits(&mut self, now: Utc) {
        let in_memory = |segment: &&Segment| matches!(segment.storage, Storage::Memory(_));
        while self.segments.len() > 1 {
            let is_large =
                self.bytes() > self.limits.bytes || self.segments.iter().filter(in_memory).count() > 2;
            let oldest = self.segments.front();
            let is_old = oldest.is_some_and(|one| now.0.saturating_sub(one.latest.0) > self.limits.age.0);
            if !is_large && !is_old {
                return;
            }
            self.drop_oldest();
        }
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Removes the oldest segment, and counts what readers had to send of it.
    fn drop_oldest(&mut self) {
        let Some(oldest) = self.segments.pop_front() else { return };
        let after = SpoolPosition { segment: oldest.number + 1, offset: 0 };
        for placed in &mut self.readers {
            let mut offset = 0;
            while let Some(header) = oldest.header(offset) {
                let at = SpoolPosition { segment: oldest.number, offset };
                if header.signal == placed.reader.signal && placed.needs(at) {
                    placed.reader.tally.drop_points(header.points.into());
                    placed.pass(header.end(0));
                }
                offset = header.end(offset);
            }
            placed.next = placed.next.max(after);
            placed.backlog =
                placed.backlog.map(|(from, to)| (from.max(after), to)).filter(|(from, to)| from < to);
        }
        oldest.remove();
    }

    /// Removes the segments that all readers are past.
    fn trim(&mut self) {
        let needed = self.readers.iter().map(PlacedReader::first).min().unwrap_or_default();
        while self.segments.len() > 1 && self.segments.front().is_some_and(|one| one.number < needed.segment)
        {
            if let Some(oldest) = self.segments.pop_front() {
                oldest.remove();
            }
        }
    }

    /// The record of a reader after `skip` others, and the place behind it.
    pub fn peek(&mut self, reader: usize, skip: usize) -> Option<(SpoolPosition, SpoolRecord)> {
        let end = self.end();
        let (next, signal) = self.readers.get(reader).map(|one| (one.next, one.reader.signal))?;
        let RecordSearch { start, found, damaged } = self.find(next, end, signal, skip);
        if skip == 0 {
            // What is another signal's, or damaged, is passed once.
            self.damaged += damaged;
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
        let RecordSearch { start, found, damaged } = self.find(from, to, signal, 0);
        self.damaged += damaged;
        self.readers.get_mut(reader)?.backlog = found.is_some().then_some((start, to));
        found
    }

    /// The record of that signal after `skip` others between two places.
    fn find(&self, from: SpoolPosition, to: SpoolPosition, signal: Signal, mut skip: usize) -> RecordSearch {
        let mut damaged = 0;
        for segment in self.segments.iter().filter(|one| one.number >= from.segment) {
            let mut offset = if segment.number == from.segment { from.offset } else { 0 };
            loop {
                let start = SpoolPosition { segment: segment.number, offset };
                if start >= to {
                    return RecordSearch { start: to, found: None, damaged };
                }
                let Some(header) = segment.header(offset) else {
                    damaged += segment.length.saturating_sub(offset);
                    break;
                };
                let end = header.end(offset);
                if header.signal == signal && skip == 0 {
                    if let Some(body) = segment.body(offset, &header) {
                        let Header { at, points, .. } = header;
                        let record = SpoolRecord { signal, points, at, body: body.into() };
                        let past = SpoolPosition { segment: segment.number, offset: end };
                        return RecordSearch { start, found: Some((past, record)), damaged };
                    }
                    damaged += end - offset;
                }
                skip -= usize::from(header.signal == signal && skip > 0);
                offset = end;
            }
        }
        RecordSearch { start: to, found: None, damaged }
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
        let end = self.end();
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
                self.errors += 1;
            }
        }
        self.trim();
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
        let (first, mut waiting) = (placed.first().segment, 0);
        for segment in self.segments.iter().filter(|one| one.number >= first) {
            let mut offset = 0;
            while let Some(header) = segment.header(offset) {
                let at = SpoolPosition { segment: segment.number, offset };
                if header.signal == placed.reader.signal && placed.needs(at) {
                    waiting += header.end(0);
                }
                offset = header.end(offset);
            }
        }
        placed.waiting = waiting;
        placed.report();
    }

    /// Stores the places of all readers.
    pub fn store_places(&mut self) {
        (0..self.readers.len()).for_each(|reader| self.store_place(reader));
    }

    /// Bytes that were damaged, and failed writes.
    pub const fn problems(&self) -> (u64, u64) {
        (self.damaged, self.errors)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn reader_file(reader: &SpoolReader) -> String {
    format!("reader-{:08x}", checksum(reader.name.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

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
        let rest = spool.bytes() / (HEADER as u64 + 1_000);
        assert!((700..1_100).contains(&rest), "{rest}");
        assert_eq!(one.tally.counts().dropped, 10 * (1_100 - rest));
        assert_eq!(one.tally.waiting.load(Ordering::Relaxed), spool.bytes());
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
