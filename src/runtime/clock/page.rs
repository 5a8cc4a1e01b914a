//! A clock in a file: origin, speed, or a value that a test sets.
//!
//! Eight little-endian words: magic, sequence (odd during a write), held, host boot time at the origin, elapsed time at the
//! origin, speed in millionths, UTC at elapsed 0, simulated boot time at elapsed 0. It is read by `pread` and not mapped,
//! since a mapping needs unsafe code.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;

use super::system_now;
use crate::model::{Nanoseconds, Stamp, Utc};

const MAGIC: u64 = u64::from_le_bytes(*b"GPUMCLK1");
const BYTES: usize = 64;
const MILLION: u128 = REAL_TIME as u128;

/// The speed of real time, in millionths.
pub const REAL_TIME: u64 = 1_000_000;

#[derive(Debug, Error)]
pub enum PageError {
    #[error("clock page {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("clock page {path}: not a clock page; remove it, or start the demo with --fresh")]
    Foreign { path: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Whether time stands still at `elapsed`.
    pub held: bool,
    /// The host's boot clock at the origin.
    pub origin: Nanoseconds,
    /// Elapsed time at the origin.
    pub elapsed: Nanoseconds,
    /// Speed in millionths of real time.
    pub speed: u64,
    /// UTC at elapsed 0.
    pub utc: Utc,
    /// The simulated host's boot clock at elapsed 0.
    pub boottime: Nanoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMoment {
    /// What the host's boot clock showed.
    pub host: Nanoseconds,
    pub elapsed: Nanoseconds,
}

impl PageState {
    pub fn held_at(elapsed: Nanoseconds, utc: Utc, boottime: Nanoseconds) -> Self {
        Self { held: true, origin: Nanoseconds(0), elapsed, speed: REAL_TIME, utc, boottime }
    }

    /// The state that runs at `speed` from `host` on, after a time in which no process used the page. That time counts at
    /// real speed at most, from the origin or from the last moment `reached`. A boot clock that is behind belongs to a
    /// later boot; then no time has passed.
    pub fn resumed(self, reached: Option<PageMoment>, host: Nanoseconds, speed: u64) -> Self {
        let origin = PageMoment { host: self.origin, elapsed: self.elapsed };
        let last = reached.filter(|reached| reached.elapsed > origin.elapsed).unwrap_or(origin);
        let away =
            Self { origin: last.host, elapsed: last.elapsed, speed: self.speed.min(REAL_TIME), ..self };
        Self { held: false, origin: host, elapsed: away.elapsed_at(host), speed, ..self }
    }

    pub fn elapsed_at(&self, host: Nanoseconds) -> Nanoseconds {
        if self.held {
            return self.elapsed;
        }
        let real = u128::from(host.0.saturating_sub(self.origin.0));
        let scaled = u64::try_from(real * u128::from(self.speed) / MILLION).unwrap_or(u64::MAX);
        Nanoseconds(self.elapsed.0.saturating_add(scaled))
    }
}

#[derive(Debug)]
pub struct ClockPage {
    file: File,
    path: PathBuf,
    /// The last complete state, returned while another process writes.
    last: Mutex<PageState>,
}

impl ClockPage {
    pub fn open(path: &Path) -> Result<Self, PageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| PageError::File { path: path.into(), source })?;
        let foreign = || PageError::Foreign { path: path.into() };
        let (_, state) = read(&file).ok_or_else(foreign)?;
        Ok(Self { file, path: path.into(), last: Mutex::new(state) })
    }

