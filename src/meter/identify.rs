//! Step 1 of a tick: who is on a GPU, from its pids and the identities of processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::holders::Identities;
use crate::model::{Frame, GpuProcess, Holder, HolderId, MigLayout, Nanoseconds, Presence};

pub(super) type HolderList = Arc<[Arc<Holder>]>;

#[derive(Clone, Default)]
pub(super) struct PresentBySlot {
    /// Those of a GPU without MIG instances.
    pub(super) whole: PresentHolders,
    /// Those of MIG instances, by GPU instance id.
    pub(super) instances: BTreeMap<Arc<str>, PresentHolders>,
}

#[derive(Clone, Default)]
pub(super) struct PresentHolders {
    pub(super) holders: HolderList,
    presences: Vec<Presence>,
    pub(super) unidentified: Unidentified,
}

pub(super) type Unidentified = BTreeMap<ReadPid, Presence>;

/// A pid and the boot time at which it was read, since pids are reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadPid {
    pub(super) pid: u32,
    pub(super) read: Nanoseconds,
}

impl PresentBySlot {
    /// Identifies the processes of a frame on each slot of a layout, or on the whole GPU. If the frame's process list
    /// failed, the processes of the `last` frame remain present.
    pub(super) fn identify(
        frame: &Frame,
        identities: &Identities,
        layout: Option<&MigLayout>,
        last: Option<&Self>,
    ) -> Self {
        let Some(layout) = layout else {
            let last = last.map(|last| &last.whole);
            let whole = PresentHolders::identify(frame, identities, last, |_| true);
            return Self { whole, instances: BTreeMap::new() };
        };
        let on_slot = |slot: &Arc<str>| {
            let id = slot.parse().ok();
            let last = last.and_then(|last| last.instances.get(slot));
            PresentHolders::identify(frame, identities, last, |process| process.gpu_instance == id)
        };
        let instances = layout.slots.keys().map(|slot| (Arc::clone(slot), on_slot(slot))).collect();
        Self { whole: PresentHolders::default(), instances }
    }

    /// The same without weights, which apply to one frame only.
    pub(super) fn without_weights(mut self) -> Self {
        for slot in self.instances.values_mut().chain([&mut self.whole]) {
            for presence in slot.presences.iter_mut().chain(slot.unidentified.values_mut()) {
                presence.weight = None;
            }
        }
        self
    }
}

impl PresentHolders {
    fn identify(
        frame: &Frame,
        identities: &Identities,
        last: Option<&Self>,
        is_on_slot: impl Fn(&GpuProcess) -> bool,
    ) -> Self {
        let known = last.filter(|_| is_list_missing(frame));
        let mut by_holder = vec![None; identities.holders().len()];
        let mut unidentified = known.map(|known| known.unidentified.clone()).unwrap_or_default();
        let mut add = |pid: u32, read: Nanoseconds, process: &Presence| {
            let index = identities.find(pid, read).and_then(|number| identities.holder_index(number));
            let holder = index.and_then(|index| by_holder.get_mut(index));
            add_presence(
                match holder {
                    Some(presence) => presence.get_or_insert_default(),
                    None => unidentified.entry(ReadPid { pid, read }).or_default(),
                },
                process,
            );
        };
        let list_read = frame.list_read_at();
        let listed = frame.processes.iter().flat_map(|list| list.iter());
        for process in listed.filter(|process| is_on_slot(process)) {
            let memory = process.memory.map(|bytes| bytes.0);
            add(process.pid, list_read, &Presence { weight: None, memory });
        }
        for sample in frame.samples.iter().flatten() {
            let busiest = u64::from(sample.sm.max(sample.encoder).max(sample.decoder));
            let weight = Some(busiest.saturating_mul(sample.window));
            add(sample.pid, frame.ended.boottime, &Presence { weight, memory: None });
        }
        let here = identities.holders().zip(by_holder);
        let here = here.filter_map(|(holder, presence)| Some((holder, presence?)));
        let (holders, presences): (Vec<_>, _) = match known {
            None => here.map(|(holder, presence)| (Arc::clone(holder), presence)).unzip(),
            Some(known) => known.merge(here),
        };
        // Lists of the same holders are one `Arc`, so that holdings are not computed again.
        let is_same = |last: &&Self| {
            last.holders.len() == holders.len()
                && last.holders.iter().zip(&holders).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        let holders =
            last.filter(is_same).map(|last| Arc::clone(&last.holders)).unwrap_or_else(|| holders.into());
        Self { holders, presences, unidentified }
    }

    /// These holders and others, by id.
    fn merge<'a>(
        &'a self,
        others: impl Iterator<Item = (&'a Arc<Holder>, Presence)>,
    ) -> (Vec<Arc<Holder>>, Vec<Presence>) {
        let mut all: BTreeMap<&HolderId, (Arc<Holder>, Presence)> = BTreeMap::new();
        for (holder, presence) in self.holders.iter().zip(self.presences.iter().cloned()).chain(others) {
            let entry = all.entry(&holder.id).or_insert_with(|| (Arc::clone(holder), Presence::default()));
            add_presence(&mut entry.1, &presence);
        }
        all.into_values().unzip()
    }

    pub(super) fn by_holder(&self) -> BTreeMap<HolderId, Presence> {
        self.holders.iter().map(|holder| holder.id.clone()).zip(self.presences.iter().cloned()).collect()
    }
}

pub(super) fn is_list_missing(frame: &Frame) -> bool {
    frame.processes.as_ref().is_err_and(|absence| !absence.is_permanent())
}

/// Adds a process to its holder; what is unknown of one process is left out of the sum.
pub(super) fn add_presence(to: &mut Presence, process: &Presence) {
    let sum = |left: Option<u64>, right: Option<u64>| match (left, right) {
        (Some(left), Some(right)) => Some(left.saturating_add(right)),
        (left, right) => left.or(right),
    };
    to.weight = sum(to.weight, process.weight);
    to.memory = sum(to.memory, process.memory);
}
