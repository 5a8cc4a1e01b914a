//! Parses fractions of a GPU such as `1/2`, `0.5` or `1`, and sums them exactly.

use super::problem::Complaint;
use crate::model::{Fraction, greatest_common_divisor};

/// Decimals that a fraction may have: `10^9` is the largest power of ten that a denominator holds.
const MOST_DECIMALS: usize = 9;

/// A fraction above 0 and at most 1. A decimal number is exact: `0.5` is 1/2.
pub(crate) fn fraction(text: &str) -> Result<Fraction, Complaint> {
    let complain =
        |wrong| Complaint::about(text, wrong, "give a fraction such as 1/2 or 0.5, or 1 for the whole GPU");
    let number = |digits: &str| {
        // A sign would parse too.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten().ok_or_else(|| complain("is not a fraction"))
    };
    let (numerator, denominator) = match (text.split_once('/'), text.split_once('.')) {
        (Some((above, below)), _) => (number(above.trim())?, number(below.trim())?),
        (None, Some((_, decimals))) if decimals.len() > MOST_DECIMALS => {
            return Err(complain("has more than nine decimals"));
        }
        (None, Some((whole, decimals))) => decimal(number(whole)?, decimals, number(decimals)?),
        (None, None) => (number(text)?, 1),
    };
    match (numerator, denominator) {
        (_, 0) => Err(complain("divides by zero")),
        (0, _) => Err(complain("grants nothing")),
        _ if numerator > denominator => Err(complain("is more than one GPU")),
        _ => Ok(Fraction { numerator, denominator }),
    }
}

/// `whole.decimals` in lowest terms; a number above 1 may be clipped, since it is refused anyway.
fn decimal(whole: u32, decimals: &str, above: u32) -> (u32, u32) {
    let below = decimals.bytes().fold(1, |power: u32, _| power.saturating_mul(10));
    let above = whole.saturating_mul(below).saturating_add(above);
    let shared = u32::try_from(greatest_common_divisor(above.into(), below.into())).unwrap_or(1).max(1);
    (above / shared, below / shared)
}

/// An exact sum of fractions, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    numerator: u128,
    denominator: u128,
}

impl Sum {
    pub(crate) const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// The sum with one more fraction; none if the common denominator exceeds 128 bits.
    pub(crate) fn plus(self, fraction: Fraction) -> Option<Self> {
        let (numerator, denominator) = (u128::from(fraction.numerator), u128::from(fraction.denominator));
        let common = (self.denominator / greatest_common_divisor(self.denominator, denominator))
            .checked_mul(denominator)?;
        let mine = self.numerator.checked_mul(common / self.denominator)?;
        let sum = mine.checked_add(numerator.checked_mul(common / denominator)?)?;
        let shared = greatest_common_divisor(sum, common);
        Some(Self { numerator: sum / shared, denominator: common / shared })
    }

    pub(crate) const fn exceeds_one(self) -> bool {
        self.numerator > self.denominator
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_decimal_fraction_is_exact(decimals in 1..=9_u32, digits in 1..=1_000_000_000_u32) {
            let below = 10_u32.pow(decimals);
            let above = digits.min(below);
            let width = decimals as usize;
            let text = format!("{}.{:0width$}", above / below, above % below);
            let Fraction { numerator, denominator } = fraction(&text).map_err(|complaint| complaint.0).unwrap();
            let [a, b, c, d] = [numerator, below, above, denominator].map(u64::from);
            prop_assert_eq!(a * b, c * d, "{}", text);
            prop_assert_eq!(greatest_common_divisor(numerator.into(), denominator.into()), 1, "{}", text);
        }
    }

    #[test]
    fn thirds_and_sixths_sum_exactly() {
        let add = |sum: Option<Sum>, (numerator, denominator)| sum?.plus(Fraction { numerator, denominator });
        let sum = [(1, 3), (1, 6), (1, 2)].into_iter().fold(Some(Sum::ZERO), add);
        assert_eq!(sum, Some(Sum { numerator: 1, denominator: 1 }));
        assert_eq!(sum.map(Sum::exceeds_one), Some(false));
        let above = add(sum, (1, u32::MAX));
        assert_eq!(above.map(Sum::exceeds_one), Some(true));
    }

    #[test]
    fn a_sum_that_exceeds_128_bits_is_none() {
        let primes = [4_294_967_291, 4_294_967_279, 4_294_967_231, 4_294_967_197, 4_294_967_189];
        let sum = primes
            .into_iter()
            .try_fold(Sum::ZERO, |sum, prime| sum.plus(Fraction { numerator: 1, denominator: prime }));
        assert_eq!(sum, None);
    }
}
