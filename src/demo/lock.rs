//! Marks and locks the directory of a demo: it must be empty, or have the marker file of an earlier demo.
//!
//! Both are checked before anything in the directory is changed; the lock of the ledger is taken too late for that. The
//! lock is an advisory one on `demo.lock`, which contains the pid. The file is never removed: otherwise two demos could lock
//! two files of the same name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use super::DemoError;

/// The file that marks a directory which a demo may overwrite and empty.
pub(super) const MARKER: &str = ".gpumeter-demo";

const LOCK: &str = "demo.lock";

const MARKER_TEXT: &str =
    "gpumeter demo or replay uses this directory: it overwrites and removes files in it.\n";

/// Marks an empty directory; refuses one that has other files and no marker.
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

/// A lock that lasts as long as this value.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory; fails with the pid of the process that has locked it.
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
            Err(TryLockError::WouldBlock) => {
                return Err(DemoError::Owned { directory: directory.into(), pid: read_pid(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(wrap(source)),
        }
        file.set_len(0).map_err(wrap)?;
        writeln!(file, "{}", std::process::id()).map_err(wrap)?;
        Ok(Self { _file: file })
    }
}

/// The pid of the demo that uses the directory, if one runs.
pub(super) fn owner(directory: &Path) -> Option<String> {
    let mut file = File::open(directory.join(LOCK)).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| read_pid(&mut file))
}

/// The pid in the lock file, or "unknown".
fn read_pid(file: &mut File) -> String {
    let mut pid = String::new();
    let _ = file.read_to_string(&mut pid);
    if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() }
}
