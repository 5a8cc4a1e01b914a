//! The systemd unit of a process, as a unit of the system manager.
//!
//! In: the decoded parts of a cgroup path that belongs to no workload and no user. Out: the unit that stands
//! first below the slices. What a unit makes below itself stays its own. It does not know what units do.

/// Slices, then the unit.
pub(super) fn unit<'a>(parts: &[&'a str]) -> Option<&'a str> {
    let first = parts.iter().find(|part| !is_slice(part))?;
    let name = first.strip_suffix(".service").or_else(|| first.strip_suffix(".scope"))?;
    // systemd makes no such name, and a line break would forge a line wherever it is printed.
    let printable = !name.is_empty() && !name.contains(char::is_control);
    printable.then_some(*first)
}

/// Whether a part only groups others.
pub(super) fn is_slice(part: &str) -> bool {
    part.ends_with(".slice")
}
