//! Keeps [`Identities`] true while processes come and go.
//!
//! In: the pids that are on GPUs now, and the time. Out: the next identities: which processes, and until when each is
//! known to have had its pid. A process is identified once, at first sight: what it is called or where it is moved later
//! does not rewrite whose time it was. Pids are used again: so a process is held, and the kernel tells of its end, or
//! its start time is read every round. What is read of a pid after that, and before the next round, is nobody's until that
//! round has looked. It knows no GPU, keeps no clock and starts no thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::identify::{Identity, identify};
use super::identities::{IdentifiedProcess, Identities};
use super::resolved_workloads::ResolvedWorkloads;
use crate::host::{Host, PidfdSet, ProcessError, ProcessInfo, UserNameError, since_boot};
use crate::model::{Holder, HolderId, HolderKind, Nanoseconds, Stamp, UnattributedReason};

/// For so long a pid is found after it was last on a GPU: its last samples come late, and its window closes
/// later still.
const KEPT: Nanoseconds = Nanoseconds::from_seconds(60);

/// So long after its first sight a process in a workload that no resolver names yet stays unnamed: its window may still
/// close with the right holder. After that, and before a window that waits 10 s for names closes, it is unattributed for
/// that reason until it is named.
const PENDING: Nanoseconds = Nanoseconds::from_seconds(9);

/// The keys of all processes that had that pid.
fn all_of(pid: u32) -> RangeInclusive<(u32, u64)> {
    (pid, 0)..=(pid, u64::MAX)
}

/// The identities of the processes on this host's GPUs.
#[derive(Debug)]
pub struct ProcessDirectory {
    host: Host,
    agent: Option<u32>,
    held: PidfdSet,
    /// By pid and start, in clock ticks.
    known: BTreeMap<(u32, u64), TrackedProcess>,
    unknown: BTreeMap<u32, ProcessError>,
    published: Identities,
}

#[derive(Debug)]
struct TrackedProcess {
    identified: IdentifiedProcess,
    seen: Stamp,
    /// The last moment at which nobody else had its pid.
    until: Nanoseconds,
    /// Whether another process was seen to have its pid.
    replaced: bool,
    /// While a resolver may still name its workload: when it was first seen.
    pending_since: Option<Nanoseconds>,
}

impl TrackedProcess {
    /// Whether it is still left unnamed.
    fn is_unnamed(&self, now: Stamp) -> bool {
        self.pending_since.is_some_and(|since| now.boottime < since + PENDING)
    }
}

impl ProcessDirectory {
    /// Knows nobody yet. `agent` is the agent's own pid, where the host is the one it runs on; so many processes it
    /// may hold by a descriptor each, those above that number are read every round.
    pub fn new(host: Host, agent: Option<u32>, descriptors: usize) -> Self {
        let held = host.held(descriptors);
        let published = Identities::default();
        Self { host, agent, held, known: BTreeMap::new(), unknown: BTreeMap::new(), published }
    }

    /// The host that it asks.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Pids that were on GPUs in the last round and could not be identified, with what stood in the way.
    /// Where it is all of them, this pid namespace is not the driver's.
    pub const fn unknown(&self) -> &BTreeMap<u32, ProcessError> {
        &self.unknown
    }

    /// Whether a process is left unnamed because no resolver knows its workload, of the kind that the reason names.
    pub fn awaits(&self, reason: UnattributedReason, now: Stamp) -> bool {
        let mut unnamed = self.known.values().filter(|known| known.is_unnamed(now));
        unnamed.any(|known| {
            let id = &known.identified.holder.id;
            let is_container = reason == UnattributedReason::Container && id.kind() == HolderKind::Container;
            is_container || id.unattributed_reason() == Some(reason)
        })
    }

    /// One round: `seen` are the pids on GPUs now, `workloads` what the resolvers know.
    pub fn refresh(
        &mut self,
        seen: &BTreeSet<u32>,
        workloads: &ResolvedWorkloads,
        now: Stamp,
    ) -> Arc<Identities> {
        // Before anybody is trusted: who ended since the last round is not held any more, and is read.
        self.held.drop_ended();
        let strangers: Vec<u32> = seen.iter().copied().filter(|pid| !self.is_still(*pid, now)).collect();
        let changed = self.meet(&strangers, workloads, now) | self.resolve_pending(workloads, now);
        let before = self.known.len();
        self.known.retain(|_, known| now.since(known.seen) <= KEPT);
        let named = self.known.values().filter(|known| !known.is_unnamed(now)).count();
        if changed || self.known.len() != before || named != self.published.len() {
            if self.known.len() < before {
                self.held.keep(|pid| self.known.range(all_of(pid)).next().is_some());
            }
            let processes = self.known.iter().filter(|(_, known)| !known.is_unnamed(now));
            self.published = Identities::new(
                processes.map(|((pid, start), known)| (*pid, since_boot(*start), known.identified.clone())),
            );
        }
        let until = self.known.values().filter(|known| !known.is_unnamed(now)).map(|known| known.until);
        Arc::new(self.published.until(until.collect()))
    }

