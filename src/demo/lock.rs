//! Which directory a demo may use: an empty one, or one with the marker file of an earlier demo. One demo
//! uses it at a time: it holds an advisory lock on `demo.lock`, with its pid as the text.
//!
//! Both are checked before anything in the directory is changed, and the lock is kept for the life of the
//! process; the ledger's own lock comes too late for that. The lock file stays behind: removing it would let
//! two demos lock two files of one name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::DemoError;

/// The file that marks a directory as a demo's own, which a demo may overwrite and empty.
pub(super) const MARKER: &str = ".gpumeter-demo";

const LOCK: &str = "demo.lock";

const MARKER_TEXT: &str =
    "gpumeter demo or replay uses this directory: it overwrites and removes files in it.\n";

/// Marks an empty directory as a demo's own; refuses one that has other files and no marker.
pub(super) fn claim(directory: &Path) -> Result<(), DemoError> {
    let marker = directory.join(MARKER);
    match fs::symlink_metadata(&marker) {
        Ok(file) if file.is_file() => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(DemoError::File { path: marker, source: error });
        }
        _ => {}
    }
    let wrap = |source| DemoError::File { path: directory.into(), source };
    if fs::read_dir(directory).map_err(wrap)?.next().is_some() {
        return Err(DemoError::Foreign { directory: directory.into() });
    }
    super::write(&marker, MARKER_TEXT.as_bytes())
}

/// Held as long as this value lives.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory, or returns which process has locked it.
    pub(super) fn take(directory: &Path) -> Result<Self, DemoError> {
        let path = directory.join(LOCK);
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

/// The process that owns the directory, if a demo runs there.
pub(super) fn owner(directory: &Path) -> Option<String> {
    let mut file = File::open(directory.join(LOCK)).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| pid(&mut file))
}

fn owned(directory: &Path, file: &mut File) -> DemoError {
    DemoError::Owned { directory: PathBuf::from(directory), pid: pid(file) }
}

/// What stands in the lock file; without its number the owner is still an owner.
fn pid(file: &mut File) -> String {
    let mut pid = String::new();
    let _ = file.read_to_string(&mut pid);
    if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() }
}
