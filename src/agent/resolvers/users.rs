//! Users and groups to which the configuration grants holdings, and the thread that looks up names and groups.
//!
//! That thread alone may wait for the name service, which may wait for a network. It puts names and members of groups
//! into the policy, and logs the users and groups of grants that do not exist.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{POLL_INTERVAL, Resolvers};
use crate::agent::policy::ResolvedGrantees;
use crate::config::Config;
use crate::holders::host::{UserDatabase, UserNameError};
use crate::model::Selector;
use crate::runtime::clock::{Stop, system_now};
use crate::runtime::thread;

pub(crate) fn start(shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    if !shared.host.users().has_source() {
        tracing::warn!(
            "the passwd file of the host cannot be read, so processes of Unix users stay __unattributed__; in a container \
             mount the host's /etc/passwd at /host/etc/passwd"
        );
    }
    shared.start(
        |statuses| &statuses.users,
        |shared| {
            let users = shared.host.users();
            let mut checked = Vec::new();
            let mut groups_failed = false;
            let mut has_looked_up = false;
            while !shared.stop.is_called() {
                if let Some(uid) = users.next_due(POLL_INTERVAL) {
                    refresh(shared, uid, &mut groups_failed);
                    has_looked_up = true;
                }
                let policy = shared.policy.now();
                if checked != policy.config.attribution.standing {
                    checked.clone_from(&policy.config.attribution.standing);
                    for problem in unresolved_grants(&policy.config, users) {
                        tracing::warn!("{problem}");
                    }
                }
                update_grants(shared);
                if !has_looked_up {
                    // A panic ended the last run, and this round succeeded.
                    *shared.statuses.users.last.lock() = None;
                }
                shared.statuses.users.finish_round();
            }
        },
    )
}

/// Looks up a user. The grants know the user's groups before the user has a name, so no use of a member counts as outside.
fn refresh(shared: &Resolvers, uid: u32, groups_failed: &mut bool) {
    let outcome = shared.host.users().refresh(uid, |groups| {
        if let (Err(error), false) = (&groups, *groups_failed) {
            tracing::warn!(uid, %error, "the groups of a user cannot be looked up; those last known are used");
        }
        *groups_failed = groups.is_err();
        update_grants(shared);
    });
    let status = &shared.statuses.users;
    if outcome.is_ok() {
        status.record_success(system_now().boottime);
    }
    if let Err(error) = outcome
        && status.record_failure(false)
    {
        tracing::warn!(uid, %error, "the name of a user cannot be looked up; it is tried again");
    }
}

fn update_grants(shared: &Resolvers) {
    let policy = shared.policy.now();
    let (config, users) = (&policy.config, shared.host.users());
    if granted_uids(config).next().is_none() && granted_groups(config).is_empty() {
        return;
    }
    if !granted_groups(config).is_empty() {
        // The first of these requests a lookup of the name, which looks up the groups of that user too.
        for uid in users_on_gpus(shared) {
            let _known_or_requested = users.name(uid);
        }
    }
    shared.policy.resolve_grants(&known_grantees(config, users));
}

/// Names and members of the users and groups of all grants, also for these users who are on a GPU. Waits for lookups for
/// three seconds at most.
pub(crate) fn resolve_grants(
    config: &Config,
    users: &UserDatabase,
    on_gpus: &BTreeSet<u32>,
    stop: &Stop,
) -> ResolvedGrantees {
    const STEPS: u32 = 60;
    const STEP: Duration = Duration::from_millis(50);
    users.set_groups(watched_groups(config));
    for _ in 0..STEPS {
        let is_pending = |uid: &u32| matches!(users.name(*uid), Err(UserNameError::Pending { .. }));
        // Count instead of `any`, so that all are requested at once.
        let uids = granted_uids(config).chain(on_gpus.iter().copied());
        if uids.filter(is_pending).count() == 0 || stop.wait(STEP) {
            break;
        }
    }
    known_grantees(config, users)
}

