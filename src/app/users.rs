//! The thread that asks the system's name service for names of users, and says which users of grants do not resolve. It
//! alone may wait for the name service, which may wait for a network.

use std::sync::Arc;
use std::time::Duration;

use super::grants::{follow, unresolved_grants};
use super::{Shared, StartError, Thread};
use crate::clock::Stop;
use crate::host::Users;

/// Starts the thread where names come from the name service.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(), StartError> {
    let users = shared.host.users();
    if !users.has_source() {
        tracing::warn!(
            "this container sees its host's processes and not its host's users: mount the host's /etc/passwd at \
             /host/etc/passwd, or processes of Unix users stay __unattributed__"
        );
    }
    let shared = Arc::clone(shared);
    Thread::start("users", move || {
        let users = shared.host.users();
        let mut checked = Vec::new();
        while !shared.stop.is_called() {
            look_up_next(users, &shared.stop);
            let in_force = shared.in_force();
            if checked != in_force.config.attribution.standing {
                checked.clone_from(&in_force.config.attribution.standing);
                for problem in unresolved_grants(&in_force.config, users) {
                    tracing::warn!("{problem}");
                }
            }
            follow(&shared);
        }
    })?;
    Ok(())
}

/// Looks up the next name that somebody asked for, if one comes soon.
fn look_up_next(users: &Users, stop: &Stop) {
    const LOOK: Duration = Duration::from_secs(1);
    if !users.needs_thread() {
        stop.wait(LOOK);
        return;
    }
    let Some(uid) = users.next(LOOK) else { return };
    let answer = users.look_up(uid);
    let error = answer.as_ref().err().map(ToString::to_string);
    if users.store(uid, answer.ok()) {
        tracing::warn!(uid, error, "the name of a user cannot be looked up; it is tried again");
    }
}
