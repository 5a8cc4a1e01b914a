//! Doubles as Go prints them (`%g`, shortest digits), as both text formats require of bucket bounds. Only bounds and sums
//! of histograms are doubles.

use std::io::Write;

/// Appends the value; with `pointed`, a whole number ends in `.0`, as OpenMetrics requires of bounds.
pub(super) fn write(out: &mut Vec<u8>, value: f64, pointed: bool) {
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    }
    let (begin, size) = (out.len(), value.abs());
    let _fits = match (size == 0.0 || (1e-4..1e6).contains(&size), pointed) {
        (true, true) => write!(out, "{value:?}"),
        (true, false) => write!(out, "{value}"),
        (false, _) => write!(out, "{value:e}"),
    };
    // Go writes the exponent with a sign and at least two digits.
    if let Some(mark) = out[begin..].iter().position(|byte| *byte == b'e') {
        let mut digits = begin + mark + 1;
        if out[digits] != b'-' {
            out.insert(digits, b'+');
        }
        digits += 1;
        if out.len() == digits + 1 {
            out.insert(digits, b'0');
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
            (-0.0, "-0", "-0.0"),
            (-1e-7, "-1e-07", "-1e-07"),
            (f64::NAN, "NaN", "NaN"),
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
