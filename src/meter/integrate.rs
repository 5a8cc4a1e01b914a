//! What one frame adds to the time since the frame before it: busy time, the integrals of ratios, weights
//! and memory by holder.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::TrackedGpu;
use super::since::{Count, CounterTotal};
use crate::catalogue::{
    Counter, InstanceValue, IntegralOf, PointId, counter_of, device_points, first_point, integral_of,
};
use crate::holders::Identities;
use crate::model::snapshot::InstanceCounters;
use crate::model::{
    Absence, ActivitySource, Frame, GpuProcess, Holder, HolderId, InstanceIdentity, MigLayout, Nanoseconds,
    Presence, Reading, Rejection, Via,
};

pub(super) const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
const UTILIZATION: PointId = first_point("gpu_utilization_ratio");
const MEMORY_ACTIVITY: PointId = first_point("gpu_memory_activity_ratio");

/// The video engines, however many the catalogue knows.
static VIDEO: LazyLock<Vec<PointId>> = LazyLock::new(|| {
    let first = first_point("gpu_engine_utilization_ratio");
    let name = |point: PointId| device_points().nth(point).map(|(family, _)| family.name);
    (first..).take_while(|point| name(*point) == name(first)).collect()
});

/// One whole, in billionths.
pub(super) const WHOLE: u64 = 1_000_000_000;

/// The share of its span in which the busiest engine worked, in billionths, and by which meter; none where
/// activity cannot be known, as on a MIG parent.
pub(super) fn activity(frame: &Frame) -> Option<(ActivitySource, u64)> {
    if frame.identity.mig {
        return None;
    }
    let ratio = |point: PointId| frame.readings.get(point).copied().and_then(Result::ok);
    let sampled = frame.sampled.and_then(|sampled| i64::try_from(sampled.ratio).ok());
    let (source, engine) = ratio(GR_ENGINE)
        .map(|ratio| (ActivitySource::Gpm, ratio))
        .or_else(|| sampled.map(|ratio| (ActivitySource::Samples, ratio)))
        .or_else(|| ratio(UTILIZATION).map(|ratio| (ActivitySource::Utilization, ratio)))?;
    // An engine is read in every tick in which it may work: a value that stood longer is 0.
    let video = VIDEO.iter().filter_map(|point| ratio(*point)).max().unwrap_or(0);
    let busiest = u64::try_from(engine.max(video)).unwrap_or(0).min(WHOLE);
    Some((source, busiest))
}

/// A share of a span of time, rounded down.
pub(super) fn share(ratio: u64, span: Nanoseconds) -> u64 {
    let time = u128::from(ratio) * u128::from(span.0) / u128::from(WHOLE);
    u64::try_from(time).unwrap_or(span.0).min(span.0)
}

/// Holders with their facts, by id.
pub(super) type HolderList = Arc<[Arc<Holder>]>;

/// Who was there, with weights and memory; pids that nobody has named yet stand apart.
#[derive(Clone, Default)]
pub(super) struct PresentHolders {
    pub(super) holders: HolderList,
    /// Parallel to it.
    presences: Vec<Presence>,
    pub(super) unnamed: Unnamed,
}

/// Who was there on a whole GPU, or on each of its instances.
#[derive(Clone, Default)]
pub(super) struct PresentBySlot {
    pub(super) whole: PresentHolders,
    /// By GPU instance id.
    pub(super) instances: BTreeMap<Arc<str>, PresentHolders>,
}

/// Pids that nobody has named yet, each with the boot time at which it was read.
pub(super) type Unnamed = BTreeMap<(u32, Nanoseconds), Presence>;

/// The processes of a frame by holder, added to those that are known already.
pub(super) fn present_by_slot(
    known: Option<&PresentBySlot>,
    frame: &Frame,
    identities: &Identities,
    layout: Option<&MigLayout>,
) -> PresentBySlot {
    let Some(layout) = layout else {
        let whole = present(known.map(|known| &known.whole), frame, identities, |_| true);
        return PresentBySlot { whole, instances: BTreeMap::new() };
    };
    let of_slot = |slot: &Arc<str>| {
        let id = slot.parse().ok();
        let known = known.and_then(|known| known.instances.get(slot));
        present(known, frame, identities, |process| process.gpu_instance == id)
    };
    let instances = layout.slots.keys().map(|slot| (Arc::clone(slot), of_slot(slot))).collect();
    PresentBySlot { whole: PresentHolders::default(), instances }
}

