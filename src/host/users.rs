//! Names and groups of users, from passwd and group files or from the system's name service (NSS).
//!
//! In: a uid, or the name of a group. Out: its name, that there is no such user, or that neither is known; the members
//! of the group among the users who were looked up. The name service may wait for a network, so [`UserDatabase::name`]
//! and [`UserDatabase::members`] never ask it: they queue the uid for a thread that takes it with
//! [`UserDatabase::next`], asks with [`UserDatabase::look_up`] and [`UserDatabase::look_up_groups`] and stores the
//! results. The cache is bounded. It starts no thread itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::unistd::{Group as NssGroup, Uid, User, getgrouplist};

use super::passwd::Passwd;
use super::printable::printable;
use super::{bounded, container};
use crate::clock::system_now;
use crate::model::Nanoseconds;

/// A result is used for so long before it is looked up again.
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
    Service(Service),
    /// A container without a mount of its host's passwd file.
    Missing,
}

#[derive(Debug, Default)]
struct Service {
    cache: Mutex<Cache>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct Cache {
    known: BTreeMap<u32, CachedUser>,
    queue: VecDeque<u32>,
    /// The groups that are looked up with each user.
    groups: Vec<Arc<str>>,
    /// Whether the last lookup succeeded, and when it ended.
    last: Option<(bool, Nanoseconds)>,
}

/// What is known of a uid.
#[derive(Debug)]
struct CachedUser {
    lookup: Lookup,
    /// The last successful result.
    name: Option<UserName>,
    /// The groups of those asked for to which the user belongs, as of the last successful lookup.
    groups: BTreeSet<Arc<str>>,
    used: Nanoseconds,
}

#[derive(Clone, Copy, Debug)]
enum Lookup {
    Requested {
        since: Nanoseconds,
    },
    Done {
        at: Nanoseconds,
    },
    Failed {
        at: Nanoseconds,
    },
    /// Other groups were set, so the user is looked up again.
    Outdated,
}

impl UserDatabase {
    /// The users of a passwd file.
    pub fn of_file(path: &Path) -> Self {
        Self::with_source(UserSource::File(Box::new(Mutex::new(Passwd::at(path)))))
    }

    /// The users of this system's name service, which a thread has to ask.
    pub fn of_service() -> Self {
        Self::with_source(UserSource::Service(Service::default()))
    }

    /// The users of the host whose processes are seen under the root: its file where the root is not this system's;
    /// the name service; in a container that sees its host's processes the host's file, since the image's users are
    /// others.
    pub fn of_host(root: &Path) -> Self {
        if root != Path::new("/") {
            return Self::of_file(&root.join("etc/passwd"));
        }
        if !container::sees_outer_processes(root) {
            return Self::of_service();
        }
        host_file(root)
            .map_or_else(|| Self::with_source(UserSource::Missing), |path| Self::of_file(Path::new(path)))
    }

    const fn with_source(source: UserSource) -> Self {
        Self { source, stored: Mutex::new(BTreeMap::new()) }
    }

    /// Whether there is a source of names at all.
    pub const fn has_source(&self) -> bool {
        !matches!(self.source, UserSource::Missing)
    }

    /// Remembers names of the ledger, for when the source fails.
    pub fn remember(&self, names: impl IntoIterator<Item = (u32, Arc<str>)>) {
        lock(&self.stored).extend(names);
    }

    /// The name of a user, none where there is no such user. It never waits.
    ///
    /// # Errors
    /// The name is not known yet, or cannot be had.
    pub fn name(&self, uid: u32) -> Result<Option<Arc<str>>, UserNameError> {
        self.name_at(uid, system_now().boottime)
    }

    fn name_at(&self, uid: u32, now: Nanoseconds) -> Result<UserName, UserNameError> {
        let answer = match &self.source {
            UserSource::File(file) => lock(file).name(uid).ok_or(UserNameError::Failed { uid }),
            UserSource::Service(service) => service.name(uid, now),
            UserSource::Missing => Err(UserNameError::Failed { uid }),
        };
        match answer {
            Err(UserNameError::Failed { .. }) => {
                lock(&self.stored).get(&uid).cloned().map(Some).ok_or(UserNameError::Failed { uid })
            }
            answer => answer,
        }
    }

    /// Whether there is a user of that name. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed.
    pub fn has_user(&self, name: &str) -> io::Result<bool> {
        match &self.source {
            UserSource::File(file) => lock(file).has_user(name).ok_or_else(no_file),
            UserSource::Service(_) => Ok(User::from_name(name)?.is_some()),
            UserSource::Missing => Err(no_file()),
        }
    }

