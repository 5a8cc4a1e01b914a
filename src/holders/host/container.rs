//! Whether the agent runs in a container, and whether it sees the host's processes from there.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Host, untrusted};

/// The first pid namespace of a kernel: `PROC_PID_INIT_INO` of include/linux/proc_ns.h.
pub const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The files by which Docker and Podman mark a container.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

impl Host {
    /// Whether the agent runs in a container, where a driver library that was replaced on the host stays the old one
    /// until the container is created again. A pod that shares the host's pids is found by the root of process 1. A
    /// service of systemd with a mount namespace of its own has the host's root.
    pub fn is_container(&self) -> bool {
        has_mark(&self.root)
            || pid_namespace(&self.root).is_ok_and(|namespace| namespace != Path::new(FIRST_PID_NAMESPACE))
            || has_root_of_its_own(&self.root) == Some(true)
    }

    /// Whether its pids are those of the kernel's first pid namespace, which the driver reports; false where the
    /// namespace cannot be read.
    pub fn is_in_first_pid_namespace(&self) -> bool {
        has_first_pids(&self.root)
    }
}

/// Whether the agent sees processes of a system around its container, as with the host's pids: process 1 has another
/// root. Where the kernel does not let the agent look at that root, the pids are the kernel's first and the agent's
/// root is one that container runtimes make.
pub(super) fn sees_outer_processes(root: &Path) -> bool {
    has_root_of_its_own(root).unwrap_or_else(|| has_first_pids(root) && has_container_root(root))
}

/// Whether `/` is an overlay, or, where a runtime left its mark, on no block device. A virtual machine whose disk was
/// made from an image has the mark and a block device.
fn has_container_root(root: &Path) -> bool {
    let mounts = untrusted::read_text(&root.join("proc/self/mountinfo"));
    let Some(mount) = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/")) else { return false };
    let is_overlay = mount.split(" - ").nth(1).is_some_and(|rest| rest.starts_with("overlay "));
    let on_device = mount.split(' ').nth(2).is_some_and(|device| !device.starts_with("0:"));
    is_overlay || (!on_device && has_mark(root))
}

fn has_mark(root: &Path) -> bool {
    MARKS.iter().any(|mark| root.join(mark).exists())
}

fn has_first_pids(root: &Path) -> bool {
    pid_namespace(root).is_ok_and(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE))
}

fn pid_namespace(root: &Path) -> io::Result<PathBuf> {
    fs::read_link(root.join("proc/self/ns/pid"))
}

/// Whether the agent's `/` is another directory than that of process 1; none where one of them cannot be read.
fn has_root_of_its_own(root: &Path) -> Option<bool> {
    let [one, own] = ["proc/1/root/.", "proc/self/root/."].map(|path| fs::metadata(root.join(path)).ok());
    let (one, own) = (one?, own?);
    Some((one.dev(), one.ino()) != (own.dev(), own.ino()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_runtimes_mark_tells() {
        let root = tempfile::tempdir().unwrap();
        assert!(!Host::at(root.path()).is_container());
        fs::create_dir_all(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/.containerenv"), "").unwrap();
        assert!(Host::at(root.path()).is_container());
    }

    fn tree(namespace: &str, device: &str, kind: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let names = root.path().join("proc/self/ns");
        fs::create_dir_all(&names).unwrap();
        std::os::unix::fs::symlink(namespace, names.join("pid")).unwrap();
        let mount = format!(
            "27 1 {device} / / rw,relatime shared:1 - {kind} x rw\n28 27 0:5 / /dev rw - tmpfs x rw\n"
        );
        fs::write(root.path().join("proc/self/mountinfo"), mount).unwrap();
        root
    }

    #[test]
    fn where_process_1_cannot_be_looked_at_the_root_tells_whether_processes_are_from_outside() {
        const OWN: &str = "pid:[4026532008]";
        for (namespace, device, kind, marked, outer) in [
            (FIRST_PID_NAMESPACE, "0:50", "overlay", false, true),
            (FIRST_PID_NAMESPACE, "0:50", "btrfs", true, true),
            (FIRST_PID_NAMESPACE, "0:50", "btrfs", false, false),
            // A virtual machine that was made of an image.
            (FIRST_PID_NAMESPACE, "254:0", "ext4", true, false),
            (OWN, "0:50", "overlay", true, false),
        ] {
            let root = tree(namespace, device, kind);
            if marked {
                fs::write(root.path().join(".dockerenv"), "").unwrap();
            }
            assert_eq!(sees_outer_processes(root.path()), outer, "{namespace} {device} {kind} {marked}");
        }
    }

    #[test]
    fn process_1_with_another_root_is_of_a_system_around() {
        let root = tree("pid:[4026532008]", "254:0", "ext4");
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("proc/self/root")).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("proc/1/root")).unwrap();
        assert!(!sees_outer_processes(root.path()), "a container that sees only itself, or a host");
        fs::remove_file(root.path().join("proc/1/root")).unwrap();
        fs::create_dir(root.path().join("proc/1/root")).unwrap();
        assert!(sees_outer_processes(root.path()));
    }

    #[test]
    fn another_root_than_that_of_process_1_tells() {
        let root = tempfile::tempdir().unwrap();
        for name in ["1", "self"] {
            fs::create_dir_all(root.path().join("proc").join(name).join("root")).unwrap();
        }
        assert!(Host::at(root.path()).is_container());
    }
}
