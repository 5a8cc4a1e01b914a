//! Doubles as Go prints them (`%g`, shortest digits), as both text formats require of bucket bounds. Only bounds and sums
//! of histograms are doubles.

use std::io::Write;

/// Appends the value; with `pointed`, a whole number ends in `.0`, as OpenMetrics requires of bounds.
pub(super) fn write(out: &mut Vec<u8>, value: f64, pointed: bool) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    }
    let mut scratch = [0_u8; 32];
    let (digits, exponent) = shortest(value.abs(), &mut scratch);
    if value.is_sign_negative() {
        out.push(b'-');
    }
    if !(-4..6).contains(&exponent) {
        scientific(out, digits, exponent);
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend_from_slice(digits);
    } else {
        plain(out, digits, exponent as usize + 1, pointed);
    }
}

/// The shortest digits that parse to the value, without a point, and the exponent of the first one.
fn shortest(value: f64, scratch: &mut [u8; 32]) -> (&[u8], i32) {
    let mut free = &mut scratch[..];
    // 17 digits, point, `e`, sign and three digits of exponent always fit.
    let _fits = write!(free, "{value:e}");
    let left = free.len();
    let used = scratch.len() - left;
    let mark = scratch[..used].iter().position(|byte| *byte == b'e').unwrap_or(used);
    let exponent =
        str::from_utf8(&scratch[(mark + 1).min(used)..used]).ok().and_then(|text| text.parse().ok());
    let mut length = mark;
    if mark > 1 {
        // Removes the point.
        scratch.copy_within(2..mark, 1);
        length -= 1;
    }
    (&scratch[..length], exponent.unwrap_or(0))
}

fn scientific(out: &mut Vec<u8>, digits: &[u8], exponent: i32) {
    let (first, rest) = digits.split_at(1);
    out.extend_from_slice(first);
    if !rest.is_empty() {
        out.push(b'.');
        out.extend_from_slice(rest);
    }
    let _fits = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
}

fn plain(out: &mut Vec<u8>, digits: &[u8], whole: usize, pointed: bool) {
    if digits.len() > whole {
        out.extend_from_slice(&digits[..whole]);
        out.push(b'.');
        out.extend_from_slice(&digits[whole..]);
    } else {
        out.extend_from_slice(digits);
        out.extend(std::iter::repeat_n(b'0', whole - digits.len()));
        if pointed {
            out.extend_from_slice(b".0");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: f64, pointed: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, value, pointed);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bounds_print_as_go_prints_them() {
        for (value, plain, pointed) in [
            (0.001, "0.001", "0.001"),
            (1.0, "1", "1.0"),
            (10.0, "10", "10.0"),
            (0.0, "0", "0.0"),
            (0.00025, "0.00025", "0.00025"),
            (0.00001, "1e-05", "1e-05"),
            (12.5, "12.5", "12.5"),
            (123_456.0, "123456", "123456.0"),
            (1_234_567.0, "1.234567e+06", "1.234567e+06"),
            (f64::INFINITY, "+Inf", "+Inf"),
            (1.5e300, "1.5e+300", "1.5e+300"),
            (-2.5, "-2.5", "-2.5"),
        ] {
            assert_eq!(text(value, false), plain);
            assert_eq!(text(value, true), pointed);
        }
    }

    proptest! {
        #[test]
        fn any_double_reads_back(value in any::<f64>(), pointed in any::<bool>()) {
            let back: f64 = text(value, pointed).parse().unwrap();
            prop_assert!(back.to_bits() == value.to_bits() || value.is_nan());
        }
    }
}
