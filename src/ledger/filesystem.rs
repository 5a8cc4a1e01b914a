//! Which filesystems may hold a ledger: refuses network filesystems, and reports those that lose it at a restart.
//!
//! In: a directory. Out: whether what is written there lasts. It knows no SQLite.

use std::path::Path;

use super::error::Cause;

/// What the kind of filesystem means for a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilesystemKind {
    /// A local disk.
    Local,
    /// Lost with the container or at the next boot, or unknown.
    Temporary,
    /// Locks or shared memory do not work across it.
    Network(&'static str),
}

/// By `f_type` of statfs(2) (linux/magic.h; parallel filesystems from their own sources). 9p has no shared
/// writable mappings, which the write-ahead log needs.
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

/// Whether a ledger in `directory` lasts; a network filesystem is refused.
pub(super) fn check_durable(directory: &Path) -> Result<bool, Cause> {
    let told = rustix::fs::statfs(directory).map_err(|errno| Cause::Unwritable(errno.into()))?;
    // The field's type differs between architectures; a magic is 32 bits wide on all of them.
    match filesystem_kind(told.f_type as u32) {
        FilesystemKind::Local => Ok(true),
        FilesystemKind::Temporary => Ok(false),
        FilesystemKind::Network(name) => Err(Cause::NetworkFilesystem { name }),
    }
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
