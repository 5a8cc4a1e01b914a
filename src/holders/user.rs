//! The Unix user behind a process.
//!
//! In: its uid, and the user whose session it runs in. Out: the uid and the name of its user.

use std::sync::Arc;

use crate::host::{Host, UserNameError};

/// A user; the name is the number where none is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessUser {
    pub(super) uid: u32,
    pub(super) name: Arc<str>,
}

/// Finds the user of a process. A uid without a name in a user's session is a subordinate uid of that user's rootless
/// containers, so the session's user counts. A user without a name is called by its number.
pub(super) fn find_user(
    host: &Host,
    uid: u32,
    session_owner: Option<u32>,
) -> Result<ProcessUser, UserNameError> {
    if let Some(name) = host.users().name(uid)? {
        return Ok(ProcessUser { uid, name });
    }
    let uid = session_owner.unwrap_or(uid);
    let name = host.users().name(uid)?.unwrap_or_else(|| uid.to_string().into());
    Ok(ProcessUser { uid, name })
}

/// The user of a slice or service manager in a cgroup path: `user-1000.slice`, `user@1000.service`.
pub(super) fn session_owner(part: &str) -> Option<u32> {
    let slice = part.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
    let manager = part.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service"));
    let digits = slice.or(manager)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
