//! The processes, holdings and workloads of a snapshot.
//!
//! Entries of the roster have keys, and stay the same `Arc` while keys and identities do: what is published of a process
//! hardly ever changes from one tick to the next.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::TrackedGpu;
use super::budget::{SeriesBudget, SeriesList, most_processes, process_rows};
use super::integrate::WHOLE;
use super::numbers::whole;
use crate::accounting::tenants::{TenantRules, class, tenant};
use crate::holders::{Allocation, Identities};
use crate::model::snapshot::{HoldingEntry, HoldingState, ProcessEntry, ProcessState, WorkloadEntry};
use crate::model::{
    Absence, Bytes, GpuProcess, Holder, HolderId, HoldingSource, ProcessSample, Reading, Utc,
};

#[derive(Default)]
pub(super) struct RosterEntries {
    known: KnownHolders,
    processes: RosterSection<Vec<RosterProcess>, ProcessEntry>,
    holdings: RosterSection<Vec<HoldingKey>, HoldingEntry>,
    /// Since when each current holding is known, by UUID, GPU instance and workload.
    held_since: BTreeMap<HeldSlot, Utc>,
    /// By the holders of the identities that have a process on a GPU, and the holdings.
    workloads: RosterSection<(Vec<bool>, Arc<[HoldingEntry]>), WorkloadEntry>,
}

/// UUID of a GPU, GPU instance, and the workload that holds a share of it.
type HeldSlot = (Arc<str>, Arc<str>, Arc<str>);

#[derive(PartialEq)]
struct HoldingKey {
    gpu: usize,
    gpu_instance: Arc<str>,
    holder: HolderId,
    source: HoldingSource,
}

#[derive(PartialEq)]
struct RosterProcess {
    gpu: usize,
    /// None for the row of all processes without rows of their own.
    process: Option<ProcessId>,
}

#[derive(PartialEq)]
struct ProcessId {
    pid: u32,
    gpu_instance: Option<u32>,
    /// Its number in the identities; none if it is not identified.
    number: Option<usize>,
}

#[derive(Default)]
struct KnownHolders {
    identities: Arc<Identities>,
    allocations: Arc<[Allocation]>,
    rules: Arc<TenantRules>,
}

impl KnownHolders {
    fn tenant(&self, holder: &Holder) -> Arc<str> {
        tenant(holder, &self.rules)
    }

    /// A holder with its facts: those of its processes, else those of its allocation, else those in its id.
    fn holder(&self, id: &HolderId) -> Holder {
        let allocated = || self.allocations.iter().map(|one| &one.holder).find(|holder| holder.id == *id);
        let known = self.identities.holder(id).map(|holder| &**holder).or_else(allocated);
        known.map_or_else(|| Holder::from_id(id.clone()), Clone::clone)
    }

    /// When the holder's allocation was granted, where its scheduler says so.
    fn granted(&self, id: &HolderId) -> Option<Utc> {
        let is_its = |one: &&Allocation| one.holder.id == *id;
        self.allocations.iter().filter(is_its).filter_map(|one| one.since).min()
    }

    /// The newest version of a workload with its facts, from the same sources.
    fn workload(&self, name: &str) -> Holder {
        let is_of_name = |holder: &&Holder| holder.id.name() == name;
        let newest = |one: &&Holder, other: &&Holder| one.id.version().cmp(&other.id.version());
        let users = self.identities.holders().map(|holder| &**holder).filter(is_of_name);
        let allocated = || self.allocations.iter().map(|one| &one.holder).filter(is_of_name).max_by(newest);
        let known = users.max_by(newest).or_else(allocated);
        known.map_or_else(|| Holder::from_id(HolderId::new(name)), Clone::clone)
    }
}

struct RosterSection<K, E> {
    key: Option<K>,
    entries: Arc<[E]>,
}

impl<K, E> Default for RosterSection<K, E> {
    fn default() -> Self {
        Self { key: None, entries: Arc::default() }
    }
}

impl<K: PartialEq, E> RosterSection<K, E> {
    /// The entries for a key; they are made again only if the key has changed.
    fn update(&mut self, key: K, make: impl FnOnce(&K) -> Vec<E>) -> Arc<[E]> {
        if self.key.as_ref() != Some(&key) {
            self.entries = make(&key).into();
            self.key = Some(key);
        }
        Arc::clone(&self.entries)
    }
}

pub(super) struct ListedProcess<'a> {
    process: &'a GpuProcess,
    number: Option<usize>,
}

