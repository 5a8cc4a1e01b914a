//! Money of GPU time under one price, and its split along held or used times.
//!
//! The money of a span is the difference of [`money`] at its ends, so that two statements add up to one. It is split, and
//! never computed from a rounded part: per GPU and price interval it is within one nano-unit of rate x time, and a holder's
//! within two (law L9).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::SettleError;
use crate::model::{HolderId, Money, Nanoseconds, Parts};

/// An hour in nanoseconds.
const HOUR: i128 = 3_600 * Nanoseconds::SECOND.0 as i128;

/// Cost of the time `since` the begin of a price interval, rounded down; the rate is in nano-units per hour.
pub fn money(rate_nano_per_hour: i128, since: Nanoseconds) -> Money {
    let time = i128::from(since.0);
    // Whole nano-units per nanosecond are separate from the rest, so that no product overflows.
    let whole = rate_nano_per_hour.div_euclid(HOUR).saturating_mul(time);
    let rest = rate_nano_per_hour.rem_euclid(HOUR) * time / HOUR;
    Money(whole.saturating_add(rest))
}

/// Parts of what a holder held of a slot.
#[derive(Clone, Copy, Debug)]
pub struct HeldParts<'a> {
    /// GPU instance id of the slot; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    /// Holder.
    pub holder: &'a HolderId,
    /// The parts.
    pub parts: &'a Parts,
}

/// Time of a holder on a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderTime {
    /// GPU instance id of the slot; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    /// Holder.
    pub holder: HolderId,
    /// In nanoseconds.
    pub time: u64,
}

/// Time for which each holder is charged: held less unavailable, in the order of `held`. `__unavailable__` is charged for
/// the unavailable time, since a lost or broken GPU is shown to its holders but not charged; on slots where it held nothing
/// it comes last.
pub fn charged_times<'a>(held: impl IntoIterator<Item = HeldParts<'a>>) -> Vec<HolderTime> {
    let mut unavailable: BTreeMap<Option<u32>, (u64, Option<usize>)> = BTreeMap::new();
    let mut times: Vec<HolderTime> = Vec::new();
    for (place, HeldParts { gpu_instance, holder, parts }) in held.into_iter().enumerate() {
        if parts.unavailable > 0 {
            unavailable.entry(gpu_instance).or_default().0 += parts.unavailable;
        }
        if holder.as_str() == HolderId::UNAVAILABLE {
            unavailable.entry(gpu_instance).or_default().1 = Some(place);
        }
        let time = parts.held() - parts.unavailable;
        times.push(HolderTime { gpu_instance, holder: holder.clone(), time });
    }
    for (gpu_instance, (time, place)) in unavailable {
        match place.and_then(|place| times.get_mut(place)) {
            Some(charged) => charged.time += time,
            None => {
                times.push(HolderTime { gpu_instance, holder: HolderId::new(HolderId::UNAVAILABLE), time });
            }
        }
    }
    times
}

/// Splits money along times in nanoseconds; the parts, in the order of `times`, sum to `total` exactly. The largest
/// fractions are rounded up, ties by id; there is no carry.
///
/// # Errors
/// Negative money, or money without any time.
pub fn split_money(total: Money, times: &[HolderTime]) -> Result<Vec<Money>, SettleError> {
    let amount = u128::try_from(total.0).map_err(|_| SettleError::NegativeMoney { total })?;
    let time: u128 = times.iter().map(|own| u128::from(own.time)).sum();
    if amount == 0 {
        return Ok(vec![Money(0); times.len()]);
    }
    if time == 0 || time > u128::from(u64::MAX) {
        return Err(SettleError::MoneyWithoutTime { total, time });
    }
    let mut shares: Vec<MoneyShare<'_>> =
        times.iter().enumerate().map(|(place, own)| MoneyShare::new(place, own, amount, time)).collect();
    let floors: u128 = shares.iter().map(|share| share.floor).sum();
    shares.sort_by_key(|share| (Reverse(share.fraction), share.holder, share.place));
    let mut parts = vec![Money(0); times.len()];
    for (rank, share) in (0_u128..).zip(&shares) {
        let part = share.floor + u128::from(rank < amount - floors);
        if let Some(slot) = parts.get_mut(share.place) {
            *slot = Money(i128::try_from(part).unwrap_or(i128::MAX));
        }
    }
    Ok(parts)
}

