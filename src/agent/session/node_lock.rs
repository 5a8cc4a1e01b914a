//! One agent per node: two would read the same GPUs twice and keep two accounts of the same time.
//!
//! The agent reads no real driver without the lock, which lives as long as the process. A simulated driver needs none: there the ledger's own lock is enough.
//! In a container `/run` is the container's own, and the lock holds among the agents that share it.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use thiserror::Error;

use crate::runtime::file::{self, Lock};

/// Where the lock file lies. There is no second place: two agents could each hold one. `/run/lock` is writable by every
/// user on Debian, who could then keep the agent out.
pub(crate) const PATH: &str = "/run/gpumeter.lock";

/// The file's mode when the agent creates it: flock(2) needs no more than the right to read a file, so a user who can
/// read it can hold it.
const MODE: u32 = 0o640;

const OTHERS: u32 = 0o007;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    Absent,
    Free,
    /// A process holds it; its pid as it wrote it.
    Held(String),
}

#[derive(Debug, Error)]
pub(crate) enum LockError {
    /// Another process holds it; its pid as it wrote it.
    #[error(
        "another gpumeter (process {0}) reads this node's GPUs; stop it, or stop this one: two would bill the same \
         time twice"
    )]
    Held(String),
    #[error(
        "{path}: owned by user {owner}, who is neither root nor this agent's user; remove it, then create it as root \
         with `install -m 0640 /dev/null {path}`"
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "{path}: {source}; without this lock a second agent would bill the same time twice: create the file with \
         `systemd-tmpfiles --create gpumeter.conf`, or as root with `install -m 0640 /dev/null {path}`, readable by \
         this agent's user"
    )]
    Unavailable { path: PathBuf, source: io::Error },
}

/// Takes the lock; creates the file where that is possible. The kernel releases it when the process ends, however it ends.
pub(crate) fn take(path: &Path) -> Result<Lock, LockError> {
    let unavailable = |source| LockError::Unavailable { path: path.into(), source };
    let file = open(path).map_err(unavailable)?;
    check(path, &file)?;
    let mut lock = Lock::take(file, file::LOOK).map_err(|error| match error {
        file::NotLocked::Held { pid } => LockError::Held(holder(pid)),
        file::NotLocked::Unavailable(error) => unavailable(error),
    })?;
    let file = lock.file();
    // The pid is only information for people; a file that was opened read-only keeps its former text.
    let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    Ok(lock)
}

/// Whether the lock could be taken, without taking or changing anything.
pub(crate) fn look(path: &Path) -> Result<LockState, LockError> {
    let unavailable = |source| LockError::Unavailable { path: path.into(), source };
    let mut file = match options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LockState::Absent),
        Err(error) => return Err(unavailable(error)),
    };
    trusted(path, &file)?;
    if file::is_locked(&file).map_err(unavailable)? {
        return Ok(LockState::Held(holder(file::owner(&mut file))));
    }
    Ok(LockState::Free)
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}

/// Opens the file for writing, or for reading alone where the agent may not write it or `/run` is read-only to it.
/// No link is followed: the file is emptied.
fn open(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(false).mode(MODE).open(path).or_else(|error| {
        options().open(path).map_err(|second| match second.kind() {
            // The reason why the file could not be created is more useful than "not found".
            ErrorKind::NotFound => error,
            _ => second,
        })
    })
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Refuses a file that is not root's or the agent's own, and takes the right to read it from other users.
fn check(path: &Path, file: &File) -> Result<(), LockError> {
    let mode = trusted(path, file)?.mode();
    if mode & OTHERS != 0
        && let Err(error) = file.set_permissions(Permissions::from_mode(mode & 0o777 & !OTHERS))
    {
        tracing::warn!(
            path = %path.display(), %error, "any user can hold the lock and keep the agent out; set its mode to 0640"
        );
    }
    Ok(())
}

/// The metadata of a file, which must be root's or the agent's own.
fn trusted(path: &Path, file: &File) -> Result<Metadata, LockError> {
    let unavailable = |source| LockError::Unavailable { path: path.into(), source };
    let metadata = file.metadata().map_err(unavailable)?;
    if !metadata.is_file() {
        return Err(unavailable(io::Error::other("not a regular file")));
    }
    if !is_trusted(&metadata, geteuid().as_raw()) {
        return Err(LockError::Owner { path: path.into(), owner: metadata.uid() });
    }
    Ok(metadata)
}

fn is_trusted(metadata: &Metadata, agent: u32) -> bool {
    metadata.uid() == 0 || metadata.uid() == agent
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_look_says_who_holds_the_lock_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(look(&path).unwrap(), LockState::Absent);
        assert!(!path.exists());
        let held = take(&path).unwrap();
        assert_eq!(look(&path).unwrap(), LockState::Held(std::process::id().to_string()));
        drop(held);
        assert_eq!(look(&path).unwrap(), LockState::Free);
        take(&path).unwrap();
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        assert!(matches!(look(&directory.path().join("link")), Err(LockError::Unavailable { .. })));
    }

    #[test]
    fn a_second_agent_is_told_who_has_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = take(&path).unwrap();
        let Err(LockError::Held(pid)) = take(&path) else { panic!("it was taken twice") };
        assert_eq!(pid, std::process::id().to_string());
        drop(first);
        take(&path).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_created_is_an_error_that_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let error = take(&directory.path().join("missing/lock")).unwrap_err().to_string();
        for words in ["missing/lock", "No such file", "systemd-tmpfiles --create", "install -m 0640"] {
            assert!(error.contains(words), "{words:?} in {error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_locked_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        // Nobody can write a program that runs, not even root.
        std::fs::copy("/bin/cat", &path).unwrap();
        let spawn = || Command::new(&path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        // A process that another test has just forked may still have the copy open for writing.
        let mut child = (0..10_000)
            .find_map(|_| match spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                    None
                }
                other => Some(other.unwrap()),
            })
            .unwrap();
        let write = OpenOptions::new().write(true).open(&path).map(drop);
        let first = take(&path).map(|lock| (lock, take(&path)));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(write.unwrap_err().kind(), ErrorKind::ExecutableFileBusy);
        assert!(matches!(first, Ok((_, Err(LockError::Held(_))))), "{first:?}");
    }

    #[test]
    fn no_other_user_can_open_the_lock_file() {
        let directory = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| directory.path().join(name));
        std::fs::write(&old, "").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [new, old] {
            take(&path).unwrap();
            assert_eq!(mode(&path) & OTHERS, 0, "{}", path.display());
        }
    }

    #[test]
    fn a_file_of_another_user_is_not_trusted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        assert!(is_trusted(&metadata, metadata.uid()));
        // Root's file serves an agent of any user; a user's file serves that user alone.
        assert_eq!(is_trusted(&metadata, metadata.uid() + 1), metadata.uid() == 0);
        if geteuid().is_root() {
            std::os::unix::fs::chown(file.path(), Some(12_345), None).unwrap();
            let error = take(file.path()).unwrap_err().to_string();
            assert!(error.contains("12345") && error.contains("remove it"), "{error}");
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, path) = (directory.path().join("precious"), directory.path().join("lock"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        take(&path).unwrap_err();
        assert_eq!(std::fs::read_to_string(target).unwrap(), "kept");
    }
}
