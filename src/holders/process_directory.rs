//! Identifies the processes on GPUs, round by round.
//!
//! A process is identified once, when it is first seen: a later change of name or cgroup does not change whose time it
//! was. The facts of its workload are those of now, such as labels of a pod; but those of another run of a job are only those
//! of processes that began in it. Since pids are reused, each process is watched by pidfd, or its start time is read in every round. Readings
//! taken after the last round in which a process was confirmed are attributed only once the next round has confirmed it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::identify::{Identity, identify};
use super::identities::{IdentifiedProcess, Identities};
use super::resolved_workloads::ResolvedWorkloads;
use crate::holders::host::{Host, PidfdSet, ProcessError, ProcessInfo, since_boot};
use crate::model::{Holder, HolderId, HolderKind, Nanoseconds, Stamp, UnattributedReason};
use crate::runtime::clock::Backoff;

/// How long a process is tracked after it was last on a GPU; its last samples come late, and its window closes later still.
const KEEP_TIME: Nanoseconds = Nanoseconds::from_seconds(60);

/// How long a process whose pod, job or container is still unknown is left out of the published identities. If a resolver
/// names it within this time, its window is still billed to the right holder. Afterwards it is unattributed until it is
/// named. Windows wait 10 s for names, so this must be shorter.
const PENDING_TIME: Nanoseconds = Nanoseconds::from_seconds(9);

/// A holder none of whose processes was on a GPU for longer than this has left the GPUs. Samplers that are slower than
/// others report in a round of their own.
const ABSENCE_TIME: Nanoseconds = Nanoseconds::from_seconds(2);

/// A process by pid and start time in clock ticks.
type ProcessKey = (u32, u64);

/// How much earlier than its job a process may seem to begin, by clocks of two machines.
const CLOCK_TOLERANCE: u64 = 5;

/// The keys of all processes that had that pid.
fn keys_of(pid: u32) -> RangeInclusive<ProcessKey> {
    (pid, 0)..=(pid, u64::MAX)
}

/// The processes on this host's GPUs.
#[derive(Debug)]
pub struct ProcessDirectory {
    host: Host,
    agent: Option<u32>,
    pidfds: PidfdSet,
    processes: BTreeMap<ProcessKey, TrackedProcess>,
    unidentified: BTreeMap<u32, ProcessError>,
    listed: BTreeSet<u32>,
    /// When the pids that `/proc` does not have are asked for again, while the driver's list stays the same: they may be of
    /// another pid namespace, or have ended while the driver still lists them.
    absent: BTreeMap<u32, Backoff>,
    /// How often a process was looked for in `/proc`.
    reads: u64,
    published: Identities,
    /// Holders with a process on a GPU.
    present: BTreeSet<HolderId>,
    /// How many processes are on GPUs.
    present_processes: usize,
    /// The kinds of the holders whose last process left the GPUs in this round.
    left: BTreeSet<HolderKind>,
    workloads: ResolvedWorkloads,
    /// Grows with each change of the workloads.
    generation: u64,
}

#[derive(Debug)]
struct TrackedProcess {
    identified: IdentifiedProcess,
    /// The generation of the workloads that its facts are from.
    generation: u64,
    /// When it was last on a GPU.
    seen: Stamp,
    /// Time since boot at which it was last confirmed to have its pid.
    until: Nanoseconds,
    /// Whether another process was seen to have its pid.
    replaced: bool,
    /// Set while a resolver may still name its workload.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    /// Time since boot at which the process was first seen.
    since: Nanoseconds,
    reason: UnattributedReason,
}

impl TrackedProcess {
    fn is_left_out(&self, now: Stamp) -> bool {
        self.pending.as_ref().is_some_and(|pending| now.boottime < pending.since + PENDING_TIME)
    }
}

impl ProcessDirectory {
    /// An empty directory. `agent` is the agent's pid where it runs on that host; `most_watched` is the most processes
    /// to watch by pidfd.
    pub fn new(host: Host, agent: Option<u32>, most_watched: usize) -> Self {
        let pidfds = PidfdSet::new(&host, most_watched);
        Self {
            host,
            agent,
            pidfds,
            processes: BTreeMap::new(),
            unidentified: BTreeMap::new(),
            listed: BTreeSet::new(),
            absent: BTreeMap::new(),
            reads: 0,
            published: Identities::default(),
            present: BTreeSet::new(),
            present_processes: 0,
            left: BTreeSet::new(),
            workloads: ResolvedWorkloads::default(),
            generation: 0,
        }
    }

    pub const fn reads(&self) -> u64 {
        self.reads
    }

    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Pids of the last round that could not be identified, with the reason. If none could be, the agent is not in the
    /// pid namespace of the driver.
    pub const fn unidentified(&self) -> &BTreeMap<u32, ProcessError> {
        &self.unidentified
    }

