//! What is particular to OpenMetrics 1.0: the head of a family, and the end of the page.
//!
//! Families are named without `_total`, and say their unit where the name ends in it.

use super::{escape, text};
use crate::catalogue::Family;

/// The last line of a page.
pub(super) const END: &[u8] = b"# EOF\n";

/// Appends `# HELP`, `# TYPE` and, where the name carries one, `# UNIT`.
pub(super) fn head(out: &mut Vec<u8>, family: &Family) {
    let name = text::stem(family);
    for piece in ["# HELP ", name, " "] {
        out.extend_from_slice(piece.as_bytes());
    }
    // Unlike text 0.0.4, this format escapes quotes here too.
    escape::label(out, family.help);
    for piece in ["\n# TYPE ", name, " ", family.kind.name(), "\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
    let unit = family.unit.suffix();
    if !unit.is_empty() {
        for piece in ["# UNIT ", name, " ", unit, "\n"] {
            out.extend_from_slice(piece.as_bytes());
        }
    }
}
