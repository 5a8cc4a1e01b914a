//! The thread that identifies processes and reads the PCI bus and the host's memory; the only one that may wait for `/proc`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{POLL_INTERVAL, Resolvers};
use crate::holders::host::{Host, HostMemory, Pci, agent_usage};
use crate::holders::{Identities, ProcessDirectory};
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;
use crate::runtime::thread;
use crate::runtime::trace;

/// How often the PCI bus and the host's memory are read.
const BUS_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(5);

/// How long to wait after the first sampler has reported: all samplers read at the same moment, and one round serves all.
const GATHER_TIME: Duration = Duration::from_millis(5);

const MOST_WATCHED: u64 = 8_192;

/// Descriptors that `select` takes; those of processes lie above them.
const FOR_SELECT: u64 = 1_024;

/// Where fewer than this many descriptors lie above those, processes get half of what lies above [`RESERVED`], up to this
/// number.
const FEW_WATCHED: u64 = 256;
const RESERVED: u64 = 512;

/// How many processes may be watched with this limit of open files; further ones are read in every round.
fn watched_within(open_files: u64) -> usize {
    let few = (open_files.saturating_sub(RESERVED) / 2).min(FEW_WATCHED);
    let watched = open_files.saturating_sub(FOR_SELECT).min(MOST_WATCHED).max(few);
    usize::try_from(watched).unwrap_or(0)
}

#[derive(Default)]
pub(crate) struct SeenProcesses {
    /// Whether the driver's pids are those of the agent's `/proc`.
    shares_pids: bool,
    seen: Mutex<SeenPids>,
    news: Condvar,
    /// With the time since boot of the round.
    identities: Mutex<(Arc<Identities>, Option<Nanoseconds>)>,
    pci: Mutex<Option<Arc<Pci>>>,
    memory: Mutex<Option<HostMemory>>,
}

#[derive(Default)]
struct SeenPids {
    pids: BTreeSet<u32>,
    /// Whether a sampler has reported since the last round.
    is_new: bool,
}

impl SeenProcesses {
    pub(crate) fn of(host: &Host) -> Self {
        Self { shares_pids: host.is_in_first_pid_namespace(), ..Self::default() }
    }

    /// Adds processes that a sampler saw, on lists and in utilization samples. The driver translates the pids of its lists
    /// into the caller's namespace, but not always those of its samples. So these are skipped where the agent is in
    /// another namespace than the first, or another process would be billed.
    pub(crate) fn see(&self, listed: impl Iterator<Item = u32>, sampled: impl Iterator<Item = u32>) {
        let mut seen = self.seen.lock();
        seen.pids.extend(listed);
        if self.shares_pids {
            seen.pids.extend(sampled);
        }
        if !std::mem::replace(&mut seen.is_new, true) {
            self.news.notify_one();
        }
    }

    /// The identities as last published, with the time since boot of their round.
    pub(crate) fn get(&self) -> (Arc<Identities>, Option<Nanoseconds>) {
        self.identities.lock().clone()
    }

    pub(crate) fn pci(&self) -> Option<Arc<Pci>> {
        self.pci.lock().clone()
    }

    pub(crate) fn memory(&self) -> Option<HostMemory> {
        *self.memory.lock()
    }

    /// Waits until a sampler has reported; false if none did.
    fn wait(&self) -> bool {
        let mut seen = self.seen.lock();
        self.news.wait_while_for(&mut seen, |seen| !seen.is_new, POLL_INTERVAL);
        seen.is_new
    }

    fn take_pids(&self) -> BTreeSet<u32> {
        std::mem::take(&mut *self.seen.lock()).pids
    }
}

/// Starts the thread. `agent` is the agent's pid where it runs on that host.
pub(super) fn start(agent: Option<u32>, shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    shared.start(
        |statuses| &statuses.host,
        move |shared| {
            let most_watched = watched_within(agent_usage::open_files_limit().unwrap_or(u64::MAX));
            let mut directory = ProcessDirectory::new(shared.host.clone(), agent, most_watched);
            let mut read_bus_at = Nanoseconds(0);
            while !shared.stop.is_called() {
                let now = system_now().boottime;
                if now >= read_bus_at {
                    read_bus_at = now + BUS_INTERVAL;
                    let pci = shared.host.pci().map(Arc::new);
                    *shared.processes.pci.lock() = pci;
                    *shared.processes.memory.lock() = shared.host.memory();
                }
                if shared.processes.wait() && !shared.stop.wait(GATHER_TIME) {
                    let now = shared.clock.now();
                    let pids = shared.processes.take_pids();
                    let span = trace::begin_round("host");
                    let identities = directory.refresh(&pids, &shared.workloads(), now);
                    drop(span);
                    *shared.processes.identities.lock() = (identities, Some(now.boottime));
                    shared.statuses.request_rounds(&directory.wanted_kinds(now));
                    shared.statuses.host.record_success(now.boottime);
                }
                shared.statuses.host.finish_round();
            }
        },
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn who_is_seen_in_samples_alone_is_looked_for_where_pids_are_the_kernels_own() {
        let root = tempfile::tempdir().unwrap();
        let seen = || {
            let published = SeenProcesses::of(&Host::at(root.path()));
            published.see([7].into_iter(), [7, 8].into_iter());
            published.take_pids().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(seen(), [7], "nobody says so");
        let names = root.path().join("proc/self/ns");
        std::fs::create_dir_all(&names).unwrap();
        std::os::unix::fs::symlink("pid:[4026532008]", names.join("pid")).unwrap();
        assert_eq!(seen(), [7], "in a container");
        std::fs::remove_file(names.join("pid")).unwrap();
        std::os::unix::fs::symlink(crate::holders::host::FIRST_PID_NAMESPACE, names.join("pid")).unwrap();
        assert_eq!(seen(), [7, 8]);
    }

    #[test]
    fn where_descriptors_are_few_none_is_spent_on_processes() {
        let files = [64, 512, 700, 1_024, 1_200, 2_000, u64::MAX];
        assert_eq!(files.map(watched_within), [0, 0, 94, 256, 256, 976, 8_192]);
    }
}