    /// The name of a user as the source tells it now. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed, so that it is not known whether there is such a user.
    pub fn look_up(&self, uid: u32) -> io::Result<Option<Arc<str>>> {
        match &self.source {
            UserSource::File(file) => lock(file).name(uid).ok_or_else(no_file),
            UserSource::Service(_) => look_up(uid),
            UserSource::Missing => Err(no_file()),
        }
    }

    /// A group with the members whom the source lists now. It may wait for a network.
    ///
    /// # Errors
    /// The source cannot be read, or the name service failed.
    pub fn group(&self, name: &str) -> io::Result<Option<Group>> {
        match &self.source {
            UserSource::File(file) => lock(file).group(name).ok_or_else(no_group_file),
            UserSource::Service(_) => listed_group(name),
            UserSource::Missing => Err(no_group_file()),
        }
    }

    /// The uids of the members of a group, as far as they are known. It never waits: where a thread has to look names
    /// up, members are known once their groups were stored.
    pub fn members(&self, group: &str) -> BTreeSet<u32> {
        match &self.source {
            UserSource::File(file) => {
                let group = lock(file).group(group).flatten();
                group.map(|group| group.members.into_keys().collect()).unwrap_or_default()
            }
            UserSource::Service(service) => {
                let cache = lock(&service.cache);
                let belongs = |(_, known): &(&u32, &CachedUser)| known.groups.contains(group);
                cache.known.iter().filter(belongs).map(|(uid, _)| *uid).collect()
            }
            UserSource::Missing => BTreeSet::new(),
        }
    }

    /// Sets which groups are looked up with each user. Where they change, users are looked up again.
    pub fn set_groups(&self, groups: Vec<Arc<str>>) {
        let UserSource::Service(service) = &self.source else { return };
        let mut cache = lock(&service.cache);
        if cache.groups != groups {
            cache.groups = groups;
            cache.known.values_mut().for_each(|known| known.lookup = Lookup::Outdated);
        }
    }

    /// Those of the set groups to which a user belongs, as the name service tells it now. It may wait for a network.
    ///
    /// # Errors
    /// The name service failed.
    pub fn look_up_groups(&self, uid: u32) -> io::Result<BTreeSet<Arc<str>>> {
        let UserSource::Service(service) = &self.source else { return Ok(BTreeSet::new()) };
        let groups = lock(&service.cache).groups.clone();
        if groups.is_empty() {
            return Ok(BTreeSet::new());
        }
        let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(BTreeSet::new()) };
        let gids = getgrouplist(&CString::new(user.name)?, user.gid)?;
        let mut found = BTreeSet::new();
        for group in groups {
            if NssGroup::from_name(&group)?.is_some_and(|known| gids.contains(&known.gid)) {
                found.insert(group);
            }
        }
        Ok(found)
    }

    /// Stores to which groups a user belongs.
    pub fn store_groups(&self, uid: u32, groups: BTreeSet<Arc<str>>) {
        let UserSource::Service(service) = &self.source else { return };
        if let Some(known) = lock(&service.cache).known.get_mut(&uid) {
            known.groups = groups;
        }
    }

    /// Whether a thread has to look names up.
    pub const fn needs_thread(&self) -> bool {
        matches!(self.source, UserSource::Service(_))
    }

