//! The Unix user behind a process.
//!
//! In: its uid, and the user whose session it runs in. Out: the uid that stands for it, with its name. It
//! does not know who they are beyond that.

use std::sync::Arc;

use crate::host::{Host, UserNameError};

/// A user; the name is the number where none is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessUser {
    pub(super) uid: u32,
    pub(super) name: Arc<str>,
}

/// The process's own user; but a number without a name in somebody's session is one of the subordinate
/// uids of his rootless containers, and so is he. A number stands for the name only where there is no such user.
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

/// The user whose slice or manager a part of a cgroup path is: `user-1000.slice`, `user@1000.service`.
pub(super) fn session_owner(part: &str) -> Option<u32> {
    let slice = part.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
    let manager = part.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service"));
    let digits = slice.or(manager)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
