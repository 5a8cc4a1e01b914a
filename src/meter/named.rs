//! Who has rows of his own in a snapshot beside GPUs and accounts: processes, holdings, workloads.
//!
//! In: the GPUs of the snapshot, and who processes are. Out: entries of the roster, with their values. Entries are
//! made of keys, and stay the same `Arc` for as long as keys and identities do: what is shown of a process hardly ever
//! changes from one tick to the next. It does not know what anybody pays.

use std::cmp::Reverse;
use std::sync::Arc;

use super::TrackedGpu;
use super::budget::{self, SeriesBudget, SeriesPerEntry};
use super::processes::Busy;
use crate::holders::{Allocation, Identities};
use crate::model::snapshot::{
    GpuState, HoldingEntry, HoldingState, ProcessEntry, ProcessState, WorkloadEntry,
};
use crate::model::{GpuProcess, Holder, HolderId, HoldingSource};
use crate::tenants::tenant;

/// What the last tick showed.
#[derive(Default)]
pub(super) struct NamedRows {
    known: KnownHolders,
    processes: RosterSection<Vec<(usize, ProcessRow)>, ProcessEntry>,
    holdings: RosterSection<Vec<HoldingKey>, HoldingEntry>,
    workloads: RosterSection<(Vec<bool>, Arc<[HoldingEntry]>), WorkloadEntry>,
}

/// What tells a holding of the moment from others.
#[derive(PartialEq)]
struct HoldingKey {
    /// Place of the GPU.
    gpu: usize,
    gpu_instance: Arc<str>,
    holder: HolderId,
    source: HoldingSource,
}

/// What is known of holders.
#[derive(Default)]
struct KnownHolders {
    identities: Arc<Identities>,
    allocations: Arc<[Allocation]>,
}

impl KnownHolders {
    /// Who a holder is: as a process of it was identified, else as a scheduler or the operator's grant names it.
    fn holder(&self, id: &HolderId) -> Holder {
        let allocated = || self.allocations.iter().map(|one| &one.holder).find(|holder| holder.id == *id);
        let known = self.identities.holder(id).map(|holder| &**holder).or_else(allocated);
        known.map_or_else(|| Holder::from_id(id.clone()), Clone::clone)
    }
}

/// Entries, and the key that they were made of.
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
    /// The entries of a key: those of the last time where it is the same.
    fn of(&mut self, key: K, make: impl FnOnce(&K) -> Vec<E>) -> Arc<[E]> {
        if self.key.as_ref() != Some(&key) {
            self.entries = make(&key).into();
            self.key = Some(key);
        }
        Arc::clone(&self.entries)
    }
}

/// A listed process, and the number under which it is identified.
pub(super) struct ListedProcess<'a> {
    process: &'a GpuProcess,
    number: Option<usize>,
}

/// A row of processes.
#[derive(Clone, Copy, PartialEq)]
enum ProcessRow {
    /// One of its own, with its GPU instance and the number under which it is identified.
    Process(u32, Option<u32>, Option<usize>),
    /// That of all that have none.
    Other,
}

impl NamedRows {
    /// Who processes are from now on; where that has changed nothing that was made stands.
    pub(super) fn know(&mut self, identities: &Arc<Identities>, allocations: &Arc<[Allocation]>) {
        let known = &self.known;
        if !known.identities.has_same_processes(identities) || !Arc::ptr_eq(&known.allocations, allocations) {
            *self = Self::default();
        }
        self.known =
            KnownHolders { identities: Arc::clone(identities), allocations: Arc::clone(allocations) };
    }