    /// Writes a new page; an existing one is replaced.
    pub fn create(path: &Path, state: PageState) -> Result<Self, PageError> {
        let wrap = |source| PageError::File { path: path.into(), source };
        std::fs::write(path, encode(0, &state)).map_err(wrap)?;
        Self::open(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn state(&self) -> PageState {
        let mut last = self.last.lock();
        if let Some((_, state)) = read(&self.file) {
            *last = state;
        }
        *last
    }

    pub fn set(&self, state: PageState) -> Result<(), PageError> {
        let wrap = |source| PageError::File { path: self.path.clone(), source };
        let sequence = read(&self.file).map_or(0, |(sequence, _)| sequence);
        self.file.write_all_at(&(sequence + 1).to_le_bytes(), 8).map_err(wrap)?;
        let words = encode(sequence + 1, &state);
        self.file.write_all_at(&words[16..], 16).map_err(wrap)?;
        self.file.write_all_at(&(sequence + 2).to_le_bytes(), 8).map_err(wrap)
    }

    /// Sets the speed from this moment on, and lets time run.
    pub fn run(&self, speed: u64) -> Result<(), PageError> {
        let host = system_now().boottime;
        let state = self.state();
        self.set(PageState { held: false, origin: host, elapsed: state.elapsed_at(host), speed, ..state })
    }

    pub fn now(&self) -> Stamp {
        let state = self.state();
        let elapsed = state.elapsed_at(system_now().boottime);
        Stamp { boottime: state.boottime + elapsed, utc: state.utc.plus(elapsed) }
    }

    /// How long `span` takes in real time; none while time stands still.
    pub fn real_time(&self, span: Nanoseconds) -> Option<Duration> {
        let state = self.state();
        if state.held || state.speed == 0 {
            return None;
        }
        let real = u128::from(span.0) * MILLION / u128::from(state.speed);
        Some(Duration::from_nanos(u64::try_from(real).unwrap_or(u64::MAX)))
    }
}

fn encode(sequence: u64, state: &PageState) -> [u8; BYTES] {
    let words = [
        MAGIC,
        sequence,
        u64::from(state.held),
        state.origin.0,
        state.elapsed.0,
        state.speed,
        state.utc.0,
        state.boottime.0,
    ];
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Sequence and state. Two equal reads with an even sequence prove that there was no write in between.
fn read(file: &File) -> Option<(u64, PageState)> {
    for _ in 0..1_000 {
        let (first, second) = (read_words(file)?, read_words(file)?);
        if first == second && first[1] % 2 == 0 {
            let [_, sequence, held, origin, elapsed, speed, utc, boottime] = first;
            let state = PageState {
                held: held != 0,
                origin: Nanoseconds(origin),
                elapsed: Nanoseconds(elapsed),
                speed,
                utc: Utc(utc),
                boottime: Nanoseconds(boottime),
            };
            return Some((sequence, state));
        }
    }
    None
}

fn read_words(file: &File) -> Option<[u64; 8]> {
    let mut bytes = [0; BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut words = [0; 8];
    for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(place.try_into().ok()?);
    }
    (words[0] == MAGIC).then_some(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set up its files may panic")]

    use super::*;

    fn state() -> PageState {
        PageState::held_at(Nanoseconds(5), Utc(1_000), Nanoseconds(100))
    }

    #[test]
    fn a_held_page_stands_still_and_a_set_value_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let page = ClockPage::create(&directory.path().join("clock"), state()).unwrap();
        assert_eq!(page.now(), Stamp { boottime: Nanoseconds(105), utc: Utc(1_005) });
        page.set(PageState { elapsed: Nanoseconds(7), ..state() }).unwrap();
        let reader = ClockPage::open(page.path()).unwrap();
        assert_eq!(reader.now().utc, Utc(1_007));
        assert_eq!(reader.real_time(Nanoseconds(1)), None);
    }

    #[test]
    fn a_running_page_scales_real_time() {
        let running = PageState { held: false, origin: Nanoseconds(50), speed: 10_000_000, ..state() };
        assert_eq!(running.elapsed_at(Nanoseconds(60)), Nanoseconds(105));
    }

    #[test]
    fn time_away_counts_at_real_speed_at_most_and_never_runs_backwards() {
        let page = PageState { held: false, origin: Nanoseconds(50), speed: 10_000_000, ..state() };
        let after = |reached, host| page.resumed(reached, Nanoseconds(host), 2_000_000).elapsed.0;
        assert_eq!(after(None, 60), 15);
        let reached = Some(PageMoment { host: Nanoseconds(70), elapsed: Nanoseconds(205) });
        assert_eq!(after(reached, 90), 225);
        // The host was rebooted: its boot clock is behind both.
        assert_eq!(after(reached, 10), 205);
        // A test set the page ahead of the last moment reached.
        let stale = Some(PageMoment { host: Nanoseconds(20), elapsed: Nanoseconds(4) });
        assert_eq!(after(stale, 60), 15);
        let slow = PageState { speed: 500_000, ..page };
        assert_eq!(
            slow.resumed(None, Nanoseconds(60), 1),
            PageState { origin: Nanoseconds(60), elapsed: Nanoseconds(10), speed: 1, ..slow }
        );
    }

    #[test]
    fn a_foreign_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clock");
        std::fs::write(&path, "something else").unwrap();
        assert!(ClockPage::open(&path).unwrap_err().to_string().contains("not a clock page"));
    }
}
