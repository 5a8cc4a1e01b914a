//! What a child of the splitting tree should get before it is made whole: a fixed-point number of 64
//! fractional bits.
//!
//! The quota of one tick is a fraction; a segment's quota is a sum of fractions whose denominators share
//! nothing, so the exact sum would need integers of any length. Each term is rounded down to 2^-64 instead
//! and the quota remembers by how many such units it may be short: a sum that is within that of a multiple of
//! 2^-32 (the grain of a carry, so of every integer too) *is* that multiple. It knows no holder and no carry.

/// The mask of the 32 bits below the grain of a carry.
const BELOW_CARRY: u128 = u32::MAX as u128;

/// A share of an integer quantity, in units of 2^-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quota {
    units: u128,
    /// How many terms were rounded down, each by less than one unit.
    short: u32,
}

impl Quota {
    /// `total x part / whole`; nothing of nothing is 0, and more than the whole is the whole.
    pub(super) fn of(total: u64, part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::default();
        }
        let product = u128::from(total) * u128::from(part.min(whole));
        let whole = u128::from(whole);
        // The remainder is below 2^64, so its 64 fractional bits still fit.
        let rest = (product % whole) << 64;
        Self {
            units: ((product / whole) << 64) + rest / whole,
            short: u32::from(!rest.is_multiple_of(whole)),
        }
    }

    /// Adds the quota of another tick.
    pub(super) fn add(&mut self, other: Self) {
        self.units = self.units.saturating_add(other.units);
        self.short = self.short.saturating_add(other.short);
    }

    /// The whole part.
    pub(super) fn floor(self) -> u64 {
        u64::try_from(self.settled() >> 64).unwrap_or(u64::MAX)
    }

    /// The part below one, in units of 2^-64.
    pub(super) fn fraction(self) -> u64 {
        // Masked to 64 bits, so the conversion holds.
        u64::try_from(self.settled() & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// The sum with its roundings made good where they show.
    fn settled(self) -> u128 {
        self.units.max(self.units.saturating_add(u128::from(self.short)) & !BELOW_CARRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_thirds_are_one() {
        let mut sum = Quota::default();
        for _ in 0..3 {
            sum.add(Quota::of(1, 1, 3));
        }
        assert_eq!((sum.floor(), sum.fraction()), (1, 0));
    }

    #[test]
    fn a_third_stays_a_third() {
        let third = Quota::of(10, 1, 3);
        assert_eq!((third.floor(), third.fraction()), (3, u64::MAX / 3));
    }

    #[test]
    fn the_largest_numbers_fit() {
        assert_eq!(Quota::of(u64::MAX, u64::MAX, u64::MAX).floor(), u64::MAX);
        assert_eq!(Quota::of(u64::MAX, 5, 0).floor(), 0);
        assert_eq!(Quota::of(7, 9, 3).floor(), 7);
    }
}
