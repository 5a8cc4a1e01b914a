//! `/proc/PID/stat`: the name of a process, and when it started.
//!
//! In: the bytes. Out: [`Stat`], or nothing if the line is incomplete.

use super::printable::printable;

/// The fields that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The kernel's name of the process, at most 15 bytes. Bytes that are not UTF-8 and control characters are
    /// replaced, because the name is printed in labels, in logs and on terminals.
    pub(super) name: String,
    /// Ticks between boot and the start of the process.
    pub(super) start_time: u64,
}

/// Reads the line.
///
/// The name stands in parentheses and may itself hold any byte but NUL, `) R 1 (` included: only the last
/// parenthesis ends it, since nothing but numbers follows.
pub(super) fn parse(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|byte| *byte == b'(')?;
    let close = bytes.iter().rposition(|byte| *byte == b')')?;
    let name = bytes.get(open + 1..close)?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    // Counted as proc(5) does: the state behind the name is field 3.
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
    let start_time = field(22)?.parse().ok()?;
    // A line that was cut within the digits of field 22 would identify another process.
    if field(23).is_none() && !rest.ends_with(|last: char| last.is_ascii_whitespace()) {
        return None;
    }
    let name = printable(&String::from_utf8_lossy(name));
    Some(Stat { name, start_time })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(name: &[u8], start_time: u64) -> Vec<u8> {
        let mut bytes = b"4242 (".to_vec();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(b") S 1 4242 4242 0 -1 4194304 98 0 0 0 70 30 0 0 20 0 1 0 ");
        bytes.extend_from_slice(format!("{start_time} 3133440 407 18446744073709551615\n").as_bytes());
        bytes
    }

    #[test]
    fn a_name_with_parentheses_and_newlines_does_not_shift_the_fields() {
        for name in ["a", "", "(sd-pam)", "x) R 1 (y", "two words", ")))"] {
            let stat = parse(&line(name.as_bytes(), 164_661));
            assert_eq!(stat, Some(Stat { name: name.into(), start_time: 164_661 }));
        }
        let stat = parse(&line(b"x\n1 (y) R 1", 164_661));
        assert_eq!(stat.map(|stat| stat.start_time), Some(164_661));
    }

    #[test]
    fn control_characters_in_a_name_are_replaced() {
        for (name, printed) in [
            ("\x1b[31mred", "\u{fffd}[31mred"),
            ("\r\n# HELP x", "\u{fffd}\u{fffd}# HELP x"),
            ("\t\x7f", "\u{fffd}\u{fffd}"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("\u{202e}drow", "\u{fffd}drow"),
        ] {
            let stat = parse(&line(name.as_bytes(), 7));
            assert_eq!(stat.map(|stat| stat.name), Some(printed.into()), "{name:?}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_still_a_name() {
        let stat = parse(&line(b"\xff\xfe", 7));
        assert_eq!(stat.map(|stat| stat.name), Some("\u{fffd}\u{fffd}".into()));
    }

    #[test]
    fn a_line_cut_anywhere_up_to_its_start_time_is_refused() {
        let whole = line(b"train", 164_661);
        let needed = whole.windows(6).position(|window| window == b"164661").map_or(0, |at| at + 6);
        for length in 0..=needed {
            assert_eq!(parse(&whole[..length]), None, "{length}");
        }
        assert!(parse(&whole[..=needed]).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            parse(&bytes);
        }

        #[test]
        fn any_printable_name_comes_back(name in "[\\PC--[\\p{Cf}\\p{Zl}\\p{Zp}]]{0,15}", start_time: u64) {
            let stat = parse(&line(name.as_bytes(), start_time));
            prop_assert_eq!(stat, Some(Stat { name, start_time }));
        }
    }
}
