//! Exact money: linear in time, and rounded only where it is shown.

use crate::model::{Money, Nanoseconds, largest_remainder};

/// An hour in nanoseconds, and a kilowatt-hour in microjoules: the parts of a nano-unit in [`ExactMoney`].
const HOUR: i128 = 3_600 * Nanoseconds::SECOND.0 as i128;

/// Money in parts of a nano-unit, of which 3.6e12 make one. So a rate in nano-units per hour times nanoseconds is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExactMoney(i128);

/// A sum of money exceeds 128 bits, some 4e16 units of the currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sum of money exceeds 4e16 units of the currency; give prices in a larger unit")]
pub struct MoneyOverflow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumOverflow {
    #[error(transparent)]
    Money(#[from] MoneyOverflow),
    #[error(
        "time or energy of one GPU exceeds 64 bits (584 years, 5 GWh), so its source is damaged; copy it again"
    )]
    Gpu,
}

impl ExactMoney {
    pub const ZERO: Self = Self(0);

    /// Money of a time in nanoseconds at a rate in nano-units per hour. 63 bits times 64 bits always fit.
    pub const fn of_time(nano_per_hour: i64, time: u64) -> Self {
        Self(nano_per_hour as i128 * time as i128)
    }

    /// Money of an energy in microjoules at a rate in nano-units per kilowatt-hour.
    pub const fn of_energy(nano_per_kwh: i64, energy: u64) -> Self {
        Self::of_time(nano_per_kwh, energy)
    }

    /// Divides an amount in proportion to weights, so that the shares sum to it: each is rounded down, and the first ones
    /// are raised. All shares are 0 where all weights are.
    ///
    /// # Errors
    /// A share does not fit.
    pub fn divide(self, weights: &[u64]) -> Result<Vec<Self>, MoneyOverflow> {
        let sum: i128 = weights.iter().map(|weight| i128::from(*weight)).sum();
        if sum == 0 {
            return Ok(vec![Self::ZERO; weights.len()]);
        }
        // The two products are smaller than that of the whole amount.
        let (whole, rest) = (self.0.div_euclid(sum), self.0.rem_euclid(sum));
        let share = |weight: &u64| {
            let weight = i128::from(*weight);
            let rest = rest.checked_mul(weight).ok_or(MoneyOverflow)?.div_euclid(sum);
            whole.checked_mul(weight).and_then(|share| share.checked_add(rest)).ok_or(MoneyOverflow)
        };
        let mut shares = weights.iter().map(share).collect::<Result<Vec<i128>, _>>()?;
        let missing = self.0 - shares.iter().sum::<i128>();
        let weighted = shares.iter_mut().zip(weights).filter(|(_, weight)| **weight > 0);
        for (_, (share, _)) in (0..missing).zip(weighted) {
            *share += 1;
        }
        Ok(shares.into_iter().map(Self).collect())
    }

    /// The sum of two amounts.
    ///
    /// # Errors
    /// It does not fit.
    pub fn plus(self, other: Self) -> Result<Self, MoneyOverflow> {
        self.0.checked_add(other.0).map(Self).ok_or(MoneyOverflow)
    }

    /// The difference of two amounts.
    ///
    /// # Errors
    /// It does not fit.
    pub fn minus(self, other: Self) -> Result<Self, MoneyOverflow> {
        self.0.checked_sub(other.0).map(Self).ok_or(MoneyOverflow)
    }

    /// The sum, or the largest amount where that does not fit.
    #[must_use]
    pub const fn saturating_plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or the nearest amount where that does not fit.
    #[must_use]
    pub const fn saturating_minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum of many amounts.
    ///
    /// # Errors
    /// It does not fit.
    pub fn sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, MoneyOverflow> {
        amounts.into_iter().try_fold(Self::ZERO, Self::plus)
    }

    /// The amount in parts of a nano-unit, of which 3.6e12 make one.
    pub const fn parts(self) -> i128 {
        self.0
    }

    pub const fn of_parts(parts: i128) -> Self {
        Self(parts)
    }

    /// Whole nano-units, rounded towards minus infinity.
    pub const fn floor(self) -> Money {
        Money(self.0.div_euclid(HOUR))
    }

    /// Whole nano-units, and the rest in 1/3.6e12 of one.
    pub const fn into_parts(self) -> (Money, i64) {
        (self.floor(), self.0.rem_euclid(HOUR) as i64)
    }

