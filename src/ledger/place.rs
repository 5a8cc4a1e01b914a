//! On what a ledger may lie: refuses network filesystems, and tells which ones lose it at a restart.
//!
//! In: a directory. Out: whether what is written there lasts. It knows no SQLite.

use std::path::Path;

use super::error::Cause;

/// What the kind of filesystem means for a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A local disk.
    Local,
    /// Gone with the container or the next boot, or nobody can tell.
    Passing,
    /// Locks or shared memory do not work across it.
    Network(&'static str),
}

/// By `f_type` of statfs(2) (linux/magic.h; parallel filesystems from their own sources). 9p has no shared
/// writable mappings, which the write-ahead log needs.
const fn place(magic: u32) -> Place {
    match magic {
        0x6969 => Place::Network("NFS"),
        0x517B | 0xFE53_4D42 | 0xFF53_4D42 => Place::Network("SMB/CIFS"),
        0x00C3_6400 => Place::Network("Ceph"),
        0x5346_414F | 0x6B41_4653 => Place::Network("AFS"),
        0x0102_1997 => Place::Network("9p"),
        0x0BD0_0BD0 => Place::Network("Lustre"),
        0x4750_4653 => Place::Network("GPFS"),
        0x1983_0326 => Place::Network("BeeGFS"),
        0x7461_636F => Place::Network("OCFS2"),
        0x0116_1970 => Place::Network("GFS2"),
        // tmpfs, ramfs, overlay; FUSE may be anything.
        0x0102_1994 | 0x8584_58F6 | 0x794C_7630 | 0x6573_5546 => Place::Passing,
        _ => Place::Local,
    }
}

/// Whether a ledger in `directory` lasts; a network filesystem is refused.
pub(super) fn durable(directory: &Path) -> Result<bool, Cause> {
    let told = rustix::fs::statfs(directory).map_err(|errno| Cause::Unwritable(errno.into()))?;
    // The field's type differs between architectures; a magic is 32 bits wide on all of them.
    match place(told.f_type as u32) {
        Place::Local => Ok(true),
        Place::Passing => Ok(false),
        Place::Network(name) => Err(Cause::NetworkFilesystem { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_filesystems_are_named_and_memory_does_not_last() {
        assert_eq!(place(0x6969), Place::Network("NFS"));
        assert_eq!(place(0xFF53_4D42), Place::Network("SMB/CIFS"));
        assert_eq!(place(0x0102_1994), Place::Passing);
        assert_eq!(place(0xEF53), Place::Local);
    }
}
