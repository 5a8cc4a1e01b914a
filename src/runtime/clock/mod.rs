//! The one source of time: the system's clocks, or in demos and tests a page in a file; no other module reads a clock.
//!
//! The simulated driver reads the same page, so agent and driver have the same time at any speed, or while it stands still.

mod backoff;
mod page;
mod stop;

pub use backoff::Backoff;
pub use page::{ClockPage, PageError, PageMoment, PageState, REAL_TIME};
pub use stop::Stop;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use rustix::time::{ClockId, clock_gettime};

use crate::model::{Nanoseconds, Stamp, Utc};

/// How often a wait reads a page again, in real time.
const PAGE_POLL: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub enum Clock {
    System,
    Page(Arc<ClockPage>),
}

impl Clock {
    /// The clock of a driver library; a simulated library has a clock page beside it.
    pub fn of_library(library: Option<&Path>) -> Self {
        let page = library.and_then(|library| ClockPage::open(&library.with_file_name("clock")).ok());
        page.map_or(Self::System, |page| Self::Page(Arc::new(page)))
    }

    pub fn now(&self) -> Stamp {
        match self {
            Self::System => system_now(),
            Self::Page(page) => page.now(),
        }
    }

    /// Whether time passes faster than real time, as in a demo with `--speed`.
    pub fn is_fast(&self) -> bool {
        match self {
            Self::System => false,
            Self::Page(page) => page.state().speed > REAL_TIME,
        }
    }

    /// Waits until the boot clock shows `moment`; false if `stop` was called first.
    ///
    /// `on_check` is called at least every second of real time, so that a wait on a clock that stands still can be
    /// distinguished from a stuck thread.
    pub fn wait_until(&self, moment: Nanoseconds, stop: &Stop, mut on_check: impl FnMut()) -> bool {
        loop {
            on_check();
            let left = moment.0.saturating_sub(self.now().boottime.0);
            if left == 0 {
                return !stop.is_called();
            }
            if stop.wait(self.time_to_next_check(Nanoseconds(left))) {
                return false;
            }
        }
    }

    fn time_to_next_check(&self, left: Nanoseconds) -> Duration {
        // Meanwhile a page may get another time or speed, and the boot clock continues while the machine is suspended.
        const LONGEST: Duration = Duration::from_secs(1);
        match self {
            Self::System => left.duration().min(LONGEST),
            Self::Page(page) => {
                page.real_time(left).map_or(PAGE_POLL, |real| real.clamp(PAGE_POLL / 50, LONGEST))
            }
        }
    }
}

/// The system's clocks, for timeouts of network and disk, whatever the agent's clock is.
pub fn system_now() -> Stamp {
    let boot = clock_gettime(ClockId::Boottime);
    let real = clock_gettime(ClockId::Realtime);
    Stamp { boottime: Nanoseconds(nanoseconds(boot)), utc: Utc(nanoseconds(real)) }
}

/// The time zone of this machine, from TZ or /etc/localtime; UTC where neither names one.
pub fn system_zone() -> TimeZone {
    let zone = TimeZone::system();
    if zone.is_unknown() { TimeZone::UTC } else { zone }
}

/// The next multiple of `interval` after `now`; samplers and tick loop use the same multiples.
pub fn next_multiple(now: Nanoseconds, interval: Nanoseconds) -> Nanoseconds {
    Nanoseconds((now.0 / interval.0 + 1) * interval.0)
}

pub fn processor_time() -> Nanoseconds {
    Nanoseconds(nanoseconds(clock_gettime(ClockId::ProcessCPUTime)))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(Nanoseconds::SECOND.0).saturating_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_multiple_lies_after_now() {
        let next = |now| next_multiple(Nanoseconds(now), Nanoseconds(10)).0;
        assert_eq!([0, 10, 19].map(next), [10, 20, 20]);
    }
}