    /// The amount of [`ExactMoney::into_parts`].
    ///
    /// # Errors
    /// It does not fit.
    pub fn from_parts(nano: Money, rest: i64) -> Result<Self, MoneyOverflow> {
        let whole = nano.0.checked_mul(HOUR).ok_or(MoneyOverflow)?;
        Self(whole).plus(Self(rest.into()))
    }
}

/// Rounds amounts to whole nano-units, so that they sum to their exact sum rounded down: each is rounded down, and the largest
/// fractions are raised, ties in order.
///
/// # Errors
/// The sum does not fit.
pub fn round_together(amounts: &[ExactMoney]) -> Result<Vec<Money>, MoneyOverflow> {
    Ok(round_to(amounts, ExactMoney::sum(amounts.iter().copied())?.floor().0))
}

/// Like `round_together`, but the results sum to `total`, which may exceed the exact sum by less than one unit.
pub(super) fn round_to(amounts: &[ExactMoney], total: i128) -> Vec<Money> {
    let quotas = amounts.iter().map(|amount| (amount.0.div_euclid(HOUR), amount.0.rem_euclid(HOUR)));
    largest_remainder(quotas, total).into_iter().map(Money).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_hour_costs_the_rate_and_a_nanosecond_its_exact_part() {
        let hour = HOUR as u64;
        assert_eq!(ExactMoney::of_time(2_100_000_000, hour).floor(), Money(2_100_000_000));
        let nanosecond = ExactMoney::of_time(2_100_000_000, 1);
        assert_eq!(nanosecond.into_parts(), (Money(0), 2_100_000_000));
        let sum = ExactMoney::sum((0..3_600_000).map(|_| nanosecond)).unwrap();
        assert_eq!(sum.into_parts(), (Money(2_100), 0));
        let largest = ExactMoney::of_time(i64::MAX, u64::MAX);
        assert_eq!(largest.plus(largest), Err(MoneyOverflow));
        assert_eq!(ExactMoney::from_parts(Money(i128::MAX), 0), Err(MoneyOverflow));
    }

    #[test]
    fn the_largest_fraction_is_raised_first_and_ties_go_in_order() {
        let nano = |parts: &[i128]| parts.iter().map(|part| ExactMoney(part * HOUR / 10)).collect::<Vec<_>>();
        let rounded = |parts: &[i128]| {
            round_together(&nano(parts)).unwrap().iter().map(|money| money.0).collect::<Vec<_>>()
        };
        assert_eq!(rounded(&[14, 16, 10]), [1, 2, 1]);
        assert_eq!(rounded(&[15, 15]), [2, 1]);
        assert_eq!(rounded(&[-5, -5]), [0, -1]);
        assert_eq!(rounded(&[]), [0_i128; 0]);
    }

    #[test]
    fn shares_sum_to_the_amount_and_a_weight_of_zero_gets_nothing() {
        for amount in [10, 0, -10, i128::from(i64::MAX)] {
            let shares = ExactMoney(amount).divide(&[1, 0, 2]).unwrap();
            assert_eq!(ExactMoney::sum(shares.iter().copied()), Ok(ExactMoney(amount)), "{shares:?}");
            assert_eq!(shares[1], ExactMoney::ZERO);
        }
        assert_eq!(ExactMoney(10).divide(&[1, 0, 2]).unwrap(), [4, 0, 6].map(ExactMoney));
        assert_eq!(ExactMoney(10).divide(&[0]).unwrap(), [ExactMoney::ZERO]);
    }

    proptest! {
        #[test]
        fn rounded_amounts_sum_to_the_rounded_sum_and_parts_are_whole(
            amounts in prop::collection::vec(-(1_i128 << 100)..1_i128 << 100, 0..20),
        ) {
            let exact: Vec<ExactMoney> = amounts.iter().map(|amount| ExactMoney(*amount)).collect();
            let rounded = round_together(&exact).unwrap();
            let sum: Money = rounded.iter().copied().sum();
            prop_assert_eq!(sum.0, amounts.iter().sum::<i128>().div_euclid(HOUR));
            for (exact, rounded) in exact.iter().zip(rounded) {
                let floor = exact.0.div_euclid(HOUR);
                prop_assert!(rounded.0 == floor || rounded.0 == floor + 1);
                let (nano, rest) = exact.into_parts();
                prop_assert_eq!(ExactMoney::from_parts(nano, rest), Ok(*exact));
            }
        }
    }
}
