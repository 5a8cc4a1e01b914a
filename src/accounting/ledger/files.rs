//! The files of a ledger: who may read them, which filesystems may hold them, and which process owns them.
//!
//! Only the ledger's user and group may read the files: they name users and what those are billed, and whoever can open
//! the lock file can hold the lock and keep the agent out.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::error::{Cause, Error};
use crate::runtime::file::{self, Lock, NotLocked};

pub(super) const MODE: u32 = 0o640;

/// How long a lock is waited for: [`check_unowned`] holds one for a moment, an owner for good.
const PATIENCE: Duration = Duration::from_secs(1);

const OTHERS: u32 = 0o007;

pub(super) fn with_suffix(ledger: &Path, suffix: &str) -> PathBuf {
    let mut name = ledger.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates an empty file unless there is one. SQLite would make it readable by every user; its write-ahead log and shared
/// memory get the mode of the database.
pub(super) fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path).map(drop)
}

/// Size of the file and its write-ahead log.
pub(super) fn bytes_on_disk(path: &Path) -> u64 {
    let files = [path.to_owned(), with_suffix(path, "-wal")];
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len()).sum()
}

/// A size for people, such as `12.3 MB`.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}

/// Removes other users' permissions from the ledger's files, which earlier agents left there.
pub(super) fn close_ledger_to_others(ledger: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        close_to_others(&with_suffix(ledger, suffix));
    }
}

/// Removes other users' permissions from a file, if it exists and belongs to this process's user.
fn close_to_others(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        // Fails for another user's file and on a filesystem without modes; their modes are the operator's decision.
        let _ = std::fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilesystemKind {
    Local,
    /// Lost with the container or at the next boot, or unknown.
    Temporary,
    /// File locks or shared memory do not work on it.
    Network(&'static str),
}

/// The kind by `f_type` of statfs(2); the numbers are from linux/magic.h and the sources of parallel filesystems. 9p has
/// no shared writable mappings, which the write-ahead log needs.
const fn filesystem_kind(magic: u32) -> FilesystemKind {
    match magic {
        0x6969 => FilesystemKind::Network("NFS"),
        0x517B | 0xFE53_4D42 | 0xFF53_4D42 => FilesystemKind::Network("SMB/CIFS"),
        0x00C3_6400 => FilesystemKind::Network("Ceph"),
        0x5346_414F | 0x6B41_4653 => FilesystemKind::Network("AFS"),
        0x0102_1997 => FilesystemKind::Network("9p"),
        0x0BD0_0BD0 => FilesystemKind::Network("Lustre"),
        0x4750_4653 => FilesystemKind::Network("GPFS"),
        0x1983_0326 => FilesystemKind::Network("BeeGFS"),
        0x7461_636F => FilesystemKind::Network("OCFS2"),
        0x0116_1970 => FilesystemKind::Network("GFS2"),
        // tmpfs, ramfs, overlay; FUSE may be anything.
        0x0102_1994 | 0x8584_58F6 | 0x794C_7630 | 0x6573_5546 => FilesystemKind::Temporary,
        _ => FilesystemKind::Local,
    }
}

/// Whether a ledger in `directory` survives a restart; a network filesystem is refused.
pub(super) fn check_durable(directory: &Path) -> Result<bool, Cause> {
    let found = rustix::fs::statfs(directory).map_err(|errno| Cause::Unwritable(errno.into()))?;
    // The field's type differs between architectures; the number has 32 bits on all of them.
    match filesystem_kind(found.f_type as u32) {
        FilesystemKind::Local => Ok(true),
        FilesystemKind::Temporary => Ok(false),
        FilesystemKind::Network(name) => Err(Cause::NetworkFilesystem { name }),
    }
}

/// Advisory locks on `<ledger>.lock`, which contains the owner's pid, and [`MADE`] once the ledger was made, and on the ledger
/// itself, which may have several names; held as long as this value lives.
///
/// SQLite drops its own locks on a file when anything in the process closes that file, so this value lives longer than the
/// owner's connection. The lock file is never removed: then two owners could lock two files of one name.
#[derive(Debug)]
pub(super) struct LedgerLock {
    lock: Lock,
    _ledger: Lock,
}

/// A line of the lock file. Without it an empty ledger is one that was never made, as after a kill during the first start.
const MADE: &str = "ledger made";

/// Refuses an empty file where a ledger was: its account is lost, and must not begin anew silently.
pub fn check_not_emptied(ledger: &Path) -> Result<(), Error> {
    let is_empty = std::fs::metadata(ledger).is_ok_and(|metadata| metadata.len() == 0);
    let was_made =
        || file::open(&lock_path(ledger)).is_ok_and(|mut lock| read_lock(&mut lock).contains(MADE));
    if is_empty && was_made() { Err(Cause::Emptied.at(ledger, "open the ledger")) } else { Ok(()) }
}

impl LedgerLock {
    /// Locks the ledger, which is made where it is missing, or returns the pid of the process that has locked it.
    pub(super) fn acquire(ledger: &Path) -> Result<Self, Cause> {
        let path = lock_path(ledger);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&path)?;
        let metadata = file.metadata()?;
        let owner = metadata.uid();
        if !metadata.is_file() {
            return Err(Cause::LockKind { path });
        }
        if owner != 0 && owner != geteuid().as_raw() {
            return Err(Cause::LockOwner { path, owner });
        }
        close_to_others(&path);
        let mut lock = Lock::take(file, PATIENCE).map_err(|error| match error {
            NotLocked::Held { pid } => Cause::Owned { pid },
            NotLocked::Unavailable(error) => error.into(),
        })?;
        let opened = OpenOptions::new().append(true).create(true).mode(MODE).open(ledger)?;
        let opened = Lock::take(opened, PATIENCE).map_err(|error| match error {
            NotLocked::Held { .. } => Cause::OtherName,
            NotLocked::Unavailable(error) => error.into(),
        })?;
        let file = lock.file();
        let was_made = read_lock(file).contains(MADE);
        file.rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| writeln!(file, "{}", std::process::id()))?;
        let mut lock = Self { lock, _ledger: opened };
        if was_made {
            lock.note_made()?;
        }
        Ok(lock)
    }

    /// Removes the file that [`LedgerLock::acquire`] made where nothing was written into it; empty, it would be taken for a ledger
    /// whose account is lost.
    pub(super) fn remove_unwritten(ledger: &Path) {
        if std::fs::metadata(ledger).is_ok_and(|metadata| metadata.len() == 0) {
            let _ = std::fs::remove_file(ledger);
        }
    }

    pub(super) fn note_made(&mut self) -> Result<(), Cause> {
        let note = |file: &mut File| {
            file.rewind()?;
            if !read_lock(file).contains(MADE) {
                writeln!(file, "{MADE}")?;
                file.sync_all()?;
            }
            Ok(())
        };
        note(self.lock.file()).map_err(Cause::Unwritable)
    }
}

