//! One demo per directory: an advisory lock on `demo.lock`, with the owner's pid as its text.
//!
//! Taken before anything in the directory is changed, and kept for the life of the process; the ledger's
//! own lock comes too late for that. The file stays behind: removing it would let two demos lock two files
//! of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::DemoError;

/// Held as long as this value lives.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Becomes the owner of the directory, or tells who is.
    pub(super) fn take(directory: &Path) -> Result<Self, DemoError> {
        let path = directory.join("demo.lock");
        let wrap = |source| DemoError::File { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(wrap)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(owned(directory, &mut file)),
            Err(TryLockError::Error(source)) => return Err(wrap(source)),
        }
        file.set_len(0).map_err(wrap)?;
        writeln!(file, "{}", std::process::id()).map_err(wrap)?;
        Ok(Self { _file: file })
    }
}

fn owned(directory: &Path, file: &mut File) -> DemoError {
    let mut pid = String::new();
    // Without its number the owner is still an owner.
    let _ = file.read_to_string(&mut pid);
    let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
    DemoError::Owned { directory: PathBuf::from(directory), pid }
}
