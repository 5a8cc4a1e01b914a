//! Decimals as integers with a scale, which no database rounds.

use std::fmt;

use crate::billing::{ExactMoney, MoneyOverflow};

/// A decimal: an integer of units of 10^-scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    /// The number of units.
    pub units: i128,
    /// The number of decimal places.
    pub scale: u8,
}

/// The decimal places of quantities: hours, of which a nanosecond has 2.5 / 9 of 10^-12, and kilowatt-hours.
pub(super) const QUANTITY_SCALE: u8 = 13;

/// The decimal places of prices.
pub(super) const PRICE_SCALE: u8 = 9;

/// The decimal places of costs: those of a price and a quantity.
pub(super) const COST_SCALE: u8 = PRICE_SCALE + QUANTITY_SCALE;

/// Nanoseconds in hours, microjoules in kilowatt-hours, and parts of a nano-unit in money: each time this is the number of
/// units of the scales above.
const RATIO: [i128; 2] = [25, 9];

impl fmt::Display for Decimal {
    /// Without zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = 10_u128.pow(self.scale.into());
        let (whole, part) = (self.units.unsigned_abs() / one, self.units.unsigned_abs() % one);
        let sign = if self.units < 0 { "-" } else { "" };
        let places = format!("{part:0width$}", width = self.scale.into());
        match places.trim_end_matches('0') {
            places if part == 0 || places.is_empty() => write!(f, "{sign}{whole}"),
            places => write!(f, "{sign}{whole}.{places}"),
        }
    }
}

/// Money in units of [`COST_SCALE`], rounded down with the ninths that are left.
fn scaled(parts: i128) -> Result<[i128; 2], MoneyOverflow> {
    let [by, of] = RATIO;
    let product = parts.checked_mul(by).ok_or(MoneyOverflow)?;
    Ok([product.div_euclid(of), product.rem_euclid(of)])
}

/// Nanoseconds or microjoules as quantities that sum to their sum, rounded down: each is rounded down, and those with the
/// largest rest are raised, ties in order.
pub(super) fn quantities(amounts: &[u64]) -> Vec<i128> {
    // The product of 64 bits and 25 always fits.
    round(amounts.iter().map(|amount| scaled((*amount).into()).unwrap_or_default()).collect())
}

/// Exact amounts of money in units of [`COST_SCALE`], in the same way.
///
/// # Errors
/// An amount exceeds some 2e15 units of the currency.
pub(super) fn costs(amounts: &[ExactMoney]) -> Result<Vec<i128>, MoneyOverflow> {
    Ok(round(amounts.iter().map(|amount| scaled(amount.parts())).collect::<Result<_, _>>()?))
}

fn round(scaled: Vec<[i128; 2]>) -> Vec<i128> {
    let missing = scaled.iter().map(|[_, rest]| rest).sum::<i128>() / RATIO[1];
    let mut order: Vec<usize> = (0..scaled.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(scaled[*place][1]));
    let mut rounded: Vec<i128> = scaled.iter().map(|[whole, _]| *whole).collect();
    for (_, place) in (0..missing).zip(order) {
        rounded[place] += 1;
    }
    rounded
}

/// Shares of 10^scale in proportion to weights, which sum to it; all of it is the first one's where all weights are 0.
pub(super) fn ratios(weights: &[i128], scale: u8) -> Vec<i128> {
    let (whole, sum) = (10_i128.pow(scale.into()), weights.iter().sum::<i128>());
    let mut shares: Vec<i128> = match sum {
        0 => vec![0; weights.len()],
        _ => weights.iter().map(|weight| weight.saturating_mul(whole) / sum).collect(),
    };
    let missing = whole - shares.iter().sum::<i128>();
    let largest = (0..weights.len()).max_by_key(|place| (weights[*place], std::cmp::Reverse(*place)));
    if let Some(largest) = largest {
        shares[largest] += missing;
    }
    shares
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_is_printed_without_zeros_at_its_end() {
        for (units, scale, text) in [
            (0, 9, "0"),
            (2_100_000_000, 9, "2.1"),
            (-5, 9, "-0.000000005"),
            (-15, 1, "-1.5"),
            (7, 0, "7"),
            (120, 1, "12"),
        ] {
            assert_eq!(Decimal { units, scale }.to_string(), text);
        }
    }

    #[test]
    fn whole_multiples_of_nine_nanoseconds_are_exact_hours_and_others_sum_to_their_sum() {
        assert_eq!(quantities(&[3_600_000_000_000, 9]), [10_000_000_000_000, 25]);
        assert_eq!(quantities(&[1, 1, 7]), [3, 3, 19]);
        assert_eq!(costs(&[ExactMoney::of_parts(-9), ExactMoney::of_parts(-1)]).unwrap(), [-25, -3]);
        assert!(costs(&[ExactMoney::of_parts(i128::MAX)]).is_err());
    }

    #[test]
    fn ratios_sum_to_one() {
        assert_eq!(ratios(&[1, 1, 1], 2), [34, 33, 33]);
        assert_eq!(ratios(&[0, 0], 2), [100, 0]);
        assert_eq!(ratios(&[], 2), [0_i128; 0]);
    }
}
