//! One agent per node: two would read the same GPUs twice and keep two accounts of the same time.
//!
//! In go the places where a lock file may lie; out comes a lock that lives as long as the process, or the
//! process that has it. A simulated driver needs none. In a container `/run` is the container's own: there
//! the lock holds among the agents that share it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Where the lock lies: the second for an agent that may not write the first.
pub(super) const PLACES: [&str; 2] = ["/run/gpumeter.lock", "/run/lock/gpumeter.lock"];

/// A held lock; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct NodeLock {
    _file: File,
}

/// Why there is no lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unlocked {
    /// Another process has it; its pid as it wrote it.
    Held(String),
    /// None of the places can be locked.
    Nowhere(String),
}

/// Takes the lock in the first place that can be opened.
pub(super) fn take(places: &[impl AsRef<Path>]) -> Result<NodeLock, Unlocked> {
    let mut problems = Vec::new();
    for place in places.iter().map(AsRef::as_ref) {
        let mut file = match open(place) {
            Ok(file) => file,
            Err(error) => {
                problems.push(format!("{}: {error}", place.display()));
                continue;
            }
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // Who it is helps a reader and decides nothing.
                let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                return Ok(NodeLock { _file: file });
            }
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                // A lock whose owner cannot be read is held all the same.
                let _ = file.read_to_string(&mut pid);
                return Err(Unlocked::Held(pid.trim().to_owned()));
            }
            Err(error) => problems.push(format!("{}: {error}", place.display())),
        }
    }
    Err(Unlocked::Nowhere(problems.join("; ")))
}

/// A file that another user made can be locked without the right to write it. No link is followed: anybody
/// may put one into the second place, and the file is emptied.
fn open(place: &Path) -> std::io::Result<File> {
    let options = || {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options
    };
    match options().write(true).create(true).truncate(false).open(place) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => options().open(place).map_err(|_| error),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_who_has_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let place = [directory.path().join("lock")];
        let first = take(&place).unwrap();
        assert_eq!(take(&place).unwrap_err(), Unlocked::Held(std::process::id().to_string()));
        drop(first);
        take(&place).unwrap();
    }

    #[test]
    fn the_next_place_serves_when_the_first_cannot() {
        let directory = tempfile::tempdir().unwrap();
        let places = [directory.path().join("missing/lock"), directory.path().join("lock")];
        take(&places).unwrap();
        let Err(Unlocked::Nowhere(problems)) = take(&places[..1]) else { panic!("it was locked") };
        assert!(problems.contains("missing/lock"), "{problems}");
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, place) = (directory.path().join("precious"), directory.path().join("lock"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &place).unwrap();
        take(&[place]).unwrap_err();
        assert_eq!(std::fs::read_to_string(target).unwrap(), "kept");
    }
}
