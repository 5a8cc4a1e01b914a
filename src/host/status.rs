//! `/proc/PID/status`: the user of a process.
//!
//! In: the bytes. Out: the uid, or nothing where the line is missing.

/// The real uid.
///
/// The real one, not the effective one: it says who started the process. A set-uid program would otherwise
/// move its user's bill to the program's owner, and a process cannot change it without privilege. The owner
/// of the directory in `/proc` is no substitute: it is root for whatever may not be dumped.
pub(super) fn uid(bytes: &[u8]) -> Option<u32> {
    value(bytes, b"Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// The value of a key. The last line counts: the kernel escapes newlines in the name, which is in the first line, and a
/// forged line could only precede the true one.
fn value<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a str> {
    // Only complete lines, since a line cut within its digits would name another user.
    let end = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let line = bytes[..end].split(|byte| *byte == b'\n').rev().find_map(|line| line.strip_prefix(key))?;
    std::str::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_real_uid_counts_and_not_the_effective_one() {
        assert_eq!(uid(b"Name:\tsudo\nUid:\t1000\t0\t0\t0\nGid:\t1000\t0\t0\t0\n"), Some(1000));
    }

    #[test]
    fn a_name_cannot_pretend_to_be_another_line() {
        assert_eq!(uid(b"Name:\tx\nUid:\t0\t0\t0\t0\nUid:\t1000\t1000\t1000\t1000\n"), Some(1000));
        assert_eq!(uid(b"Name:\tUid: 0\nUid:\t1000\t1000\t1000\t1000\n"), Some(1000));
    }

    #[test]
    fn a_line_that_is_cut_or_missing_is_no_uid() {
        for text in ["", "\n", "Uid:", "Uid:\n", "Uid:\t10", "Uid:\tx\n", "Uid:\t-1\n", "Uid:\t4294967296\n"]
        {
            assert_eq!(uid(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            uid(&bytes);
        }
    }
}