    /// Asks the resolvers again whose the pending processes are; whether any was named.
    fn resolve_pending(&mut self, workloads: &ResolvedWorkloads, now: Stamp) -> bool {
        let pending =
            self.known.iter().filter(|(_, known)| known.pending_since.is_some() && known.seen == now);
        let pending: Vec<(u32, u64)> = pending.map(|(key, _)| *key).collect();
        let mut changed = false;
        for key in pending {
            let Ok(process) = self.host.process(key.0) else { continue };
            if process.start_time != key.1 {
                continue;
            }
            let Ok((identified, false)) = self.identified(&process, workloads) else { continue };
            if let Some(known) = self.known.get_mut(&key) {
                (known.identified, known.pending_since) = (identified, None);
                changed = true;
            }
        }
        changed
    }

    /// Whether the pid is known and no other process has it. One that has ended while the driver still lists
    /// it, or that cannot be read for a moment, is who it was.
    fn is_still(&mut self, pid: u32, now: Stamp) -> bool {
        let known = self.known.range_mut(all_of(pid)).next_back();
        let Some((_, known)) = known.filter(|(_, known)| !known.replaced) else { return false };
        if self.held.holds(pid) {
            (known.seen, known.until) = (now, now.boottime);
            return true;
        }
        self.held.hold(pid);
        match self.host.start_time(pid) {
            Ok(start_time) if start_time == known.identified.start_time => {
                (known.seen, known.until) = (now, now.boottime);
                return true;
            }
            Ok(start_time) => {
                // Until the other one started the pid was nobody else's.
                let started = since_boot(start_time);
                known.until = known.until.max(Nanoseconds(started.0.saturating_sub(1)));
                known.replaced = true;
                return false;
            }
            Err(ProcessError::Ended { .. }) => known.until = now.boottime,
            // It may be another one.
            Err(_) => {}
        }
        known.seen = now;
        // Whoever is held by now need not be who it was.
        self.held.release(pid);
        true
    }

    /// Identifies processes not met before; whether that changed who is known. Where a pid is another
    /// process now and that one cannot be read, nobody is named rather than the one before.
    fn meet(&mut self, strangers: &[u32], workloads: &ResolvedWorkloads, now: Stamp) -> bool {
        self.unknown.clear();
        let mut met = Vec::new();
        for pid in strangers {
            // First held, then read: one that took the pid in between is found out in the next round.
            self.held.hold(*pid);
            match self.host.process(*pid) {
                Ok(process) => met.push(process),
                Err(gone) => {
                    self.held.release(*pid);
                    self.unknown.insert(*pid, gone);
                }
            }
        }
        // The oldest first: it speaks for its holder.
        met.sort_by_key(|process| (process.start_time, process.pid));
        let mut named = false;
        for process in &met {
            let pid = process.pid;
            match self.identified(process, workloads) {
                Ok((identified, pending)) => {
                    let pending_since = pending.then_some(now.boottime);
                    let until = now.boottime;
                    let known =
                        TrackedProcess { identified, seen: now, until, replaced: false, pending_since };
                    self.known.insert((pid, process.start_time), known);
                    named = true;
                }
                // It is read again in the next round, when the name may be known.
                Err(cause) => {
                    self.held.release(pid);
                    self.unknown.insert(pid, ProcessError::Unnamed { pid, cause });
                }
            }
        }
        named
    }

    /// Whose it is, and whether a resolver may still say better.
    fn identified(
        &self,
        process: &ProcessInfo,
        workloads: &ResolvedWorkloads,
    ) -> Result<(IdentifiedProcess, bool), UserNameError> {
        let Identity { holder, pending } = if self.agent == Some(process.pid) {
            Holder::remainder(HolderId::new(HolderId::SYSTEM)).into()
        } else {
            identify(&self.host, process, workloads)?
        };
        let identified = IdentifiedProcess {
            holder: self.shared(holder),
            name: process.name.as_str().into(),
            start_time: process.start_time,
        };
        Ok((identified, pending))
    }

    /// One holder has one set of facts, those of its process met first: a unit whose processes run under
    /// several users would otherwise change its user from round to round. A process of which a resolver may still say more
    /// has not told them yet.
    fn shared(&self, holder: Holder) -> Arc<Holder> {
        let known = self.known.values().filter(|known| known.pending_since.is_none());
        let same = known.map(|known| &known.identified.holder).find(|known| known.id == holder.id);
        same.map_or_else(|| Arc::new(holder), Arc::clone)
    }
}
