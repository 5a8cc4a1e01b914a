//! What advice is made from: the stretches in which holders used nothing, their runs, and the faults of their GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fleet::FleetEvidence;
use super::gates::draws_power;
use crate::accounting::billing::{GpuIncident, RateKind};
use crate::accounting::tenants::recurring_name;
use crate::model::{
    Bytes, EDGES, GpuId, Grade, Holder, HolderId, Microjoules, MigProfile, Nanoseconds, Series, Shapes, Utc,
    WorkloadClass,
};

/// Shorter stretches are forgotten: no rule has a shorter limit.
const LEAST: Nanoseconds = Nanoseconds::from_seconds(10 * 60);

/// Those of services, of which there are many.
const LEAST_OF_SERVICES: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// The evidence of a period, of the workloads that the reader may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdviceEvidence {
    pub from: Utc,
    /// The end of the account.
    pub to: Utc,
    /// Of all rates here; none where no price was in force.
    pub currency: Option<String>,
    /// By UUID.
    pub gpus: BTreeMap<Arc<str>, EvidenceGpu>,
    pub workloads: BTreeMap<WorkloadKey, WorkloadEvidence>,
    /// How busy the workloads of a tenant with one name kept their slots while they were alone there.
    pub shapes: BTreeMap<(Arc<str>, Arc<str>), Shapes>,
    /// The parts of workloads that were not alone on a slot at some time.
    pub shared_parts: BTreeMap<WorkloadKey, BTreeSet<Arc<str>>>,
    /// By product name: the MIG profiles that such boards are known to offer.
    pub profiles: BTreeMap<String, BTreeMap<MigProfile, ProfilePrice>>,
    /// Of a fleet, if all of it is known and the reader may see it.
    pub fleet: Option<FleetEvidence>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvidenceGpu {
    pub gpu: GpuId,
    pub node: String,
    pub model: String,
    /// None where it is not recorded.
    pub memory: Option<Bytes>,
    /// Whether the memory of processes was ever reported on a board of this model there. Without it, no process and no reading look
    /// the same.
    pub reports_memory: bool,
    pub incidents: Vec<GpuIncident>,
}

/// A workload, of a step its job and of a container its pod, while it was on the bill of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub tenant: Arc<str>,
    pub workload: HolderId,
}

impl WorkloadKey {
    pub fn of(tenant: Arc<str>, holder: &HolderId) -> Self {
        Self { tenant, workload: holder.whole() }
    }
}

/// A fleet has millions of them in a month, each mostly with one run on one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadEvidence {
    /// That all runs of a recurring workload have.
    pub name: Arc<str>,
    pub class: WorkloadClass,
    /// In order: a map has room for eleven where most have one.
    pub slots: Vec<(SlotKey, SlotEvidence)>,
}

impl WorkloadEvidence {
    /// Names it by one of its holders. The facts of the workload itself count before those of its parts.
    pub fn describe(&mut self, key: &WorkloadKey, holder: &Holder, class: WorkloadClass) {
        if self.name.is_empty() || holder.id.name() == key.workload.name() {
            (self.name, self.class) = (recurring_name(holder).into(), class);
        }
    }

    /// The evidence of a slot, which is made where it is not there yet.
    pub fn slot(&mut self, slot: SlotKey) -> &mut SlotEvidence {
        let found = self.slots.binary_search_by(|(known, _)| known.cmp(&slot));
        let place = found.unwrap_or_else(|place| {
            self.slots.reserve_exact(1);
            self.slots.insert(place, (slot, SlotEvidence::default()));
            place
        });
        &mut self.slots[place].1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotKey {
    pub uuid: Arc<str>,
    pub gpu_instance: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotEvidence {
    /// In order of time.
    pub runs: Vec<SlotRun>,
    /// In order of time.
    pub stretches: Vec<IdleStretch>,
    /// In order of time, of a ledger within times of the same prices by profile, and only on GPUs of which profiles are known.
    pub held: Vec<ChargedTime>,
    /// The worst of the period.
    pub grade: Grade,
}

/// A time in which a workload held a slot under one rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargedTime {
    pub from: Utc,
    pub to: Utc,
    /// GPU time that its tenant is charged for.
    pub held: Nanoseconds,
    /// Shared by the millions of times of a fleet, of which few differ in it.
    pub rates: Arc<ChargedRates>,
}

/// The profile of the slot that was held, and what its time costs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChargedRates {
    /// Of an instance.
    pub profile: Option<MigProfile>,
    /// Of the slot and of the whole GPU, in nano-units per GPU-hour before terms; none without a price.
    pub slot: Option<i64>,
    pub gpu: Option<i64>,
    /// What its tenant pays of a rate for idle time, in billionths.
    pub paid: i64,
}

/// What instances of a profile cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfilePrice {
    /// The dearest rate of instances, in nano-units per GPU-hour.
    instance: Option<i64>,
    /// Whether they cost their part of the GPU at some time.
    is_part: bool,
}

