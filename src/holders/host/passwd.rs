//! Users of a passwd file, with the group and subuid files beside it, each read again when it has changed.
//!
//! Of several lines for one uid or name the first counts, as for getpwuid(3).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::untrusted::{self, printable, whole_lines};
use super::users::Group;
use crate::runtime::file::FileState;

/// The most bytes that are read of a file; a million users fit.
const LIMIT: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Passwd {
    users: ReloadingFile<HashMap<u32, PasswdEntry>>,
    groups: ReloadingFile<HashMap<Arc<str>, GroupEntry>>,
    subordinates: SubordinateUids,
}

/// The subuid file: which uids users have for their user namespaces.
#[derive(Debug)]
pub(super) struct SubordinateUids(ReloadingFile<Vec<UidRange>>);

/// A line of `etc/subuid`.
#[derive(Debug, PartialEq, Eq)]
struct UidRange {
    owner: Arc<str>,
    uids: Range<u32>,
}

impl SubordinateUids {
    /// The file of that path; it is not read yet.
    pub(super) fn at(path: &Path) -> Self {
        Self(ReloadingFile::at(path.to_owned(), parse_subordinates))
    }

    /// Name or uid of the user to whom the uid is subordinate.
    pub(super) fn owner(&mut self, uid: u32) -> Option<Arc<str>> {
        let range = self.0.content()?.iter().find(|range| range.uids.contains(&uid))?;
        Some(Arc::clone(&range.owner))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct PasswdEntry {
    name: Arc<str>,
    /// The first group, where the line has it.
    gid: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
struct GroupEntry {
    gid: u32,
    names: HashSet<Arc<str>>,
}

#[derive(Debug)]
struct ReloadingFile<T> {
    path: PathBuf,
    state: Option<FileState>,
    parse: fn(&[u8]) -> T,
    content: T,
}

impl Passwd {
    /// The passwd file of that path and the group file beside it; neither is read yet.
    pub(super) fn at(path: &Path) -> Self {
        Self {
            users: ReloadingFile::at(path.to_owned(), parse_users),
            groups: ReloadingFile::at(path.with_file_name("group"), parse_groups),
            subordinates: SubordinateUids::at(&path.with_file_name("subuid")),
        }
    }

    pub(super) fn subordinate_owner(&mut self, uid: u32) -> Option<u32> {
        let owner = self.subordinates.owner(uid)?;
        let users = self.users.content()?;
        let named = users.iter().filter(|(_, user)| user.name == owner).map(|(uid, _)| *uid).min();
        named.or_else(|| owner.parse().ok())
    }

    /// The name of a user: none where the file could never be read, `Some(None)` where there is no such user.
    pub(super) fn name(&mut self, uid: u32) -> Option<Option<Arc<str>>> {
        self.users.content().map(|users| users.get(&uid).map(|user| Arc::clone(&user.name)))
    }

    /// Whether a uid has that name; none where the file could never be read.
    pub(super) fn has_user(&mut self, name: &str) -> Option<bool> {
        self.users.content().map(|users| users.values().any(|user| *user.name == *name))
    }

    /// A group with all its members: none where a file could never be read, `Some(None)` where there is no such group.
    pub(super) fn group(&mut self, name: &str) -> Option<Option<Group>> {
        let (users, groups) = (self.users.content()?, self.groups.content()?);
        Some(groups.get(name).map(|group| {
            let is_member =
                |user: &PasswdEntry| user.gid == Some(group.gid) || group.names.contains(&user.name);
            let members = users.iter().filter(|(_, user)| is_member(user));
            Group {
                gid: group.gid,
                members: members.map(|(uid, user)| (*uid, Arc::clone(&user.name))).collect(),
            }
        }))
    }
}

impl<T: Default> ReloadingFile<T> {
    fn at(path: PathBuf, parse: fn(&[u8]) -> T) -> Self {
        Self { path, state: None, parse, content: T::default() }
    }

    /// The content of the file; none where it could never be read. While the file is missing, as when it is replaced, the
    /// last content stays.
    fn content(&mut self) -> Option<&T> {
        if let Some(state) = FileState::of(&self.path).filter(|state| self.state != Some(*state))
            && let Ok(bytes) = untrusted::read(&self.path, LIMIT)
        {
            self.content = (self.parse)(&bytes);
            self.state = Some(state);
        }
        self.state.map(|_| &self.content)
    }
}

fn parse_users(bytes: &[u8]) -> HashMap<u32, PasswdEntry> {
    let mut users = HashMap::new();
    for (uid, user) in whole_lines(bytes, LIMIT).filter_map(parse_user) {
        users.entry(uid).or_insert(user);
    }
    users
}

/// `name:password:uid:gid:…`; comments, and the `+` and `-` lines of NIS, name no user.
fn parse_user(line: &[u8]) -> Option<(u32, PasswdEntry)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    // A file that is being written may end within the digits of either number.
    let gid = fields.next()?;
    let gid = fields.next().and_then(|_| gid.parse().ok());
    is_name(name).then(|| (uid, PasswdEntry { name: printable(name).into(), gid }))
}

fn parse_groups(bytes: &[u8]) -> HashMap<Arc<str>, GroupEntry> {
    let mut groups = HashMap::new();
    for (name, group) in whole_lines(bytes, LIMIT).filter_map(parse_group) {
        groups.entry(name).or_insert(group);
    }
    groups
}

/// `name:password:gid:member,member`.
fn parse_group(line: &[u8]) -> Option<(Arc<str>, GroupEntry)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.split(':');
    let name = fields.next()?;
    let gid = fields.nth(1)?.parse().ok()?;
    let names = fields.next()?.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names = names.map(|name| printable(name).into()).collect();
    is_name(name).then(|| (printable(name).into(), GroupEntry { gid, names }))
}

fn parse_subordinates(bytes: &[u8]) -> Vec<UidRange> {
    whole_lines(bytes, LIMIT).filter_map(parse_range).collect()
}

/// `owner:first:count`.
fn parse_range(line: &[u8]) -> Option<UidRange> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.split(':').map(str::trim);
    let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let uids = first..u32::checked_add(first, count)?;
    is_name(owner).then(|| UidRange { owner: printable(owner).into(), uids })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['#', '+', '-'])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_name_of_a_uid_counts() {
        let text =
            b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n#bob:x:5:\n+nis:x:6:\n:x:7:\nx:y\nno\ncut:x:10";
        assert_eq!(
            parse_users(text),
            HashMap::from([(0, PasswdEntry { name: "root".into(), gid: Some(0) })])
        );
    }

    #[test]
    fn members_of_a_group_are_those_whom_it_lists_and_those_whose_first_group_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        let users = "ada:x:1001:100::/:\nben:x:1002:1002::/:\ncid:x:1003:1200::/:\n";
        fs::write(&path, users).unwrap();
        let mut passwd = Passwd::at(&path);
        assert_eq!(passwd.group("research"), None, "there is no group file");
        fs::write(directory.path().join("group"), "users:x:100:\nresearch:x:1200:ben,gone\n").unwrap();
        let research = passwd.group("research").unwrap().unwrap();
        assert_eq!(research.gid, 1200);
        assert_eq!(research.members, BTreeMap::from([(1002, "ben".into()), (1003, "cid".into())]));
        assert_eq!(passwd.group("nosuchgroup"), Some(None));
        fs::write(directory.path().join("group"), "research:x:1200:ada\n").unwrap();
        let members = passwd.group("research").unwrap().unwrap().members;
        assert_eq!(members.keys().collect::<Vec<_>>(), [&1001, &1003], "the file is read again");
        fs::write(&path, "dan:x:1004:1200::/:\n").unwrap();
        let members = passwd.group("research").unwrap().unwrap().members;
        assert_eq!(members.keys().collect::<Vec<_>>(), [&1004], "the users are read again");
    }

    #[test]
    fn a_subordinate_uid_is_its_owners_by_name_or_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        fs::write(&path, "ada:x:1001:100::/:\nben:x:1002:1002::/:\n").unwrap();
        let mut passwd = Passwd::at(&path);
        assert_eq!(passwd.subordinate_owner(100_000), None, "there is no subuid file");
        let text =
            "# comment:100000:9\nada:100000:65536\n1002:165536:65536\ngone:300000:9\nx:4294967290:9\ny:1\n";
        fs::write(directory.path().join("subuid"), text).unwrap();
        let owners =
            [99_999, 100_000, 165_535, 165_536, 231_072, 300_000].map(|uid| passwd.subordinate_owner(uid));
        assert_eq!(owners, [None, Some(1001), Some(1001), Some(1002), None, None]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            parse_users(&bytes);
            parse_subordinates(&bytes);
            parse_groups(&bytes);
        }
    }
}
