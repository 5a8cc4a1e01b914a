//! The demo's time across its runs: it continues where it stopped, and while no demo runs it passes at real speed at most.
//!
//! The clock page is the file that holds the demo's time. On a normal exit the demo sets it to real speed at most. A killed
//! demo cannot, and its clock would run on too fast. So ten times a second a thread saves an upper bound of the demo's
//! time, 0.5 s ahead, to the file `reached`; the next start continues from there. The clock page is not used for that: a
//! test may set it at any moment, and a writer killed half way would leave it torn.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{DemoError, file_error, ignore_absence};
use crate::driver::record::RecordingSpan;
use crate::model::{Nanoseconds, Utc};
use crate::runtime::clock::{ClockPage, PageMoment, PageState, REAL_TIME, Stop, system_now};
use crate::runtime::thread::Thread;

/// How often the moment is written.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// How far ahead of the time the moment is: several intervals, since a busy machine delays the thread.
const AHEAD: Nanoseconds = Nanoseconds(500_000_000);

pub(super) struct DemoTime {
    pub(super) page: Arc<ClockPage>,
    reached: PathBuf,
    stop: Stop,
    thread: Thread,
    /// Whether the time stood still before this run.
    was_held: bool,
}

/// The time that the demo's clock shows, if it has one.
pub(super) fn shown(driver: &Path) -> Option<Utc> {
    ClockPage::open(&driver.join("clock")).ok().map(|page| page.now().utc)
}

/// Parses a speed; returns it in millionths of real time.
pub fn parse_speed(text: &str) -> Result<u64, &'static str> {
    let times = text.parse::<f64>().ok().filter(|times| (0.001..=1_000.0).contains(times));
    let times = times.ok_or("give a number between 0.001 and 1000")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1,000 and 10^9")]
    Ok((times * 1e6).round() as u64)
}

impl DemoTime {
    /// Starts the demo clock in that directory, unless it is paused.
    pub(super) fn start(driver: &Path, speed: u64) -> Result<Self, DemoError> {
        let page = open(&driver.join("clock"), &driver.join("reached"), speed)?;
        Self::run(driver, page, None)
    }

    /// Starts a demo clock that shows that time and stands still until [`Self::go_on`].
    pub(super) fn stand(driver: &Path, utc: Utc) -> Result<Self, DemoError> {
        let path = driver.join("clock");
        let was_held = ClockPage::open(&path).is_ok_and(|page| page.state().held);
        let state = beginning(system_now().boottime, utc, REAL_TIME);
        let page = ClockPage::create(&path, PageState { held: true, ..state })?;
        Ok(Self { was_held, ..Self::run(driver, page, None)? })
    }

    /// Lets the time pass that stood still, unless the demo was paused before.
    pub(super) fn go_on(&self, speed: u64) -> Result<(), DemoError> {
        if !self.was_held {
            self.page.run(speed)?;
        }
        Ok(())
    }

    /// Lets time pass as in the recording; at its end, time stops.
    pub(super) fn replay(driver: &Path, speed: u64, span: &RecordingSpan) -> Result<Self, DemoError> {
        let state = beginning(system_now().boottime, Utc(span.head.utc_ns), speed);
        let page = ClockPage::create(&driver.join("clock"), state)?;
        Self::run(driver, page, Some(Nanoseconds(span.length)))
    }

    fn run(driver: &Path, page: ClockPage, end: Option<Nanoseconds>) -> Result<Self, DemoError> {
        let (reached, page) = (driver.join("reached"), Arc::new(page));
        let file = File::options().create(true).truncate(false).write(true).open(&reached);
        let file = file.map_err(file_error(&reached))?;
        let stop = Stop::default();
        let thread = Thread::start("demo", {
            let (page, stop) = (Arc::clone(&page), stop.clone());
            move || write_moments(&page, &file, end, &stop)
        })?;
        Ok(Self { page, reached, stop, thread, was_held: false })
    }

    /// Ends the thread; from now on time passes at real speed at most.
    pub(super) fn end(self) -> Result<(), DemoError> {
        let Self { page, reached, stop, thread, .. } = self;
        stop.call();
        thread.wait(10 * WRITE_INTERVAL);
        let state = page.state();
        if !state.held {
            page.run(state.speed.min(REAL_TIME))?;
        }
        ignore_absence(fs::remove_file(&reached)).map_err(file_error(&reached))
    }
}

fn open(path: &Path, reached: &Path, speed: u64) -> Result<ClockPage, DemoError> {
    let now = system_now();
    if !path.exists() {
        return Ok(ClockPage::create(path, beginning(now.boottime, now.utc, speed))?);
    }
    let page = ClockPage::open(path)?;
    let state = page.state();
    if !state.held {
        page.set(state.resumed(read(reached, &state), now.boottime, speed))?;
    }
    Ok(page)
}

