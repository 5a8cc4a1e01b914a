//! Processes that are watched by pidfd, so that the kernel reports their end.
//!
//! One epoll call finds all that have ended; reading `/proc/PID/stat` instead takes about 8 us per process. While a
//! process is in the set, its pid belongs to no other process.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::{Host, untrusted};

const ENDS: usize = 64;

/// Descriptors from this number on cannot be passed to `select`, so they do not take numbers from code that calls it.
const ABOVE_SELECT: i32 = 1_024;

#[derive(Debug, Default)]
pub struct PidfdSet {
    most: usize,
    processes: BTreeMap<u32, OwnedFd>,
    ends: Option<OwnedFd>,
}

impl PidfdSet {
    /// An empty set of at most `most` processes. It stays empty where the kernel is older than 5.3, or where the host's
    /// `/proc` does not show the pids of the agent's own namespace, which pidfd_open(2) takes.
    pub fn new(host: &Host, most: usize) -> Self {
        let may_watch = most > 0 && shows_own_pids(host);
        let ends = may_watch.then(|| epoll::create(epoll::CreateFlags::CLOEXEC).ok()).flatten();
        Self { most, processes: BTreeMap::new(), ends }
    }

    /// Adds the process that has the pid now, if a pidfd can be opened. The caller must identify the process
    /// afterwards: if [`PidfdSet::remove_ended`] then leaves it in the set, it was this process that was identified.
    /// Returns whether the kernel has no process with that pid, so that `/proc` need not be asked.
    pub fn watch(&mut self, pid: u32) -> bool {
        if self.contains(pid) || self.processes.len() >= self.most {
            return false;
        }
        let Some(ends) = &self.ends else { return false };
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        match open_pidfd(ends, process) {
            Ok(process) => {
                self.processes.insert(pid, process);
            }
            Err(Errno::SRCH) => return true,
            // The kernel lacks the call or forbids it to this process, so every later call would fail too.
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => self.most = 0,
            // The pid is a thread's, or too many files are open; other pids may succeed.
            Err(_) => {}
        }
        false
    }

    pub fn contains(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    pub fn remove_ended(&mut self) {
        let Some(ends) = &self.ends else { return };
        let mut ended = Vec::with_capacity(ENDS);
        loop {
            match epoll::wait(ends, spare_capacity(&mut ended), Some(&Timespec::default())) {
                Ok(0) => return,
                Ok(_) => {}
                // Without the result any of them may have ended, so all have to be identified again.
                Err(_) => return self.processes.clear(),
            }
            for end in ended.drain(..) {
                if let Ok(pid) = u32::try_from(end.data.u64()) {
                    self.processes.remove(&pid);
                }
            }
        }
    }

    pub fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    pub fn retain(&mut self, wanted: impl Fn(u32) -> bool) {
        self.processes.retain(|pid, _| wanted(*pid));
    }
}

/// Opens a pidfd whose end `ends` reports once.
fn open_pidfd(ends: &OwnedFd, pid: Pid) -> rustix::io::Result<OwnedFd> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // Low numbers are left to the driver's library, which may call `select`. Where the limit allows no higher number,
    // the descriptor keeps its low one.
    let process = fcntl_dupfd_cloexec(&process, ABOVE_SELECT).unwrap_or(process);
    let data = epoll::EventData::new_u64(pid.as_raw_nonzero().get().unsigned_abs().into());
    epoll::add(ends, &process, data, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)?;
    Ok(process)
}