    /// The next uid to look up, if one comes within that time.
    pub fn next(&self, longest: Duration) -> Option<u32> {
        let UserSource::Service(service) = &self.source else { return None };
        let cache = lock(&service.cache);
        let waited = service.asked.wait_timeout_while(cache, longest, |cache| cache.queue.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.queue.pop_front()
    }

    /// Stores the result of a lookup; `None` is a failure. Whether it is the first failure since the last success.
    pub fn store(&self, uid: u32, answer: Option<Option<Arc<str>>>) -> bool {
        self.store_at(uid, answer, system_now().boottime)
    }

    fn store_at(&self, uid: u32, answer: Option<UserName>, now: Nanoseconds) -> bool {
        let UserSource::Service(service) = &self.source else { return false };
        let mut cache = lock(&service.cache);
        let failed = answer.is_none();
        let failed_before = cache.last.is_some_and(|(succeeded, _)| !succeeded);
        cache.last = Some((answer.is_some(), now));
        if let Some(known) = cache.known.get_mut(&uid) {
            known.lookup = match known.lookup {
                // The groups were set while this was looked up.
                Lookup::Outdated => Lookup::Outdated,
                _ if answer.is_some() => Lookup::Done { at: now },
                _ => Lookup::Failed { at: now },
            };
            known.name = answer.or(known.name.take());
        }
        failed && !failed_before
    }

    /// Whether the last lookup succeeded, and when it ended; none before the first.
    pub fn last_lookup(&self) -> Option<(bool, Nanoseconds)> {
        let UserSource::Service(service) = &self.source else { return None };
        lock(&service.cache).last
    }
}

impl Service {
    fn name(&self, uid: u32, now: Nanoseconds) -> Result<UserName, UserNameError> {
        let mut cache = lock(&self.cache);
        let is_new = !cache.known.contains_key(&uid);
        if is_new && !cache.make_room() {
            return Err(UserNameError::Pending { uid });
        }
        let known = cache.known.entry(uid).or_insert(CachedUser {
            lookup: Lookup::Failed { at: now },
            name: None,
            groups: BTreeSet::new(),
            used: now,
        });
        known.used = now;
        match known.lookup {
            Lookup::Done { at } if elapsed(at, now) < CACHE_TIME => {}
            Lookup::Failed { at } if elapsed(at, now) < RETRY_DELAY && !is_new => {}
            Lookup::Requested { since } if elapsed(since, now) < LOOKUP_TIMEOUT => {
                return Err(UserNameError::Pending { uid });
            }
            Lookup::Requested { .. } => {}
            Lookup::Done { .. } | Lookup::Failed { .. } | Lookup::Outdated => {
                known.lookup = Lookup::Requested { since: now };
                cache.queue.push_back(uid);
                self.asked.notify_one();
                return Err(UserNameError::Pending { uid });
            }
        }
        known.name.clone().ok_or(UserNameError::Failed { uid })
    }
}

impl Cache {
    /// Forgets the uid that was not used for longest where the cache is full; whether there is room for one more. A uid
    /// that is being looked up is kept.
    fn make_room(&mut self) -> bool {
        if self.known.len() < MAX_CACHED {
            return true;
        }
        let settled =
            self.known.iter().filter(|(_, known)| !matches!(known.lookup, Lookup::Requested { .. }));
        let Some(oldest) = settled.min_by_key(|(_, known)| known.used).map(|(uid, _)| *uid) else {
            return false;
        };
        self.known.remove(&oldest);
        true
    }
}

fn no_file() -> io::Error {
    io::Error::other("the host's passwd file cannot be read; in a container mount it at /host/etc/passwd")
}

fn no_group_file() -> io::Error {
    io::Error::other("the host's group file cannot be read; in a container mount it at /host/etc/group")
}

fn listed_group(name: &str) -> io::Result<Option<Group>> {
    let Some(group) = NssGroup::from_name(name)? else { return Ok(None) };
    let mut members = BTreeMap::new();
    for name in &group.mem {
        // A group may list users who are gone.
        if let Some(user) = User::from_name(name)? {
            members.insert(user.uid.as_raw(), printable(&user.name).into());
        }
    }
    Ok(Some(Group { gid: group.gid.as_raw(), members }))
}

fn look_up(uid: u32) -> io::Result<Option<Arc<str>>> {
    // glibc returns an error for a service that did not answer, and no user without an error for a uid that none has.
    let user = User::from_uid(Uid::from_raw(uid))?;
    Ok(user.map(|user| printable(&user.name).into()))
}

/// The passwd file of the host around a container: of a mount of the host's root, of the root of process 1 where that
/// is the host's, or the container's own path if something is mounted there.
fn host_file(root: &Path) -> Option<&'static str> {
    const MOUNTED: [&str; 2] = ["/host/etc/passwd", "/proc/1/root/etc/passwd"];
    let is_own_mount = || {
        let mounts = bounded::read(&root.join("proc/self/mountinfo"), bounded::PROC).unwrap_or_default();
        String::from_utf8_lossy(&mounts)
            .lines()
            .any(|line| matches!(line.split(' ').nth(4), Some("/etc/passwd" | "/etc")))
    };
    let mounted = MOUNTED.into_iter().find(|path| std::fs::File::open(path).is_ok());
    mounted.or_else(|| is_own_mount().then_some("/etc/passwd"))
}