    /// The processes that each GPU lists. They are looked up once, for process rows and workloads.
    pub(super) fn list<'a>(&self, gpus: &[&'a TrackedGpu]) -> Vec<Vec<ListedProcess<'a>>> {
        let list = |gpu: &&'a TrackedGpu| {
            let frame = gpu.frame.as_deref()?;
            let read = frame.list_read_at();
            let number = |process: &GpuProcess| self.known.identities.find(process.pid, read);
            let processes = frame.processes.as_ref().ok()?.iter();
            Some(processes.map(|process| ListedProcess { process, number: number(process) }).collect())
        };
        gpus.iter().map(|gpu| list(gpu).unwrap_or_default()).collect()
    }

    /// Processes by GPU and pid, the largest first into the limit; what is above it is one row per GPU.
    pub(super) fn processes(
        &mut self,
        (gpus, states): (&[&TrackedGpu], &[GpuState]),
        mut lists: Vec<Vec<ListedProcess<'_>>>,
        limit: usize,
        (series_budget, costs): (&mut SeriesBudget<'_>, &SeriesPerEntry),
    ) -> (Arc<[ProcessEntry]>, Vec<ProcessState>) {
        for (list, state) in lists.iter_mut().zip(states) {
            if !state.is_up() {
                list.clear();
            }
            list.sort_by_key(ListedProcess::order);
        }
        let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
        let most = budget::most_processes(&counts, limit, series_budget.entries_left(&costs.process));
        let mut rows = Vec::new();
        let mut values = Vec::new();
        for (place, (gpu, processes)) in gpus.iter().zip(&mut lists).enumerate() {
            let (Some(frame), Some(most)) = (gpu.frame.as_deref(), most) else { continue };
            let rest = cut(processes, most);
            rows.extend(processes.iter().map(|ListedProcess { process, number }| {
                (place, ProcessRow::Process(process.pid, process.gpu_instance, *number))
            }));
            let busy = Busy::of(frame);
            values.extend(processes.iter().map(|listed| busy.one(listed.process)));
            if !rest.is_empty() {
                rows.push((place, ProcessRow::Other));
                values.push(busy.all(&rest));
            }
        }
        let wanted = budget::rows(&counts, limit);
        series_budget.charge(&costs.process, rows.len(), wanted.saturating_sub(rows.len()));
        let identities = &self.known.identities;
        let entries = self
            .processes
            .of(rows, |rows| rows.iter().map(|(gpu, row)| process_entry(*gpu, *row, identities)).collect());
        (entries, values)
    }

    /// The holdings of the moment, by slot and holder.
    pub(super) fn holdings(
        &mut self,
        gpus: &[&TrackedGpu],
        (series_budget, costs): (&mut SeriesBudget<'_>, &SeriesPerEntry),
    ) -> (Arc<[HoldingEntry]>, Vec<HoldingState>) {
        let all = gpus.iter().enumerate();
        let all = all.flat_map(|(gpu, state)| state.account.holdings().map(move |one| (gpu, one)));
        let count = gpus.iter().map(|gpu| gpu.account.count_holdings()).sum();
        let shown = all.take(series_budget.admit(&costs.holding, count));
        let (keys, values) = shown
            .map(|(gpu, (gpu_instance, holding, fraction))| {
                let (holder, source) = (holding.holder.clone(), holding.source);
                let key = HoldingKey { gpu, gpu_instance, holder, source };
                (key, HoldingState { fraction })
            })
            .unzip();
        let known = &self.known;
        let entries = self.holdings.of(keys, |keys: &Vec<_>| {
            let entry = |key: &HoldingKey| HoldingEntry {
                gpu: key.gpu,
                gpu_instance: Arc::clone(&key.gpu_instance),
                workload: Arc::clone(&key.holder.0),
                tenant: tenant(&known.holder(&key.holder)),
                source: key.source,
            };
            keys.iter().map(entry).collect()
        });
        (entries, values)
    }

    /// Everybody who holds or has a process on a GPU, by id.
    pub(super) fn workloads(
        &mut self,
        lists: &[Vec<ListedProcess<'_>>],
        holdings: &Arc<[HoldingEntry]>,
        (series_budget, costs): (&mut SeriesBudget<'_>, &SeriesPerEntry),
    ) -> Arc<[WorkloadEntry]> {
        let known = &self.known;
        let identities = &known.identities;
        let mut here = vec![false; identities.holders().len()];
        for listed in lists.iter().flatten() {
            let place = listed.number.and_then(|number| identities.holder_index_of(number));
            if let Some(here) = place.and_then(|place| here.get_mut(place)) {
                *here = true;
            }
        }
        let key = (here, Arc::clone(holdings));
        let all = self.workloads.of(key, |(here, holdings)| {
            let users = identities.holders().zip(here).filter(|(_, here)| **here);
            let users = users.map(|(user, _)| (**user).clone());
            let holders = holdings.iter().map(|entry| known.holder(&HolderId(Arc::clone(&entry.workload))));
            let mut all: Vec<Holder> = users.chain(holders).collect();
            all.sort_by(|one, other| one.id.cmp(&other.id));
            all.dedup_by(|one, other| one.id == other.id);
            all.into_iter().map(workload_entry).collect()
        });
        let fit = series_budget.admit(&costs.workload, all.len());
        if fit < all.len() { all[..fit].into() } else { all }
    }
}

impl ListedProcess<'_> {
    const fn order(&self) -> (u32, Option<u32>) {
        (self.process.pid, self.process.gpu_instance)
    }
}

/// Leaves the largest of them, in their order, and takes the others.
fn cut<'a>(processes: &mut Vec<ListedProcess<'a>>, most: usize) -> Vec<&'a GpuProcess> {
    if processes.len() <= most {
        return Vec::new();
    }
    processes.sort_by_key(|listed| (Reverse(listed.process.memory), listed.process.pid));
    let rest = processes.split_off(most);
    processes.sort_by_key(ListedProcess::order);
    rest.into_iter().map(|listed| listed.process).collect()
}

fn process_entry(gpu: usize, row: ProcessRow, identities: &Identities) -> ProcessEntry {
    let ProcessRow::Process(pid, gpu_instance, known) = row else {
        return ProcessEntry {
            gpu,
            gpu_instance: Arc::default(),
            pid: "other".into(),
            process: Arc::default(),
            workload: Arc::default(),
            tenant: Arc::default(),
        };
    };
    let identified = known.and_then(|known| identities.process(known));
    ProcessEntry {
        gpu,
        gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        pid: pid.to_string().into(),
        process: identified.map(|known| Arc::clone(&known.name)).unwrap_or_default(),
        workload: identified.map(|known| Arc::clone(&known.holder.id.0)).unwrap_or_default(),
        tenant: identified.map(|known| tenant(&known.holder)).unwrap_or_default(),
    }
}

fn workload_entry(holder: Holder) -> WorkloadEntry {
    WorkloadEntry {
        tenant: tenant(&holder),
        kind: holder.id.kind().name(),
        facts: holder.facts,
        workload: holder.id.0,
    }
}
