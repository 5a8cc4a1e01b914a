//! The thread that asks the system's name service for names and groups of users, and says which users and groups of
//! grants do not resolve. It alone may wait for the name service, which may wait for a network.

use std::sync::Arc;
use std::time::Duration;

use super::Resolvers;
use super::grants::{follow, unresolved_grants};
use crate::host::UserDatabase;
use crate::thread::{self, Thread};

/// Starts the thread where names come from the name service.
pub(crate) fn start(shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
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
        let mut groups_failed = false;
        while !shared.stop.is_called() {
            look_up_next(&shared, &mut groups_failed);
            let active = shared.config.active();
            if checked != active.config.attribution.standing {
                checked.clone_from(&active.config.attribution.standing);
                for problem in unresolved_grants(&active.config, users) {
                    tracing::warn!("{problem}");
                }
            }
            follow(&shared);
        }
    })?;
    Ok(())
}

/// Looks up the next name that somebody asked for, if one comes soon.
fn look_up_next(shared: &Resolvers, groups_failed: &mut bool) {
    const LOOK: Duration = Duration::from_secs(1);
    let users = shared.host.users();
    if !users.needs_thread() {
        shared.stop.wait(LOOK);
        return;
    }
    let Some(uid) = users.next(LOOK) else { return };
    let answer = users.look_up(uid);
    // The grants know the user's groups before the user has a name, so no use of a member counts as outside.
    *groups_failed = look_up_groups(uid, users, *groups_failed);
    follow(shared);
    let error = answer.as_ref().err().map(ToString::to_string);
    if users.store(uid, answer.ok()) {
        tracing::warn!(uid, error, "the name of a user cannot be looked up; it is tried again");
    }
}

/// Looks up to which groups of grants a user belongs; a failed lookup keeps what was known. Whether it failed.
fn look_up_groups(uid: u32, users: &UserDatabase, failed_before: bool) -> bool {
    match users.look_up_groups(uid) {
        Ok(groups) => {
            users.store_groups(uid, groups);
            false
        }
        Err(error) => {
            if !failed_before {
                tracing::warn!(uid, %error, "the groups of a user cannot be looked up; those last known are used");
            }
            true
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::collections::BTreeSet;

    use super::super::grants;
    use super::*;
    use crate::clock::Stop;
    use crate::config::Config;

    #[test]
    fn the_first_user_who_is_looked_up_has_groups_with_the_name() {
        let text = "attribution: {standing: [{gpu: all, group: root, fraction: 1}]}";
        let config = Config::parse(text, "test").unwrap();
        let (users, stop) = (UserDatabase::of_service(), Stop::default());
        stop.call();
        grants::resolve(&config, &users, &BTreeSet::from([0]), &stop);
        assert_eq!(users.next(Duration::ZERO), Some(0));
        assert!(!look_up_groups(0, &users, false));
        assert_eq!(users.members("root"), BTreeSet::from([0]));
    }
}