impl RosterEntries {
    /// Sets who holders and processes are, and the tenant rules in force; a change discards all entries.
    pub(super) fn set_holders(
        &mut self,
        identities: &Arc<Identities>,
        allocations: &Arc<[Allocation]>,
        rules: &Arc<TenantRules>,
    ) {
        let known = &self.known;
        let has_same_rules = Arc::ptr_eq(&known.rules, rules) || known.rules == *rules;
        if !has_same_rules
            || !known.identities.has_same_processes(identities)
            || !Arc::ptr_eq(&known.allocations, allocations)
        {
            *self = Self { held_since: std::mem::take(&mut self.held_since), ..Self::default() };
        }
        self.known = KnownHolders {
            identities: Arc::clone(identities),
            allocations: Arc::clone(allocations),
            rules: Arc::clone(rules),
        };
    }

    /// The processes on each GPU, each looked up once for its process row and its workload.
    pub(super) fn list_processes<'a>(&self, gpus: &[&'a TrackedGpu]) -> Vec<Vec<ListedProcess<'a>>> {
        let list = |gpu: &&'a TrackedGpu| {
            let frame = gpu.frame.as_deref()?;
            let read = frame.list_read_at();
            let number = |process: &GpuProcess| self.known.identities.find(process.pid, read);
            let processes = frame.processes.as_ref().ok()?.iter();
            Some(processes.map(|process| ListedProcess { process, number: number(process) }).collect())
        };
        gpus.iter().map(|gpu| list(gpu).unwrap_or_default()).collect()
    }

    /// The rows of processes by GPU and pid. At most `limit` processes per GPU have rows, those with the most memory;
    /// the others of a GPU share one.
    pub(super) fn processes(
        &mut self,
        gpus: &[&TrackedGpu],
        mut lists: Vec<Vec<ListedProcess<'_>>>,
        limit: usize,
        budget: &mut SeriesBudget<'_>,
    ) -> (Arc<[ProcessEntry]>, Vec<ProcessState>) {
        lists.iter_mut().for_each(|list| list.sort_by_key(ListedProcess::order));
        let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
        let most = most_processes(&counts, limit, budget.entries_left(SeriesList::Processes));
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (gpu, (tracked, processes)) in gpus.iter().zip(&mut lists).enumerate() {
            let (Some(frame), Some(most)) = (tracked.frame.as_deref(), most) else { continue };
            let others = split_largest(processes, most);
            let activity = ProcessActivity::new(frame.samples.iter().flatten());
            for ListedProcess { process: GpuProcess { pid, gpu_instance, .. }, number } in &*processes {
                let id = ProcessId { pid: *pid, gpu_instance: *gpu_instance, number: *number };
                keys.push(RosterProcess { gpu, process: Some(id) });
            }
            values.extend(processes.iter().map(|listed| activity.of_process(listed.process)));
            if !others.is_empty() {
                keys.push(RosterProcess { gpu, process: None });
                values.push(activity.sum(&others));
            }
        }
        let left_off = process_rows(&counts, limit).saturating_sub(keys.len());
        budget.charge(SeriesList::Processes, keys.len(), left_off);
        let known = &self.known;
        let make = |keys: &Vec<_>| keys.iter().map(|key| process_entry(key, known)).collect();
        (self.processes.update(keys, make), values)
    }

    /// The current holdings, by slot and holder; those that are new and without a recorded begin are `seen` now.
    pub(super) fn holdings(
        &mut self,
        gpus: &[&TrackedGpu],
        seen: Utc,
        budget: &mut SeriesBudget<'_>,
    ) -> (Arc<[HoldingEntry]>, Vec<HoldingState>) {
        let all = gpus.iter().enumerate();
        let all =
            all.flat_map(|(gpu, tracked)| tracked.account.slots.holdings().map(move |held| (gpu, held)));
        let count = gpus.iter().map(|gpu| gpu.account.slots.count_holdings()).sum();
        let admitted = all.take(budget.admit(SeriesList::Holdings, count));
        let (keys, values) = admitted
            .map(|(gpu, held)| {
                let (holder, source) = (held.holding.holder.clone(), held.holding.source);
                let key = HoldingKey { gpu, gpu_instance: held.gpu_instance, holder, source };
                (key, HoldingState { fraction: held.granted })
            })
            .unzip();
        let (known, held_since) = (&self.known, &mut self.held_since);
        let entries = self.holdings.update(keys, |keys: &Vec<_>| {
            let entry = |key: &HoldingKey| HoldingEntry {
                gpu: key.gpu,
                gpu_instance: Arc::clone(&key.gpu_instance),
                workload: key.holder.workload(),
                tenant: known.tenant(&known.holder(&key.holder)),
                source: key.source,
                since: known.granted(&key.holder).unwrap_or(seen),
            };
            let slot = |entry: &HoldingEntry| {
                let uuid = gpus.get(entry.gpu).map_or_else(Arc::default, |gpu| Arc::clone(&gpu.id.uuid));
                (uuid, Arc::clone(&entry.gpu_instance), Arc::clone(&entry.workload))
            };
            let mut entries: Vec<_> = keys.iter().map(entry).collect();
            for entry in &mut entries {
                entry.since =
                    held_since.get(&slot(entry)).map_or(entry.since, |known| entry.since.min(*known));
            }
            *held_since = entries.iter().map(|entry| (slot(entry), entry.since)).collect();
            entries
        });
        (entries, values)
    }

    /// The holders that hold a GPU or have a process on one, by id.
    pub(super) fn workloads(
        &mut self,
        lists: &[Vec<ListedProcess<'_>>],
        holdings: &Arc<[HoldingEntry]>,
        budget: &mut SeriesBudget<'_>,
    ) -> Arc<[WorkloadEntry]> {
        let known = &self.known;
        let identities = &known.identities;
        let mut is_present = vec![false; identities.holders().len()];
        for listed in lists.iter().flatten() {
            let index = listed.number.and_then(|number| identities.holder_index(number));
            if let Some(is_present) = index.and_then(|index| is_present.get_mut(index)) {
                *is_present = true;
            }
        }
        let key = (is_present, Arc::clone(holdings));
        let all = self.workloads.update(key, |(is_present, holdings)| {
            let users = identities.holders().zip(is_present).filter(|(_, is_present)| **is_present);
            let users = users.map(|(user, _)| (**user).clone());
            let holders = holdings.iter().map(|entry| known.workload(&entry.workload));
            // A workload has the facts of its newest version.
            let all: BTreeMap<(Arc<str>, u64), Holder> = users
                .chain(holders)
                .map(|holder| ((holder.id.workload(), holder.id.version()), holder))
                .collect();
            let newest: BTreeMap<Arc<str>, Holder> =
                all.into_iter().map(|((workload, _), holder)| (workload, holder)).collect();
            newest.into_values().map(|holder| workload_entry(holder, known)).collect()
        });
        let fit = budget.admit(SeriesList::Workloads, all.len());
        if fit < all.len() { all[..fit].into() } else { all }
    }
}

