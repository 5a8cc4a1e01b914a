//! Quantities, costs and ratios as decimals, which no database rounds.

use crate::accounting::billing::{ExactMoney, MoneyOverflow};
use crate::model::largest_remainder;

/// The decimal places of quantities: of hours, where a nanosecond is 2.5 / 9 of 10^-12, and of kilowatt-hours.
pub(super) const QUANTITY_SCALE: u8 = 13;

pub(super) const PRICE_SCALE: u8 = 9;

pub(super) const COST_SCALE: u8 = PRICE_SCALE + QUANTITY_SCALE;

/// Nanoseconds in hours, microjoules in kilowatt-hours, and parts of a nano-unit in money: each time this is the number of
/// units of the scales above.
const RATIO: [i128; 2] = [25, 9];

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
    let [whole, ninths] = [0, 1].map(|part| scaled.iter().map(|amount| amount[part]).sum::<i128>());
    largest_remainder(scaled.into_iter().map(<(i128, i128)>::from), whole + ninths / RATIO[1])
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
