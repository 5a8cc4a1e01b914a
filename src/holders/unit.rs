//! The systemd unit of a process, as a unit of the system manager.
//!
//! In: the decoded parts of a cgroup path that belongs to no workload and no user. Out: the first unit below the
//! slices, or its slice where systemd generated the unit's name. Cgroups below a unit belong to it.

/// Finds the unit below the slices. A generated name differs at every start, so such a unit counts as its slice, or as
/// no unit in `system.slice`, which nobody chose.
pub(super) fn find_unit<'a>(parts: &[&'a str]) -> Option<&'a str> {
    let at = parts.iter().position(|part| !is_slice(part))?;
    let first = parts[at];
    let name = first.strip_suffix(".service").or_else(|| first.strip_suffix(".scope"))?;
    // systemd accepts no such name, and a line break would forge a line in logs and pages.
    if name.is_empty() || name.contains(char::is_control) {
        return None;
    }
    if !is_generated(name) {
        return Some(first);
    }
    let slice = *parts[..at].last()?;
    let is_chosen = !matches!(slice, "system.slice" | "-.slice") && !slice.contains(char::is_control);
    is_chosen.then_some(slice)
}

/// Whether systemd-run generated the name: `run-r` and 32 hexadecimal digits, `run-u123`, `run-p123-i456`, `run-123`.
fn is_generated(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name.strip_prefix("run-") else { return false };
    let pair = rest.strip_prefix('p').and_then(|rest| rest.split_once("-i"));
    let random = rest
        .strip_prefix('r')
        .is_some_and(|digits| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    random
        || is_number(rest.strip_prefix('u').unwrap_or(rest))
        || pair.is_some_and(|(pid, invocation)| is_number(pid) && is_number(invocation))
}

/// Whether a part only groups others.
pub(super) fn is_slice(part: &str) -> bool {
    part.ends_with(".slice")
}
