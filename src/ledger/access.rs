//! Who may read the ledger: its owner and its group. It names users and what they are billed; and a user who can open
//! the lock file can hold the lock and keep the agent out.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode of new files.
pub(super) const MODE: u32 = 0o640;

/// Permission bits of other users.
const OTHERS: u32 = 0o007;

/// Creates an empty file unless there is one: SQLite would make it readable by every user, and it gives its write-ahead
/// log and shared memory the mode of the database.
pub(super) fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path).map(drop)
}

/// Takes all rights on the ledger's files from other users, as an earlier agent left them.
pub(super) fn close_ledger_to_others(ledger: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = ledger.as_os_str().to_owned();
        name.push(suffix);
        close_to_others(&PathBuf::from(name));
    }
}

/// Takes all rights on a file from other users. A file that is missing, or of another user, stays as it is: the
/// operator who made it decides.
pub(super) fn close_to_others(path: &Path) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        // Only the owner of a file can; a file system without modes refuses too.
        let _ = fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS));
    }
}
