//! A reading is a value or a reason why there is none. Absent is never zero.

use super::named;

/// One value of one catalogue point, as an integer of its family's unit ([`super::Unit::decimals`]).
pub type Reading = Result<i64, Absence>;

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Absence {
        /// The board does not support it; permanent until the driver is loaded again.
        NotSupported = "not_supported",
        /// The driver library has no such function; permanent until the driver is loaded again.
        NoSymbol = "no_symbol",
        /// The agent lacks the permission; permanent until the agent is restarted.
        NoPermission = "no_permission",
        /// The GPU is gone or refuses every call.
        Lost = "lost",
        /// The driver was unloaded, or loaded again since the library was initialised.
        DriverGone = "driver_gone",
        Failed = "failed",
        Rejected = "rejected",
        /// Nothing has been read yet, or a pair of samples is still incomplete.
        NotYet = "not_yet",
        /// The last value is older than two ticks of its tier and is withheld.
        Stale = "stale",
    }
    fn reason
}

impl Absence {
    /// Whether it lasts until the driver is loaded again or the agent restarts.
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::NotSupported | Self::NoSymbol | Self::NoPermission)
    }
}

/// A sum of readings, by one rule for all: what the board will never have is no part of it, and any other absent reading
/// is a missing part, since it may count later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumOfReadings {
    /// The sum of what was read; none if nothing was.
    read: Option<i128>,
    is_incomplete: bool,
}

impl SumOfReadings {
    /// The sum; none where a part is missing, or where the board has none.
    pub const fn whole(self) -> Option<i128> {
        if self.is_incomplete { None } else { self.read }
    }

    /// The sum of the parts that were read, which is the least that the whole can be where no part is negative.
    pub const fn least(self) -> Option<i128> {
        self.read
    }
}

impl FromIterator<Reading> for SumOfReadings {
    fn from_iter<Parts: IntoIterator<Item = Reading>>(parts: Parts) -> Self {
        let mut sum = Self::default();
        for part in parts {
            match part {
                Ok(value) => sum.read = Some(sum.read.unwrap_or(0).saturating_add(value.into())),
                Err(absence) => sum.is_incomplete |= !absence.is_permanent(),
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_leaves_out_what_a_board_never_has_and_is_absent_while_a_part_is_missing() {
        let of = |parts: [Reading; 2]| {
            let sum: SumOfReadings = parts.into_iter().collect();
            (sum.whole(), sum.least())
        };
        assert_eq!(of([Ok(2), Ok(3)]), (Some(5), Some(5)));
        for never in [Absence::NotSupported, Absence::NoSymbol, Absence::NoPermission] {
            assert_eq!(of([Ok(2), Err(never)]), (Some(2), Some(2)), "{never:?}");
        }
        for missing in [Absence::Failed, Absence::Rejected, Absence::NotYet, Absence::Stale] {
            assert_eq!(of([Ok(2), Err(missing)]), (None, Some(2)), "{missing:?}");
        }
        assert_eq!(of([Err(Absence::NotSupported), Err(Absence::NoSymbol)]), (None, None));
    }
}
