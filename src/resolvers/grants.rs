//! The users and groups to which the configuration grants holdings: their names and members, and whether they exist.
//!
//! In: the standing holdings and the users of the host. Out: names of uids and members of groups for the policy, and a
//! sentence for each user and group that does not resolve. It starts no thread.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Resolvers;
use crate::clock::Stop;
use crate::config::{Config, Grantee, UserChoice};
use crate::host::{UserDatabase, UserNameError};
use crate::policy::ResolvedGrantees;

/// What is known of the users and groups of all grants, for the users who are on a GPU too. Waits for lookups for at most
/// three seconds.
pub(crate) fn resolve(
    config: &Config,
    users: &UserDatabase,
    present: &BTreeSet<u32>,
    stop: &Stop,
) -> ResolvedGrantees {
    const STEPS: u32 = 60;
    const STEP: Duration = Duration::from_millis(50);
    users.set_groups(groups(config));
    for _ in 0..STEPS {
        let is_pending = |uid| matches!(users.name(uid), Err(UserNameError::Pending { .. }));
        // All are asked for at once.
        let asked = uids(config).chain(present.iter().copied());
        if asked.filter(|uid| is_pending(*uid)).count() == 0 || stop.wait(STEP) {
            break;
        }
    }
    known(config, users)
}

/// Puts what is known by now of users and groups into the grants.
pub(crate) fn follow(shared: &Resolvers) {
    let active = shared.config.active();
    let (config, users) = (&active.config, shared.host.users());
    if uids(config).next().is_none() && groups(config).is_empty() {
        return;
    }
    if users.needs_thread() && !groups(config).is_empty() {
        // To ask for a name renews the groups of that user with it.
        for uid in present(shared) {
            let _known_or_asked = users.name(uid);
        }
    }
    shared.config.resolve_grants(&known(config, users));
}

/// The uids of everybody who is on a GPU.
pub(crate) fn present(shared: &Resolvers) -> BTreeSet<u32> {
    let (identities, _) = shared.processes.get();
    identities.holders().filter_map(|holder| holder.facts.uid).collect()
}

/// The groups to which something is granted.
pub(crate) fn groups(config: &Config) -> Vec<Arc<str>> {
    let granted = config.attribution.standing.iter().filter_map(|standing| match &standing.holder {
        Grantee::Group(name) => Some(name.as_str()),
        _ => None,
    });
    let granted: BTreeSet<&str> = granted.collect();
    granted.into_iter().map(Into::into).collect()
}

/// A sentence for each user and group of a grant that does not resolve on this machine. It may wait for a network.
pub fn unresolved_grants(config: &Config, users: &UserDatabase) -> Vec<String> {
    let grantees = config.attribution.standing.iter().map(|standing| &standing.holder);
    grantees
        .flat_map(|grantee| match grantee {
            Grantee::User(user) => vec![unresolved_user(user, users)],
            Grantee::Team(team) => team.iter().map(|user| unresolved_user(user, users)).collect(),
            Grantee::Group(name) => {
                vec![sentence("group", name, users.group(name).map(|group| group.is_some()))]
            }
            Grantee::Unit(_) => Vec::new(),
        })
        .flatten()
        .collect()
}

fn unresolved_user(user: &UserChoice, users: &UserDatabase) -> Option<String> {
    match user {
        UserChoice::Name(name) => sentence("user", name, users.has_user(name)),
        UserChoice::Uid(uid) => {
            sentence("user", &uid.to_string(), users.look_up(*uid).map(|name| name.is_some()))
        }
    }
}

fn sentence(kind: &str, name: &str, is_there: io::Result<bool>) -> Option<String> {
    let database = if kind == "group" { "group" } else { "passwd" };
    match is_there {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "attribution.standing: {kind} {name}: there is no such {kind} on this machine; check the spelling, or nobody \
             ever uses what is granted"
        )),
        Err(error) => Some(format!(
            "attribution.standing: {kind} {name}: cannot be looked up ({error}); check it with getent {database} {name}"
        )),
    }
}

fn uids(config: &Config) -> impl Iterator<Item = u32> {
    config.attribution.standing.iter().filter_map(|standing| match standing.holder {
        Grantee::User(UserChoice::Uid(uid)) => Some(uid),
        _ => None,
    })
}

fn known(config: &Config, users: &UserDatabase) -> ResolvedGrantees {
    let name = |uid| Some((uid, users.name(uid).ok()?.unwrap_or_else(|| u32::to_string(&uid).into())));
    let members = |group: &Arc<str>| (group.to_string(), Arc::new(users.members(group)));
    ResolvedGrantees {
        names: uids(config).filter_map(name).collect(),
        members: groups(config).iter().map(members).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const GRANTS: &str = "attribution: {standing: [{gpu: all, user: alice, fraction: 1/8}, {gpu: all, user: 1001, \
                          fraction: 1/8}, {gpu: all, user: bobb, fraction: 1/8}, {gpu: all, user: 4711, fraction: \
                          1/8}, {gpu: all, unit: a.service, fraction: 1/8}, {gpu: all, group: lab, fraction: 1/8}, {gpu: \
                          all, group: labb, fraction: 1/8}, {gpu: all, id: t, user: [alice, zoe], fraction: 1/8}]}";

    fn users(text: &str) -> (tempfile::TempDir, UserDatabase) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        std::fs::write(&path, text).unwrap();
        std::fs::write(directory.path().join("group"), "lab:x:1200:bob,gone\n").unwrap();
        (directory, UserDatabase::of_file(&path))
    }

    #[test]
    fn a_user_or_group_of_a_grant_that_does_not_resolve_is_told_and_no_other() {
        let (_directory, users) = users("alice:x:1000:1000::/:\nbob:x:1001:1001::/:\n");
        let config = Config::parse(GRANTS, "test").unwrap();
        let told = unresolved_grants(&config, &users);
        let whose: Vec<_> = told.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
        assert_eq!(whose, ["user bobb", "user 4711", "group labb", "user zoe"], "{told:?}");
        assert_eq!(unresolved_grants(&config, &UserDatabase::of_file("/nonexistent".as_ref())).len(), 8);
    }

    #[test]
    fn a_grant_to_a_uid_is_held_under_the_name_of_the_user_and_one_to_a_group_for_its_members() {
        let (_directory, users) = users("bob:x:1001:1001::/:\ncid:x:1003:1200::/:\n");
        let config = Config::parse(GRANTS, "test").unwrap();
        let resolved = resolve(&config, &users, &BTreeSet::new(), &Stop::default());
        assert_eq!(resolved.names, BTreeMap::from([(1001, "bob".into()), (4711, "4711".into())]));
        let lab = Arc::new(BTreeSet::from([1001, 1003]));
        let expected = BTreeMap::from([("lab".to_owned(), lab), ("labb".to_owned(), Arc::default())]);
        assert_eq!(resolved.members, expected);
    }

    #[test]
    fn a_name_that_is_being_looked_up_is_not_waited_for_once_the_agent_stops() {
        let config = Config::parse(GRANTS, "test").unwrap();
        let (users, stop) = (UserDatabase::of_service(), Stop::default());
        stop.call();
        assert_eq!(resolve(&config, &users, &BTreeSet::new(), &stop).names, BTreeMap::new());
    }
}
