//! Rounds several amounts together, so that what is rounded still adds up.

use std::cmp::Reverse;

/// Whole numbers that sum to `total`: of each quota the whole part, and one more for those with the largest rests, ties in
/// order. `total` exceeds the sum of the whole parts by at most the number of quotas.
pub fn largest_remainder<R: Ord>(quotas: impl IntoIterator<Item = (i128, R)>, total: i128) -> Vec<i128> {
    let (mut whole, rests): (Vec<i128>, Vec<R>) = quotas.into_iter().unzip();
    let missing = total - whole.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..rests.len()).collect();
    order.sort_by_key(|place| Reverse(&rests[*place]));
    for (_, place) in (0..missing).zip(order) {
        whole[place] += 1;
    }
    whole
}

/// Multiples of a digit that sum to the total, which is rounded half up: each amount is rounded down, and the largest fractions are
/// raised, ties in order.
pub fn round_to_digit(exact: &[i128], digit: i128) -> Vec<i128> {
    let total = (exact.iter().sum::<i128>() + digit / 2).div_euclid(digit);
    let quotas = exact.iter().map(|amount| (amount.div_euclid(digit), amount.rem_euclid(digit)));
    largest_remainder(quotas, total).into_iter().map(|digits| digits * digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_rests_are_raised_and_ties_in_order() {
        assert_eq!(largest_remainder([(1, 2), (1, 3), (1, 3), (0, 0)], 5), [1, 2, 2, 0]);
        assert_eq!(largest_remainder([(0, 1), (0, 1)], 1), [1, 0]);
        assert_eq!(largest_remainder::<u8>([], 0), [0_i128; 0]);
    }
}
