//! The users of `etc/passwd`, read again when the file has changed.
//!
//! In: the file. Out: the name of a uid, the first line of it as for getpwuid(3). It does not know users of
//! directory services.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::bounded;
use super::printable::printable;

/// The most that is read; a million users fit.
const LIMIT: u64 = 64 * 1024 * 1024;

/// The file and what was last read of it.
#[derive(Debug)]
pub(super) struct Passwd {
    path: PathBuf,
    version: Option<Version>,
    names: HashMap<u32, Arc<str>>,
}

/// What changes when the file does: editors replace it (inode), or write it in place (time and length).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Passwd {
    /// The file, not yet read.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, version: None, names: HashMap::new() }
    }

    /// The name of a user, none where there is no such user; nothing where the file was never read.
    pub(super) fn name(&mut self, uid: u32) -> Option<Option<Arc<str>>> {
        self.refresh();
        self.version.map(|_| self.names.get(&uid).cloned())
    }

    /// Whether a uid has that name; nothing where the file was never read.
    pub(super) fn has_user(&mut self, name: &str) -> Option<bool> {
        self.refresh();
        self.version.map(|_| self.names.values().any(|known| **known == *name))
    }

    /// A file that is missing for a moment, as while it is replaced, leaves the names as they were.
    fn refresh(&mut self) {
        let Some(version) = self.observed() else { return };
        if self.version == Some(version) {
            return;
        }
        let Ok(bytes) = bounded::read(&self.path, LIMIT) else { return };
        self.names = parse(&bytes);
        self.version = Some(version);
    }

    fn observed(&self) -> Option<Version> {
        let metadata = fs::metadata(&self.path).ok()?;
        Some(Version {
            inode: metadata.ino(),
            length: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

fn parse(bytes: &[u8]) -> HashMap<u32, Arc<str>> {
    let mut names = HashMap::new();
    for (uid, name) in bounded::whole_lines(bytes, LIMIT).filter_map(user) {
        names.entry(uid).or_insert(name);
    }
    names
}

/// `name:password:uid:…`; comments, and the `+` and `-` lines of NIS, name no user.
fn user(line: &[u8]) -> Option<(u32, Arc<str>)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    // A file caught while it is written may end within the digits.
    fields.next()?;
    let usable = !name.is_empty() && !name.starts_with(['#', '+', '-']);
    usable.then(|| (uid, printable(name).into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_name_of_a_uid_counts() {
        let text =
            b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n#bob:x:5:\n+nis:x:6:\n:x:7:\nx:y\nno\ncut:x:10";
        assert_eq!(parse(text), HashMap::from([(0, "root".into())]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            parse(&bytes);
        }
    }
}
