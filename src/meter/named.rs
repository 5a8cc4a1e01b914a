//! Who has rows of his own in a snapshot beside GPUs and accounts: processes, holdings, workloads.
//!
//! In: the GPUs as they are sealed, and who processes are. Out: entries of the roster, with their values. Entries are
//! made of keys, and stay the same `Arc` for as long as keys and identities do: what is shown of a process hardly ever
//! changes from one pulse to the next. It does not know what anybody pays.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Gpu;
use super::budget::{self, Costs, Purse};
use super::processes::Busy;
use crate::holders::Identities;
use crate::model::snapshot::{
    GpuState, HoldingEntry, HoldingState, ProcessEntry, ProcessState, WorkloadEntry,
};
use crate::model::{GpuProcess, Holder, HolderId, HoldingSource};
use crate::tenants::tenant;

/// What the last pulse showed.
#[derive(Default)]
pub(super) struct Named {
    identities: Arc<Identities>,
    processes: Section<Vec<(usize, Row)>, ProcessEntry>,
    holdings: Section<Vec<(usize, HolderId, HoldingSource)>, HoldingEntry>,
    workloads: Section<(Vec<bool>, Arc<[HoldingEntry]>), WorkloadEntry>,
}

/// Entries, and the key that they were made of.
struct Section<K, E> {
    key: Option<K>,
    entries: Arc<[E]>,
}

impl<K, E> Default for Section<K, E> {
    fn default() -> Self {
        Self { key: None, entries: Arc::default() }
    }
}

impl<K: PartialEq, E> Section<K, E> {
    /// The entries of a key: those of the last time where it is the same.
    fn of(&mut self, key: K, make: impl FnOnce(&K) -> Vec<E>) -> Arc<[E]> {
        if self.key.as_ref() != Some(&key) {
            self.entries = make(&key).into();
            self.key = Some(key);
        }
        Arc::clone(&self.entries)
    }
}

/// A row of processes.
#[derive(Clone, Copy, PartialEq)]
enum Row {
    /// One of its own, with its GPU instance and the number under which it is identified.
    Process(u32, Option<u32>, Option<usize>),
    /// That of all that have none.
    Other,
}

impl Named {
    /// Who processes are from now on; where that has changed nothing that was made stands.
    pub(super) fn know(&mut self, identities: &Arc<Identities>) {
        if self.identities.are_those_of(identities) {
            self.identities = Arc::clone(identities);
        } else {
            *self = Self { identities: Arc::clone(identities), ..Self::default() };
        }
    }

