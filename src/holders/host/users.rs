//! Names and groups of Unix users, from passwd and group files or from the system's name service (NSS).
//!
//! The name service may wait for a network, so [`UserDatabase::name`] and [`UserDatabase::members`] never call it. They read
//! one map of the users that were asked for, which one thread keeps up to date: it takes the next uid from
//! [`UserDatabase::next_due`], looks it up and stores the result. A user whom nobody asks for any more leaves the map.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Group as NssGroup, Uid, User, getgrouplist};
use parking_lot::{Condvar, Mutex};

use super::passwd::{Passwd, SubordinateUids};
use super::untrusted::printable;
use super::{container, untrusted};
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;

/// Time from one lookup of a user to the next: the uid may belong to another user by then.
const REFRESH_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(60);

/// A user is dropped when nobody has asked for it for so long.
const FORGET_AFTER: Nanoseconds = Nanoseconds::from_seconds(120);

/// A lookup that takes longer counts as failed. Windows stay open for 10 s after their end, so their processes can
/// still be named in time.
const LOOKUP_TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(3);

/// After a failure the next lookup of the same uid waits for so long.
const RETRY_DELAY: Nanoseconds = Nanoseconds::from_seconds(10);

/// The most users in the map; further ones stay pending.
const MAX_KNOWN: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    #[error("the name of user {uid} is being looked up")]
    Pending { uid: u32 },
    /// The lookup failed or takes too long, and no earlier name is known.
    #[error("the name of user {uid} cannot be looked up; check the name service (getent passwd {uid})")]
    Failed { uid: u32 },
}

/// A name, or none where there is no such user.
type UserName = Option<Arc<str>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub gid: u32,
    /// Its members by uid. The name service does not list users whose first group it is.
    pub members: BTreeMap<u32, Arc<str>>,
}

#[derive(Debug)]
pub struct UserDatabase {
    source: UserSource,
    /// Users of the name service that were asked for.
    known: Mutex<KnownUsers>,
    /// Notified when a user that is not in the map is asked for.
    asked: Condvar,
    /// Names that the ledger has for uids, used where the source fails.
    stored: Mutex<BTreeMap<u32, Arc<str>>>,
}

#[derive(Debug)]
enum UserSource {
    /// The passwd file of a fixture, a demo, or the host of a container.
    File(Box<Mutex<Passwd>>),
    Service,
}

#[derive(Debug, Default)]
struct KnownUsers {
    users: BTreeMap<u32, KnownUser>,
    groups: Arc<[Arc<str>]>,
}

#[derive(Debug, Default)]
struct KnownUser {
    name: Option<UserName>,
    /// The user to whom a uid without a name is subordinate.
    owner: Option<u32>,
    /// Those of the set groups to which the user belongs, as of the last successful lookup.
    groups: BTreeSet<Arc<str>>,
    /// Since when a first lookup, or the first with these groups, is awaited.
    awaited_since: Option<Nanoseconds>,
    due: Nanoseconds,
    asked: Nanoseconds,
}

impl UserDatabase {
    pub fn of_file(path: &Path) -> Self {
        Self::with_source(UserSource::File(Box::new(Mutex::new(Passwd::at(path)))))
    }

    pub fn of_service() -> Self {
        Self::with_source(UserSource::Service)
    }

    /// The users of the host whose processes are seen under the root: of its passwd file where the root is not this
    /// system's, else of the name service. A container that sees its host's processes needs its host's passwd file,
    /// since the users of the image are others.
    pub fn of_host(root: &Path) -> Self {
        if root != Path::new("/") {
            return Self::of_file(&root.join("etc/passwd"));
        }
        if !container::sees_outer_processes(root) {
            return Self::of_service();
        }
        Self::of_file(Path::new(find_host_passwd(root)))
    }

    fn with_source(source: UserSource) -> Self {
        Self { source, known: Mutex::default(), asked: Condvar::new(), stored: Mutex::default() }
    }

