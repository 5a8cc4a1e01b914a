//! `/proc/PID/cgroup`: where in the cgroup trees a process is.
//!
//! In: the bytes, one line `0::PATH` on v2, one per hierarchy `N:controllers:PATH` on v1, both on a hybrid.
//! Out: the paths of all lines, in their order: on hybrid systems a single controller may carry the path
//! that tells something. It does not know what a path means.

use super::bounded::{PROC, whole_lines};

/// Behind the path of a zombie whose cgroup was removed.
const DELETED: &str = " (deleted)";

/// The paths of all lines that are one. A path holds no newline: the kernel refuses to make such a cgroup.
pub(super) fn parse(bytes: &[u8]) -> Vec<String> {
    whole_lines(bytes, PROC).filter_map(path).collect()
}

fn path(line: &[u8]) -> Option<String> {
    let mut parts = line.splitn(3, |byte| *byte == b':');
    let number = parts.next()?;
    let _controllers = parts.next()?;
    let path = parts.next()?;
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) || path.first() != Some(&b'/') {
        return None;
    }
    let path = String::from_utf8_lossy(path);
    Some(path.strip_suffix(DELETED).unwrap_or(&path).to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_hierarchy_of_a_hybrid_has_its_path() {
        let text = b"4:memory:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(parse(text), ["/system.slice/a.service", "/system.slice/a.service", "/"]);
    }

    #[test]
    fn a_path_may_hold_colons() {
        let old = "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:01fd";
        assert_eq!(parse(format!("1:name=systemd:{old}\n").as_bytes()), [old]);
    }

    #[test]
    fn the_cgroup_of_a_zombie_keeps_its_name() {
        assert_eq!(parse(b"0::/system.slice/a.service (deleted)\n"), ["/system.slice/a.service"]);
    }

    #[test]
    fn what_is_no_line_of_it_is_skipped() {
        let none: [&str; 0] = [];
        assert_eq!(parse(b""), none);
        assert_eq!(parse(b"0:\n:x:/a\nx:y:/b\n0::relative\n0::\n\n"), none);
        assert_eq!(parse(b"garbage\n0::/a\xff\n"), ["/a\u{fffd}"]);
    }

    #[test]
    fn a_list_without_end_is_read_up_to_the_limit() {
        let mut bytes = b"1:cpu:/a\n".repeat(10_000);
        bytes.truncate(64 * 1024);
        assert_eq!(bytes.len() as u64, PROC);
        assert_eq!(parse(&bytes).len(), 7281);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            parse(&bytes);
        }

        #[test]
        fn any_lines_are_parsed_without_a_panic(text in "([0-9]{0,2}:[a-z=,]{0,9}:[/a-z.:() \\x00]{0,40}\n?){0,9}") {
            parse(text.as_bytes());
        }
    }
}
