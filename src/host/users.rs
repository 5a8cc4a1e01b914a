//! Names and groups of Unix users, from passwd and group files or from the system's name service (NSS).
//!
//! The name service may wait for a network, so [`UserDatabase::name`] and [`UserDatabase::members`] never call it: they
//! return what [`NameService`] has cached, and queue the uid for the thread that makes the lookups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
use crate::clock::system_now;
use crate::model::Nanoseconds;

/// A name is used for so long before it is looked up again: the uid may belong to another user by then.
const CACHE_TIME: Nanoseconds = Nanoseconds::from_seconds(60);

/// A lookup that takes longer counts as failed. Windows stay open for 10 s after their end, so their processes can
/// still be named in time.
const LOOKUP_TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(3);

/// After a failure the next lookup of the same uid waits for so long.
const RETRY_DELAY: Nanoseconds = Nanoseconds::from_seconds(10);

/// The most uids in the cache.
const MAX_CACHED: usize = 4096;

/// Why the name of a user is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    /// It is being looked up.
    #[error("the name of user {uid} is being looked up")]
    Pending {
        /// The user.
        uid: u32,
    },
    /// The lookup failed or takes too long, and no earlier name is known.
    #[error("the name of user {uid} cannot be looked up; check the name service (getent passwd {uid})")]
    Failed {
        /// The user.
        uid: u32,
    },
}

/// A name, or none where there is no such user.
type UserName = Option<Arc<str>>;

/// A Unix group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub gid: u32,
    /// Its members by uid. The name service does not list users whose first group it is.
    pub members: BTreeMap<u32, Arc<str>>,
}

/// The users of a host.
#[derive(Debug)]
pub struct UserDatabase {
    source: UserSource,
    /// Names that the ledger has for uids, used where the source fails.
    stored: Mutex<BTreeMap<u32, Arc<str>>>,
}

#[derive(Debug)]
enum UserSource {
    /// The passwd file of a fixture, a demo, or the host of a container.
    File(Box<Mutex<Passwd>>),
    /// The name service of this system.
    Service(NameService),
}

impl UserDatabase {
    /// The users of a passwd file.
    pub fn of_file(path: &Path) -> Self {
        Self::with_source(UserSource::File(Box::new(Mutex::new(Passwd::at(path)))))
    }

    /// The users of this system's name service.
    pub fn of_service() -> Self {
        Self::with_source(UserSource::Service(NameService::default()))
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

    const fn with_source(source: UserSource) -> Self {
        Self { source, stored: Mutex::new(BTreeMap::new()) }
    }

    /// Whether names can be had: the passwd file can be read, or they come from the name service.
    pub fn has_source(&self) -> bool {
        match &self.source {
            UserSource::File(file) => file.lock().name(0).is_some(),
            UserSource::Service(_) => true,
        }
    }

    /// The name service, where names come from it, so that a thread has to make the lookups.
    pub const fn service(&self) -> Option<&NameService> {
        match &self.source {
            UserSource::Service(service) => Some(service),
            UserSource::File(_) => None,
        }
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
            UserSource::Service(service) => service.name(uid, now),
        };
        match name {
            Err(error @ UserNameError::Failed { .. }) => {
                self.stored.lock().get(&uid).cloned().map(Some).ok_or(error)
            }
            name => name,
        }
    }

    /// The user to whom a uid without a name is subordinate, where `/etc/subuid` says so. It never waits: the name service's
    /// owner is known when the name is.
    pub fn subordinate_owner(&self, uid: u32) -> Option<u32> {
        match &self.source {
            UserSource::File(file) => file.lock().subordinate_owner(uid),
            UserSource::Service(service) => service.cache.lock().users.get(&uid)?.owner,
        }
    }

    /// Looks up whether there is a user of that name. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed.
    pub fn has_user(&self, name: &str) -> io::Result<bool> {
        match &self.source {
            UserSource::File(file) => file.lock().has_user(name).ok_or_else(|| file_error("passwd")),
            UserSource::Service(_) => Ok(User::from_name(name)?.is_some()),
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
            UserSource::Service(_) => {
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
            UserSource::Service(_) => look_up_group(name),
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
            UserSource::Service(service) => service.members(group),
        }
    }
}

/// The name service with a bounded cache. A thread takes uids with [`NameService::next`], looks them up, and stores the
/// results.
#[derive(Debug, Default)]
pub struct NameService {
    cache: Mutex<Cache>,
    queued: Condvar,
}

#[derive(Debug, Default)]
struct Cache {
    users: BTreeMap<u32, CachedUser>,
    queue: VecDeque<u32>,
    /// The groups that are looked up with each user.
    groups: Vec<Arc<str>>,
    last: Option<LastLookup>,
}

/// The last lookup of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastLookup {
    /// Whether the name service responded.
    pub succeeded: bool,
    /// Time since boot of its end.
    pub ended: Nanoseconds,
}

