//! One process, read from `/proc/PID`.
//!
//! The directory is kept open while it is read: once its process has ended, no file in it can be opened, so a result
//! never mixes two processes with one pid. What a cgroup path means is decided in `holders`.

use std::io;

use super::Host;
use super::untrusted::{self, PROC, printable, whole_lines};
use super::users::UserNameError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid, which another process may have later.
    pub pid: u32,
    /// Clock ticks between boot and its start; with the pid it identifies one process of this boot.
    pub start_time: u64,
    /// The kernel's name for it: at most 15 bytes, which the process may choose, made safe to print.
    pub name: String,
    /// The real uid, which identifies who started it.
    pub uid: u32,
    /// The user who owns its user namespace, where `/proc/PID/uid_map` shows that user alone beside ranges of
    /// subordinate uids, as in rootless containers: newuidmap(1) maps no uid of others.
    pub namespace_owner: Option<u32>,
    /// Its paths in the cgroup trees, one per hierarchy.
    pub cgroups: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such process, or it is hidden from the agent.
    #[error("process {pid} has ended, or is hidden from the agent, which needs the host's pid namespace")]
    Ended { pid: u32 },
    #[error("/proc/{pid}/{file}: {cause}; the agent needs to read it as root")]
    Unreadable { pid: u32, file: &'static str, cause: io::Error },
    /// It was read, but the name of its user is not known yet.
    #[error("process {pid}: {cause}")]
    Unnamed { pid: u32, cause: UserNameError },
    #[error("/proc/{pid}/{file} is not what proc(5) describes; is proc mounted there?")]
    Malformed { pid: u32, file: &'static str },
}

impl Host {
    /// Reads a process; all parts of the result belong to the same process.
    pub fn process(&self, pid: u32) -> Result<ProcessInfo, ProcessError> {
        let directory = untrusted::open_directory(&self.root.join(format!("proc/{pid}")));
        let directory = directory.map_err(|cause| read_error(pid, "", cause))?;
        let read = |file| untrusted::read_in(&directory, file).map_err(|cause| read_error(pid, file, cause));
        let stat = parse_stat(&read("stat")?).ok_or(ProcessError::Malformed { pid, file: "stat" })?;
        let uid = parse_uid(&read("status")?).ok_or(ProcessError::Malformed { pid, file: "status" })?;
        // A kernel without user namespaces has no such file; of a process that has ended the next one cannot be read.
        let namespace_owner = read("uid_map").ok().and_then(|map| parse_namespace_owner(&map, uid));
        let cgroups = parse_cgroups(&read("cgroup")?);
        Ok(ProcessInfo { pid, start_time: stat.start_time, name: stat.name, uid, namespace_owner, cgroups })
    }

    /// The cgroup paths of this process as the host sees them; none where they cannot be read.
    pub fn own_cgroups(&self) -> Vec<String> {
        let bytes = untrusted::read(&self.root.join("proc/self/cgroup"), PROC);
        bytes.map(|bytes| parse_cgroups(&bytes)).unwrap_or_default()
    }

    /// Reads when a process started, in clock ticks since boot, to see whether its pid now belongs to another process.
    /// It is called for every process every second, so it reads one file only.
    pub fn start_time(&self, pid: u32) -> Result<u64, ProcessError> {
        let (file, path) = ("stat", self.root.join(format!("proc/{pid}/stat")));
        let bytes = untrusted::read(&path, PROC).map_err(|cause| read_error(pid, file, cause))?;
        Ok(parse_stat(&bytes).ok_or(ProcessError::Malformed { pid, file })?.start_time)
    }
}

/// ENOENT and ESRCH mean that the process ended before the file was opened or while it was read.
fn read_error(pid: u32, file: &'static str, cause: io::Error) -> ProcessError {
    match cause.kind() {
        io::ErrorKind::NotFound => ProcessError::Ended { pid },
        _ if cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            ProcessError::Ended { pid }
        }
        _ => ProcessError::Unreadable { pid, file, cause },
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    /// Clock ticks between boot and the start of the process.
    start_time: u64,
}

/// Parses the line of `/proc/PID/stat`. The name stands in parentheses and may itself hold any byte but NUL, `) R 1 (`
/// included: only the last parenthesis ends it, since nothing but numbers follows.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|byte| *byte == b'(')?;
    let close = bytes.iter().rposition(|byte| *byte == b')')?;
    let name = bytes.get(open + 1..close)?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    // proc(5) numbers the fields from 1; the state, behind the name, is field 3.
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
    let start_time = field(22)?.parse().ok()?;
    // A line that was cut within the digits of field 22 would identify another process.
    if field(23).is_none() && !rest.ends_with(|last: char| last.is_ascii_whitespace()) {
        return None;
    }
    let name = printable(&String::from_utf8_lossy(name));
    Some(Stat { name, start_time })
}