impl ProfilePrice {
    pub fn add(&mut self, unit: RateKind, nano_per_gpu_hour: i64) {
        match unit {
            RateKind::InstanceHour => self.instance = self.instance.max(Some(nano_per_gpu_hour)),
            _ => self.is_part = true,
        }
    }

    /// Adds what was seen elsewhere.
    pub fn append(&mut self, other: Self) {
        *self = Self { instance: self.instance.max(other.instance), is_part: self.is_part || other.is_part };
    }

    /// The most that a GPU-hour of it may cost on a GPU with that rate; none without a price.
    pub fn most(self, gpu: Option<i64>) -> Option<i64> {
        match (self.instance, self.is_part) {
            (instance, true) => Some(gpu?.max(instance.unwrap_or(0))),
            (instance, false) => instance,
        }
    }
}

/// A run on one slot, with its times of the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRun {
    pub begin: Utc,
    /// That of the account where it goes on.
    pub end: Utc,
    /// It may have ended so much earlier: the length of a row.
    pub grid: Nanoseconds,
    pub goes_on: bool,
    pub first_use: Option<Utc>,
    pub last_use: Option<Utc>,
    pub held: Nanoseconds,
    pub used: Nanoseconds,
    /// Held while use was not known, or while the GPU had failed.
    pub unknown: Nanoseconds,
    /// The most of a tick, of one of its parts; 0 where none was reported.
    pub memory_peak: Bytes,
}

/// Whether a workload had a process on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessPresence {
    Absent,
    Present,
    /// Somebody had memory there who may have worked for it: an MPS server, or a process whose owner is not known.
    Unclear,
}

/// A time in which a workload held a slot and used nothing of it, under one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleStretch {
    pub from: Utc,
    pub to: Utc,
    /// The longest of the rows that it is made of: it may have begun, and ended, so much inside.
    pub grid: Nanoseconds,
    /// GPU time that it held and nobody used. None is known where a part of it was not measured.
    pub idle: Nanoseconds,
    /// The part of it in which it is not known whether the workload used the slot, or had a process.
    pub unknown: Nanoseconds,
    pub process: ProcessPresence,
    /// Energy above that of an idle board without a process.
    pub waiting: Microjoules,
    /// What an hour of idle GPU time costs its tenant, in nano-units; none without a price.
    pub rate: Option<i64>,
    /// Whether nobody else held or used any of the GPU.
    pub is_alone: bool,
}

impl IdleStretch {
    pub const fn length(&self) -> Nanoseconds {
        self.to.since(self.from)
    }

    /// The part between two times; its idle time is rounded down. None where it has no such part.
    pub fn between(self, from: Utc, to: Utc) -> Option<Self> {
        let (from, to) = (self.from.max(from), self.to.min(to));
        let length = u128::from(self.length().0);
        let part = |whole: u64| {
            let part = u128::from(whole) * u128::from(to.since(from).0);
            u64::try_from(part.checked_div(length).unwrap_or(0)).unwrap_or(whole)
        };
        let [idle, unknown] = [self.idle, self.unknown].map(|whole| Nanoseconds(part(whole.0)));
        let waiting = Microjoules(part(self.waiting.0));
        (from < to).then_some(Self { from, to, idle, unknown, waiting, ..self })
    }

    fn is_as(&self, other: &Self) -> bool {
        // A mean over hours would hide one in which a process worked.
        let of = |one: &Self| (one.process, one.rate, one.is_alone, draws_power(one));
        let is_known = |one: &Self| [one.idle, one.unknown].map(|time| time.0 > 0);
        of(self) == of(other) && is_known(self) == is_known(other)
    }
}

impl SlotEvidence {
    /// Adds what follows in time, and forgets the stretches before a pause if they are shorter together than `least`.
    pub fn add_idle(&mut self, next: IdleStretch, least: Nanoseconds) {
        match self.stretches.last_mut() {
            Some(last) if last.to == next.from && last.is_as(&next) => {
                last.to = next.to;
                last.idle += next.idle;
                last.unknown += next.unknown;
                last.waiting.0 = last.waiting.0.saturating_add(next.waiting.0);
                last.grid = last.grid.max(next.grid);
            }
            Some(last) if last.to == next.from => self.stretches.push(next),
            _ => {
                self.forget_short(least);
                self.stretches.push(next);
            }
        }
    }

    /// Adds held time that follows, or is as early.
    pub fn add_held(&mut self, next: ChargedTime) {
        match self.held.last_mut() {
            Some(last) if last.rates == next.rates => {
                (last.from, last.to) = (last.from.min(next.from), last.to.max(next.to));
                last.held += next.held;
            }
            _ => self.held.push(next),
        }
    }