#[derive(Debug, Default)]
struct CachedUser {
    /// The last successful result.
    name: Option<UserName>,
    /// The user to whom a uid without a name is subordinate.
    owner: Option<u32>,
    /// Those of the set groups to which the user belongs, as of the last successful lookup.
    groups: BTreeSet<Arc<str>>,
    /// When the lookup that runs was requested.
    requested: Option<Nanoseconds>,
    /// When the next lookup is due.
    due: Nanoseconds,
}

impl NameService {
    fn name(&self, uid: u32, now: Nanoseconds) -> Result<UserName, UserNameError> {
        let mut cache = self.cache.lock();
        if !cache.users.contains_key(&uid) && !cache.make_room() {
            return Err(UserNameError::Pending { uid });
        }
        let user = cache.users.entry(uid).or_default();
        match user.requested {
            Some(requested) if now < requested + LOOKUP_TIMEOUT => Err(UserNameError::Pending { uid }),
            None if now >= user.due => {
                user.requested = Some(now);
                cache.queue.push_back(uid);
                self.queued.notify_one();
                Err(UserNameError::Pending { uid })
            }
            _ => user.name.clone().ok_or(UserNameError::Failed { uid }),
        }
    }

    fn members(&self, group: &str) -> BTreeSet<u32> {
        let cache = self.cache.lock();
        let members = cache.users.iter().filter(|(_, user)| user.groups.contains(group));
        members.map(|(uid, _)| *uid).collect()
    }

    /// Sets which groups are looked up with each user. Where they change, users are looked up again.
    pub fn set_groups(&self, groups: Vec<Arc<str>>) {
        let mut cache = self.cache.lock();
        if cache.groups != groups {
            cache.groups = groups;
            for user in cache.users.values_mut() {
                // A lookup that runs began with the former groups.
                (user.requested, user.due) = (None, Nanoseconds(0));
            }
        }
    }

    /// Takes the next uid to look up, if one comes within that time.
    pub fn next(&self, timeout: Duration) -> Option<u32> {
        let mut cache = self.cache.lock();
        self.queued.wait_while_for(&mut cache, |cache| cache.queue.is_empty(), timeout);
        cache.queue.pop_front()
    }

    /// Looks up to which of the set groups a user belongs, and stores the result. It may wait for a network.
    ///
    /// # Errors
    /// The name service failed; the groups that were known stay.
    pub fn look_up_groups(&self, uid: u32) -> io::Result<()> {
        let groups = self.cache.lock().groups.clone();
        let mut found = BTreeSet::new();
        if !groups.is_empty()
            && let Some(user) = User::from_uid(Uid::from_raw(uid))?
        {
            let gids = getgrouplist(&CString::new(user.name)?, user.gid)?;
            for group in groups {
                if NssGroup::from_name(&group)?.is_some_and(|known| gids.contains(&known.gid)) {
                    found.insert(group);
                }
            }
        }
        if let Some(user) = self.cache.lock().users.get_mut(&uid) {
            user.groups = found;
        }
        Ok(())
    }

    /// Looks up to which user a uid without a name is subordinate, and stores the result. It may wait for a network.
    ///
    /// # Errors
    /// The name service failed; the owner that was known stays.
    pub fn look_up_owner(&self, uid: u32) -> io::Result<()> {
        let owner = SubordinateUids::at(Path::new("/etc/subuid")).owner(uid);
        let owner = match &owner {
            Some(owner) => {
                User::from_name(owner)?.map(|user| user.uid.as_raw()).or_else(|| owner.parse().ok())
            }
            None => None,
        };
        if let Some(user) = self.cache.lock().users.get_mut(&uid) {
            user.owner = owner;
        }
        Ok(())
    }

    /// Stores the result of a lookup, none for a failure. Returns whether it is the first failure since the last success.
    pub fn store(&self, uid: u32, result: Option<Option<Arc<str>>>) -> bool {
        self.store_at(uid, result, system_now().boottime)
    }

    fn store_at(&self, uid: u32, result: Option<UserName>, now: Nanoseconds) -> bool {
        let mut cache = self.cache.lock();
        let failed = result.is_none();
        let failed_before = cache.last.is_some_and(|last| !last.succeeded);
        cache.last = Some(LastLookup { succeeded: !failed, ended: now });
        if let Some(user) = cache.users.get_mut(&uid) {
            if user.requested.take().is_some() {
                user.due = now + if failed { RETRY_DELAY } else { CACHE_TIME };
            }
            user.name = result.or(user.name.take());
        }
        failed && !failed_before
    }

    /// The last lookup of a name; none before the first.
    pub fn last_lookup(&self) -> Option<LastLookup> {
        self.cache.lock().last
    }
}

impl Cache {
    /// Whether there is room for another user, after removing the one that was due first if the cache is full. Users in use
    /// are looked up again every minute, so that one is not in use. Users that are being looked up stay.
    fn make_room(&mut self) -> bool {
        if self.users.len() < MAX_CACHED {
            return true;
        }
        let idle = self.users.iter().filter(|(_, user)| user.requested.is_none());
        let oldest = idle.min_by_key(|(_, user)| user.due).map(|(uid, _)| *uid);
        oldest.is_some_and(|uid| self.users.remove(&uid).is_some())
    }
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

