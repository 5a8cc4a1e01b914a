//! What must hold at every tick of the walk, for any layout.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumeter::accounting::batches::CounterKey;
use gpumeter::model::catalogue::{InstanceValue, PointId, first_point};
use gpumeter::model::snapshot::Snapshot;
use gpumeter::model::{Absence, Frame, Nanoseconds, Utc};

use super::layout::{Layout, slices};
use super::world::{MIG_GPU, TickResult};

const TOTAL: PointId = first_point("gpu_memory_total_bytes");
const USED: PointId = first_point("gpu_memory_used_bytes");
const UTILIZATION: PointId = first_point("gpu_utilization_ratio");
const ENERGY: PointId = first_point("gpu_energy_joules_total");
const SECOND: u64 = 1_000_000_000;

/// Values of former ticks that the checks need.
#[derive(Default)]
pub(crate) struct Laws {
    /// UUIDs of former and of current instances.
    former: BTreeSet<Arc<str>>,
    current: BTreeSet<Arc<str>>,
    layout: Option<Layout>,
    /// By GPU: the end of its account, and its settled time.
    settled: BTreeMap<Arc<str>, (Utc, Nanoseconds)>,
    /// Held, used and energy of each holder of each GPU.
    accounts: BTreeMap<CounterKey, [u64; 3]>,
    /// The energy counter of each GPU at its first reading, and at every whole second since.
    energy: BTreeMap<Arc<str>, BTreeMap<u64, i64>>,
    /// The agent's busy time by GPU and by GPU instance.
    busy: BTreeMap<(usize, Option<u32>, Option<Utc>), i64>,
}

impl Laws {
    /// Checks everything after a tick; a failure names `place`.
    pub(crate) fn check(&mut self, place: &str, placed: &Layout, result: &TickResult) {
        self.layout_is_the_new_one(place, placed, &result.frames[MIG_GPU]);
        gpu_without_instances_is_unused(place, placed, &result.frames[MIG_GPU]);
        nothing_is_counted_twice(place, &result.frames[MIG_GPU]);
        holdings_fit(place, &result.snapshot);
        self.busy_time_grows_by_no_more_than_time(place, &result.snapshot);
        self.account_sums_to_the_settled_time(place, result);
    }

    /// Settled time of all GPUs.
    pub(crate) fn settled_seconds(&self) -> u64 {
        self.settled.values().map(|(_, slot)| slot.0 / SECOND).sum()
    }

    fn layout_is_the_new_one(&mut self, place: &str, placed: &Layout, frame: &Frame) {
        let mut wanted: Vec<&str> = placed.iter().flatten().map(|(profile, _)| *profile).collect();
        let mut shown: Vec<&str> =
            frame.instances.iter().map(|instance| &*instance.identity.profile).collect();
        wanted.sort_unstable();
        shown.sort_unstable();
        assert_eq!(shown, wanted, "{place}: instances in the tick after the change");
        assert_eq!(frame.identity.mig, placed.is_some(), "{place}: MIG mode");
        let uuids: BTreeSet<Arc<str>> =
            frame.instances.iter().map(|instance| Arc::clone(&instance.identity.uuid)).collect();
        assert_eq!(uuids.len(), frame.instances.len(), "{place}: two instances with one UUID");
        if self.layout.as_ref() == Some(placed) {
            assert_eq!(uuids, self.current, "{place}: other instances in the same layout");
        } else {
            self.former.append(&mut self.current);
            assert!(uuids.is_disjoint(&self.former), "{place}: an instance of a former layout");
            self.current = uuids;
            self.layout = Some(placed.clone());
        }
    }

    fn busy_time_grows_by_no_more_than_time(&mut self, place: &str, snapshot: &Snapshot) {
        for (gpu, state) in snapshot.gpus.iter().enumerate() {
            let own = state.busy.ok().map(|busy| (None, None, busy));
            let engine = InstanceValue::GrEngineActive as usize;
            let instances = state.instances.iter().filter_map(|(id, counters)| {
                // Another instance with the same id starts from 0.
                Some((Some(*id), counters.since, counters.values[engine].ok()?))
            });
            for (id, since, busy) in own.into_iter().chain(instances) {
                let before = self.busy.insert((gpu, id, since), busy).unwrap_or(busy);
                let grown = busy - before;
                assert!(
                    (0..=SECOND as i64).contains(&grown),
                    "{place}: in a second GPU {gpu}, instance {id:?}, was busy for {grown} ns more"
                );
            }
        }
    }

