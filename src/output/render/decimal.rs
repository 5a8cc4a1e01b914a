//! Integers with decimals as exact decimal text, and as the double nearest to it.
//!
//! Text is written without floating point: 1,500,000,000 with 9 decimals is `1.5`. At most 18 decimals are supported,
//! twice what any unit has.

/// Appends the number with its trailing zeros trimmed.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, number: i128, decimals: u8) {
    match i64::try_from(number) {
        Ok(number) => write_small(out, number, decimals),
        Err(_) => write_large(out, number, decimals),
    }
}

/// Appends the number with all its decimals.
pub(super) fn write_fixed(out: &mut Vec<u8>, number: i128, decimals: u8) {
    if number < 0 {
        out.push(b'-');
    }
    let (size, one) = (number.unsigned_abs(), 10_u128.pow(decimals.into()));
    let fraction = size % one;
    out.extend_from_slice(itoa::Buffer::new().format(size / one).as_bytes());
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(fraction).as_bytes();
    out.push(b'.');
    out.extend_from_slice(&[b'0'; 18][..usize::from(decimals).saturating_sub(digits.len())]);
    out.extend_from_slice(digits);
}

fn write_small(out: &mut Vec<u8>, number: i64, decimals: u8) {
    if number < 0 {
        out.push(b'-');
    }
    let size = number.unsigned_abs();
    // A constant divisor compiles to a multiplication; units have no other decimals than these.
    let (whole, fraction) = match decimals {
        0 => (size, 0),
        3 => (size / 1_000, size % 1_000),
        6 => (size / 1_000_000, size % 1_000_000),
        9 => (size / 1_000_000_000, size % 1_000_000_000),
        _ => return write_large(out, i128::from(size), decimals),
    };
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    if fraction != 0 {
        write_fraction(out, fraction, decimals);
    }
}

#[cold]
fn write_large(out: &mut Vec<u8>, number: i128, decimals: u8) {
    if number < 0 {
        out.push(b'-');
    }
    let size = number.unsigned_abs();
    let one = 10_u128.pow(u32::from(decimals));
    out.extend_from_slice(itoa::Buffer::new().format(size / one).as_bytes());
    match u64::try_from(size % one) {
        Ok(fraction) if fraction != 0 => write_fraction(out, fraction, decimals),
        _ => {}
    }
}

/// Appends the point and the digits after it; `fraction` is not 0 and below 10^decimals.
fn write_fraction(out: &mut Vec<u8>, fraction: u64, decimals: u8) {
    let (mut rest, mut count) = (fraction, usize::from(decimals));
    while rest.is_multiple_of(1_000) {
        (rest, count) = (rest / 1_000, count - 3);
    }
    while rest.is_multiple_of(10) {
        (rest, count) = (rest / 10, count - 1);
    }
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(rest).as_bytes();
    out.push(b'.');
    out.extend_from_slice(&[b'0'; 18][..count.saturating_sub(digits.len())]);
    out.extend_from_slice(digits);
}

/// The double nearest to the number, which parsing its text would give.
pub(super) fn double(number: i128, decimals: u8) -> f64 {
    let size = number.unsigned_abs();
    let one = 10_u128.pow(u32::from(decimals));
    let magnitude = if size < 1 << 53 && decimals <= 22 {
        // Both are exact as doubles, so one division rounds once.
        size as f64 / one as f64
    } else if let Ok(size) = u64::try_from(size) {
        // The quotient has 64 more bits than needed, and its last bit is set where a rest was cut off: rounds once, too.
        let shifted = u128::from(size) << 64;
        let quotient = (shifted / one) | u128::from(!shifted.is_multiple_of(one));
        quotient as f64 / 2_f64.powi(64)
    } else {
        let mut text = Vec::new();
        write_large(&mut text, number.saturating_abs(), decimals);
        str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::INFINITY)
    };
    if number < 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(number: i128, decimals: u8) -> String {
        let mut out = Vec::new();
        write(&mut out, number, decimals);
        String::from_utf8(out).unwrap()
    }

    fn plain(number: i128, decimals: u8) -> String {
        let width = usize::from(decimals) + 1;
        let digits = format!("{:0width$}", number.unsigned_abs());
        let (whole, fraction) = digits.split_at(digits.len() - usize::from(decimals));
        let sign = if number < 0 { "-" } else { "" };
        let joined = format!("{sign}{whole}.{fraction}");
        joined.trim_end_matches('0').trim_end_matches('.').to_string()
    }

    #[test]
    fn decimals_are_exact_and_trimmed() {
        assert_eq!(text(1_500_000_000, 9), "1.5");
        assert_eq!(text(1, 9), "0.000000001");
        assert_eq!(text(-1, 9), "-0.000000001");
        assert_eq!(text(-250, 3), "-0.25");
        assert_eq!(text(0, 9), "0");
        assert_eq!(text(-42, 0), "-42");
        assert_eq!(text(1_000_000_000_000, 9), "1000");
        assert_eq!(text(i128::from(i64::MIN), 9), "-9223372036.854775808");
        assert_eq!(text(i128::from(i64::MAX) * 10 + 5, 9), "92233720368.547758075");
        assert_eq!(text(i128::MIN, 0), i128::MIN.to_string());
    }

    fn numbers() -> impl Strategy<Value = i128> {
        prop_oneof![
            any::<i128>(),
            any::<i64>().prop_map(i128::from),
            any::<i32>().prop_map(i128::from),
            ((1_i128 << 52)..(1 << 54)),
        ]
    }

    proptest! {
        #[test]
        fn any_number_prints_as_the_obvious_way_does(number in numbers(), decimals in prop::sample::select(vec![0_u8, 2, 3, 6, 9])) {
            let expected = if decimals == 0 { number.to_string() } else { plain(number, decimals) };
            prop_assert_eq!(text(number, decimals), expected);
        }

        #[test]
        fn the_double_is_what_the_text_means(number in numbers(), decimals in prop::sample::select(vec![0_u8, 3, 6, 9])) {
            let parsed: f64 = text(number, decimals).parse().unwrap();
            prop_assert_eq!(double(number, decimals).to_bits(), parsed.to_bits(), "{}", number);
        }
    }
}
