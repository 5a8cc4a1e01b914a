//! Splits an integer total into integer parts along fractions, exactly.
//!
//! Each part is the floor or the ceiling of its quota, and the parts sum to the total. The ceilings go to the largest
//! (carry + fraction of the quota), ties by key. The carry is what a part is still owed, in units of 2^-32 rounded down;
//! the next segment pays it, so the parts of equals never differ by more than one unit (law L11).

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A share of an integer total as a fixed-point number with 64 fractional bits.
///
/// The quota of a segment is a sum of the quotas of its ticks. An exact sum of fractions with unlike denominators would
/// need integers of any length, so each term is rounded down to 2^-64 and `short` counts the rounded terms. A sum that is
/// at most `short` units below a multiple of 2^-32, the unit of a carry, is that multiple.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quota {
    units: u128,
    /// Terms that were rounded down, each by less than one unit.
    short: u32,
}

impl Quota {
    /// `total x part / whole`, where a part above the whole counts as the whole; 0 where the whole is 0.
    pub(super) fn new(total: u64, part: u64, whole: u64) -> Self {
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

    pub(super) fn add(&mut self, other: Self) {
        self.units = self.units.saturating_add(other.units);
        self.short = self.short.saturating_add(other.short);
    }

    pub(super) fn floor(self) -> u64 {
        u64::try_from(self.corrected() >> 64).unwrap_or(u64::MAX)
    }

    /// The fractional part, in units of 2^-64.
    fn fraction(self) -> u64 {
        // Masked to 64 bits, so the conversion holds.
        u64::try_from(self.corrected() & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// The sum, moved up to a multiple of 2^-32 where only its roundings keep it below.
    fn corrected(self) -> u128 {
        self.units.max(self.units.saturating_add(u128::from(self.short)) & !u128::from(u32::MAX))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares<K> {
    parts: BTreeMap<K, u64>,
    whole: u64,
}

impl<K: Clone + Ord> Shares<K> {
    /// Shares in proportion to weights; none where all weights are 0. Weights whose sum exceeds 64 bits are shifted
    /// right together, so that equals stay equal.
    pub(super) fn from_weights(weights: impl IntoIterator<Item = (K, u128)>) -> Option<Self> {
        // 2^32 weights of this size can be summed; memory x time stays far below.
        const MAX_WEIGHT: u128 = u128::MAX >> 32;
        let weights: Vec<(K, u128)> = weights
            .into_iter()
            .filter(|(_, weight)| *weight > 0)
            .map(|(key, weight)| (key, weight.min(MAX_WEIGHT)))
            .collect();
        let sum: u128 = weights.iter().map(|(_, weight)| weight).sum();
        // Each shifted weight is rounded down, so their sum is at most the shifted sum, which fits.
        let shift = 64_u32.saturating_sub(sum.leading_zeros());
        let mut parts = BTreeMap::new();
        for (key, weight) in weights {
            *parts.entry(key).or_insert(0) += u64::try_from(weight >> shift).unwrap_or(0);
        }
        let whole = parts.values().sum();
        (whole > 0).then_some(Self { parts, whole })
    }

    pub(super) fn single(key: K) -> Self {
        Self { parts: BTreeMap::from([(key, 1)]), whole: 1 }
    }

    /// Whether one key has everything.
    pub(super) fn is_single(&self) -> bool {
        self.parts.len() == 1
    }

    pub(super) fn quotas(&self, total: u64) -> impl Iterator<Item = (&K, Quota)> {
        self.parts.iter().map(move |(key, part)| (key, Quota::new(total, *part, self.whole)))
    }

    /// Splits `total` without a carry, as for energy.
    pub(super) fn split(&self, total: u64) -> BTreeMap<K, u64> {
        let quotas = self.quotas(total).map(|(key, quota)| (key.clone(), quota)).collect();
        apportion(total, &quotas, &mut BTreeMap::new())
    }
}

/// Splits `total` along quotas that sum to it, and updates what each key is still owed.
pub(super) fn apportion<K: Clone + Ord>(
    total: u64,
    quotas: &BTreeMap<K, Quota>,
    carry: &mut BTreeMap<K, i64>,
) -> BTreeMap<K, u64> {
    let mut shares: Vec<QuotaShare<'_, K>> =
        quotas.iter().map(|(key, quota)| QuotaShare::new(key, *quota, carry)).collect();
    let floors = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(share.floor));
    let left = total.saturating_sub(floors);
    let count = shares.len() as u64;
    if count == 0 {
        return BTreeMap::new();
    }
    // An integer quota gets no ceiling, whatever its carry: that would be more than its ceiling. The sort is stable and
    // the shares are ordered by key, which breaks ties.
    shares.sort_by_key(|share| Reverse((share.fraction > 0, share.score)));
    let mut parts = BTreeMap::new();
    for (place, share) in (0_u64..).zip(&shares) {
        // Quotas that sum to the total leave less than one unit per share. Any other input is dealt out evenly, so that
        // the parts sum to the total all the same.
        let ceiling = left / count + u64::from(place < left % count);
        share.update_carry(ceiling, carry);
        parts.insert(share.key.clone(), share.floor.saturating_add(ceiling));
    }
    parts
}

struct QuotaShare<'a, K> {
    key: &'a K,
    floor: u64,
    fraction: u64,
    /// Carry + fraction, in units of 2^-64.
    score: i128,
}

impl<'a, K: Clone + Ord> QuotaShare<'a, K> {
    fn new(key: &'a K, quota: Quota, carry: &BTreeMap<K, i64>) -> Self {
        let owed = i128::from(carry.get(key).copied().unwrap_or(0));
        let fraction = quota.fraction();
        Self { key, floor: quota.floor(), fraction, score: (owed << 32) + i128::from(fraction) }
    }

    /// Stores what is still owed after `ceiling` units above the floor; the shift rounds down.
    fn update_carry(&self, ceiling: u64, carry: &mut BTreeMap<K, i64>) {
        let rest = (self.score >> 32).saturating_sub(i128::from(ceiling).saturating_mul(1 << 32));
        let rest = i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX });
        if rest == 0 {
            carry.remove(self.key);
        } else {
            carry.insert(self.key.clone(), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestCarry = BTreeMap<&'static str, i64>;

    fn given(total: u64, parts: &[(&'static str, u64)], carry: &mut TestCarry) -> Vec<u64> {
        let whole = parts.iter().map(|(_, part)| part).sum();
        let quotas = parts.iter().map(|(key, part)| (*key, Quota::new(total, *part, whole))).collect();
        apportion(total, &quotas, carry).into_values().collect()
    }

    #[test]
    fn the_ceiling_goes_round_between_equals_and_the_carry_is_rounded_down() {
        let mut carry = TestCarry::new();
        let thirds = [("a", 1), ("b", 1), ("c", 1)];
        assert_eq!(given(10, &thirds, &mut carry), [4, 3, 3]);
        let owed: Vec<i64> = carry.values().copied().collect();
        assert_eq!(owed, [-2_863_311_531, 1_431_655_765, 1_431_655_765]);
        assert_eq!(given(10, &thirds, &mut carry), [3, 4, 3]);
        assert_eq!(given(10, &thirds, &mut carry), [3, 3, 4]);
    }

    #[test]
    fn an_integer_quota_is_granted_as_it_is_whatever_its_carry() {
        let mut carry = TestCarry::from([("a", i64::MAX)]);
        assert_eq!(given(4, &[("a", 2), ("b", 1), ("c", 1)], &mut carry), [2, 1, 1]);
        let mut carry = TestCarry::from([("a", i64::MAX), ("b", i64::MIN)]);
        assert_eq!(given(3, &[("a", 4), ("b", 1), ("c", 1)], &mut carry), [2, 0, 1]);
    }

    #[test]
    fn the_largest_fraction_is_served_first() {
        assert_eq!(given(10, &[("a", 26), ("b", 27), ("c", 47)], &mut TestCarry::new()), [2, 3, 5]);
        assert!(given(10, &[], &mut TestCarry::new()).is_empty());
    }

    #[test]
    fn quotas_are_rounded_below_a_carrys_unit_and_the_largest_numbers_fit() {
        let mut sum = Quota::default();
        for _ in 0..3 {
            sum.add(Quota::new(1, 1, 3));
        }
        assert_eq!((sum.floor(), sum.fraction()), (1, 0));
        let third = Quota::new(10, 1, 3);
        assert_eq!((third.floor(), third.fraction()), (3, u64::MAX / 3));
        assert_eq!(Quota::new(u64::MAX, u64::MAX, u64::MAX).floor(), u64::MAX);
        assert_eq!(Quota::new(u64::MAX, 5, 0).floor(), 0);
        assert_eq!(Quota::new(7, 9, 3).floor(), 7);
    }

    #[test]
    fn weights_that_do_not_fit_keep_their_proportions() {
        let weights = [("a", u128::from(u64::MAX)), ("b", u128::from(u64::MAX)), ("c", 0)];
        let shares = Shares::from_weights(weights).map(|shares| shares.split(10));
        assert_eq!(shares, Some(BTreeMap::from([("a", 5), ("b", 5)])));
        assert!(Shares::from_weights([("a", u128::MAX), ("b", u128::MAX)]).is_some());
        assert_eq!(Shares::from_weights([("c", 0)]), None);
    }
}