/// Another thread may have stored a time a moment later than the one that is compared with it.
const fn elapsed(since: Nanoseconds, now: Nanoseconds) -> Nanoseconds {
    Nanoseconds(now.0.saturating_sub(since.0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        users.next(Duration::ZERO)
    }

    #[test]
    fn a_name_is_looked_up_once_and_again_after_a_minute() {
        let users = UserDatabase::of_service();
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(1)), PENDING);
        assert_eq!((next(&users), next(&users)), (Some(1000), None), "it is asked for once");
        users.store_at(1000, Some(named("alice")), at(1));
        assert_eq!(users.name_at(1000, at(60)), Ok(named("alice")));
        assert_eq!(next(&users), None);
        assert_eq!(users.name_at(1000, at(61)), PENDING, "the uid may be another user's by now");
        assert_eq!(next(&users), Some(1000));
        users.store_at(1000, Some(named("bob")), at(61));
        assert_eq!(users.name_at(1000, at(61)), Ok(named("bob")));
    }

    #[test]
    fn only_no_such_user_is_no_name() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        users.store_at(1000, None, at(0));
        assert_eq!(users.name_at(1000, at(0)), FAILED);
        assert_eq!(users.name_at(1000, at(10)), PENDING, "it is tried again");
        users.store_at(1000, Some(None), at(10));
        assert_eq!(users.name_at(1000, at(10)), Ok(None));
    }

    #[test]
    fn where_a_lookup_fails_or_hangs_the_last_name_serves_and_then_the_ledgers() {
        let users = UserDatabase::of_service();
        users.remember([(1000, "ledger".into())]);
        assert_eq!(users.name_at(1000, at(0)), PENDING);
        assert_eq!(users.name_at(1000, at(3)), Ok(named("ledger")), "it hangs");
        users.store_at(1000, None, at(4));
        assert_eq!(users.name_at(1000, at(4)), Ok(named("ledger")));
        let _asked = users.name_at(1000, at(14));
        users.store_at(1000, Some(named("alice")), at(14));
        assert_eq!(users.name_at(1000, at(80)), PENDING);
        users.store_at(1000, None, at(80));
        assert_eq!(users.name_at(1000, at(80)), Ok(named("alice")));
    }

    #[test]
    fn a_uid_whose_lookup_hangs_keeps_no_other_from_its_cached_name() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1, at(0));
        users.store_at(1, Some(named("daemon")), at(0));
        assert_eq!(users.name_at(1000, at(1)), PENDING);
        assert_eq!(users.name_at(1, at(50)), Ok(named("daemon")));
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_who_was_not_used_for_longest() {
        let users = UserDatabase::of_service();
        for (uid, second) in (0..MAX_CACHED as u32).zip(0..) {
            let _asked = users.name_at(uid, at(second));
            users.store_at(uid, Some(named("somebody")), at(second));
        }
        let last = at(MAX_CACHED as u64);
        assert_eq!(users.name_at(5000, last), Err(UserNameError::Pending { uid: 5000 }));
        let UserSource::Service(service) = &users.source else { unreachable!() };
        let cache = lock(&service.cache);
        assert_eq!(cache.known.len(), MAX_CACHED);
        assert!(!cache.known.contains_key(&0) && cache.known.contains_key(&5000));
    }

    #[test]
    fn the_name_service_of_this_system_knows_root_and_not_everybody() {
        assert_eq!(look_up(0).unwrap(), named("root"));
        assert_eq!(look_up(u32::MAX - 7).unwrap(), None);
        let users = UserDatabase::of_service();
        assert!(users.has_user("root").unwrap() && !users.has_user("no-such-user").unwrap());
        assert_eq!(users.group("root").unwrap().map(|group| group.gid), Some(0));
        assert_eq!(users.group("no-such-group").unwrap(), None);
    }

    #[test]
    fn who_belongs_to_a_group_is_known_once_it_was_looked_up_and_stays_known_while_lookups_fail() {
        let users = UserDatabase::of_service();
        users.set_groups(vec!["root".into(), "no-such-group".into()]);
        let _asked = users.name_at(0, at(0));
        assert_eq!(users.members("root"), BTreeSet::new());
        let groups = users.look_up_groups(0).unwrap();
        assert_eq!(groups, BTreeSet::from(["root".into()]));
        users.store_groups(0, groups);
        assert_eq!(users.members("root"), BTreeSet::from([0]));
        assert_eq!(users.members("no-such-group"), BTreeSet::new());
        users.store_at(0, None, at(1));
        assert_eq!(users.members("root"), BTreeSet::from([0]));
    }

    #[test]
    fn users_are_looked_up_again_at_once_where_other_groups_are_to_be_looked_up() {
        let users = UserDatabase::of_service();
        let _asked = users.name_at(1000, at(0));
        assert_eq!(next(&users), Some(1000));
        users.set_groups(vec!["lab".into()]);
        users.store_at(1000, Some(named("alice")), at(1));
        assert_eq!(users.name_at(1000, at(2)), PENDING, "its lookup began before the groups were set");
        assert_eq!(next(&users), Some(1000));
        users.store_at(1000, Some(named("alice")), at(2));
        users.set_groups(vec!["lab".into()]);
        assert_eq!(users.name_at(1000, at(3)), Ok(named("alice")), "the groups are the same");
        users.set_groups(Vec::new());
        assert_eq!(users.name_at(1000, at(3)), PENDING);
    }

    #[test]
    fn a_first_failure_is_told_from_the_next() {
        let users = UserDatabase::of_service();
        assert!(users.store_at(1, None, at(0)));
        assert!(!users.store_at(2, None, at(1)));
        assert_eq!(users.last_lookup(), Some((false, at(1))));
        users.store_at(1, Some(None), at(2));
        assert!(users.store_at(1, None, at(3)));
    }
}