/// The processes of a frame that are on a slot.
fn present(
    known: Option<&PresentHolders>,
    frame: &Frame,
    identities: &Identities,
    is_on_slot: impl Fn(&GpuProcess) -> bool,
) -> PresentHolders {
    let mut here = vec![None; identities.holders().len()];
    let mut unnamed = known.map(|known| known.unnamed.clone()).unwrap_or_default();
    let mut meet = |pid: u32, read: Nanoseconds, process: &Presence| {
        let to = match identities.holder_index(pid, read).and_then(|place| here.get_mut(place)) {
            Some(holder) => holder.get_or_insert_default(),
            None => unnamed.entry((pid, read)).or_default(),
        };
        add(to, process);
    };
    let list_read = frame.list_read_at();
    let on_slot = frame.processes.iter().flat_map(|list| list.iter()).filter(|process| is_on_slot(process));
    for process in on_slot {
        let memory = process.memory.map(|bytes| bytes.0);
        meet(process.pid, list_read, &Presence { weight: None, memory });
    }
    for sample in frame.samples.iter().flatten() {
        let busiest = u64::from(sample.sm.max(sample.encoder).max(sample.decoder));
        let presence = Presence { weight: Some(busiest.saturating_mul(sample.window)), memory: None };
        meet(sample.pid, frame.ended.boottime, &presence);
    }
    let here = identities.holders().zip(here).filter_map(|(holder, presence)| Some((holder, presence?)));
    match known {
        None => PresentHolders::of(here, unnamed),
        Some(known) => known.with(here, unnamed),
    }
}

impl PresentHolders {
    fn of<'a>(here: impl Iterator<Item = (&'a Arc<Holder>, Presence)>, unnamed: Unnamed) -> Self {
        let (who, holders): (Vec<_>, _) =
            here.map(|(holder, presence)| (Arc::clone(holder), presence)).unzip();
        Self { holders: who.into(), presences: holders, unnamed }
    }

    /// These and others.
    fn with<'a>(&'a self, here: impl Iterator<Item = (&'a Arc<Holder>, Presence)>, unnamed: Unnamed) -> Self {
        let known = self.holders.iter().zip(self.presences.iter().cloned());
        let mut all: BTreeMap<&HolderId, (&Arc<Holder>, Presence)> =
            known.map(|(holder, presence)| (&holder.id, (holder, presence))).collect();
        for (holder, presence) in here {
            add(&mut all.entry(&holder.id).or_insert((holder, Presence::default())).1, &presence);
        }
        Self::of(all.into_values(), unnamed)
    }

    /// The same processes, as far as a later tick may still go by them.
    fn without_weights(mut self) -> Self {
        for presence in self.presences.iter_mut().chain(self.unnamed.values_mut()) {
            presence.weight = None;
        }
        self
    }

    /// Says that the holders are those of another tick, where they are: what is kept by them is then shared.
    fn share(&mut self, others: &HolderList) {
        let same = self.holders.len() == others.len()
            && self.holders.iter().zip(&**others).all(|(one, other)| Arc::ptr_eq(one, other));
        if same {
            self.holders = Arc::clone(others);
        }
    }

    /// What is said of each holder.
    pub(super) fn by_holder(&self) -> BTreeMap<HolderId, Presence> {
        self.holders.iter().map(|holder| holder.id.clone()).zip(self.presences.iter().cloned()).collect()
    }
}

impl PresentBySlot {
    /// The same processes, as far as a later tick may still go by them.
    pub(super) fn without_weights(self) -> Self {
        let instances = self.instances.into_iter();
        Self {
            whole: self.whole.without_weights(),
            instances: instances.map(|(slot, present)| (slot, present.without_weights())).collect(),
        }
    }