    /// Processes by GPU and pid, the largest first into the limit; what is above it is one row per GPU.
    pub(super) fn processes(
        &mut self,
        (gpus, states): (&[&Gpu], &[GpuState]),
        limit: usize,
        (purse, costs): (&mut Purse<'_>, &Costs),
    ) -> (Arc<[ProcessEntry]>, Vec<ProcessState>) {
        let mut lists: Vec<Vec<&GpuProcess>> =
            gpus.iter().zip(states).map(|(gpu, state)| listed(gpu, state)).collect();
        let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
        let most = budget::most_processes(&counts, limit, purse.room(&costs.process));
        let mut rows = Vec::new();
        let mut values = Vec::new();
        for (place, (gpu, processes)) in gpus.iter().zip(&mut lists).enumerate() {
            let (Some(frame), Some(most)) = (gpu.frame.as_deref(), most) else { continue };
            let rest = cut(processes, most);
            let read = frame.list_read_at();
            rows.extend(processes.iter().map(|one| {
                let known = self.identities.find(one.pid, read);
                (place, Row::Process(one.pid, one.gpu_instance, known))
            }));
            let busy = Busy::of(frame);
            values.extend(processes.iter().map(|process| busy.one(process)));
            if !rest.is_empty() {
                rows.push((place, Row::Other));
                values.push(busy.all(&rest));
            }
        }
        let wanted = budget::rows(&counts, limit);
        purse.pay(&costs.process, rows.len(), wanted.saturating_sub(rows.len()));
        let identities = &self.identities;
        let entries = self
            .processes
            .of(rows, |rows| rows.iter().map(|(gpu, row)| process_entry(*gpu, *row, identities)).collect());
        (entries, values)
    }

    /// The holdings of the moment, by GPU and holder.
    pub(super) fn holdings(
        &mut self,
        gpus: &[&Gpu],
        (purse, costs): (&mut Purse<'_>, &Costs),
    ) -> (Arc<[HoldingEntry]>, Vec<HoldingState>) {
        let all = gpus.iter().enumerate();
        let all = all.flat_map(|(gpu, state)| state.account.holdings().iter().map(move |one| (gpu, one)));
        let count = gpus.iter().map(|gpu| gpu.account.holdings().len()).sum();
        let shown = all.take(purse.fit(&costs.holding, count));
        let (keys, values) = shown
            .map(|(gpu, holding)| {
                let key = (gpu, holding.holder.clone(), holding.source);
                (key, HoldingState { fraction: holding.fraction })
            })
            .unzip();
        let identities = &self.identities;
        let entries = self.holdings.of(keys, |keys: &Vec<_>| {
            let entry = |(gpu, id, source): &(usize, HolderId, HoldingSource)| HoldingEntry {
                gpu: *gpu,
                workload: Arc::clone(&id.0),
                tenant: tenant(&holder(id, identities)),
                source: *source,
            };
            keys.iter().map(entry).collect()
        });
        (entries, values)
    }

    /// Everybody who holds or has a process on a GPU, by id.
    pub(super) fn workloads(
        &mut self,
        gpus: &[&Gpu],
        holdings: &Arc<[HoldingEntry]>,
        (purse, costs): (&mut Purse<'_>, &Costs),
    ) -> Arc<[WorkloadEntry]> {
        let identities = &self.identities;
        let mut here = vec![false; identities.holders().len()];
        let frames = gpus.iter().filter_map(|gpu| gpu.frame.as_deref());
        for frame in frames {
            let read = frame.list_read_at();
            for process in frame.processes.iter().flat_map(|list| list.iter()) {
                let place = identities.place(process.pid, read);
                if let Some(here) = place.and_then(|place| here.get_mut(place)) {
                    *here = true;
                }
            }
        }
        let key = (here, Arc::clone(holdings));
        let all = self.workloads.of(key, |(here, holdings)| {
            let users = identities.holders().zip(here).filter(|(_, here)| **here);
            let users = users.map(|(user, _)| (**user).clone());
            let holders =
                holdings.iter().map(|entry| holder(&HolderId(Arc::clone(&entry.workload)), identities));
            let mut all: Vec<Holder> = users.chain(holders).collect();
            all.sort_by(|one, other| one.id.cmp(&other.id));
            all.dedup_by(|one, other| one.id == other.id);
            all.into_iter().map(workload_entry).collect()
        });
        let fit = purse.fit(&costs.workload, all.len());
        if fit < all.len() { all[..fit].into() } else { all }
    }
}

/// The processes of a GPU that answers, by pid.
fn listed<'a>(gpu: &'a Gpu, state: &GpuState) -> Vec<&'a GpuProcess> {
    let frame = gpu.frame.as_deref().filter(|_| state.is_up());
    let listed = frame.and_then(|frame| frame.processes.as_ref().ok());
    let mut processes: Vec<_> = listed.into_iter().flat_map(|list| list.iter()).collect();
    processes.sort_by_key(|process| (process.pid, process.gpu_instance));
    processes
}

/// Leaves the largest of them, in their order, and takes the others.
fn cut<'a>(processes: &mut Vec<&'a GpuProcess>, most: usize) -> Vec<&'a GpuProcess> {
    if processes.len() <= most {
        return Vec::new();
    }
    processes.sort_by_key(|process| (Reverse(process.memory), process.pid));
    let rest = processes.split_off(most);
    processes.sort_by_key(|process| (process.pid, process.gpu_instance));
    rest
}

fn process_entry(gpu: usize, row: Row, identities: &Identities) -> ProcessEntry {
    let Row::Process(pid, gpu_instance, known) = row else {
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

/// Who a holder is: as it was identified, else as the operator's grant names it.
fn holder(id: &HolderId, identities: &Identities) -> Holder {
    identities.holder(id).map(|holder| (**holder).clone()).unwrap_or_else(|| {
        match id.as_str().split_once(':') {
            Some(("unit", unit)) => Holder::unit(unit, None, None),
            Some(("user", user)) => Holder::user(user, None),
            _ => Holder::remainder(id.clone()),
        }
    })
}

fn workload_entry(holder: Holder) -> WorkloadEntry {
    WorkloadEntry {
        tenant: tenant(&holder),
        kind: holder.kind.name(),
        unit: holder.facts.unit.unwrap_or_default(),
        user: holder.facts.user.unwrap_or_default(),
        workload: holder.id.0,
    }
}
