//! The range of plausible readings of each family.
//!
//! A bound is several times what any board does, so that the next board is within it, and far below what a broken
//! driver answers, which is mostly all ones. How fast a counter may grow is checked elsewhere.

use super::{Family, GpuRows, InstanceRows, InstanceValue, Kind, Rows};
use crate::model::Unit;

/// The least and the most that a reading can be, in integers of its family's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub least: i64,
    pub most: i64,
    /// An answer up to here is taken as the most.
    slack: i64,
}

const WHOLE: i64 = 1_000_000_000;

impl Bound {
    /// A share. The clocks of driver and host differ, so up to 2 % more is taken as the whole.
    pub const RATIO: Self = Self { slack: WHOLE + WHOLE / 50, ..Self::up_to(WHOLE) };
    /// Memory, 16 TiB: the largest module has 1 TB, its host's memory included.
    pub const BYTES: Self = Self::up_to(1 << 44);
    /// Bytes per second, 10 TB/s: NVLink 5 carries 0.9 TB/s each way, PCIe and C2C less.
    pub const RATE: Self = Self::up_to(10_000_000_000_000);
    /// A counter, which may have any value that is not negative.
    pub const COUNTER: Self = Self::up_to(i64::MAX);

    const fn up_to(most: i64) -> Self {
        Self { least: 0, most, slack: most }
    }

    /// The reading that an answer stands for; absent where it is not plausible.
    pub const fn accept(self, value: i64) -> Option<i64> {
        if value < self.least || value > self.slack {
            None
        } else if value > self.most {
            Some(self.most)
        } else {
            Some(value)
        }
    }
}

impl Family {
    /// The range of its readings; absent where nothing is read for it. A flow that is read as a rate has
    /// [`Bound::RATE`] instead.
    pub const fn bound(&self) -> Option<Bound> {
        match &self.rows {
            Rows::Gpu(GpuRows::State(_)) => Some(Bound::up_to(1)),
            Rows::Gpu(GpuRows::Read(_) | GpuRows::Flow(_)) | Rows::Instance(InstanceRows::Read(_)) => {
                match self.kind {
                    Kind::Counter => Some(counter(self.unit)),
                    _ => gauge(self),
                }
            }
            _ => None,
        }
    }
}

impl InstanceValue {
    pub const fn bound(self) -> Bound {
        match self {
            Self::MemoryTotal | Self::MemoryUsed | Self::MemoryFree => Bound::BYTES,
            Self::SramUncorrected => Bound::COUNTER,
            _ => Bound::RATIO,
        }
    }
}

const fn counter(unit: Unit) -> Bound {
    match unit {
        // Ten years in nanoseconds: no driver stays loaded for longer.
        Unit::Seconds => Bound::up_to(315_576_000 * 1_000_000_000),
        _ => Bound::COUNTER,
    }
}

const fn gauge(family: &Family) -> Option<Bound> {
    Some(match family.unit {
        Unit::Ratio => Bound::RATIO,
        Unit::Bytes => Bound::BYTES,
        // A margin is negative while its limit acts.
        Unit::Celsius => Bound { least: -100_000, ..Bound::up_to(200_000) },
        // A module with its CPU draws about 3 kW.
        Unit::Watts => Bound::up_to(20_000_000),
        // The highest clock that a driver reports is 14 GHz, of GDDR7.
        Unit::Hertz => Bound::up_to(100_000_000_000),
        _ => match family.most {
            Some(most) => Bound::up_to(most),
            None => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue::families;

    #[test]
    fn a_share_slightly_above_the_whole_is_the_whole() {
        let held = [-1, 0, WHOLE, WHOLE + WHOLE / 50, WHOLE + WHOLE / 50 + 1]
            .map(|value| Bound::RATIO.accept(value));
        assert_eq!(held, [None, Some(0), Some(WHOLE), Some(WHOLE), None]);
    }

    #[test]
    fn all_ones_are_no_reading_of_any_gauge() {
        for family in families().filter(|family| family.kind == Kind::Gauge) {
            let Some(bound) = family.bound() else { continue };
            for garbage in [u32::MAX.into(), i64::MAX, i64::from(i32::MIN), 1 << 62] {
                let value =
                    garbage * if family.unit == Unit::Hertz && garbage < 1 << 40 { 1_000_000 } else { 1 };
                // 4 GiB is a plausible size.
                let is_size = family.unit == Unit::Bytes && garbage == i64::from(u32::MAX);
                assert!(is_size || bound.accept(value).is_none(), "{}: {value}", family.name);
            }
        }
    }

    #[test]
    fn a_value_of_an_instance_is_bound_as_its_family() {
        for family in families() {
            let Rows::Instance(InstanceRows::Read(points)) = family.rows else { continue };
            for point in points {
                assert_eq!(Some(point.value.bound()), family.bound(), "{}", family.name);
            }
        }
    }
}
