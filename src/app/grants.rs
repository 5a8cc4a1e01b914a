//! The users to whom the configuration grants holdings: their names, and whether they exist.
//!
//! In: the standing holdings and the users of the host. Out: the names of uids for the policy, and a sentence for each
//! user that does not resolve. It starts no thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use crate::clock::Stop;
use crate::config::{Config, Grantee};
use crate::host::{Unresolved, Users};

/// Names by uid; a number where there is no such user.
pub(super) type Names = BTreeMap<u32, Arc<str>>;

/// The names of all uids that hold something, as far as they are known. Waits for lookups for at most three seconds.
pub(super) fn names(config: &Config, users: &Users, stop: &Stop) -> Names {
    const STEPS: u32 = 60;
    const STEP: Duration = Duration::from_millis(50);
    for _ in 0..STEPS {
        let is_pending = |uid| matches!(users.name(uid), Err(Unresolved::Pending { .. }));
        // All are asked for at once.
        if uids(config).filter(|uid| is_pending(*uid)).count() == 0 || stop.wait(STEP) {
            break;
        }
    }
    known(config, users)
}

/// Puts a grant to a uid under the name that is known for it by now.
pub(super) fn follow(shared: &Shared) {
    let in_force = shared.in_force();
    if uids(&in_force.config).next().is_none() {
        return;
    }
    let names = known(&in_force.config, shared.host.users());
    shared.rename_grants(&names);
}

/// A sentence for each user of a grant that does not resolve on this machine. It may wait for a network.
pub fn unresolved_grants(config: &Config, users: &Users) -> Vec<String> {
    let told = |who: String, is_there: std::io::Result<bool>| match is_there {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "attribution.standing: user {who}: there is no such user on this machine; check the spelling, or the grant \
             is held by somebody who never uses it"
        )),
        Err(error) => Some(format!(
            "attribution.standing: user {who}: cannot be looked up ({error}); check it with getent passwd {who}"
        )),
    };
    let grantees = config.attribution.standing.iter().map(|standing| &standing.holder);
    grantees
        .filter_map(|grantee| match grantee {
            Grantee::User(name) => told(name.clone(), users.has_user(name)),
            Grantee::Uid(uid) => told(uid.to_string(), users.look_up(*uid).map(|name| name.is_some())),
            Grantee::Unit(_) => None,
        })
        .collect()
}

fn uids(config: &Config) -> impl Iterator<Item = u32> {
    config.attribution.standing.iter().filter_map(|standing| match standing.holder {
        Grantee::Uid(uid) => Some(uid),
        Grantee::User(_) | Grantee::Unit(_) => None,
    })
}

fn known(config: &Config, users: &Users) -> Names {
    let name = |uid| Some((uid, users.name(uid).ok()?.unwrap_or_else(|| u32::to_string(&uid).into())));
    uids(config).filter_map(name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const GRANTS: &str = "attribution: {standing: [{gpu: all, user: alice, fraction: 1/8}, {gpu: all, user: 1001, \
                          fraction: 1/8}, {gpu: all, user: bobb, fraction: 1/8}, {gpu: all, user: 4711, fraction: \
                          1/8}, {gpu: all, unit: a.service, fraction: 1/8}]}";

    fn users(text: &str) -> (tempfile::TempDir, Users) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        std::fs::write(&path, text).unwrap();
        (directory, Users::of_file(&path))
    }

    #[test]
    fn a_user_of_a_grant_that_does_not_resolve_is_told_and_no_other() {
        let (_directory, users) = users("alice:x:1000:1000::/:\nbob:x:1001:1001::/:\n");
        let config = Config::parse(GRANTS, "test").unwrap();
        let told = unresolved_grants(&config, &users);
        let whose: Vec<_> = told.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
        assert_eq!(whose, ["user bobb", "user 4711"], "{told:?}");
        assert_eq!(unresolved_grants(&config, &Users::of_file("/nonexistent".as_ref())).len(), 4);
    }

    #[test]
    fn a_grant_to_a_uid_is_held_under_the_name_of_the_user() {
        let (_directory, users) = users("bob:x:1001:1001::/:\n");
        let config = Config::parse(GRANTS, "test").unwrap();
        let names = names(&config, &users, &Stop::default());
        assert_eq!(names, Names::from([(1001, "bob".into()), (4711, "4711".into())]));
    }

    #[test]
    fn a_name_that_is_being_looked_up_is_not_waited_for_once_the_agent_stops() {
        let config = Config::parse(GRANTS, "test").unwrap();
        let (users, stop) = (Users::of_service(), Stop::default());
        stop.call();
        assert_eq!(names(&config, &users, &stop), Names::new());
    }
}