    /// Whether names can be had: the passwd file can be read, or they come from the name service.
    pub fn has_source(&self) -> bool {
        match &self.source {
            UserSource::File(file) => file.lock().name(0).is_some(),
            UserSource::Service => true,
        }
    }

    pub const fn is_service(&self) -> bool {
        matches!(self.source, UserSource::Service)
    }

    /// Stores names of the ledger, for when the source fails.
    pub fn remember(&self, names: impl IntoIterator<Item = (u32, Arc<str>)>) {
        self.stored.lock().extend(names);
    }

    /// The name of a user, none where there is no such user. It never waits.
    ///
    /// # Errors
    /// The name is not known yet, or the lookup failed and the ledger has no name.
    pub fn name(&self, uid: u32) -> Result<Option<Arc<str>>, UserNameError> {
        self.name_at(uid, system_now().boottime)
    }

    fn name_at(&self, uid: u32, now: Nanoseconds) -> Result<UserName, UserNameError> {
        let name = match &self.source {
            UserSource::File(file) => file.lock().name(uid).ok_or(UserNameError::Failed { uid }),
            UserSource::Service => self.known_name(uid, now),
        };
        match name {
            Err(error @ UserNameError::Failed { .. }) => {
                self.stored.lock().get(&uid).cloned().map(Some).ok_or(error)
            }
            name => name,
        }
    }

    fn known_name(&self, uid: u32, now: Nanoseconds) -> Result<UserName, UserNameError> {
        let mut known = self.known.lock();
        let Some(user) = known.users.get_mut(&uid) else {
            if known.users.len() < MAX_KNOWN {
                let user = KnownUser { awaited_since: Some(now), asked: now, ..KnownUser::default() };
                known.users.insert(uid, user);
                self.asked.notify_one();
            }
            return Err(UserNameError::Pending { uid });
        };
        user.asked = now;
        match user.awaited_since {
            Some(since) if now < since + LOOKUP_TIMEOUT => Err(UserNameError::Pending { uid }),
            _ => user.name.clone().ok_or(UserNameError::Failed { uid }),
        }
    }

    /// The user to whom a uid without a name is subordinate, where `/etc/subuid` says so. It never waits: the name service's
    /// owner is known when the name is.
    pub fn subordinate_owner(&self, uid: u32) -> Option<u32> {
        match &self.source {
            UserSource::File(file) => file.lock().subordinate_owner(uid),
            UserSource::Service => self.known.lock().users.get(&uid)?.owner,
        }
    }

    /// Looks up whether there is a user of that name. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed.
    pub fn has_user(&self, name: &str) -> io::Result<bool> {
        match &self.source {
            UserSource::File(file) => file.lock().has_user(name).ok_or_else(|| file_error("passwd")),
            UserSource::Service => Ok(User::from_name(name)?.is_some()),
        }
    }

