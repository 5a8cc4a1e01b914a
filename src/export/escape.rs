//! Escapes of the two text formats.
//!
//! Label values come from processes, units and users: whoever names a process must not be able to write a
//! line of the page.

/// Appends a label value: backslash, quote and newline escaped, the same in both formats.
pub(super) fn label(out: &mut Vec<u8>, text: &str) {
    escape(out, text, true);
}

/// Appends a help text for text 0.0.4, which leaves quotes alone.
pub(super) fn help(out: &mut Vec<u8>, text: &str) {
    escape(out, text, false);
}

fn escape(out: &mut Vec<u8>, text: &str, quotes: bool) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'"' if quotes => out.extend_from_slice(b"\\\""),
            _ => out.push(byte),
        }
    }
}