    /// Forgets the last stretches that follow each other without a pause, if they are shorter together than `least`.
    pub fn forget_short(&mut self, least: Nanoseconds) {
        let follows = |pair: &[IdleStretch]| pair[0].to == pair[1].from;
        let count = 1 + self.stretches.windows(2).rev().take_while(|pair| follows(pair)).count();
        let chain = self.stretches.len().saturating_sub(count);
        if let [first, .., last] | [first @ last] = &self.stretches[chain..]
            && last.to.since(first.from) < least
        {
            self.stretches.truncate(chain);
        }
    }
}

/// Shorter stretches are not kept.
pub const fn least_idle(class: WorkloadClass) -> Nanoseconds {
    if matches!(class, WorkloadClass::Service) { LEAST_OF_SERVICES } else { LEAST }
}

impl AdviceEvidence {
    /// The evidence of a workload on a slot, which is made where it is not there yet.
    pub fn slot(&mut self, key: &WorkloadKey, slot: SlotKey) -> &mut SlotEvidence {
        self.workloads.entry(key.clone()).or_default().slot(slot)
    }

    /// Adds shapes of a part of a workload that has a name.
    pub fn add_shapes(&mut self, key: &WorkloadKey, part: &HolderId, shapes: &Shapes) {
        if shapes[Series::Busy as usize].0[EDGES.len()] > 0 {
            self.shared_parts.entry(key.clone()).or_default().insert(part.name().into());
        }
        let name = self.workloads.get(key).map(|workload| workload.name.clone()).unwrap_or_default();
        let known = self.shapes.entry((Arc::clone(&key.tenant), name)).or_default();
        known.iter_mut().zip(shapes).for_each(|(known, shape)| known.add(shape));
    }

    /// Sets on which GPUs a process that is not seen is none, from those on which memory of processes was reported: boards of one
    /// model are alike on a node.
    pub fn set_reporting(&mut self, with_memory: &BTreeSet<Arc<str>>) {
        let place = |gpu: &EvidenceGpu| (gpu.node.clone(), gpu.model.clone());
        let with_memory = with_memory.iter().filter_map(|uuid| self.gpus.get(uuid));
        let places: BTreeSet<(String, String)> = with_memory.map(place).collect();
        for gpu in self.gpus.values_mut() {
            gpu.reports_memory = places.contains(&place(gpu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MINUTE;

    fn minute(at: u64, process: ProcessPresence) -> IdleStretch {
        IdleStretch {
            from: Utc(at * MINUTE.0),
            to: Utc((at + 1) * MINUTE.0),
            grid: MINUTE,
            idle: Nanoseconds(MINUTE.0 / 2),
            unknown: Nanoseconds(0),
            process,
            waiting: Microjoules(3),
            rate: Some(5),
            is_alone: false,
        }
    }

    #[test]
    fn minutes_that_follow_each_other_are_one_stretch_and_short_ones_are_forgotten() {
        let mut slot = SlotEvidence::default();
        let mut add = |next| slot.add_idle(next, LEAST);
        // Five minutes alone; then eight without and eight with a process.
        let present = |at| minute(at, ProcessPresence::Present);
        (0..5).map(present).for_each(&mut add);
        (10..18).for_each(|at| add(minute(at, ProcessPresence::Absent)));
        (18..26).map(present).for_each(&mut add);
        (30..39).map(present).for_each(&mut add);
        slot.forget_short(LEAST);
        let stretches = slot.stretches;
        let times: Vec<_> =
            stretches.iter().map(|one| [one.from.0 / MINUTE.0, one.to.0 / MINUTE.0]).collect();
        assert_eq!(times, [[10, 18], [18, 26]]);
        assert_eq!((stretches[0].idle.0, stretches[0].waiting.0), (4 * MINUTE.0, 24));
    }

    #[test]
    fn minutes_in_which_a_process_worked_by_its_power_are_no_part_of_those_around_them() {
        let mut slot = SlotEvidence::default();
        let joules = |watts: u64| Microjoules(watts * 60_000_000);
        for at in 0..60 {
            let waiting = joules(if (20..30).contains(&at) { 500 } else { 10 });
            slot.add_idle(IdleStretch { waiting, ..minute(at, ProcessPresence::Present) }, LEAST);
        }
        let found: Vec<_> =
            slot.stretches.iter().map(|one| (one.length().0 / MINUTE.0, draws_power(one))).collect();
        assert_eq!(found, [(20, false), (10, true), (30, false)]);
    }

    #[test]
    fn a_part_of_a_stretch_has_its_part_of_the_idle_time() {
        let whole = IdleStretch {
            to: Utc(10 * MINUTE.0),
            idle: Nanoseconds(7),
            ..minute(0, ProcessPresence::Absent)
        };
        let part = whole.between(Utc(5 * MINUTE.0), Utc(u64::MAX));
        assert_eq!(part.map(|part| (part.from.0, part.idle.0)), Some((5 * MINUTE.0, 3)));
        assert_eq!(whole.between(Utc(10 * MINUTE.0), Utc(u64::MAX)), None);
    }
}
