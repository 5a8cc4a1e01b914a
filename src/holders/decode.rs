//! systemd's escapes in cgroup paths.
//!
//! In: one part of a path. Out: the name without escapes.

use std::borrow::Cow;

/// Decodes `\x2d` and similar escapes, and removes the underscore before names of kernel files.
///
/// A part that would decode to a slash, control characters or invalid UTF-8 stays as it is, so that no part becomes two
/// and no name breaks a line.
pub(super) fn decode(part: &str) -> Cow<'_, str> {
    let part = part.strip_prefix('_').unwrap_or(part);
    if !part.contains("\\x") {
        return Cow::Borrowed(part);
    }
    match String::from_utf8(unescape(part.as_bytes())) {
        Ok(text) if !text.contains(|c: char| c == '/' || c.is_control()) => Cow::Owned(text),
        _ => Cow::Borrowed(part),
    }
}

fn unescape(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        match escaped(bytes) {
            Some(byte) => {
                out.push(byte);
                bytes = &bytes[4..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    out
}

/// The byte that `\xHH` at the front stands for.
fn escaped(bytes: &[u8]) -> Option<u8> {
    let [b'\\', b'x', high, low, ..] = bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(decode("train@run\\x2d7.service"), "train@run-7.service");
        assert_eq!(decode("machine-qemu\\x2d2\\x2dvm.scope"), "machine-qemu-2-vm.scope");
        assert_eq!(decode("_cpu.service"), "cpu.service");
        assert_eq!(decode("caf\\xc3\\xa9.service"), "café.service");
        assert_eq!(decode("plain.service"), "plain.service");
    }

    #[test]
    fn what_would_break_a_path_or_a_line_keeps_its_spelling() {
        for part in
            ["a\\x2fb.service", "a\\x0ab.service", "a\\xff.service", "a\\x2", "a\\xzz", "\\x00", "\\x"]
        {
            assert_eq!(decode(part), part);
        }
    }

    proptest! {
        #[test]
        fn any_part_is_decoded_without_a_panic(part in "(\\\\x[0-9a-g]{0,2}|\\PC|_){0,12}") {
            prop_assert!(!decode(&part).contains(char::is_control));
        }
    }
}
