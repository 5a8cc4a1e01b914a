//! Device files: `nvidiactl` and `nvidia<minor>` are held open from init to shutdown, as by a client of the real
//! driver. They are created empty; a read-only directory has none.

use std::fs::{File, OpenOptions};
use std::path::Path;

/// Device files that are open while this value lives.
pub(crate) struct Devices(#[allow(dead_code, reason = "held, not read")] Vec<File>);

impl Devices {
    pub(crate) fn open(directory: &Path, minors: impl Iterator<Item = u32>) -> Self {
        let names =
            std::iter::once("nvidiactl".to_owned()).chain(minors.map(|minor| format!("nvidia{minor}")));
        let open = |name: String| {
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(directory.join(name))
                .ok()
        };
        Self(names.filter_map(open).collect())
    }
}