    /// The kinds of workloads of which a resolver has to tell something: those whose processes are left out until they are
    /// named, and those whose last process left the GPUs in this round.
    pub fn wanted_kinds(&self, now: Stamp) -> BTreeSet<HolderKind> {
        let left_out = self.processes.values().filter(|process| process.is_left_out(now));
        let pending = left_out.filter_map(|process| process.pending.as_ref()?.reason.workload_kind());
        pending.chain(self.left.iter().copied()).collect()
    }

    /// Notes which holders have a process on a GPU, and the kinds of those that have none any more. `changed` is whether a
    /// process was identified in this round.
    fn find_present(&mut self, now: Stamp, changed: bool) {
        let is_present = |process: &&TrackedProcess| now.since(process.seen) <= ABSENCE_TIME;
        let present = || self.processes.values().filter(is_present);
        let count = present().count();
        self.left.clear();
        if std::mem::replace(&mut self.present_processes, count) == count && !changed {
            return;
        }
        let present: BTreeSet<HolderId> =
            present().map(|process| process.identified.holder.id.clone()).collect();
        self.left = self.present.difference(&present).filter_map(HolderId::workload_kind).collect();
        self.present = present;
    }

    pub fn refresh(
        &mut self,
        pids: &BTreeSet<u32>,
        workloads: &ResolvedWorkloads,
        now: Stamp,
    ) -> Arc<Identities> {
        // Ended processes leave the set first, so that their pids are read again below.
        self.pidfds.remove_ended();
        if self.listed != *pids {
            self.listed.clone_from(pids);
            self.absent.clear();
        }
        let new: Vec<u32> = pids.iter().copied().filter(|pid| !self.confirm(*pid, now)).collect();
        if !self.workloads.has_same_facts(workloads) {
            self.workloads = workloads.clone();
            self.generation += 1;
        }
        let changed = self.identify_new(&new, workloads, now)
            | self.resolve_pending(workloads, now)
            | self.update_facts(workloads, now);
        self.find_present(now, changed);
        let before = self.processes.len();
        self.processes.retain(|_, process| now.since(process.seen) <= KEEP_TIME);
        if self.processes.len() < before {
            self.pidfds.retain(|pid| self.processes.range(keys_of(pid)).next().is_some());
        }
        let named = || self.processes.iter().filter(|(_, process)| !process.is_left_out(now));
        if changed || self.processes.len() != before || named().count() != self.published.len() {
            let identified =
                named().map(|((pid, start), process)| (*pid, since_boot(*start), process.identified.clone()));
            self.published = Identities::new(identified);
        }
        Arc::new(self.published.until(named().map(|(_, process)| process.until).collect()))
    }

    /// Identifies pending processes on GPUs again; returns whether any was named.
    fn resolve_pending(&mut self, workloads: &ResolvedWorkloads, now: Stamp) -> bool {
        let is_due = |process: &TrackedProcess| process.pending.is_some() && process.seen == now;
        let due = self.processes.iter().filter(|(_, process)| is_due(process));
        let due: Vec<ProcessKey> = due.map(|(key, _)| *key).collect();
        let mut changed = false;
        for key in due {
            self.reads += 1;
            let Ok(info) = self.host.process(key.0) else { continue };
            if info.start_time != key.1 {
                continue;
            }
            let Ok(Identity { holder, awaited: None }) = self.identify(&info, workloads) else { continue };
            let (holder, name) = (self.share_holder(holder), info.name.as_str().into());
            if let Some(process) = self.processes.get_mut(&key) {
                process.identified = IdentifiedProcess { holder, name, start_time: info.start_time };
                (process.pending, process.generation) = (None, self.generation);
                changed = true;
            }
        }
        changed
    }

    /// Gives the processes on GPUs the facts that their workloads have now; returns whether any changed.
    fn update_facts(&mut self, workloads: &ResolvedWorkloads, now: Stamp) -> bool {
        let generation = self.generation;
        let is_due = |process: &&mut TrackedProcess| {
            process.pending.is_none() && process.seen == now && process.generation != generation
        };
        let mut changed: HashMap<Holder, Arc<Holder>> = HashMap::new();
        for process in self.processes.values_mut().filter(is_due) {
            process.generation = generation;
            let known = &process.identified.holder;
            let Some(holder) = workloads.current(known).filter(|holder| *holder != **known) else { continue };
            let age = now.boottime.0.saturating_sub(since_boot(process.identified.start_time).0);
            let began = now.utc.0.saturating_sub(age) / 1_000_000_000;
            let is_of_run = match (known.facts.started, holder.facts.started) {
                (Some(known), Some(now)) => known == now || began + CLOCK_TOLERANCE >= now,
                _ => true,
            };
            if is_of_run {
                let shared = changed.entry(holder).or_insert_with_key(|holder| Arc::new(holder.clone()));
                process.identified.holder = Arc::clone(shared);
            }
        }
        !changed.is_empty()
    }

