//! What is particular to Prometheus text 0.0.4: the head of a family.

use super::escape;
use crate::catalogue::Family;

/// Appends `# HELP` and `# TYPE`.
pub(super) fn head(out: &mut Vec<u8>, family: &Family) {
    lines(out, family.name, "", family.help, family.kind.name());
}

/// Appends the head of the family of start times that follows a counter or histogram: this format knows no
/// start times, so they are gauges of their own, as client libraries print them.
pub(super) fn created_head(out: &mut Vec<u8>, family: &Family) {
    lines(out, stem(family), "_created", family.help, "gauge");
}

/// The name without `_total`.
pub(super) fn stem(family: &Family) -> &'static str {
    family.name.strip_suffix("_total").unwrap_or(family.name)
}

fn lines(out: &mut Vec<u8>, stem: &str, suffix: &str, help: &str, kind: &str) {
    for piece in ["# HELP ", stem, suffix, " "] {
        out.extend_from_slice(piece.as_bytes());
    }
    escape::help(out, help);
    for piece in ["\n# TYPE ", stem, suffix, " ", kind, "\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
}