    /// Says that the holders are those of another tick, where they are.
    pub(super) fn share(&mut self, others: &Self) {
        self.whole.share(&others.whole.holders);
        for (slot, present) in &mut self.instances {
            if let Some(others) = others.instances.get(slot) {
                present.share(&others.holders);
            }
        }
    }
}

/// The share of its span in which a MIG instance worked, in billionths; none where that cannot be known.
pub(super) fn instance_activity(frame: &Frame, slot: &str) -> Option<u64> {
    let id: u32 = slot.parse().ok()?;
    let instance = frame.instances.iter().find(|instance| instance.identity.id.gpu_instance == id)?;
    let ratio = instance.readings.get(InstanceValue::GrEngineActive as usize)?.ok()?;
    Some(u64::try_from(ratio).unwrap_or(0).min(WHOLE))
}

/// Adds a process to its holder; what is unknown of one process stays out of the sum.
pub(super) fn add(to: &mut Presence, process: &Presence) {
    let sum = |left: Option<u64>, right: Option<u64>| match (left, right) {
        (Some(left), Some(right)) => Some(left.saturating_add(right)),
        (left, right) => left.or(right),
    };
    to.weight = sum(to.weight, process.weight);
    to.memory = sum(to.memory, process.memory);
}

impl TrackedGpu {
    /// Adds the frame to the agent's own counters, over the time since the frame before it; memory activity over a
    /// medium interval of it at most, since it is asked for as often; why differences of GPM's counters could not be
    /// true.
    pub(super) fn integrate(&mut self, frame: &Frame, medium: Nanoseconds) -> Vec<Rejection> {
        let begins = std::mem::take(&mut self.starts_anew);
        if begins || self.frame.as_deref().is_some_and(|before| before.identity.mig != frame.identity.mig) {
            // GPM's counters go on over a new plan, but not over a reset.
            self.since.fill(CounterTotal::default());
        }
        let before = self.frame.as_deref();
        let before = before.filter(|before| !begins && before.generation == frame.generation);
        let tick = Tick::new(before, frame);
        if before.is_none() {
            self.counts.fill(None);
        }
        let mut refused = Vec::new();
        let kept = self.integrals.iter_mut().zip(&mut self.counts).zip(&mut self.since);
        for (number, ((total, last), since)) in kept.enumerate() {
            let rated = match integral_of(number) {
                IntegralOf::Ratio(MEMORY_ACTIVITY) => {
                    tick.within(medium).of_ratio(reading(frame, MEMORY_ACTIVITY))
                }
                IntegralOf::Ratio(point) => tick.of_ratio(reading(frame, point)),
                IntegralOf::Flow(point) => {
                    let is_rate = frame.identity.via.get(point).copied().flatten() == Some(Via::Gpm);
                    tick.of_flow(last, reading(frame, point), is_rate)
                }
            };
            let count = tick.count(&frame.counters, counter_of(number));
            refused.extend(tick.grow(total, since, count, rated));
        }
        self.integrate_instances(frame, &tick, &mut refused);
        refused
    }

    /// Adds what the account took for busy up to the frame, so that the page and the account never differ.
    pub(super) fn integrate_busy(&mut self, frame: &Frame, busy: u64) {
        add_to(&mut self.busy, activity(frame).map(|_| busy).ok_or(Absence::NotSupported));
    }

