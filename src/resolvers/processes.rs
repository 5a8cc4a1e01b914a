//! The thread that finds out who processes are and what the PCI bus shows; the only one that may wait for
//! `/proc`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Resolvers;
use crate::clock::system_now;
use crate::holders::{Identities, ProcessDirectory};
use crate::host::{Host, Pci, agent_usage};
use crate::model::{Nanoseconds, UnattributedReason};
use crate::thread::{self, Thread};

/// Pids that samplers saw, and the identities known of them.
#[derive(Default)]
pub(crate) struct SeenProcesses {
    /// Whether a pid is the same process to the driver and here.
    counts_alike: bool,
    seen: Mutex<SeenPids>,
    news: Condvar,
    identities: Mutex<(Arc<Identities>, Option<Nanoseconds>)>,
    pci: Mutex<Option<Arc<Pci>>>,
}

#[derive(Default)]
struct SeenPids {
    pids: BTreeSet<u32>,
    any: bool,
}

impl SeenProcesses {
    /// Nobody yet, of the processes of that host.
    pub(crate) fn of(host: &Host) -> Self {
        Self { counts_alike: host.is_in_first_pid_namespace(), ..Self::default() }
    }

    /// Adds processes that a sampler saw, on lists and in samples of use. The driver translates the pids of its lists into
    /// the namespace of who asks, not always those of its samples: where they may be another namespace's they are
    /// passed over, or somebody else would be billed.
    pub(crate) fn see(&self, listed: impl Iterator<Item = u32>, sampled: impl Iterator<Item = u32>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.pids.extend(listed);
        if self.counts_alike {
            seen.pids.extend(sampled);
        }
        if !std::mem::replace(&mut seen.any, true) {
            self.news.notify_one();
        }
    }

    /// Who is known, and when the map was made.
    pub(crate) fn get(&self) -> (Arc<Identities>, Option<Nanoseconds>) {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The GPUs on the PCI bus, where it can be seen.
    pub(crate) fn pci(&self) -> Option<Arc<Pci>> {
        self.pci.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look_at_bus(&self, host: &Host) {
        let pci = host.pci().map(Arc::new);
        *self.pci.lock().unwrap_or_else(PoisonError::into_inner) = pci;
    }

    /// Waits until samplers see processes; false if they saw none.
    fn wait(&self) -> bool {
        const LOOK: Duration = Duration::from_secs(1);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(seen, LOOK, |seen| !seen.any);
        waited.unwrap_or_else(PoisonError::into_inner).0.any
    }

    fn take(&self) -> BTreeSet<u32> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.any = false;
        std::mem::take(&mut seen.pids)
    }

    fn publish(&self, identities: Arc<Identities>, at: Nanoseconds) {
        *self.identities.lock().unwrap_or_else(PoisonError::into_inner) = (identities, Some(at));
    }
}

/// How often the PCI bus is looked at.
const BUS: Nanoseconds = Nanoseconds::from_seconds(5);

/// How long to wait after the first sampler reports: all samplers read at the same moment, and one round serves all.
const GATHER: Duration = Duration::from_millis(5);

/// The most processes that are held by a descriptor.
const MOST_HELD: u64 = 8_192;

/// Descriptors whose numbers `select` takes; those of processes lie above them.
const FOR_OTHERS: u64 = 1_024;

/// Where there are not so many above those, processes share them, and so much is left to everything else first.
const FEW_HELD: u64 = 256;
const NOT_FOR_PROCESSES: u64 = 512;

/// How many processes may be held where so many files may be open: those above it are read every round.
fn held_within(files: u64) -> usize {
    let few = (files.saturating_sub(NOT_FOR_PROCESSES) / 2).min(FEW_HELD);
    let held = files.saturating_sub(FOR_OTHERS).min(MOST_HELD).max(few);
    usize::try_from(held).unwrap_or(0)
}

/// Starts the thread. `agent` is this process, where the host is the one that it runs on.
pub(crate) fn start(agent: Option<u32>, shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    let shared = Arc::clone(shared);
    Thread::start("host", move || {
        let host = shared.host.clone();
        let mut directory =
            ProcessDirectory::new(host, agent, held_within(agent_usage::most_files().unwrap_or(u64::MAX)));
        let mut bus = Nanoseconds(0);
        while !shared.stop.is_called() {
            let now = system_now().boottime;
            if now >= bus {
                bus = now + BUS;
                shared.processes.look_at_bus(&shared.host);
            }
            if shared.processes.wait() && !shared.stop.wait(GATHER) {
                let now = shared.clock.now();
                let identities = directory.refresh(&shared.processes.take(), &shared.workloads(), now);
                shared.processes.publish(identities, now.boottime);
                if directory.has_pending(UnattributedReason::Pod, now) {
                    shared.pods.want();
                }
                if directory.has_pending(UnattributedReason::Container, now) {
                    shared.containers.want();
                }
            }
        }
    })?;
    Ok(())
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
            published.take().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(seen(), [7], "nobody says so");
        let names = root.path().join("proc/self/ns");
        std::fs::create_dir_all(&names).unwrap();
        std::os::unix::fs::symlink("pid:[4026532008]", names.join("pid")).unwrap();
        assert_eq!(seen(), [7], "in a container");
        std::fs::remove_file(names.join("pid")).unwrap();
        std::os::unix::fs::symlink(crate::host::FIRST_PID_NAMESPACE, names.join("pid")).unwrap();
        assert_eq!(seen(), [7, 8]);
    }

    #[test]
    fn where_descriptors_are_few_none_is_spent_on_processes() {
        let files = [64, 512, 700, 1_024, 1_200, 2_000, u64::MAX];
        assert_eq!(files.map(held_within), [0, 0, 94, 256, 256, 976, 8_192]);
    }
}
