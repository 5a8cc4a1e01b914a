//! The thread that asks the system's name service for names of users; it alone may wait for that, which may be for a
//! network.

use std::sync::Arc;
use std::time::Duration;

use super::{Shared, StartError, Thread};
use crate::host::look_up;

/// Starts the thread where names come from the name service.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(), StartError> {
    const LOOK: Duration = Duration::from_secs(1);
    let users = shared.host.users();
    if !users.has_source() {
        tracing::warn!(
            "this container sees its host's processes and not its host's users: mount the host's /etc/passwd at \
             /host/etc/passwd, or processes of Unix users stay __unattributed__"
        );
    }
    if !users.needs_thread() {
        return Ok(());
    }
    let (users, shared) = (Arc::clone(users), Arc::clone(shared));
    Thread::start("users", move || {
        while !shared.stop.is_called() {
            let Some(uid) = users.next(LOOK) else { continue };
            let answer = look_up(uid);
            let error = answer.as_ref().err().map(ToString::to_string);
            if users.store(uid, answer.ok()) {
                tracing::warn!(uid, error, "the name of a user cannot be looked up; it is tried again");
            }
        }
    })?;
    Ok(())
}
