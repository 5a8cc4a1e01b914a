//! Advisory locks (flock(2)) by which programs keep out of each other's way. A lock file contains the pid of its owner.
//!
//! Lock files are never removed: then two owners could lock two files of one name.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::time::Duration;

/// Longer than [`is_locked`] keeps a file locked.
pub const LOOK: Duration = Duration::from_millis(100);

const RETRY: Duration = Duration::from_millis(10);

/// A locked file.
#[derive(Debug)]
pub struct Lock(File);

#[derive(Debug)]
pub enum NotLocked {
    /// Another process has the file locked; its pid as it wrote it.
    Held { pid: Option<u32> },
    /// It cannot be locked, as on a file system without locks.
    Unavailable(io::Error),
}

impl Lock {
    /// Waits for the lock at most `patience`, which should not be shorter than [`LOOK`]: a look must keep nobody out.
    pub fn take(mut file: File, patience: Duration) -> Result<Self, NotLocked> {
        let mut left = patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if left.is_zero() => {
                    return Err(NotLocked::Held { pid: owner(&mut file) });
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(RETRY);
                    left = left.saturating_sub(RETRY);
                }
                Err(TryLockError::Error(error)) => return Err(NotLocked::Unavailable(error)),
            }
        }
    }

    pub const fn file(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for Lock {
    /// Unlocks before the file is closed: a child that another thread is starting has it open too until it executes.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Whether another process has the file locked; locks it for a moment, shared, so that two such looks do not report each other.
///
/// # Errors
/// The file system has no locks.
pub fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_value_and_not_with_the_last_copy_of_its_descriptor() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let opened = named.reopen().unwrap();
        let copy = opened.try_clone().unwrap();
        let held = Lock::take(opened, LOOK).unwrap();
        assert!(is_locked(&named.reopen().unwrap()).unwrap());
        drop(held);
        assert!(!is_locked(&named.reopen().unwrap()).unwrap());
        drop(copy);
    }
}
