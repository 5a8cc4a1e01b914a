//! Decimals as integers with a scale, which nothing rounds.

use std::fmt;

/// A decimal: an integer of units of 10^-scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    pub units: i128,
    pub scale: u8,
}

impl Decimal {
    pub const fn of_nano(units: i128) -> Self {
        Self { units, scale: 9 }
    }
}

impl fmt::Display for Decimal {
    /// Without zeros at the end; with a precision, as in `{:.2}`, exactly these places, and what follows them is cut off.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = 10_u128.pow(self.scale.into());
        let (whole, part) = (self.units.unsigned_abs() / one, self.units.unsigned_abs() % one);
        let sign = if self.units < 0 { "-" } else { "" };
        let places = format!("{part:0width$}", width = self.scale.into());
        let places = match f.precision() {
            Some(precision) => places.get(..precision).unwrap_or(&places),
            None => places.trim_end_matches('0'),
        };
        match places {
            "" => write!(f, "{sign}{whole}"),
            places => write!(f, "{sign}{whole}.{places}"),
        }
    }
}

#[cfg(test)]
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
    fn with_a_precision_it_has_these_places() {
        assert_eq!(format!("{:.2}", Decimal::of_nano(1_999_999_999)), "1.99");
        assert_eq!(format!("{:.9}", Decimal::of_nano(-1)), "-0.000000001");
    }
}
