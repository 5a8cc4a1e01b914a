//! The NVIDIA driver as the kernel shows it, without a driver call.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Host, untrusted};

/// The file that every client of the driver opens first.
const DEVICE_FILE: &str = "dev/nvidiactl";

const MOST_GPUS: usize = 256;

impl Host {
    /// A number that changes whenever the driver's kernel module is loaded again; none without a module.
    pub fn module_epoch(&self) -> Option<u64> {
        // The kernel creates the directory with the module, so its inode number changes.
        fs::metadata(self.root.join("sys/module/nvidia")).ok().map(|directory| directory.ino())
    }

    /// UUIDs of GPUs by minor number, from `/proc/driver/nvidia/gpus/*/information`; empty without such files.
    pub fn gpu_minors(&self) -> BTreeMap<u32, String> {
        let Ok(gpus) = fs::read_dir(self.root.join("proc/driver/nvidia/gpus")) else {
            return BTreeMap::new();
        };
        let files = gpus.take(MOST_GPUS).filter_map(Result::ok).map(|gpu| gpu.path().join("information"));
        files.filter_map(|file| parse_information(&untrusted::read_text(&file))).collect()
    }

    /// The driver's lines in `/proc/devices` now, each a device number and a name. systemd matches `DeviceAllow=char-nvidia*` with them when a unit starts, so a
    /// driver that is loaded afterwards has numbers that the unit's device rules do not allow.
    pub fn driver_devices(&self) -> Vec<String> {
        let text = untrusted::read_text(&self.root.join("proc/devices"));
        let characters = text.lines().take_while(|line| !line.starts_with("Block devices"));
        let of_driver =
            |line: &&str| line.split_whitespace().nth(1).is_some_and(|name| name.starts_with("nvidia"));
        characters.filter(of_driver).map(|line| line.trim().to_owned()).collect()
    }

    /// Whether the driver's device file is there and the device rules of the agent's cgroup, or a missing capability,
    /// deny it to the agent. They fail with EPERM, and the permissions of a file, which no restart changes, with EACCES.
    pub fn denies_driver_device(&self) -> bool {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
            .open(self.root.join(DEVICE_FILE));
        file.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::PERM))
    }
}

fn parse_information(text: &str) -> Option<(u32, String)> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    Some((value("Device Minor")?.parse().ok()?, value("GPU UUID")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn with_devices(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/devices"), text).unwrap();
        root
    }

    #[test]
    fn only_the_drivers_character_devices_are_looked_at() {
        let unloaded = "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n259 nvidia-like\n";
        let loaded = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n259 blkext\n";
        let [unloaded, loaded] =
            [unloaded, loaded].map(|text| Host::at(with_devices(text).path()).driver_devices());
        assert_eq!(unloaded, Vec::<String>::new());
        assert_eq!(loaded, ["195 nvidia", "195 nvidiactl"]);
        assert_eq!(Host::at("/nowhere").driver_devices(), unloaded);
    }

    #[test]
    fn a_file_that_is_missing_open_or_closed_by_its_mode_is_not_denied() {
        let root = tempfile::tempdir().unwrap();
        assert!(!Host::at(root.path()).denies_driver_device());
        fs::create_dir_all(root.path().join("dev")).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.path().join(DEVICE_FILE)).unwrap();
        assert!(!Host::at(root.path()).denies_driver_device());
        fs::remove_file(root.path().join(DEVICE_FILE)).unwrap();
        std::os::unix::fs::symlink(root.path().join("loop"), root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("loop", root.path().join(DEVICE_FILE)).unwrap();
        assert!(!Host::at(root.path()).denies_driver_device(), "another error than EPERM");
    }

    #[test]
    fn the_minor_number_stands_beside_the_uuid() {
        let root = tempfile::tempdir().unwrap();
        assert!(Host::at(root.path()).gpu_minors().is_empty());
        let gpu = root.path().join("proc/driver/nvidia/gpus/0000:3b:00.0");
        fs::create_dir_all(&gpu).unwrap();
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 210\nGPU UUID: \t GPU-1d1c0000-0000-0000-0000-000000000000\n\
                    Bus Location: \t 0000:3b:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        fs::write(gpu.join("information"), text).unwrap();
        let expected = BTreeMap::from([(3, "GPU-1d1c0000-0000-0000-0000-000000000000".to_owned())]);
        assert_eq!(Host::at(root.path()).gpu_minors(), expected);
        fs::write(gpu.join("information"), "Device Minor: none\n").unwrap();
        assert!(Host::at(root.path()).gpu_minors().is_empty());
    }
}
