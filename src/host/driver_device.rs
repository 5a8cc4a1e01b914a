//! Whether the driver's device file is closed to the agent by rules that are older than the driver.
//!
//! systemd matches `DeviceAllow=char-nvidia*` with `/proc/devices` when a unit starts. A driver that is loaded
//! afterwards has device numbers that those rules do not know, and opening its files fails with EPERM until the unit is
//! started again. In: the root of the host. Out: what `/proc/devices` says of the driver, and whether its file is
//! refused.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::bounded;

/// The file that every client of the driver opens first.
const FILE: &str = "dev/nvidiactl";

/// The driver's lines in `/proc/devices`, each a device number and a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverDevices(Vec<String>);

/// The driver's device numbers now.
pub(super) fn registered(root: &Path) -> DriverDevices {
    let text = bounded::read(&root.join("proc/devices"), bounded::PROC).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let characters = text.lines().take_while(|line| !line.starts_with("Block devices"));
    let of_driver =
        |line: &&str| line.split_whitespace().nth(1).is_some_and(|name| name.starts_with("nvidia"));
    DriverDevices(characters.filter(of_driver).map(|line| line.trim().to_owned()).collect())
}

/// Whether the driver's file is there and opening it fails with EPERM. The permissions of a file fail with EACCES
/// instead, which no restart changes.
pub(super) fn is_refused(root: &Path) -> bool {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(root.join(FILE));
    file.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::PERM))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn with_devices(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/devices"), text).unwrap();
        root
    }

    #[test]
    fn only_the_drivers_character_devices_are_looked_at() {
        let unloaded = "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n259 nvidia-like\n";
        let loaded = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n259 blkext\n";
        let [unloaded, loaded] = [unloaded, loaded].map(|text| registered(with_devices(text).path()));
        assert_eq!(unloaded, DriverDevices::default());
        assert_eq!(loaded, DriverDevices(vec!["195 nvidia".into(), "195 nvidiactl".into()]));
        assert_eq!(registered(Path::new("/nowhere")), unloaded);
    }

    #[test]
    fn a_file_that_is_missing_open_or_closed_by_its_mode_is_not_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_refused(root.path()));
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.path().join(FILE)).unwrap();
        assert!(!is_refused(root.path()));
        std::fs::remove_file(root.path().join(FILE)).unwrap();
        std::os::unix::fs::symlink(root.path().join("loop"), root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("loop", root.path().join(FILE)).unwrap();
        assert!(!is_refused(root.path()), "another error than EPERM");
    }
}