/// Parses the real uid from `/proc/PID/status`. The effective uid would move the use of a set-uid program to the program's
/// owner, and the owner of the directory in `/proc` is root for processes that may not be dumped. The last line with
/// the key counts: the name, in the first line, cannot forge a line behind the true one.
fn parse_uid(bytes: &[u8]) -> Option<u32> {
    // Only complete lines, since a line cut within its digits would name another user.
    let end = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let mut lines = bytes[..end].rsplit(|byte| *byte == b'\n');
    let value = std::str::from_utf8(lines.find_map(|line| line.strip_prefix(b"Uid:"))?).ok()?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// Parses the lines `inside outside count` of `/proc/PID/uid_map`: the only uid that is mapped by itself, where another
/// line maps the uid of the process.
fn parse_namespace_owner(bytes: &[u8], uid: u32) -> Option<u32> {
    let ranges: Vec<(u32, u32)> = whole_lines(bytes, PROC)
        .filter_map(|line| {
            let mut numbers = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(1);
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        })
        .collect();
    let is_subordinate = ranges
        .iter()
        .any(|(first, count)| *count > 1 && uid.checked_sub(*first).is_some_and(|at| at < *count));
    let mut alone = ranges.iter().filter(|(_, count)| *count == 1).map(|(uid, _)| *uid);
    let owner = alone.next().filter(|_| is_subordinate)?;
    alone.next().is_none().then_some(owner)
}

/// Parses the paths of `/proc/PID/cgroup`: one line `0::PATH` on v2, a line `N:controllers:PATH` per hierarchy on v1,
/// both on a hybrid system, where only one controller may carry the path that names a workload. The kernel creates no
/// cgroup with a newline in its name.
fn parse_cgroups(bytes: &[u8]) -> Vec<String> {
    whole_lines(bytes, PROC).filter_map(parse_cgroup).collect()
}

fn parse_cgroup(line: &[u8]) -> Option<String> {
    let mut parts = line.splitn(3, |byte| *byte == b':');
    let number = parts.next()?;
    let _controllers = parts.next()?;
    let path = parts.next()?;
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) || path.first() != Some(&b'/') {
        return None;
    }
    let path = String::from_utf8_lossy(path);
    // The kernel marks the removed cgroup of a zombie.
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(name: &[u8], start_time: u64) -> Vec<u8> {
        let mut bytes = b"4242 (".to_vec();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(b") S 1 4242 4242 0 -1 4194304 98 0 0 0 70 30 0 0 20 0 1 0 ");
        bytes.extend_from_slice(format!("{start_time} 3133440 407 18446744073709551615\n").as_bytes());
        bytes
    }

    #[test]
    fn a_name_with_parentheses_and_newlines_does_not_shift_the_fields() {
        for name in ["a", "", "(sd-pam)", "x) R 1 (y", "two words", ")))"] {
            let stat = parse_stat(&line(name.as_bytes(), 164_661));
            assert_eq!(stat, Some(Stat { name: name.into(), start_time: 164_661 }));
        }
        let stat = parse_stat(&line(b"x\n1 (y) R 1", 164_661));
        assert_eq!(stat.map(|stat| stat.start_time), Some(164_661));
    }

    #[test]
    fn control_characters_in_a_name_are_replaced() {
        for (name, printed) in [
            ("\x1b[31mred", "\u{fffd}[31mred"),
            ("\r\n# HELP x", "\u{fffd}\u{fffd}# HELP x"),
            ("\t\x7f", "\u{fffd}\u{fffd}"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("\u{202e}drow", "\u{fffd}drow"),
        ] {
            let stat = parse_stat(&line(name.as_bytes(), 7));
            assert_eq!(stat.map(|stat| stat.name), Some(printed.into()), "{name:?}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_still_a_name() {
        let stat = parse_stat(&line(b"\xff\xfe", 7));
        assert_eq!(stat.map(|stat| stat.name), Some("\u{fffd}\u{fffd}".into()));
    }

    #[test]
    fn a_line_cut_anywhere_up_to_its_start_time_is_refused() {
        let whole = line(b"train", 164_661);
        let needed = whole.windows(6).position(|window| window == b"164661").map_or(0, |at| at + 6);
        for length in 0..=needed {
            assert_eq!(parse_stat(&whole[..length]), None, "{length}");
        }
        assert!(parse_stat(&whole[..=needed]).is_some());
    }

    #[test]
    fn the_uid_is_the_real_one_of_the_last_whole_line() {
        for (text, uid) in [
            ("Name:\tsudo\nUid:\t1000\t0\t0\t0\nGid:\t1000\t0\t0\t0\n", Some(1000)),
            ("Name:\tx\nUid:\t0\t0\t0\t0\nUid:\t1000\t1000\t1000\t1000\n", Some(1000)),
            ("Name:\tUid: 0\nUid:\t1000\t1000\t1000\t1000\n", Some(1000)),
            ("", None),
            ("\n", None),
            ("Uid:", None),
            ("Uid:\n", None),
            ("Uid:\t10", None),
            ("Uid:\tx\n", None),
            ("Uid:\t-1\n", None),
            ("Uid:\t4294967296\n", None),
        ] {
            assert_eq!(parse_uid(text.as_bytes()), uid, "{text:?}");
        }
    }

    #[test]
    fn the_owner_of_a_user_namespace_is_the_one_whose_uid_is_mapped_by_itself_beside_subordinate_uids() {
        for (map, uid, owner) in [
            ("         0          0 4294967295\n", 100_005, None),
            ("0 1000 1\n1 100000 65536\n", 100_005, Some(1000)),
            ("0 100000 1000\n1000 1000 1\n1001 101000 64536\n", 100_005, Some(1000)),
            // Whoever makes a namespace of his own maps no other uid than his own.
            ("0 1001 1\n", 1001, None),
            ("0 1000 1\n1 100000 65536\n", 1001, None),
            ("0 100000 65536\n", 100_005, None),
            ("0 1000 1\n1 1001 1\n2 100000 9\n", 100_005, None),
            ("x y z\n\n0 1000\n", 100_005, None),
        ] {
            assert_eq!(parse_namespace_owner(map.as_bytes(), uid), owner, "{map:?} {uid}");
        }
    }

    #[test]
    fn the_paths_of_all_hierarchies_are_read_and_malformed_lines_skipped() {
        let unit = "/system.slice/a.service";
        let colons = "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:01fd";
        for (bytes, paths) in [
            (
                &b"4:memory:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/\n"[..],
                &[unit, unit, "/"][..],
            ),
            (format!("1:name=systemd:{colons}\n").as_bytes(), &[colons]),
            (b"0::/system.slice/a.service (deleted)\n", &[unit]),
            (b"", &[]),
            (b"0:\n:x:/a\nx:y:/b\n0::relative\n0::\n\n", &[]),
            (b"garbage\n0::/a\xff\n", &["/a\u{fffd}"]),
        ] {
            assert_eq!(parse_cgroups(bytes), paths);
        }
        let mut endless = b"1:cpu:/a\n".repeat(10_000);
        endless.truncate(PROC as usize);
        assert_eq!(parse_cgroups(&endless).len(), 7281);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            parse_stat(&bytes);
            parse_uid(&bytes);
            parse_namespace_owner(&bytes, 7);
            parse_cgroups(&bytes);
        }

        #[test]
        fn any_printable_name_comes_back(name in "[\\PC--[\\p{Cf}\\p{Zl}\\p{Zp}]]{0,15}", start_time: u64) {
            let stat = parse_stat(&line(name.as_bytes(), start_time));
            prop_assert_eq!(stat, Some(Stat { name, start_time }));
        }

        #[test]
        fn any_lines_are_parsed_without_a_panic(text in "([0-9]{0,2}:[a-z=,]{0,9}:[/a-z.:() \\x00]{0,40}\n?){0,9}") {
            parse_cgroups(text.as_bytes());
        }
    }
}