    fn account_sums_to_the_settled_time(&mut self, place: &str, result: &TickResult) {
        for frame in &result.frames {
            let second = frame.begun.utc.0 / SECOND;
            let energy = frame.readings[ENERGY].unwrap();
            self.energy.entry(Arc::clone(&frame.gpu.uuid)).or_default().insert(second, energy);
        }
        let committed = &result.committed;
        assert_eq!(committed.imbalance, 0, "{place}: the ledger does not balance");
        assert_eq!(committed.unobserved, Nanoseconds(0), "{place}: a window is missing");
        for (key, counter) in &committed.counters {
            let energy = counter.amounts.energy_static.0 + counter.amounts.energy_dynamic.0;
            let now = [counter.amounts.parts.held(), counter.amounts.used.total(), energy];
            let before = self.accounts.insert(key.clone(), now).unwrap_or_default();
            assert!(
                before.iter().zip(&now).all(|(before, now)| before <= now),
                "{place}: {key:?} had {before:?} and has {now:?}"
            );
        }
        for (gpu, total) in &committed.slots {
            let before = self.settled.insert(Arc::clone(gpu), (total.settled_until, total.slot));
            if let Some((until, slot)) = before {
                let passed = total.settled_until.since(until).0;
                assert_eq!(
                    total.slot.0 - slot.0,
                    passed,
                    "{place}: settled GPU time and elapsed time differ"
                );
            }
            self.holders_sum_to_the_settled_time(place, gpu);
        }
    }

    /// The holders' time and energy of a GPU sum to what was settled.
    fn holders_sum_to_the_settled_time(&self, place: &str, gpu: &Arc<str>) {
        let (until, slot) = self.settled[gpu];
        let own = self.accounts.iter().filter(|(of, _)| of.gpu == *gpu);
        let [held, used, energy] = own.fold([0; 3], |mut sum, (_, account)| {
            sum.iter_mut().zip(account).for_each(|(sum, part)| *sum += part);
            sum
        });
        assert_eq!(held, slot.0, "{place}: held time and settled time differ");
        assert!(used <= slot.0, "{place}: {used} ns used of {} ns", slot.0);
        let read = &self.energy[gpu];
        let (first, last) = (read.values().next().unwrap(), read[&(until.0 / SECOND)]);
        assert_eq!(
            i64::try_from(energy).unwrap(),
            last - first,
            "{place}: energy of all holders and of the counter differ"
        );
    }
}

/// In MIG mode without instances no process can run, and the driver reports no utilization.
fn gpu_without_instances_is_unused(place: &str, placed: &Layout, frame: &Frame) {
    if placed.as_ref().is_some_and(Vec::is_empty) {
        assert!(frame.processes.as_ref().unwrap().is_empty(), "{place}: {:?}", frame.processes);
        assert_eq!(frame.readings[UTILIZATION], Err(Absence::NotSupported), "{place}");
        assert_eq!(frame.readings[USED], Ok(0), "{place}: used memory");
    }
}

fn nothing_is_counted_twice(place: &str, frame: &Frame) {
    let sum = |value: InstanceValue| -> i64 {
        frame.instances.iter().filter_map(|instance| instance.readings[value as usize].ok()).sum()
    };
    let used_slices: u64 = frame.instances.iter().map(|instance| slices(&instance.identity.profile)).sum();
    assert!(used_slices <= 7, "{place}: {used_slices} slices of seven");
    for (what, whole, parts) in [
        ("memory", frame.readings[TOTAL], sum(InstanceValue::MemoryTotal)),
        ("used memory", frame.readings[USED], sum(InstanceValue::MemoryUsed)),
    ] {
        let whole = whole.unwrap();
        assert!(parts <= whole, "{place}: {what} of all instances is {parts}, of the GPU {whole}");
    }
    // A process is in one instance, and that instance exists.
    let ids: BTreeSet<u32> = frame.instances.iter().map(|one| one.identity.id.gpu_instance).collect();
    let mut pids = BTreeSet::new();
    for process in frame.processes.as_ref().unwrap().iter() {
        assert!(pids.insert(process.pid), "{place}: process {} is listed twice", process.pid);
        let exists = process.gpu_instance.is_none_or(|id| ids.contains(&id));
        assert!(exists, "{place}: process {} is in instance {:?}", process.pid, process.gpu_instance);
    }
}

/// In MIG mode only instances are held, otherwise only the whole GPU, and never more than all of it.
fn holdings_fit(place: &str, snapshot: &Snapshot) {
    let mut held: BTreeMap<(usize, &str), f64> = BTreeMap::new();
    for (entry, state) in snapshot.roster.holdings.iter().zip(&snapshot.holdings) {
        let share = f64::from(state.fraction.numerator) / f64::from(state.fraction.denominator);
        *held.entry((entry.gpu, &*entry.gpu_instance)).or_default() += share;
    }
    assert!(held.values().all(|held| *held < 1.000_001), "{place}: holdings of {held:?}");
    for (gpu, gpu_instance) in held.keys() {
        let gpu = &snapshot.roster.gpus[*gpu];
        let is_there = gpu.instances.iter().any(|instance| *instance.gpu_instance == **gpu_instance);
        let fits = if gpu.identity.mig { is_there } else { gpu_instance.is_empty() };
        assert!(fits, "{place}: {gpu_instance:?} of {:?} is held", gpu.instances);
    }
}
