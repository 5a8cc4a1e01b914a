//! Whether the agent runs in a container, where a driver library that was replaced on the host stays the old
//! one until the container is made anew.
//!
//! In: the files by which runtimes mark a container, and the kernel's own names of namespaces. Out: yes or no.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The first pid namespace of a kernel: `PROC_PID_INIT_INO` of include/linux/proc_ns.h.
pub const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The files of Docker and Podman.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// Looks at marks, then at the pid namespace, then at whether process 1 lives under another `/`, as it does
/// beside a pod that shares the host's pids. A service of systemd with a mount namespace of its own has the
/// host's `/`.
pub(super) fn is_one(root: &Path) -> bool {
    MARKS.iter().any(|mark| root.join(mark).exists())
        || namespace(root).is_ok_and(|namespace| namespace != Path::new(FIRST_PID_NAMESPACE))
        || differs(&root.join("proc/1/root/."), &root.join("proc/self/root/."))
}

/// Whether the agent runs in a container and sees processes of the system around it, as with the host's pids. In a pid
/// namespace of its own, whose first process has the agent's root, it sees nobody from outside.
pub(super) fn sees_outer_processes(root: &Path) -> bool {
    let is_shared =
        has_first_pids(root) || differs(&root.join("proc/1/root/."), &root.join("proc/self/root/."));
    is_one(root) && is_shared
}

/// Whether pids under that root are those of the kernel's first namespace; false where nobody says so.
pub(super) fn has_first_pids(root: &Path) -> bool {
    namespace(root).is_ok_and(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE))
}

fn namespace(root: &Path) -> io::Result<PathBuf> {
    fs::read_link(root.join("proc/self/ns/pid"))
}

/// Two directories that are not the same; what cannot be read does not differ.
fn differs(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) != (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_runtimes_mark_tells() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_one(root.path()));
        fs::create_dir_all(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/.containerenv"), "").unwrap();
        assert!(is_one(root.path()));
    }

    #[test]
    fn a_container_with_a_pid_namespace_of_its_own_sees_nobody_from_outside() {
        let root = tempfile::tempdir().unwrap();
        assert!(!sees_outer_processes(root.path()), "no container");
        fs::write(root.path().join(".dockerenv"), "").unwrap();
        let names = root.path().join("proc/self/ns");
        fs::create_dir_all(&names).unwrap();
        std::os::unix::fs::symlink("pid:[4026532008]", names.join("pid")).unwrap();
        assert!(!sees_outer_processes(root.path()));
        fs::remove_file(names.join("pid")).unwrap();
        std::os::unix::fs::symlink(FIRST_PID_NAMESPACE, names.join("pid")).unwrap();
        assert!(sees_outer_processes(root.path()));
    }

    #[test]
    fn another_root_than_that_of_process_1_tells() {
        let root = tempfile::tempdir().unwrap();
        for name in ["1", "self"] {
            fs::create_dir_all(root.path().join("proc").join(name).join("root")).unwrap();
        }
        assert!(is_one(root.path()));
    }
}