    /// Whether the pid belongs to a known process and to no other. A process that has ended while the driver still
    /// lists it, or that cannot be read for a moment, still counts.
    fn confirm(&mut self, pid: u32, now: Stamp) -> bool {
        let latest = self.processes.range_mut(keys_of(pid)).next_back();
        let Some((_, process)) = latest.filter(|(_, process)| !process.replaced) else { return false };
        if self.pidfds.contains(pid) {
            (process.seen, process.until) = (now, now.boottime);
            return true;
        }
        let start_time = if self.pidfds.watch(pid) {
            Err(ProcessError::Ended { pid })
        } else {
            self.reads += 1;
            self.host.start_time(pid)
        };
        match start_time {
            Ok(start_time) if start_time == process.identified.start_time => {
                (process.seen, process.until) = (now, now.boottime);
                return true;
            }
            Ok(start_time) => {
                // No other process had the pid before this one started.
                let started = since_boot(start_time);
                process.until = process.until.max(Nanoseconds(started.0.saturating_sub(1)));
                process.replaced = true;
                return false;
            }
            Err(ProcessError::Ended { .. }) => process.until = now.boottime,
            // Another process may have the pid, so `until` stays.
            Err(_) => {}
        }
        process.seen = now;
        // The process that is watched now may be another one.
        self.pidfds.remove(pid);
        true
    }

    /// Identifies new processes; returns whether any was identified. A process that has taken over a pid and cannot be
    /// read is left without a holder, rather than under the previous process's.
    fn identify_new(&mut self, pids: &[u32], workloads: &ResolvedWorkloads, now: Stamp) -> bool {
        let mut unidentified = std::mem::take(&mut self.unidentified);
        let mut new = Vec::new();
        for pid in pids {
            if self.absent.get(pid).is_some_and(|next| !next.is_due(now.boottime)) {
                self.unidentified.extend(unidentified.remove_entry(pid));
                continue;
            }
            // Watched before it is read, so that a process that takes the pid in between is found in the next round.
            let process = if self.pidfds.watch(*pid) {
                Err(ProcessError::Ended { pid: *pid })
            } else {
                self.reads += 1;
                self.host.process(*pid)
            };
            match process {
                Ok(info) => {
                    self.absent.remove(pid);
                    new.push(info);
                }
                Err(error) => {
                    if matches!(error, ProcessError::Ended { .. }) {
                        self.absent.entry(*pid).or_default().fail(now.boottime);
                    } else {
                        self.absent.remove(pid);
                    }
                    self.reject(*pid, error);
                }
            }
        }
        // The oldest first, since the first process determines the facts of its holder.
        new.sort_by_key(|info| (info.start_time, info.pid));
        let mut changed = false;
        for info in &new {
            let (pid, start_time) = (info.pid, info.start_time);
            match self.identify(info, workloads) {
                Ok(Identity { holder, awaited }) => {
                    let (holder, name) = (self.share_holder(holder), info.name.as_str().into());
                    let process = TrackedProcess {
                        identified: IdentifiedProcess { holder, name, start_time },
                        generation: self.generation,
                        seen: now,
                        until: now.boottime,
                        replaced: false,
                        pending: awaited.map(|reason| Pending { since: now.boottime, reason }),
                    };
                    self.processes.insert((pid, start_time), process);
                    changed = true;
                }
                Err(error) => self.reject(pid, error),
            }
        }
        changed
    }

    /// Notes a pid that cannot be identified in this round; it is read again in the next round, or when it is due.
    fn reject(&mut self, pid: u32, error: ProcessError) {
        self.pidfds.remove(pid);
        self.unidentified.insert(pid, error);
    }

    fn identify(&self, info: &ProcessInfo, workloads: &ResolvedWorkloads) -> Result<Identity, ProcessError> {
        if self.agent == Some(info.pid) {
            return Ok(Holder::remainder(HolderId::new(HolderId::SYSTEM)).into());
        }
        identify(&self.host, info, workloads).map_err(|cause| ProcessError::Unnamed { pid: info.pid, cause })
    }

    /// Reuses the holder with that id and these facts. Pending processes do not count, since their facts may be incomplete.
    fn share_holder(&self, holder: Holder) -> Arc<Holder> {
        let named = self.processes.values().filter(|process| process.pending.is_none());
        let same = named.map(|process| &process.identified.holder).find(|known| ***known == holder);
        same.map_or_else(|| Arc::new(holder), Arc::clone)
    }
}