impl ListedProcess<'_> {
    const fn order(&self) -> (u32, Option<u32>) {
        (self.process.pid, self.process.gpu_instance)
    }
}

/// Keeps the processes with the most memory, in their order, and returns the others.
fn split_largest<'a>(processes: &mut Vec<ListedProcess<'a>>, most: usize) -> Vec<&'a GpuProcess> {
    if processes.len() <= most {
        return Vec::new();
    }
    processes.sort_by_key(|listed| (Reverse(listed.process.memory), listed.process.pid));
    let others = processes.split_off(most);
    processes.sort_by_key(ListedProcess::order);
    others.into_iter().map(|listed| listed.process).collect()
}

fn process_entry(key: &RosterProcess, known: &KnownHolders) -> ProcessEntry {
    let id = key.process.as_ref();
    let identified = id.and_then(|id| known.identities.process(id.number?));
    let gpu_instance = id.and_then(|id| id.gpu_instance);
    ProcessEntry {
        gpu: key.gpu,
        gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        pid: id.map_or_else(|| ProcessEntry::OTHERS.into(), |id| id.pid.to_string().into()),
        process: identified.map(|known| Arc::clone(&known.name)).unwrap_or_default(),
        workload: identified.map(|known| known.holder.id.workload()).unwrap_or_default(),
        tenant: identified.map(|identity| known.tenant(&identity.holder)).unwrap_or_default(),
    }
}

fn workload_entry(holder: Holder, known: &KnownHolders) -> WorkloadEntry {
    WorkloadEntry {
        tenant: known.tenant(&holder),
        class: class(&holder, &known.rules),
        kind: holder.id.kind(),
        workload: holder.id.workload(),
        facts: holder.facts,
    }
}

/// Number of engines in utilization samples: SM, memory, encoder and decoder, in the order of
/// [`crate::model::catalogue::ProcessValue`] after memory use.
const ENGINES: usize = 4;