    /// Instances are kept by the id of their GPU instance. One that has an id again after another began anew with it.
    fn integrate_instances(&mut self, frame: &Frame, tick: &Tick, refused: &mut Vec<Rejection>) {
        if tick.before.is_none() {
            self.instances_since.clear();
        }
        let mut last = None;
        for instance in &*frame.instances {
            let id = instance.identity.id.gpu_instance;
            // Compute instances of one GPU instance show the same.
            if last.replace(id) == Some(id) {
                continue;
            }
            let begun = |since| InstanceCounters {
                instance: instance.identity.clone(),
                since,
                values: vec![Err(Absence::NotYet); InstanceValue::ALL.len()].into(),
            };
            let kept = self.instances.entry(id).or_insert_with(|| begun(None));
            if is_another(&kept.instance, &instance.identity) {
                *kept = begun(Some(frame.begun.utc));
            }
            let since = self.instances_since.entry(id).or_default();
            let readings = InstanceValue::ALL.iter().zip(&*instance.readings);
            for (place, (total, (value, reading))) in kept.values.iter_mut().zip(readings).enumerate() {
                if value.is_ratio() {
                    let count = tick.count(&instance.counters, value.counter());
                    refused.extend(tick.grow(total, &mut since[place], count, tick.of_ratio(*reading)));
                }
            }
        }
    }
}

/// Whether an id is another instance's now. UUIDs alone do not tell: they may be made of the GPU and the ids.
fn is_another(one: &InstanceIdentity, now: &InstanceIdentity) -> bool {
    (&one.uuid, &one.profile, &one.placement) != (&now.uuid, &now.profile, &now.placement)
}

/// The time between two frames of one plan.
#[derive(Clone, Copy)]
struct Tick {
    /// When it began; none where the frame only begins.
    before: Option<Nanoseconds>,
    at: Nanoseconds,
    span: Nanoseconds,
}

impl Tick {
    fn new(before: Option<&Frame>, frame: &Frame) -> Self {
        let span = before.map_or(Nanoseconds(0), |before| frame.begun.since(before.begun));
        Self { before: before.map(|before| before.begun.boottime), at: frame.begun.boottime, span }
    }

    /// At most so much of it.
    fn within(self, longest: Nanoseconds) -> Self {
        Self { span: self.span.min(longest), ..self }
    }

    /// What a counter has reached, with the cycles that passed where it counts cycles. Where there are no counters at
    /// all the plan has no pair of samples for now.
    fn count(&self, counters: &[Reading], counter: Option<Counter>) -> Result<Count, Absence> {
        let counter = counter.ok_or(Absence::NotSupported)?;
        let read = |counter: Counter| counters.get(counter as usize).copied().unwrap_or(Err(Absence::NotYet));
        let whole = if counter.is_of_time() { Some(read(Counter::Elapsed)?) } else { None };
        Ok(Count { at: self.at, value: read(counter)?, whole })
    }

    fn of_ratio(&self, ratio: Reading) -> Result<u64, Absence> {
        ratio.map(|ratio| share(u64::try_from(ratio).unwrap_or(0), self.span))
    }

    /// What flowed: a rate per second over the time, or what a count grew by since it was last read. A count that
    /// is smaller than before wrapped or began anew: how far it had come is not known, and nothing is added.
    fn of_flow(&self, last: &mut Option<u64>, now: Reading, is_rate: bool) -> Result<u64, Absence> {
        let now = now.map(|now| u64::try_from(now).unwrap_or(0));
        now.map(|now| {
            if is_rate {
                let flowed = u128::from(now) * u128::from(self.span.0) / u128::from(Nanoseconds::SECOND.0);
                return u64::try_from(flowed).unwrap_or(0);
            }
            now.saturating_sub(last.replace(now).unwrap_or(now))
        })
    }

    /// A total appears with its first value and never goes back; what is missing adds nothing.
    fn grow(
        &self,
        total: &mut Reading,
        since: &mut CounterTotal,
        count: Result<Count, Absence>,
        rated: Result<u64, Absence>,
    ) -> Option<Rejection> {
        let growth = since.grow(count, self.before, rated);
        add_to(total, growth.by);
        growth.refused
    }
}

fn reading(frame: &Frame, point: PointId) -> Reading {
    frame.readings.get(point).copied().unwrap_or(Err(Absence::NotYet))
}

fn add_to(counter: &mut Reading, added: Result<u64, Absence>) {
    match added {
        Ok(added) => {
            *counter = Ok(counter.unwrap_or(0).saturating_add(i64::try_from(added).unwrap_or(0)));
        }
        Err(absence) if counter.is_err() => *counter = Err(absence),
        Err(_) => {}
    }
}