struct MoneyShare<'a> {
    place: usize,
    holder: &'a HolderId,
    floor: u128,
    /// The rest of the division; all rests have the same denominator.
    fraction: u128,
}

impl<'a> MoneyShare<'a> {
    /// The quota of `own` in `amount` over `time`. The product of two numbers below 2^64 fits.
    fn new(
        place: usize,
        HolderTime { holder, time: own, .. }: &'a HolderTime,
        amount: u128,
        time: u128,
    ) -> Self {
        let own = u128::from(*own);
        let product = amount % time * own;
        Self { place, holder, floor: amount / time * own + product / time, fraction: product % time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(times: &[(&str, u64)]) -> Vec<HolderTime> {
        let time = |&(id, time)| HolderTime { gpu_instance: None, holder: HolderId::new(id), time };
        times.iter().map(time).collect()
    }

    #[test]
    fn an_hour_costs_the_rate_and_less_costs_the_floor() {
        assert_eq!(money(2_100_000_000, Nanoseconds::from_seconds(3_600)), Money(2_100_000_000));
        assert_eq!(money(2_100_000_000, Nanoseconds(1)), Money(0));
        assert_eq!(money(1, Nanoseconds::from_seconds(5_400)), Money(1));
        assert_eq!(money(-1, Nanoseconds(1)), Money(-1));
        assert_eq!(money(i128::MAX, Nanoseconds(u64::MAX)), Money(i128::MAX));
    }

    #[test]
    fn the_largest_fraction_is_served_first_and_ties_go_by_id() {
        let split = |total, list: &[(&str, u64)]| split_money(Money(total), &times(list));
        assert_eq!(split(10, &[("b", 1), ("a", 1), ("c", 1)]), Ok(vec![Money(3), Money(4), Money(3)]));
        assert_eq!(split(i128::MAX, &[("a", u64::MAX)]), Ok(vec![Money(i128::MAX)]));
        assert_eq!(split(0, &[("a", 0)]), Ok(vec![Money(0)]));
        assert_eq!(split(0, &[]), Ok(vec![]));
    }

    #[test]
    fn unavailable_time_is_charged_to_the_remainder_of_that_name() {
        let charged = |held: &[(&str, u64, u64)]| {
            let held: Vec<_> = held
                .iter()
                .map(|&(id, idle, unavailable)| {
                    (HolderId::new(id), Parts { idle, unavailable, ..Parts::default() })
                })
                .collect();
            let held = held.iter().map(|(holder, parts)| HeldParts { gpu_instance: None, holder, parts });
            charged_times(held)
        };
        assert_eq!(charged(&[("a", 3, 0)]), times(&[("a", 3)]));
        assert_eq!(charged(&[("a", 3, 4)]), times(&[("a", 3), ("__unavailable__", 4)]));
        let with_remainder = charged(&[("__unavailable__", 0, 2), ("a", 3, 4), ("b", 0, 5)]);
        assert_eq!(with_remainder, times(&[("__unavailable__", 11), ("a", 3), ("b", 0)]));
    }

    #[test]
    fn money_without_time_and_negative_money_are_refused() {
        let split = |total, list: &[(&str, u64)]| split_money(Money(total), &times(list));
        assert_eq!(split(-1, &[("a", 1)]), Err(SettleError::NegativeMoney { total: Money(-1) }));
        assert_eq!(split(1, &[("a", 0)]), Err(SettleError::MoneyWithoutTime { total: Money(1), time: 0 }));
        assert!(split(1, &[("a", u64::MAX), ("b", 1)]).is_err());
    }
}
