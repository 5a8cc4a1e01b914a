//! Processes that are held by a descriptor, of whose end the kernel tells by itself.
//!
//! In: pids. Out: which of them have ended since, from one call for all of them, where reading `stat` of each takes some
//! 8 us a piece. As long as a process is held and has not ended its pid is no other's. The kernel takes pids as the
//! agent's own namespace numbers them, so nobody is held where the `/proc` under the root numbers them otherwise,
//! as a fixture's, or another namespace's. It does not know who a process is.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::bounded;

/// Processes that are held.
#[derive(Debug, Default)]
pub struct Held {
    most: usize,
    processes: BTreeMap<u32, OwnedFd>,
}

impl Held {
    /// Holds nobody yet, and never more than so many; none where a pid under the root is not one of the kernel's
    /// answers to this process, or the kernel is older than 5.3.
    pub(super) fn within(root: &Path, most: usize) -> Self {
        let most = if numbers_as_we_do(root) { most } else { 0 };
        Self { most, processes: BTreeMap::new() }
    }

    /// Holds the process that has the pid now, whichever that is: who it is has to be read afterwards. Once a call
    /// of [`Held::ended`] that came after the reading does not name it, the reading was of it. Whether it is held.
    pub fn hold(&mut self, pid: u32) -> bool {
        if self.holds(pid) {
            return true;
        }
        if self.processes.len() >= self.most {
            return false;
        }
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(process) => self.processes.insert(pid, process).is_none(),
            // The kernel does not know the call, or this process may not make it: so it will be said every time.
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => {
                self.most = 0;
                false
            }
            // Of this pid alone, or for now: it is nobody's or a thread's, or too much is open.
            Err(_) => false,
        }
    }

    /// Whether the process is held.
    pub fn holds(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Lets go of those that have ended, and says which these are.
    pub fn ended(&mut self) -> BTreeSet<u32> {
        let mut waits: Vec<_> =
            self.processes.values().map(|process| PollFd::new(process, PollFlags::IN)).collect();
        let ended = match poll(&mut waits, Some(&Timespec::default())) {
            Ok(0) => BTreeSet::new(),
            Ok(_) => {
                let ended = self.processes.keys().zip(&waits).filter(|(_, wait)| !wait.revents().is_empty());
                ended.map(|(pid, _)| *pid).collect()
            }
            // Nothing is known of anybody: all of them have to be read again.
            Err(_) => self.processes.keys().copied().collect(),
        };
        drop(waits);
        for pid in &ended {
            self.processes.remove(pid);
        }
        ended
    }

    /// Lets go of one.
    pub fn release(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Lets go of all but these.
    pub fn keep(&mut self, wanted: impl Fn(u32) -> bool) {
        self.processes.retain(|pid, _| wanted(*pid));
    }
}

/// Whether the `/proc` under the root shows this very process under the pid that it has for itself, and no outer one.
fn numbers_as_we_do(root: &Path) -> bool {
    let own = getpid();
    let Ok(held) = pidfd_open(own, PidfdFlags::empty()) else { return false };
    let path = root.join(format!("proc/self/fdinfo/{}", held.as_raw_fd()));
    let Ok(text) = bounded::read(&path, bounded::PROC) else { return false };
    // One number for each namespace from that of the `/proc` down to the process's own.
    let numbers = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    let numbers = numbers.map(String::from_utf8_lossy);
    numbers.is_some_and(|numbers| {
        numbers.split_ascii_whitespace().eq([own.as_raw_nonzero().get().to_string().as_str()])
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn child() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn the_end_of_a_process_is_told_once_and_of_it_alone() {
        let mut held = Held::within(Path::new("/"), 2);
        let (mut first, mut second) = (child(), child());
        assert!(held.hold(first.id()) && held.hold(second.id()));
        assert_eq!(held.ended(), BTreeSet::new());
        first.kill().unwrap();
        // A zombie has ended, though its pid is still nobody else's.
        while held.ended() != BTreeSet::from([first.id()]) {
            assert!(held.holds(first.id()));
        }
        assert!(!held.holds(first.id()) && held.holds(second.id()));
        first.wait().unwrap();
        second.kill().unwrap();
        second.wait().unwrap();
        assert_eq!(held.ended(), BTreeSet::from([second.id()]));
        assert_eq!(held.ended(), BTreeSet::new());
    }

    #[test]
    fn no_more_are_held_than_may_be_and_a_place_that_is_free_is_given() {
        let mut held = Held::within(Path::new("/"), 1);
        let own = std::process::id();
        assert!(held.hold(own) && held.hold(own));
        assert!(!held.hold(1));
        held.keep(|pid| pid != own);
        assert!(held.hold(1) && !held.holds(own));
        assert!(!Held::within(Path::new("/"), 0).hold(own));
    }

    #[test]
    fn who_is_not_there_is_not_held() {
        let mut held = Held::within(Path::new("/"), 8);
        let mut gone = child();
        gone.kill().unwrap();
        gone.wait().unwrap();
        assert!(![0, gone.id(), u32::MAX].into_iter().any(|pid| held.hold(pid)));
        assert!(held.hold(std::process::id()), "that one is not there says nothing of another");
    }

    #[test]
    fn a_thread_is_not_held_and_says_nothing_of_a_process() {
        let mut held = Held::within(Path::new("/"), 8);
        // Which error it is differs: EINVAL of old, ENOENT since Linux 6.15.
        let (told, hears) = std::sync::mpsc::channel::<u32>();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            told.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
            end.recv().unwrap();
        });
        assert!(!held.hold(hears.recv().unwrap()));
        assert!(held.hold(std::process::id()));
        ends.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn nobody_is_held_where_pids_are_not_the_agents_own() {
        let own = std::process::id();
        let root = tempfile::tempdir().unwrap();
        assert!(!Held::within(root.path(), 8).hold(own));
        // As an outer namespace would show the agent: under two numbers.
        let infos = root.path().join("proc/self/fdinfo");
        std::fs::create_dir_all(&infos).unwrap();
        for number in 0..512 {
            std::fs::write(infos.join(number.to_string()), format!("Pid:\t77\nNSpid:\t77\t{own}\n")).unwrap();
        }
        assert!(!Held::within(root.path(), 8).hold(own));
    }
}
