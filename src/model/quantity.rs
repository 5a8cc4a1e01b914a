//! Quantities as types: integers of one named unit each, so that sums are exact and no unit is guessed.
//!
//! Floating point appears only on the wire; rounding happens once, at settlement or there.

use derive_more::{Add, AddAssign, Display, Sub, Sum};
use serde::{Deserialize, Serialize};

/// A base unit of the metrics, with the number of decimals at which its integers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, kept as nanoseconds.
    Seconds,
    Bytes,
    /// Joules, kept as microjoules.
    Joules,
    /// Watts, kept as milliwatts.
    Watts,
    /// Degrees Celsius, kept as thousandths.
    Celsius,
    Hertz,
    /// A share between 0 and 1, kept as billionths.
    Ratio,
    /// Money, kept as nano-units of the currency that the series names.
    Money,
    None,
}

impl Unit {
    /// Decimals of an integer of this unit: with 9, the integer 1,500,000,000 is 1.5.
    pub const fn decimals(self) -> u8 {
        match self {
            Self::Seconds | Self::Ratio | Self::Money => 9,
            Self::Joules => 6,
            Self::Watts | Self::Celsius => 3,
            Self::Bytes | Self::Hertz | Self::None => 0,
        }
    }

    /// The suffix that a metric name of this unit ends in (before `_total`), or "" where none is due.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Joules => "joules",
            Self::Watts => "watts",
            Self::Celsius => "celsius",
            Self::Hertz => "hertz",
            Self::Ratio => "ratio",
            Self::Money | Self::None => "",
        }
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[derive(Display, Add, AddAssign, Sub, Sum)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

quantity! {
    /// A span of time, or GPU time, in nanoseconds.
    Nanoseconds(u64)
}
quantity! {
    Microjoules(u64)
}
quantity! {
    Bytes(u64)
}
quantity! {
    /// Money in nano-units (billionths) of a currency that is named beside it.
    Money(i128)
}

/// Sums over several GPUs, nodes or tenants: 64 bits hold 5.1 million GPU-hours, a month of 7,100 GPUs.
macro_rules! sum {
    ($(#[$doc:meta])* $name:ident of $part:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Display, AddAssign)]
        pub struct $name(pub u128);

        impl std::str::FromStr for $name {
            type Err = SumOutOfRange;
            fn from_str(text: &str) -> Result<Self, SumOutOfRange> {
                text.parse().ok().filter(|sum| *sum < MOST_READ).map(Self).ok_or(SumOutOfRange)
            }
        }
        impl From<$part> for $name {
            fn from(part: $part) -> Self {
                Self(part.0.into())
            }
        }
        impl std::iter::Sum<$part> for $name {
            fn sum<I: Iterator<Item = $part>>(parts: I) -> Self {
                Self(parts.map(|part| u128::from(part.0)).sum())
            }
        }
    };
}

/// Sums that are read from a text are smaller, so that 4 billion of them can be added.
const MOST_READ: u128 = 1 << 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not an integer from 0 to 2^96")]
pub struct SumOutOfRange;

sum! {
    /// GPU time of any number of GPUs, in nanoseconds.
    TimeSum of Nanoseconds
}
sum! {
    /// Energy of any number of GPUs, in microjoules.
    EnergySum of Microjoules
}

impl TimeSum {
    /// This less another sum, in nanoseconds.
    pub const fn difference(self, other: Self) -> i128 {
        self.0.cast_signed() - other.0.cast_signed()
    }
}

impl Nanoseconds {
    pub const SECOND: Self = Self(1_000_000_000);

    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }

    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds * Self::SECOND.0)
    }
}
