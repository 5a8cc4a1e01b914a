//! Points in time, from the injected clock.

use serde::{Deserialize, Serialize};

use super::Nanoseconds;

/// One moment, on both clocks: the boot clock never steps, UTC names the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// Nanoseconds since boot, suspend included; never goes backwards.
    pub boottime: Nanoseconds,
    pub utc: Utc,
}

/// Nanoseconds since 1970-01-01T00:00:00Z, leap seconds not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Utc(pub u64);

impl From<Utc> for jiff::Timestamp {
    fn from(at: Utc) -> Self {
        // Times of 64 bits end in 2554, those of jiff in 9999.
        Self::from_nanosecond(i128::from(at.0)).unwrap_or(Self::MAX)
    }
}

/// Fails for times before 1970 and after 2554.
impl TryFrom<jiff::Timestamp> for Utc {
    type Error = std::num::TryFromIntError;

    fn try_from(at: jiff::Timestamp) -> Result<Self, Self::Error> {
        u64::try_from(at.as_nanosecond()).map(Self)
    }
}

/// In RFC 3339.
impl std::fmt::Display for Utc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&jiff::Timestamp::from(*self), f)
    }
}

/// The grid of the account.
pub const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// Rates and tenant rules begin and end on this grid.
pub const HOUR: Nanoseconds = Nanoseconds::from_seconds(3_600);

pub const QUARTER_HOUR: Nanoseconds = Nanoseconds::from_seconds(15 * 60);

/// A day in UTC; a node's exports have one file per day.
pub const DAY: Nanoseconds = Nanoseconds::from_seconds(86_400);

impl Utc {
    /// The span from `earlier` to this moment, 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanoseconds {
        Nanoseconds(self.0.saturating_sub(earlier.0))
    }

    pub const fn plus(self, span: Nanoseconds) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The last multiple of `grid` that is not after this moment.
    pub const fn floor(self, grid: Nanoseconds) -> Self {
        Self(self.0 - self.0 % grid.0)
    }

    /// The first multiple of `grid` that is not before this moment.
    pub const fn ceil(self, grid: Nanoseconds) -> Self {
        Self(self.0.div_ceil(grid.0).saturating_mul(grid.0))
    }

    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Stamp {
    /// The span from `earlier` to this moment on the boot clock, 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanoseconds {
        Nanoseconds(self.boottime.0.saturating_sub(earlier.boottime.0))
    }
}
