//! Device files, held open from init to shutdown as a client of the real driver holds them.
//!
//! In: the directory and the minor numbers. Out: open `nvidiactl` and `nvidia<minor>`, created empty. A
//! directory that cannot be written has none.

use std::fs::{File, OpenOptions};
use std::path::Path;

/// Open for as long as it lives.
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