    /// Looks up the name of a user, past the cache. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed, so that it is not known whether there is such a user.
    pub fn look_up(&self, uid: u32) -> io::Result<Option<Arc<str>>> {
        match &self.source {
            UserSource::File(file) => file.lock().name(uid).ok_or_else(|| file_error("passwd")),
            // glibc reports an error where a service did not respond, and no user without an error for an unknown uid.
            UserSource::Service => {
                Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| printable(&user.name).into()))
            }
        }
    }

    /// Looks up a group with its members. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed.
    pub fn group(&self, name: &str) -> io::Result<Option<Group>> {
        match &self.source {
            UserSource::File(file) => file.lock().group(name).ok_or_else(|| file_error("group")),
            UserSource::Service => look_up_group(name),
        }
    }

    /// The uids of the known members of a group. It never waits: the name service's members are those whose groups were
    /// looked up.
    pub fn members(&self, group: &str) -> BTreeSet<u32> {
        match &self.source {
            UserSource::File(file) => {
                let group = file.lock().group(group).flatten();
                group.map(|group| group.members.into_keys().collect()).unwrap_or_default()
            }
            UserSource::Service => {
                let known = self.known.lock();
                let members = known.users.iter().filter(|(_, user)| user.groups.contains(group));
                members.map(|(uid, _)| *uid).collect()
            }
        }
    }

    /// Sets which groups are looked up with each user. Where they change, all users are pending until they are looked up
    /// again.
    pub fn set_groups(&self, groups: Vec<Arc<str>>) {
        self.set_groups_at(groups, system_now().boottime);
    }

    fn set_groups_at(&self, groups: Vec<Arc<str>>, now: Nanoseconds) {
        let mut known = self.known.lock();
        if *known.groups != *groups {
            known.groups = groups.into();
            for user in known.users.values_mut() {
                user.awaited_since = Some(now);
                user.due = Nanoseconds(0);
            }
        }
    }

    /// The next user to look up; waits up to `longest` for a request. None with a passwd file.
    pub fn next_due(&self, longest: Duration) -> Option<u32> {
        let mut known = self.known.lock();
        known.next_due(system_now().boottime).or_else(|| {
            self.asked.wait_for(&mut known, longest);
            known.next_due(system_now().boottime)
        })
    }

    /// Looks up a user: first the groups and the owner of the uid, which are stored at once. `before_name` is called before
    /// the name is known too. It may wait for a network.
    ///
    /// # Errors
    /// The name service failed; the name that was known stays.
    pub fn refresh(&self, uid: u32, before_name: impl FnOnce(io::Result<()>)) -> io::Result<()> {
        let groups = Arc::clone(&self.known.lock().groups);
        // The owner of a subordinate uid is known before it is known that the uid has no name.
        let name = self.look_up(uid).and_then(|name| {
            if name.is_none() {
                let owner = look_up_owner(uid)?;
                self.change(uid, |user| user.owner = owner);
            }
            Ok(name)
        });
        let member = look_up_groups(uid, &groups);
        before_name(member.map(|found| self.change(uid, |user| user.groups = found)));
        let (name, failure) = match name {
            Ok(name) => (Some(name), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.store_at(uid, name, &groups, system_now().boottime);
        failure
    }

    /// Stores the result of a lookup, none for a failure.
    pub fn store(&self, uid: u32, name: Option<Option<Arc<str>>>) {
        let groups = Arc::clone(&self.known.lock().groups);
        self.store_at(uid, name, &groups, system_now().boottime);
    }

    fn change(&self, uid: u32, change: impl FnOnce(&mut KnownUser)) {
        if let Some(user) = self.known.lock().users.get_mut(&uid) {
            change(user);
        }
    }

    fn store_at(&self, uid: u32, name: Option<UserName>, groups: &Arc<[Arc<str>]>, now: Nanoseconds) {
        let mut known = self.known.lock();
        let has_same_groups = Arc::ptr_eq(&known.groups, groups);
        if let Some(user) = known.users.get_mut(&uid).filter(|_| has_same_groups) {
            user.awaited_since = None;
            user.due = now + if name.is_some() { REFRESH_INTERVAL } else { RETRY_DELAY };
            user.name = name.or(user.name.take());
        }
    }
}

impl KnownUsers {
    /// The user whose lookup is due: who is awaited before who is only refreshed. Users who are due and were not asked for
    /// lately are dropped.
    fn next_due(&mut self, now: Nanoseconds) -> Option<u32> {
        self.users.retain(|_, user| now < user.due || now < user.asked + FORGET_AFTER);
        let due = self.users.iter().filter(|(_, user)| user.due <= now);
        due.min_by_key(|(_, user)| (user.awaited_since.is_none(), user.due)).map(|(uid, _)| *uid)
    }
}

fn look_up_groups(uid: u32, groups: &[Arc<str>]) -> io::Result<BTreeSet<Arc<str>>> {
    let mut found = BTreeSet::new();
    if !groups.is_empty()
        && let Some(user) = User::from_uid(Uid::from_raw(uid))?
    {
        let gids = getgrouplist(&CString::new(user.name)?, user.gid)?;
        for group in groups {
            if NssGroup::from_name(group)?.is_some_and(|known| gids.contains(&known.gid)) {
                found.insert(Arc::clone(group));
            }
        }
    }
    Ok(found)
}

fn look_up_owner(uid: u32) -> io::Result<Option<u32>> {
    let Some(owner) = SubordinateUids::at(Path::new("/etc/subuid")).owner(uid) else { return Ok(None) };
    let named = User::from_name(&owner)?.map(|user| user.uid.as_raw());
    Ok(named.or_else(|| owner.parse().ok()))
}

fn file_error(file: &str) -> io::Error {
    io::Error::other(format!(
        "the host's {file} file cannot be read; in a container mount it at /host/etc/{file}"
    ))
}

fn look_up_group(name: &str) -> io::Result<Option<Group>> {
    let Some(group) = NssGroup::from_name(name)? else { return Ok(None) };
    let mut members = BTreeMap::new();
    for name in &group.mem {
        // A group may list users who were deleted.
        if let Some(user) = User::from_name(name)? {
            members.insert(user.uid.as_raw(), printable(&user.name).into());
        }
    }
    Ok(Some(Group { gid: group.gid.as_raw(), members }))
}

/// The passwd file of the host around a container: in a mount of the host's root, in the root of process 1 where that is
/// the host's, or at the container's own path if something is mounted there.
fn find_host_passwd(root: &Path) -> &'static str {
    const MOUNTED: [&str; 2] = ["/host/etc/passwd", "/proc/1/root/etc/passwd"];
    if let Some(path) = MOUNTED.into_iter().find(|path| std::fs::File::open(path).is_ok()) {
        return path;
    }
    let mounts = untrusted::read_text(&root.join("proc/self/mountinfo"));
    let is_mount = |line: &str| matches!(line.split(' ').nth(4), Some("/etc/passwd" | "/etc"));
    if mounts.lines().any(is_mount) { "/etc/passwd" } else { MOUNTED[0] }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const PENDING: Result<UserName, UserNameError> = Err(UserNameError::Pending { uid: 1000 });
    const FAILED: Result<UserName, UserNameError> = Err(UserNameError::Failed { uid: 1000 });

    fn at(second: u64) -> Nanoseconds {
        Nanoseconds::from_seconds(second)
    }

    fn named(name: &str) -> UserName {
        Some(name.into())
    }

    fn next(users: &UserDatabase, second: u64) -> Option<u32> {
        users.known.lock().next_due(at(second))
    }

    fn store(users: &UserDatabase, uid: u32, name: Option<UserName>, second: u64) {
        let groups = Arc::clone(&users.known.lock().groups);
        users.store_at(uid, name, &groups, at(second));
    }

    #[test]
    fn a_name_is_looked_up_when_it_is_asked_for_and_then_every_minute() {
        let users = UserDatabase::of_service();
        assert_eq!(next(&users, 0), None);
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(1)), PENDING);
        assert_eq!(next(&users, 1), Some(1000));
        store(&users, 1000, Some(named("alice")), 1);
        assert_eq!((users.name_at(1000, at(60)), next(&users, 60)), (Ok(named("alice")), None));
        assert_eq!(next(&users, 61), Some(1000), "the uid may be another user's by now");
        assert_eq!(
            users.name_at(1000, at(61)),
            Ok(named("alice")),
            "it is known while it is looked up again"
        );
        store(&users, 1000, Some(named("bob")), 61);
        assert_eq!(users.name_at(1000, at(61)), Ok(named("bob")));
    }

    #[test]
    fn who_is_asked_for_first_is_looked_up_before_who_is_only_refreshed() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1, at(0));
        store(&users, 1, Some(named("daemon")), 0);
        let _asked = users.name_at(1000, at(70));
        assert_eq!(next(&users, 70), Some(1000));
    }

    #[test]
    fn only_no_such_user_is_no_name() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        store(&users, 1000, None, 0);
        assert_eq!(users.name_at(1000, at(0)), FAILED);
        assert_eq!((next(&users, 9), next(&users, 10)), (None, Some(1000)), "it is tried again");
        store(&users, 1000, Some(None), 10);
        assert_eq!(users.name_at(1000, at(10)), Ok(None));
    }

    #[test]
    fn where_a_lookup_fails_or_hangs_the_last_name_serves_and_then_the_ledgers() {
        let users = UserDatabase::of_service();
        users.remember([(1000, "ledger".into())]);
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(3)), Ok(named("ledger")), "it hangs");
        store(&users, 1000, None, 4);
        assert_eq!(users.name_at(1000, at(4)), Ok(named("ledger")));
        store(&users, 1000, Some(named("alice")), 14);
        store(&users, 1000, None, 80);
        assert_eq!(users.name_at(1000, at(80)), Ok(named("alice")));
    }

    #[test]
    fn the_map_is_bounded_and_forgets_who_is_not_asked_for() {
        let users = UserDatabase::of_service();
        for uid in 0..MAX_KNOWN as u32 {
            let _asked = users.name_at(uid, at(0));
            store(&users, uid, Some(named("somebody")), 0);
        }
        assert_eq!(users.name_at(5000, at(1)), Err(UserNameError::Pending { uid: 5000 }));
        assert_eq!(users.name_at(7, at(100)), Ok(named("somebody")));
        assert_eq!(next(&users, 120), Some(7));
        let _asked = users.name_at(5000, at(120));
        assert_eq!(users.known.lock().users.keys().collect::<Vec<_>>(), [&7, &5000]);
    }

    #[test]
    fn the_name_service_of_this_system_knows_root_and_not_everybody() {
        let users = UserDatabase::of_service();
        assert_eq!(users.look_up(0).unwrap(), named("root"));
        assert_eq!(users.look_up(u32::MAX - 7).unwrap(), None);
        assert!(users.has_user("root").unwrap() && !users.has_user("no-such-user").unwrap());
        assert_eq!(users.group("root").unwrap().map(|group| group.gid), Some(0));
        assert_eq!(users.group("no-such-group").unwrap(), None);
    }

    #[test]
    fn who_belongs_to_a_group_is_known_once_it_was_looked_up_and_stays_known_while_lookups_fail() {
        let users = UserDatabase::of_service();
        users.set_groups(vec!["root".into(), "no-such-group".into()]);
        assert!(users.name(0).is_err() && users.members("root").is_empty());
        let failure = users.refresh(0, |groups| {
            groups.unwrap();
            assert_eq!(users.members("root"), BTreeSet::from([0]), "before there is a name");
            assert!(users.name(0).is_err());
        });
        failure.unwrap();
        assert_eq!(users.name(0).unwrap(), named("root"));
        assert_eq!(users.members("no-such-group"), BTreeSet::new());
        store(&users, 0, None, 1);
        assert_eq!(users.members("root"), BTreeSet::from([0]));
    }

    #[test]
    fn users_are_looked_up_again_at_once_where_other_groups_are_to_be_looked_up() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        let former = Arc::clone(&users.known.lock().groups);
        users.set_groups_at(vec!["lab".into()], at(1));
        users.store_at(1000, Some(named("alice")), &former, at(1));
        assert_eq!(users.name_at(1000, at(2)), PENDING, "its lookup began before the groups were set");
        assert_eq!(next(&users, 2), Some(1000));
        store(&users, 1000, Some(named("alice")), 2);
        users.set_groups_at(vec!["lab".into()], at(3));
        assert_eq!(users.name_at(1000, at(3)), Ok(named("alice")), "the groups are the same");
        users.set_groups_at(Vec::new(), at(3));
        assert_eq!((users.name_at(1000, at(3)), next(&users, 3)), (PENDING, Some(1000)));
    }
}
