//! One owner per ledger: an advisory lock on `<ledger>.lock`, with the owner's pid as its text.
//!
//! A file of its own, because SQLite drops its locks on a file when anything in the process closes that
//! file. The lock file stays behind: removing it would let two owners lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::access;
use super::error::{Cause, Error};

/// Held as long as this value lives.
#[derive(Debug)]
pub(super) struct LedgerLock {
    _file: File,
}

impl LedgerLock {
    /// Locks the ledger, or returns the pid of the process that has locked it.
    pub(super) fn acquire(ledger: &Path) -> Result<Self, Cause> {
        let path = beside(ledger);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(access::MODE)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(Cause::Unwritable)?;
        let owner = file.metadata().map_err(Cause::Unwritable)?.uid();
        if owner != 0 && owner != geteuid().as_raw() {
            return Err(Cause::LockOwner { path, owner });
        }
        access::close_to_others(&path);
        // [`owner`] holds the lock for a moment; a real owner holds it for good.
        for _ in 0..5 {
            match file.try_lock() {
                Ok(()) => {
                    write_pid(&mut file).map_err(Cause::Unwritable)?;
                    return Ok(Self { _file: file });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::Error(error)) => return Err(Cause::Unwritable(error)),
            }
        }
        Err(Cause::Owned { pid: read_pid(&mut file) })
    }
}

/// Refuses when a live agent owns the ledger; for programs that read the file themselves.
pub fn check_unowned(ledger: &Path) -> Result<(), Error> {
    let Ok(mut file) = File::open(beside(ledger)) else { return Ok(()) };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            Err(Cause::Owned { pid: read_pid(&mut file) }.at(ledger, "read it beside its owner"))
        }
        _ => Ok(()),
    }
}

fn beside(ledger: &Path) -> PathBuf {
    let mut name = ledger.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
