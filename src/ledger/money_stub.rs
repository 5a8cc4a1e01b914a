//! Stand-in for `attribution::money` and `attribution::split_money` until that room is merged: delete.

use crate::model::{HolderId, Money, Nanoseconds};

const HOUR: i128 = 3_600_000_000_000;

/// What GPU time costs since a price interval began, rounded down.
pub(super) fn money(rate_nano_per_hour: i128, since: Nanoseconds) -> Money {
    Money((rate_nano_per_hour * i128::from(since.0)).div_euclid(HOUR))
}

/// Splits a sum along times: largest fraction first, ties by holder; the shares sum to the total.
pub(super) fn split_money(total: Money, times: &[(HolderId, u64)]) -> Vec<Money> {
    let whole: i128 = times.iter().map(|(_, time)| i128::from(*time)).sum();
    if whole == 0 {
        return vec![Money(0); times.len()];
    }
    let quota = |time: u64| total.0 * i128::from(time);
    let mut shares: Vec<Money> =
        times.iter().map(|(_, time)| Money(quota(*time).div_euclid(whole))).collect();
    let missing = total.0 - shares.iter().map(|share| share.0).sum::<i128>();
    let mut order: Vec<usize> = (0..times.len()).collect();
    order.sort_by(|&a, &b| {
        let fraction = |i: usize| quota(times[i].1).rem_euclid(whole);
        fraction(b).cmp(&fraction(a)).then_with(|| times[a].0.cmp(&times[b].0))
    });
    for index in order.into_iter().take(usize::try_from(missing).unwrap_or(0)) {
        shares[index].0 += 1;
    }
    shares
}