/// The time of a node that was booted 1,000 s before; `origin` is in the host's time.
fn beginning(origin: Nanoseconds, utc: Utc, speed: u64) -> PageState {
    let boottime = Nanoseconds::from_seconds(1_000);
    PageState { held: false, origin, elapsed: Nanoseconds(0), speed, utc, boottime }
}

fn write_moments(page: &ClockPage, file: &File, end: Option<Nanoseconds>, stop: &Stop) {
    let mut has_failed = false;
    loop {
        let state = page.state();
        if let Some(end) = end.filter(|end| !state.held && state.elapsed_at(system_now().boottime) >= *end) {
            // Numbers that no longer change must look stale, so time stops with them.
            let held = page.set(PageState { held: true, elapsed: end, ..state });
            match held {
                Ok(()) => {
                    tracing::info!("the recording is over; its last values stay until the replay is stopped")
                }
                Err(error) => tracing::warn!(%error, "the recording is over, and its time cannot be stopped"),
            }
        }
        let host = system_now().boottime + AHEAD;
        let line = line(&state, PageMoment { host, elapsed: state.elapsed_at(host) });
        let failed = file.write_all_at(line.as_bytes(), 0).err();
        if let Some(error) = failed.as_ref().filter(|_| !has_failed) {
            tracing::warn!(%error, "the demo's time cannot be saved; after a kill it may repeat");
        }
        has_failed = failed.is_some();
        if stop.wait(WRITE_INTERVAL) {
            return;
        }
    }
}

/// The line of a moment, of fixed width so that one call replaces it. The page's UTC identifies the page.
fn line(state: &PageState, PageMoment { host, elapsed }: PageMoment) -> String {
    format!("{:020} {:020} {:020}\n", host.0, elapsed.0, state.utc.0)
}

fn read(reached: &Path, state: &PageState) -> Option<PageMoment> {
    let text = fs::read_to_string(reached).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let (host, elapsed, utc) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (utc == state.utc.0).then_some(PageMoment { host: Nanoseconds(host), elapsed: Nanoseconds(elapsed) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set up its files may panic")]

    use super::*;

    const FAST: u64 = 1_000 * REAL_TIME;

    #[test]
    fn time_continues_where_a_killed_demo_was_and_not_where_its_page_ran_to() {
        let directory = tempfile::tempdir().unwrap();
        let milliseconds = |count: u64| Nanoseconds(count * 1_000_000);
        let before = |count| Nanoseconds(system_now().boottime.0 - milliseconds(count).0);
        // Killed 50 ms after its start, and away for as long: its page is at 100 s, the demo was at 50 s.
        let state = PageState {
            held: false,
            origin: before(100),
            elapsed: Nanoseconds(0),
            speed: FAST,
            utc: system_now().utc,
            boottime: Nanoseconds(0),
        };
        ClockPage::create(&directory.path().join("clock"), state).unwrap();
        let stood = PageMoment { host: before(50), elapsed: milliseconds(50_000) };
        fs::write(directory.path().join("reached"), line(&state, stood)).unwrap();

        let time = DemoTime::start(directory.path(), REAL_TIME).unwrap();
        let elapsed = time.page.now().utc.since(state.utc);
        assert!(elapsed >= milliseconds(50_050), "{elapsed:?}: time was lost");
        assert!(elapsed < milliseconds(99_000), "{elapsed:?}: time passed while the demo was away");
        let written = (0..100).find_map(|_| {
            std::thread::sleep(WRITE_INTERVAL / 2);
            read(&time.reached, &state).filter(|written| written.elapsed > stood.elapsed)
        });
        assert!(written.is_some_and(|written| written.elapsed > elapsed), "{written:?} is not ahead");
        time.end().unwrap();
    }

    #[test]
    fn a_demo_that_ends_leaves_its_page_at_real_speed_and_a_held_page_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let time = DemoTime::start(directory.path(), FAST).unwrap();
        let page = Arc::clone(&time.page);
        time.end().unwrap();
        let state = page.state();
        assert_eq!(state.speed, REAL_TIME);
        assert!(!directory.path().join("reached").exists());

        let held = PageState { held: true, elapsed: Nanoseconds(7), ..state };
        page.set(held).unwrap();
        let time = DemoTime::start(directory.path(), FAST).unwrap();
        assert_eq!(page.state(), held);
        time.end().unwrap();
        assert_eq!(page.state(), held);
    }
}