/// One percent of a GPU's time, in billionths.
const PERCENT: u128 = 10_000_000;

/// How busy each process kept each engine since the last frame, by pid.
struct ProcessActivity(BTreeMap<u32, [EngineActivity; ENGINES]>);

/// The samples of one process on one engine; most drivers return one, others several.
#[derive(Clone, Copy, Default)]
struct EngineActivity {
    /// Sum of percent x window.
    weighted: u128,
    window: u128,
}

impl ProcessActivity {
    fn new<'a>(samples: impl Iterator<Item = &'a ProcessSample>) -> Self {
        let mut by_pid: BTreeMap<u32, [EngineActivity; ENGINES]> = BTreeMap::new();
        for sample in samples {
            let percents = [Some(sample.sm), sample.memory, Some(sample.encoder), Some(sample.decoder)];
            for (engine, percent) in by_pid.entry(sample.pid).or_default().iter_mut().zip(percents) {
                if let Some(percent) = percent {
                    engine.weighted += u128::from(sample.window) * u128::from(percent);
                    engine.window += u128::from(sample.window);
                }
            }
        }
        Self(by_pid)
    }

    fn of_process(&self, process: &GpuProcess) -> ProcessState {
        let memory = process.memory.map_or(Err(Absence::NotSupported), |Bytes(memory)| Ok(whole(memory)));
        process_state(memory, self.shares(process.pid))
    }

    /// The sum of several processes; an engine without samples of any of them is absent.
    fn sum(&self, processes: &[&GpuProcess]) -> ProcessState {
        let memory = processes.iter().filter_map(|process| process.memory);
        let memory = memory.fold(0, |sum: u64, Bytes(memory)| sum.saturating_add(memory));
        let shares: Vec<_> = processes.iter().map(|process| self.shares(process.pid)).collect();
        let engines = std::array::from_fn(|engine| {
            let known = shares.iter().filter_map(|shares| shares.get(engine).copied().flatten());
            // Clients of MPS run at the same time, so their sum may exceed the whole.
            known.reduce(|sum, share| sum + share).map(|sum| sum.min(WHOLE))
        });
        process_state(Ok(whole(memory)), engines)
    }

    /// Mean share of time per engine, in billionths.
    fn shares(&self, pid: u32) -> [Option<u64>; ENGINES] {
        let share = |EngineActivity { weighted, window }| {
            u64::try_from((weighted * PERCENT).checked_div(window)?).ok()
        };
        self.0.get(&pid).copied().unwrap_or_default().map(share)
    }
}

fn process_state(memory: Reading, engines: [Option<u64>; ENGINES]) -> ProcessState {
    let [sm, traffic, encoder, decoder] = engines.map(|share| share.map(whole).ok_or(Absence::NotYet));
    ProcessState { values: [memory, sm, traffic, encoder, decoder] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Reading = Err(Absence::NotYet);

    fn sample(pid: u32, window: u64, sm: u32, memory: Option<u32>) -> ProcessSample {
        ProcessSample { pid, window, sm, memory, encoder: 10, decoder: 0 }
    }

    fn process(pid: u32) -> GpuProcess {
        GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(7)) }
    }

    #[test]
    fn several_windows_of_a_process_have_one_mean() {
        let samples = [sample(1, 100, 100, Some(20)), sample(1, 300, 0, Some(40))];
        let of = ProcessActivity::new(samples.iter()).of_process(&process(1));
        assert_eq!(of.values, [Ok(7), Ok(250_000_000), Ok(350_000_000), Ok(100_000_000), Ok(0)]);
    }

    #[test]
    fn an_engine_without_samples_is_absent() {
        let samples = [sample(1, 100, 50, None), sample(1, 100, 70, None)];
        let activity = ProcessActivity::new(samples.iter());
        assert_eq!(activity.of_process(&process(1)).values[1..3], [Ok(600_000_000), NONE]);
        assert_eq!(activity.of_process(&process(2)).values, [Ok(7), NONE, NONE, NONE, NONE]);
    }

    #[test]
    fn other_processes_are_summed_to_at_most_the_whole() {
        let samples = [sample(1, 100, 60, Some(10)), sample(2, 100, 70, None)];
        let activity = ProcessActivity::new(samples.iter());
        let others = [process(1), process(2), process(3)];
        let of = activity.sum(&others.iter().collect::<Vec<_>>());
        assert_eq!(of.values, [Ok(21), Ok(whole(WHOLE)), Ok(100_000_000), Ok(200_000_000), Ok(0)]);
    }
}