/// Whether the host's `/proc` shows this process under its own pid and not under that of an outer namespace.
fn shows_own_pids(host: &Host) -> bool {
    let own = getpid();
    let Ok(pidfd) = pidfd_open(own, PidfdFlags::empty()) else { return false };
    let info = untrusted::read_text(&host.root.join(format!("proc/self/fdinfo/{}", pidfd.as_raw_fd())));
    // NSpid has one number per namespace, from that of the `/proc` down to the process's own.
    let numbers = info.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.trim() == own.as_raw_nonzero().get().to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn hold(held: &mut PidfdSet, pid: u32) -> bool {
        held.watch(pid);
        held.contains(pid)
    }

    fn child() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn a_process_is_let_go_of_when_it_has_ended_and_it_alone() {
        let mut held = PidfdSet::new(&Host::at("/"), 2);
        let (mut first, mut second) = (child(), child());
        assert!(hold(&mut held, first.id()) && hold(&mut held, second.id()));
        held.remove_ended();
        assert!(held.contains(first.id()) && held.contains(second.id()));
        first.kill().unwrap();
        // A zombie has ended, though its pid is still nobody else's.
        while held.contains(first.id()) {
            held.remove_ended();
        }
        assert!(held.contains(second.id()));
        first.wait().unwrap();
        second.kill().unwrap();
        second.wait().unwrap();
        held.remove_ended();
        assert!(!held.contains(second.id()));
    }

    #[test]
    fn all_who_ended_are_let_go_of_in_one_round() {
        let mut held = PidfdSet::new(&Host::at("/"), 256);
        let mut children: Vec<_> = (0..ENDS + 3).map(|_| child()).collect();
        assert!(children.iter().all(|child| hold(&mut held, child.id())));
        for child in &mut children[1..] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        held.remove_ended();
        assert!(children[1..].iter().all(|child| !held.contains(child.id())));
        assert!(held.contains(children[0].id()));
        children[0].kill().unwrap();
        children[0].wait().unwrap();
    }

    #[test]
    fn descriptors_of_processes_leave_the_numbers_that_select_takes_to_others() {
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let mut held = PidfdSet::new(&Host::at("/"), 1);
        assert!(hold(&mut held, std::process::id()));
        let number = held.processes.values().next().unwrap().as_raw_fd();
        let allowed = most.is_none_or(|most| most > ABOVE_SELECT.unsigned_abs().into());
        assert_eq!(number >= ABOVE_SELECT, allowed, "{number} of {most:?}");
    }

    #[test]
    fn no_more_are_held_than_may_be_and_a_place_that_is_free_is_given() {
        let mut held = PidfdSet::new(&Host::at("/"), 1);
        let own = std::process::id();
        assert!(hold(&mut held, own) && hold(&mut held, own));
        assert!(!hold(&mut held, 1));
        held.retain(|pid| pid != own);
        assert!(hold(&mut held, 1) && !held.contains(own));
        assert!(!hold(&mut PidfdSet::new(&Host::at("/"), 0), own));
    }

    #[test]
    fn who_is_not_there_is_not_held() {
        let mut held = PidfdSet::new(&Host::at("/"), 8);
        let mut gone = child();
        gone.kill().unwrap();
        gone.wait().unwrap();
        assert!(![0, gone.id(), u32::MAX].into_iter().any(|pid| hold(&mut held, pid)));
        assert!(held.watch(gone.id()) && !held.watch(std::process::id()), "the kernel says that it is gone");
        assert!(hold(&mut held, std::process::id()), "that one is not there says nothing of another");
    }

    #[test]
    fn a_thread_is_not_held_and_says_nothing_of_a_process() {
        let mut held = PidfdSet::new(&Host::at("/"), 8);
        // Which error it is differs: EINVAL of old, ENOENT since Linux 6.15.
        let (told, hears) = std::sync::mpsc::channel::<u32>();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            told.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
            end.recv().unwrap();
        });
        assert!(!hold(&mut held, hears.recv().unwrap()));
        assert!(hold(&mut held, std::process::id()));
        ends.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn nobody_is_held_where_pids_are_not_the_agents_own() {
        let own = std::process::id();
        let root = tempfile::tempdir().unwrap();
        assert!(!hold(&mut PidfdSet::new(&Host::at(root.path()), 8), own));
        // As an outer namespace would show the agent: under two numbers.
        let infos = root.path().join("proc/self/fdinfo");
        std::fs::create_dir_all(&infos).unwrap();
        for number in 0..512 {
            std::fs::write(infos.join(number.to_string()), format!("Pid:\t77\nNSpid:\t77\t{own}\n")).unwrap();
        }
        assert!(!hold(&mut PidfdSet::new(&Host::at(root.path()), 8), own));
    }
}
