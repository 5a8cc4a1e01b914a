//! The systemd unit of a process, as a unit of the system manager.
//!
//! In: the decoded parts of a cgroup path that belongs to no workload and no user. Out: the unit that stands
//! first below the slices, or the slice of one that has no name of its own. What a unit makes below itself stays its own. It
//! does not know what units do.

/// The unit below the slices; nothing where the path names none, or one that systemd made up a name for in `system.slice`.
/// Such a unit in another slice stands for that slice, which somebody has chosen: the name would be another one every time.
pub(super) fn find_unit<'a>(parts: &[&'a str]) -> Option<&'a str> {
    let at = parts.iter().position(|part| !is_slice(part))?;
    let first = parts[at];
    let name = first.strip_suffix(".service").or_else(|| first.strip_suffix(".scope"))?;
    // systemd makes no such name, and a line break would forge a line wherever it is printed.
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

/// Whether systemd-run made up the name: `run-r` and 32 hexadecimal digits, `run-u123`, `run-p123-i456`, `run-123`.
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
