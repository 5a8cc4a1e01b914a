//! Advisory locks (flock(2)) by which programs keep out of each other's way. A lock file contains the pid of its owner.
//!
//! Lock files are never removed: then two owners could lock two files of one name.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::time::Duration;

const RETRY: Duration = Duration::from_millis(10);

/// Locks a file, and waits for that at most `patience`, since [`is_locked`] holds a lock for a moment; false where another
/// process has it locked. The lock ends with the last descriptor of the opened file.
///
/// # Errors
/// The file system has no locks.
pub fn lock(file: &File, patience: Duration) -> io::Result<bool> {
    let mut left = patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if left.is_zero() => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(RETRY);
                left = left.saturating_sub(RETRY);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether another process has the file locked. The shared lock lasts until the file is closed, so that two such looks at once
/// do not report each other.
///
/// # Errors
/// The file system has no locks.
pub fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The pid in a lock file; its owner may have been unable to write it.
pub fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    // A file of another kind has no pid, and need not be read.
    file.take(256).read_to_string(&mut text).ok()?;
    text.lines().next()?.trim().parse().ok()
}
