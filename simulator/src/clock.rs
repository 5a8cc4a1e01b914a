//! The simulated time: a mapped page that a test or the demo writes, or the host's own clock.
//!
//! In: the file `clock`, eight little-endian words guarded by a sequence lock. Out: the elapsed time of the
//! scenario and its UTC. The page is never written here.
//!
//! The page must be written in place: replacing the file leaves the old page mapped, truncating it
//! kills the reader (SIGBUS).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"GPUMCLK1");
const WORDS: usize = 8;
const LENGTH: usize = WORDS * size_of::<u64>();

/// One consistent reading of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) held: bool,
    /// Host CLOCK_BOOTTIME, nanoseconds.
    pub(crate) origin: u64,
    /// Elapsed nanoseconds of the scenario at the origin.
    pub(crate) elapsed: u64,
    /// Parts per million; 1_000_000 is real time.
    pub(crate) speed: u64,
    /// UTC nanoseconds at elapsed 0.
    pub(crate) utc: u64,
}

impl Page {
    fn elapsed_at(self, boottime: u64) -> u64 {
        if self.held {
            return self.elapsed;
        }
        let since = u128::from(boottime.saturating_sub(self.origin));
        let moved = since * u128::from(self.speed) / 1_000_000;
        self.elapsed.saturating_add(u64::try_from(moved).unwrap_or(u64::MAX))
    }
}

/// The simulated time of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Nanoseconds since the scenario began.
    pub(crate) elapsed: u64,
    /// UTC nanoseconds.
    pub(crate) utc: u64,
    /// Whether the clock is held at a set value.
    pub(crate) held: bool,
}

/// The source of simulated time.
pub(crate) enum SimulatedClock {
    /// No page: elapsed is the host's CLOCK_BOOTTIME and UTC is real.
    Host,
    Mapped(Mapping),
}

impl SimulatedClock {
    /// Maps the page at `path`, or follows the host where there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match File::open(path) {
            Ok(file) => Ok(Self::Mapped(Mapping::new(&file)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Host),
            Err(error) => Err(error),
        }
    }

    /// The boot clock of the simulated host at elapsed 0, nanoseconds.
    pub(crate) fn boot(&self) -> u64 {
        match self {
            Self::Host => 0,
            Self::Mapped(mapping) => mapping.word(7, Ordering::Relaxed),
        }
    }

    pub(crate) fn now(&self) -> Now {
        match self {
            Self::Host => Now {
                elapsed: host_clock(libc::CLOCK_BOOTTIME),
                utc: host_clock(libc::CLOCK_REALTIME),
                held: false,
            },
            Self::Mapped(mapping) => {
                let page = mapping.read();
                let elapsed = page.elapsed_at(host_clock(libc::CLOCK_BOOTTIME));
                Now { elapsed, utc: page.utc.saturating_add(elapsed), held: page.held }
            }
        }
    }
}

/// The host's CLOCK_BOOTTIME in nanoseconds, for waits and rate limits.
pub(crate) fn host_boottime() -> u64 {
    host_clock(libc::CLOCK_BOOTTIME)
}

fn host_clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; it fails only for unknown clock ids.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// A shared, read-only mapping of the page. Unmapped on drop, or it would remain after `dlclose`.
pub(crate) struct Mapping {
    address: *mut libc::c_void,
}

// SAFETY: the mapping is only read, and only through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < LENGTH as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shorter than 64 bytes; write the whole clock page",
            ));
        }
        // SAFETY: a new shared mapping at an address that the kernel chooses; the descriptor is open.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), LENGTH, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self { address };
        if mapping.word(0, Ordering::Acquire) == MAGIC {
            Ok(mapping)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "does not begin with GPUMCLK1"))
        }
    }

    fn word(&self, index: usize, order: Ordering) -> u64 {
        let address = self.address.cast::<u64>().wrapping_add(index % WORDS);
        // SAFETY: inside the mapping (index below WORDS), page aligned, and every writer is expected to
        // write whole aligned words.
        let word = unsafe { AtomicU64::from_ptr(address) };
        u64::from_le(word.load(order))
    }

    fn read(&self) -> Page {
        let mut attempts = 0_u32;
        loop {
            let before = self.word(1, Ordering::Acquire);
            let page = Page {
                held: self.word(2, Ordering::Relaxed) != 0,
                origin: self.word(3, Ordering::Relaxed),
                elapsed: self.word(4, Ordering::Relaxed),
                speed: self.word(5, Ordering::Relaxed),
                utc: self.word(6, Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            let quiet = before.is_multiple_of(2) && self.word(1, Ordering::Relaxed) == before;
            // A writer that died while writing must not hang every reader.
            if quiet || attempts > 2_000 {
                return page;
            }
            attempts += 1;
            if attempts > 1_000 {
                thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; no borrow outlives a call.
        unsafe { libc::munmap(self.address, LENGTH) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn page(words: [u64; 8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn file(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("gpumeter-clock-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_held_clock_stays_at_the_value_set() {
        let path = file("held", &page([MAGIC, 2, 1, 5, 7_000, 1_000_000, 100, 0]));
        let clock = SimulatedClock::open(&path).unwrap();
        assert_eq!(clock.now(), Now { elapsed: 7_000, utc: 7_100, held: true });
        assert_eq!(clock.now(), clock.now());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_running_clock_advances_at_its_speed() {
        let page = Page { held: false, origin: 1_000, elapsed: 50, speed: 3_000_000, utc: 0 };
        assert_eq!(page.elapsed_at(1_100), 350);
        assert_eq!(page.elapsed_at(900), 50);
    }

    #[test]
    fn a_write_to_the_page_changes_the_time() {
        let path = file("written", &page([MAGIC, 0, 1, 0, 1, 0, 0, 0]));
        let clock = SimulatedClock::open(&path).unwrap();
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&writer, &9_u64.to_le_bytes(), 32).unwrap();
        assert_eq!(clock.now().elapsed, 9);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_invalid_page_is_refused_and_without_one_the_host_clock_counts() {
        let path = file("broken", b"short");
        assert!(SimulatedClock::open(&path).is_err());
        std::fs::write(&path, page([1, 0, 0, 0, 0, 0, 0, 0])).unwrap();
        assert!(SimulatedClock::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(SimulatedClock::open(&path), Ok(SimulatedClock::Host)));
    }
}
