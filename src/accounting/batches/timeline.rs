//! The account's time axis: time since boot plus an offset that is fixed once per boot.
//!
//! So a step of the wall clock neither doubles nor loses GPU time; it is recorded beside the account. The offset is taken
//! from the wall clock once the kernel reports it as synchronised, or two minutes after the boot. Until then the ledger is not
//! opened in a new boot, and that time of the boot becomes unobserved.
//!
//! Account time never goes back before what is stored, however late the wall clock is, and a clock that is not synchronised
//! moves it at most a day past that. The difference to the wall clock is a metric.

use crate::model::{Nanoseconds, Stamp, Utc};

/// Time since boot after which a wall clock is used although it is not synchronised.
const WAIT_FOR_SYNC: Nanoseconds = Nanoseconds::from_seconds(120);

/// The most by which a clock that is not synchronised moves the account past the last commit.
const MAX_UNSYNCHRONISED_GAP: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

/// 2025-01-01T00:00:00Z, the earliest time that a new ledger accepts from a clock that is not synchronised. A real-time
/// clock without its battery begins in 1970 or 2000.
const EARLIEST_UNSYNCHRONISED: Utc = Utc(1_735_689_600_000_000_000);

/// Converts time since boot into account time, within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountTimeline {
    /// Account time - time since boot, in nanoseconds.
    pub offset: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// Account time of the boot.
    pub booted: Utc,
    /// Account time of the first opening of the ledger in this boot; spans that end by then are of an earlier boot.
    pub first_seen: Utc,
}

impl AccountTimeline {
    pub const fn starting(now: Stamp) -> Self {
        Self { offset: now.utc.0.wrapping_sub(now.boottime.0).cast_signed() }
    }

    /// The axis of a boot that has none; none while the wall clock cannot be trusted. `last` is the end of what earlier boots
    /// committed; none in a new ledger.
    pub fn of_boot(now: Stamp, synchronised: bool, last: Option<Utc>) -> Option<Self> {
        let is_too_early = last.is_none() && now.utc < EARLIEST_UNSYNCHRONISED;
        if !synchronised && (now.boottime < WAIT_FOR_SYNC || is_too_early) {
            return None;
        }
        let latest = match last {
            Some(last) if !synchronised => now.utc.min(last.plus(MAX_UNSYNCHRONISED_GAP)),
            _ => now.utc,
        };
        Some(Self::starting(Stamp { utc: latest.max(last.unwrap_or_default()), ..now }))
    }

    pub const fn at(self, boottime: Nanoseconds) -> Utc {
        Utc(boottime.0.saturating_add_signed(self.offset))
    }

    /// Wall clock - account time, in nanoseconds; constant unless the wall clock steps.
    pub const fn lead(self, now: Stamp) -> i64 {
        now.utc.0.wrapping_sub(self.at(now.boottime).0) as i64
    }
}