/// Refuses a ledger that a running agent owns, by whatever name; for programs that read the file themselves, before they open
/// it.
pub fn check_unowned(ledger: &Path) -> Result<(), Error> {
    let real = std::fs::canonicalize(ledger).unwrap_or_else(|_| ledger.to_owned());
    let locked = locked_file(&lock_path(&real)).or_else(|| locked_file(&real));
    locked.map_or(Ok(()), |mut file| {
        Err(Cause::Owned { pid: file::owner(&mut file) }.at(ledger, "read it while an agent uses it"))
    })
}

/// Refuses a hard link of a ledger that an agent writes: what is only in the write-ahead log has the agent's name.
pub(super) fn check_name(ledger: &Path) -> Result<(), Cause> {
    let real = std::fs::canonicalize(ledger).unwrap_or_else(|_| ledger.to_owned());
    match locked_file(&real) {
        Some(_) if locked_file(&lock_path(&real)).is_none() => Err(Cause::OtherName),
        _ => Ok(()),
    }
}

fn locked_file(path: &Path) -> Option<File> {
    let file = file::open(path).ok()?;
    file::is_locked(&file).is_ok_and(|is_locked| is_locked).then_some(file)
}

fn lock_path(ledger: &Path) -> PathBuf {
    with_suffix(ledger, ".lock")
}

/// The text of a lock file from here on; the longest that an agent writes is far shorter than the limit.
fn read_lock(file: &mut File) -> String {
    let mut text = String::new();
    // A file of another kind has neither a pid nor the note.
    let _ = file.take(256).read_to_string(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_filesystems_are_named_and_memory_does_not_last() {
        assert_eq!(filesystem_kind(0x6969), FilesystemKind::Network("NFS"));
        assert_eq!(filesystem_kind(0xFF53_4D42), FilesystemKind::Network("SMB/CIFS"));
        assert_eq!(filesystem_kind(0x0102_1994), FilesystemKind::Temporary);
        assert_eq!(filesystem_kind(0xEF53), FilesystemKind::Local);
    }
}