    fn next(users: &UserDatabase) -> Option<u32> {
        users.service().unwrap().next(Duration::ZERO)
    }

    #[test]
    fn a_name_is_looked_up_once_and_again_after_a_minute() {
        let users = UserDatabase::of_service();
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(1)), PENDING);
        assert_eq!((next(&users), next(&users)), (Some(1000), None), "it is asked for once");
        users.service().unwrap().store_at(1000, Some(named("alice")), at(1));
        assert_eq!(users.name_at(1000, at(60)), Ok(named("alice")));
        assert_eq!(next(&users), None);
        assert_eq!(users.name_at(1000, at(61)), PENDING, "the uid may be another user's by now");
        assert_eq!(next(&users), Some(1000));
        users.service().unwrap().store_at(1000, Some(named("bob")), at(61));
        assert_eq!(users.name_at(1000, at(61)), Ok(named("bob")));
    }

    #[test]
    fn only_no_such_user_is_no_name() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        users.service().unwrap().store_at(1000, None, at(0));
        assert_eq!(users.name_at(1000, at(0)), FAILED);
        assert_eq!(users.name_at(1000, at(10)), PENDING, "it is tried again");
        users.service().unwrap().store_at(1000, Some(None), at(10));
        assert_eq!(users.name_at(1000, at(10)), Ok(None));
    }

    #[test]
    fn where_a_lookup_fails_or_hangs_the_last_name_serves_and_then_the_ledgers() {
        let users = UserDatabase::of_service();
        users.remember([(1000, "ledger".into())]);
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(3)), Ok(named("ledger")), "it hangs");
        users.service().unwrap().store_at(1000, None, at(4));
        assert_eq!(users.name_at(1000, at(4)), Ok(named("ledger")));
        let _asked = users.name_at(1000, at(14));
        users.service().unwrap().store_at(1000, Some(named("alice")), at(14));
        assert_eq!(users.name_at(1000, at(80)), PENDING);
        users.service().unwrap().store_at(1000, None, at(80));
        assert_eq!(users.name_at(1000, at(80)), Ok(named("alice")));
    }

    #[test]
    fn a_uid_whose_lookup_hangs_keeps_no_other_from_its_cached_name() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1, at(0));
        users.service().unwrap().store_at(1, Some(named("daemon")), at(0));
        assert_eq!(users.name_at(1000, at(1)), PENDING);
        assert_eq!(users.name_at(1, at(50)), Ok(named("daemon")));
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_who_was_not_used_for_longest() {
        let users = UserDatabase::of_service();
        for (uid, second) in (0..MAX_CACHED as u32).zip(0..) {
            let _asked = users.name_at(uid, at(second));
            users.service().unwrap().store_at(uid, Some(named("somebody")), at(second));
        }
        let last = at(MAX_CACHED as u64);
        assert_eq!(users.name_at(5000, last), Err(UserNameError::Pending { uid: 5000 }));
        let cache = users.service().unwrap().cache.lock();
        assert_eq!(cache.users.len(), MAX_CACHED);
        assert!(!cache.users.contains_key(&0) && cache.users.contains_key(&5000));
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
        users.service().unwrap().set_groups(vec!["root".into(), "no-such-group".into()]);
        let _asked = users.name_at(0, at(0));
        assert_eq!(users.members("root"), BTreeSet::new());
        users.service().unwrap().look_up_groups(0).unwrap();
        assert_eq!(users.members("root"), BTreeSet::from([0]));
        assert_eq!(users.members("no-such-group"), BTreeSet::new());
        users.service().unwrap().store_at(0, None, at(1));
        assert_eq!(users.members("root"), BTreeSet::from([0]));
    }

    #[test]
    fn users_are_looked_up_again_at_once_where_other_groups_are_to_be_looked_up() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        assert_eq!(next(&users), Some(1000));
        users.service().unwrap().set_groups(vec!["lab".into()]);
        users.service().unwrap().store_at(1000, Some(named("alice")), at(1));
        assert_eq!(users.name_at(1000, at(2)), PENDING, "its lookup began before the groups were set");
        assert_eq!(next(&users), Some(1000));
        users.service().unwrap().store_at(1000, Some(named("alice")), at(2));
        users.service().unwrap().set_groups(vec!["lab".into()]);
        assert_eq!(users.name_at(1000, at(3)), Ok(named("alice")), "the groups are the same");
        users.service().unwrap().set_groups(Vec::new());
        assert_eq!(users.name_at(1000, at(3)), PENDING);
    }

    #[test]
    fn a_first_failure_is_told_from_the_next() {
        let users = UserDatabase::of_service();
        assert!(users.service().unwrap().store_at(1, None, at(0)));
        assert!(!users.service().unwrap().store_at(2, None, at(1)));
        assert_eq!(
            users.service().unwrap().last_lookup(),
            Some(LastLookup { succeeded: false, ended: at(1) })
        );
        users.service().unwrap().store_at(1, Some(None), at(2));
        assert!(users.service().unwrap().store_at(1, None, at(3)));
    }
}