pub(crate) fn users_on_gpus(shared: &Resolvers) -> BTreeSet<u32> {
    shared.processes.get().0.uids()
}

/// Prefix of a group in `web.local_readers`.
pub(crate) const GROUP_PREFIX: &str = "group:";

/// The groups whose members are looked up.
pub(crate) fn watched_groups(config: &Config) -> Vec<Arc<str>> {
    let readers = config.web.local_readers.iter().filter_map(|reader| reader.strip_prefix(GROUP_PREFIX));
    let groups: BTreeSet<Arc<str>> =
        granted_groups(config).into_iter().chain(readers.map(Into::into)).collect();
    groups.into_iter().collect()
}

fn granted_groups(config: &Config) -> Vec<Arc<str>> {
    let groups = config.attribution.standing.iter().filter_map(|grant| match &grant.selector {
        Selector::Group { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let groups: BTreeSet<&str> = groups.collect();
    groups.into_iter().map(Into::into).collect()
}

fn granted_uids(config: &Config) -> impl Iterator<Item = u32> {
    config.attribution.standing.iter().filter_map(|grant| match grant.selector {
        Selector::Uid { uid, .. } => Some(uid),
        _ => None,
    })
}

fn known_grantees(config: &Config, users: &UserDatabase) -> ResolvedGrantees {
    let name = |uid| Some((uid, users.name(uid).ok()?.unwrap_or_else(|| u32::to_string(&uid).into())));
    let members = |group: &Arc<str>| (group.to_string(), Arc::new(users.members(group)));
    ResolvedGrantees {
        names: granted_uids(config).filter_map(name).collect(),
        members: granted_groups(config).iter().map(members).collect(),
    }
}

/// A sentence for each user and group of a grant that does not exist on this machine. It may wait for a network.
pub fn unresolved_grants(config: &Config, users: &UserDatabase) -> Vec<String> {
    let of_name = |name: &String| find_problem("user", name, users.has_user(name));
    let of_uid =
        |uid: &u32| find_problem("user", &uid.to_string(), users.look_up(*uid).map(|name| name.is_some()));
    let problems = config.attribution.standing.iter().flat_map(|grant| match &grant.selector {
        Selector::User(name) => vec![of_name(name)],
        Selector::Uid { uid, .. } => vec![of_uid(uid)],
        Selector::Team { users, uids, .. } => {
            users.iter().map(of_name).chain(uids.iter().map(of_uid)).collect()
        }
        Selector::Group { name, .. } => {
            vec![find_problem("group", name, users.group(name).map(|group| group.is_some()))]
        }
        Selector::Unit(_) | Selector::Namespace(_) => Vec::new(),
    });
    problems.flatten().collect()
}

fn find_problem(kind: &str, name: &str, exists: io::Result<bool>) -> Option<String> {
    let database = if kind == "group" { "group" } else { "passwd" };
    match exists {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "attribution.standing: {kind} {name}: there is no such {kind} on this machine; check the spelling: its \
             share of the GPU is held, and counts as idle while nobody uses it"
        )),
        Err(error) => Some(format!(
            "attribution.standing: {kind} {name}: cannot be looked up ({error}); check it with getent {database} {name}"
        )),
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
        let resolved = resolve_grants(&config, &users, &BTreeSet::new(), &Stop::default());
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
        assert_eq!(resolve_grants(&config, &users, &BTreeSet::new(), &stop).names, BTreeMap::new());
    }

    #[test]
    fn the_first_user_who_is_looked_up_has_groups_with_the_name() {
        let text = "attribution: {standing: [{gpu: all, group: root, fraction: 1}]}";
        let config = Config::parse(text, "test").unwrap();
        let (users, stop) = (UserDatabase::of_service(), Stop::default());
        stop.call();
        resolve_grants(&config, &users, &BTreeSet::from([0]), &stop);
        assert_eq!(users.next_due(Duration::ZERO), Some(0));
        users.refresh(0, |groups| groups.unwrap()).unwrap();
        assert_eq!(users.members("root"), BTreeSet::from([0]));
    }
}
