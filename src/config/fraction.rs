//! Fractions of a GPU: from text, and their exact sum.
//!
//! In: `1/2`, `1`. Out: a [`Fraction`] above 0 and at most 1; sums in integers. It knows no key.

use super::problem::Complaint;
use crate::model::Fraction;

/// A fraction above 0 and at most 1.
pub(crate) fn fraction(text: &str) -> Result<Fraction, Complaint> {
    let complain =
        |wrong| Complaint::about(text, wrong, "give a fraction such as 1/2, or 1 for the whole GPU");
    let number = |digits: &str| {
        // A sign would parse too.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten().ok_or_else(|| complain("is not a fraction"))
    };
    let (above, below) = text.split_once('/').unwrap_or((text, "1"));
    let (numerator, denominator) = (number(above.trim())?, number(below.trim())?);
    match (numerator, denominator) {
        (_, 0) => Err(complain("divides by zero")),
        (0, _) => Err(complain("grants nothing")),
        _ if numerator > denominator => Err(complain("is more than one GPU")),
        _ => Ok(Fraction { numerator, denominator }),
    }
}

/// An exact sum of fractions, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    numerator: u128,
    denominator: u128,
}

impl Sum {
    /// Nothing yet.
    pub(crate) const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// One more; `None` where the common denominator outgrows 128 bits.
    pub(crate) fn plus(self, fraction: Fraction) -> Option<Self> {
        let (numerator, denominator) = (u128::from(fraction.numerator), u128::from(fraction.denominator));
        let common = (self.denominator / gcd(self.denominator, denominator)).checked_mul(denominator)?;
        let mine = self.numerator.checked_mul(common / self.denominator)?;
        let sum = mine.checked_add(numerator.checked_mul(common / denominator)?)?;
        let shared = gcd(sum, common);
        Some(Self { numerator: sum / shared, denominator: common / shared })
    }

    /// Whether it is more than a whole GPU.
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

/// The greatest common divisor; of 0 and n it is n.
const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_sum_too_fine_for_integers_is_not_guessed() {
        let primes = [4_294_967_291, 4_294_967_279, 4_294_967_231, 4_294_967_197, 4_294_967_189];
        let sum = primes
            .into_iter()
            .try_fold(Sum::ZERO, |sum, prime| sum.plus(Fraction { numerator: 1, denominator: prime }));
        assert_eq!(sum, None);
    }
}
