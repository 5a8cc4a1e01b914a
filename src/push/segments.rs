//! The segments of the spool: records in files, or in memory where a file cannot be written.
//!
//! A record is a header (length, CRC-32, time, points, signal) and a compressed request. Records are appended to segments
//! of some MiB, of which the oldest are removed.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::Crc;

use super::Signal;
use crate::model::{Nanoseconds, Utc};

/// Bytes of a header.
pub(super) const HEADER: usize = 24;
/// Longest compressed request. The sender makes them shorter than 1 MiB before compression.
const MOST_BODY: usize = 8 << 20;
/// Largest segment, in a file and in memory.
const MOST_SEGMENT: u64 = 4 << 20;
const MOST_IN_MEMORY: u64 = 1 << 20;

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
    pub(super) fn length(&self) -> u64 {
        (HEADER + self.body.len()) as u64
    }
}

/// A place between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpoolPosition {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

#[derive(Debug)]
enum Storage {
    File(PathBuf),
    Memory(Vec<u8>),
}

/// A file of records, or its stand-in.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
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

    /// Its records, each with the place before it.
    pub(super) fn headers(&self) -> impl Iterator<Item = (SpoolPosition, Header)> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let header = self.header(offset)?;
            let at = SpoolPosition { segment: self.number, offset };
            offset = header.end(offset);
            Some((at, header))
        })
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

    pub(super) fn remove(&self) {
        if let Storage::File(path) = &self.storage {
            // It is tried again when the agent starts.
            let _ = fs::remove_file(path);
        }
    }
}

/// What stands before a request.
#[derive(Debug)]
pub(super) struct Header {
    length: u32,
    crc: u32,
    at: Utc,
    pub(super) points: u32,
    pub(super) signal: Signal,
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

    /// Where the record ends that begins at this offset.
    pub(super) fn end(&self, offset: u64) -> u64 {
        offset + HEADER as u64 + u64::from(self.length)
    }
}

/// The result of a search for a record.
pub(super) struct RecordSearch {
    /// The place before the record, or else the end.
    pub(super) start: SpoolPosition,
    pub(super) found: Option<(SpoolPosition, SpoolRecord)>,
    /// Bytes passed that cannot be read.
    pub(super) damaged: u64,
}

/// All segments, the oldest first.
#[derive(Debug)]
pub(super) struct Segments {
    /// None where everything is in memory.
    directory: Option<PathBuf>,
    /// Most bytes in all of them.
    most: u64,
    segments: VecDeque<Segment>,
    /// The file of the last segment, open for writing.
    file: Option<File>,
    /// Bytes that were cut off or skipped because their checksum is wrong.
    pub(super) damaged: u64,
    /// Failed writes.
    pub(super) errors: u64,
}

impl Segments {
    /// No segments, and none on disk later.
    pub(super) const fn in_memory(most: u64) -> Self {
        Self { directory: None, most, segments: VecDeque::new(), file: None, damaged: 0, errors: 0 }
    }

    /// Opens the segments of a directory, and cuts off what a kill has left half written at the end of the last.
    pub(super) fn open(directory: &Path, mut files: Vec<(u64, PathBuf)>, most: u64) -> io::Result<Self> {
        files.sort_unstable();
        let mut segments = Self { directory: Some(directory.to_owned()), ..Self::in_memory(most) };
        for (number, path) in files {
            let length = fs::metadata(&path)?.len();
            let mut segment = Segment { number, length, latest: Utc(0), storage: Storage::File(path) };
            segment.latest = segment.headers().map(|(_, header)| header.at).max().unwrap_or(Utc(0));
            segments.segments.push_back(segment);
        }
        segments.cut_tail()?;
        Ok(segments)
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
    pub(super) fn first(&self) -> SpoolPosition {
        let segment = self.segments.front().map_or(0, |segment| segment.number);
        SpoolPosition { segment, offset: 0 }
    }

    /// The place behind the last record.
    pub(super) fn end(&self) -> SpoolPosition {
        let last = self.segments.back();
        last.map_or_else(SpoolPosition::default, |last| SpoolPosition {
            segment: last.number,
            offset: last.length,
        })
    }

    /// Appends a record; false if it can be written nowhere.
    pub(super) fn append(&mut self, record: &SpoolRecord) -> bool {
        let header = Header::of(record).encode();
        if self.append_to_last(&header, record) {
            return true;
        }
        self.add_last();
        let is_appended = self.append_to_last(&header, record);
        self.errors += u64::from(!is_appended);
        is_appended
    }

    /// False if the last segment is full, or cannot be written.
    fn append_to_last(&mut self, header: &[u8; HEADER], record: &SpoolRecord) -> bool {
        let (room, length) = ((self.most / 4).min(MOST_SEGMENT), record.length());
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

    /// Bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Takes out the oldest segment if all are too large, or it is too old.
    pub(super) fn take_excess(&mut self, now: Utc, age: Nanoseconds) -> Option<Segment> {
        let in_memory = |segment: &&Segment| matches!(segment.storage, Storage::Memory(_));
        if self.segments.len() < 2 {
            return None;
        }
        let is_large = self.bytes() > self.most || self.segments.iter().filter(in_memory).count() > 2;
        let is_old = |oldest: &Segment| now.0.saturating_sub(oldest.latest.0) > age.0;
        if is_large || self.segments.front().is_some_and(is_old) { self.segments.pop_front() } else { None }
    }

    /// Removes the segments before that one.
    pub(super) fn trim(&mut self, needed: u64) {
        while self.segments.len() > 1 && self.segments.front().is_some_and(|one| one.number < needed) {
            if let Some(oldest) = self.segments.pop_front() {
                oldest.remove();
            }
        }
    }

    /// All records from the segment of that number on, each with the place before it.
    pub(super) fn headers(&self, from: u64) -> impl Iterator<Item = (SpoolPosition, Header)> {
        self.segments.iter().filter(move |one| one.number >= from).flat_map(Segment::headers)
    }

    /// The record of that signal after `skip` others between two places.
    pub(super) fn find(
        &self,
        from: SpoolPosition,
        to: SpoolPosition,
        signal: Signal,
        mut skip: usize,
    ) -> RecordSearch {
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
}

/// The CRC-32 of some bytes.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
