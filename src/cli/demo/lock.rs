//! Marks and locks the directory of a demo: it must be empty, or have the marker file of an earlier demo.
//!
//! Both are checked before anything in the directory is changed; the lock of the ledger is taken too late for that. The
//! lock is an advisory one on `demo.lock`, which contains the pid. The file is never removed: otherwise two demos could lock
//! two files of the same name.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::{DemoError, OTHER_DIRECTORY, file_error};
use crate::runtime::file::{self, LOOK, Lock, NotLocked};

/// The file that marks a directory which a demo may overwrite and empty.
const MARKER: &str = ".gpumeter-demo";

const LOCK: &str = "demo.lock";

const MARKER_TEXT: &str =
    "gpumeter demo or replay uses this directory: it overwrites and removes files in it.\n";

/// Marks an empty directory; refuses one that has other files and no marker.
pub(super) fn claim(directory: &Path) -> Result<(), DemoError> {
    let marker = directory.join(MARKER);
    match fs::symlink_metadata(&marker) {
        Ok(file) if file.is_file() => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(file_error(&marker)(error));
        }
        _ => {}
    }
    if fs::read_dir(directory).map_err(file_error(directory))?.next().is_some() {
        return Err(DemoError::Other(format!(
            "{}: not empty, and not a directory of a demo (it has no file {MARKER}); choose an empty or new directory \
             with --state-dir",
            directory.display()
        )));
    }
    super::write(&marker, MARKER_TEXT.as_bytes())
}

/// Locks the directory; fails with the pid of the process that has locked it.
pub(super) fn lock(directory: &Path) -> Result<Lock, DemoError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut lock = Lock::take(file.map_err(file_error(&path))?, LOOK).map_err(|error| match error {
        NotLocked::Held { pid } => DemoError::Other(format!(
            "{}: another demo uses it, process {}; stop that one, or {OTHER_DIRECTORY}",
            directory.display(),
            pid_text(pid)
        )),
        NotLocked::Unavailable(error) => file_error(&path)(error),
    })?;
    let file = lock.file();
    file.set_len(0).map_err(file_error(&path))?;
    writeln!(file, "{}", std::process::id()).map_err(file_error(&path))?;
    Ok(lock)
}

pub(super) fn owner(directory: &Path) -> Option<String> {
    let mut file = file::open(&directory.join(LOCK)).ok()?;
    file::is_locked(&file).ok()?.then(|| pid_text(file::owner(&mut file)))
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}
