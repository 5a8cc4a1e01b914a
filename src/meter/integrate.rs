//! Second half of step 2 of a tick: adds a frame to the agent's own totals, over the time since the frame before it.
//! `Account::add_frame` has added the span.

use std::sync::{Arc, LazyLock};

use super::TrackedGpu;
use super::counter_total::{CounterTotal, GpmReading};
use crate::model::catalogue::{
    Counter, InstanceValue, IntegralOf, PointId, counter_of, first_point, integral_of, point, points_of,
};
use crate::model::snapshot::InstanceCounters;
use crate::model::{
    Absence, ActivitySource, Frame, InstanceFrame, InstanceIdentity, MigLayout, MigSlot, Nanoseconds,
    Reading, Rejection, Series, TickShares, Via, WHOLE_SHARE,
};

pub(super) const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
/// The points of which the account keeps the share of each tick. GPM alone reads them.
const TICK_POINTS: [(Series, PointId, InstanceValue); 4] = [
    (Series::Sm, first_point("gpu_sm_active_ratio"), InstanceValue::SmActive),
    (Series::Tensor, first_point("gpu_tensor_active_ratio"), InstanceValue::TensorActive),
    (Series::Fp64, point("gpu_pipe_active_ratio", "fp64"), InstanceValue::Fp64),
    (Series::Dram, first_point("gpu_dram_active_ratio"), InstanceValue::DramActive),
];
const UTILIZATION: PointId = first_point("gpu_utilization_ratio");
const MEMORY_ACTIVITY: PointId = first_point("gpu_memory_activity_ratio");

static VIDEO: LazyLock<Vec<PointId>> =
    LazyLock::new(|| points_of("gpu_engine_utilization_ratio", &[]).map(|(point, _)| point).collect());

/// One whole, in billionths.
pub(super) const WHOLE: u64 = 1_000_000_000;

/// The share of time in which the busiest engine worked, in billionths, and its meter; none where activity is unknown, as
/// on a GPU with MIG instances.
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
    // Video engines are read in every tick in which they may work; an older value is 0.
    let video = VIDEO.iter().filter_map(|point| ratio(*point)).max().unwrap_or(0);
    let busiest = u64::try_from(engine.max(video)).unwrap_or(0).min(WHOLE);
    Some((source, busiest))
}

/// A share of a span of time, rounded down.
pub(super) fn share(ratio: u64, span: Nanoseconds) -> u64 {
    let time = u128::from(ratio) * u128::from(span.0) / u128::from(WHOLE);
    u64::try_from(time).unwrap_or(span.0).min(span.0)
}

/// What GPM reports of a tick; nothing on a GPU with MIG instances.
pub(super) fn tick_shares(frame: &Frame) -> TickShares {
    let mut shares = TickShares::default();
    for (series, point, _) in TICK_POINTS.iter().filter(|_| !frame.identity.mig) {
        let ratio = frame.readings.get(*point).copied().and_then(Result::ok);
        shares.0[*series as usize] = ratio.map(tick_share);
    }
    shares
}

/// What GPM reports of a tick of a MIG instance.
pub(super) fn instance_shares(frame: &Frame, slot: &str) -> TickShares {
    let mut shares = TickShares::default();
    if let Some(instance) = instance_of(frame, slot) {
        for (series, _, value) in &TICK_POINTS {
            let ratio = instance.readings.get(*value as usize).copied().and_then(Result::ok);
            shares.0[*series as usize] = ratio.map(tick_share);
        }
    }
    shares
}

/// Billionths in ten-thousandths.
fn tick_share(ratio: i64) -> u16 {
    const BILLIONTHS: i64 = WHOLE as i64 / WHOLE_SHARE as i64;
    u16::try_from(ratio / BILLIONTHS).unwrap_or(0).min(WHOLE_SHARE)
}

fn instance_of<'a>(frame: &'a Frame, slot: &str) -> Option<&'a InstanceFrame> {
    let id: u32 = slot.parse().ok()?;
    frame.instances.iter().find(|instance| instance.identity.id.gpu_instance == id)
}

/// The share of time in which a MIG instance worked, in billionths; none where it is unknown.
pub(super) fn instance_activity(frame: &Frame, slot: &str) -> Option<u64> {
    let ratio = instance_of(frame, slot)?.readings.get(InstanceValue::GrEngineActive as usize)?.ok()?;
    Some(u64::try_from(ratio).unwrap_or(0).min(WHOLE))
}

/// The share of time busy at a frame, in billionths; of a MIG GPU the mean of its instances by size.
pub(super) fn shown_activity(frame: &Frame, layout: Option<&MigLayout>) -> Reading {
    let ratio = match layout.filter(|_| frame.identity.mig) {
        None => activity(frame).map(|(_, ratio)| ratio),
        Some(layout) => {
            let busy = |(id, slot): (&Arc<str>, &MigSlot)| Some(instance_activity(frame, id)? * slot.size);
            let known = layout.slots.iter().filter_map(busy);
            known.reduce(|sum, one| sum.saturating_add(one)).map(|sum| sum / layout.total.max(1))
        }
    };
    ratio.and_then(|ratio| i64::try_from(ratio).ok()).ok_or(Absence::NotYet)
}

impl TrackedGpu {
    /// Adds a frame to the agent's own totals: `busy` nanoseconds as the account has them, so that both never differ, and
    /// all integrals. Memory activity is integrated over at most a `medium` interval, since it is read as often. Returns
    /// why differences of GPM's counters were implausible.
    pub(super) fn integrate(&mut self, frame: &Frame, busy: u64, medium: Nanoseconds) -> Vec<Rejection> {
        add_to(&mut self.busy, activity(frame).map(|_| busy).ok_or(Absence::NotSupported));
        let begins = std::mem::take(&mut self.starts_anew);
        if begins || self.frame.as_deref().is_some_and(|before| before.identity.mig != frame.identity.mig) {
            // GPM's counters continue under a new plan, but not after a reset.
            self.totals.fill(CounterTotal::default());
        }
        let before = self.frame.as_deref();
        let before = before.filter(|before| !begins && before.generation == frame.generation);
        let tick = Tick::new(before, frame);
        if before.is_none() {
            self.last_counts.fill(None);
        }
        let mut rejected = Vec::new();
        let kept = self.integrals.iter_mut().zip(&mut self.last_counts).zip(&mut self.totals);
        for (number, ((integral, last_count), total)) in kept.enumerate() {
            let rated = match integral_of(number) {
                IntegralOf::Ratio(MEMORY_ACTIVITY) => {
                    tick.at_most(medium).integrate_ratio(reading(frame, MEMORY_ACTIVITY))
                }
                IntegralOf::Ratio(point) => tick.integrate_ratio(reading(frame, point)),
                IntegralOf::Flow(point) => {
                    let is_rate = frame.identity.via.get(point).copied().flatten() == Some(Via::Gpm);
                    tick.integrate_flow(last_count, reading(frame, point), is_rate)
                }
            };
            let growth = total.grow(tick.counter(&frame.counters, counter_of(number)), tick.before, rated);
            add_to(integral, growth.by);
            rejected.extend(growth.rejected);
        }
        self.integrate_instances(frame, &tick, &mut rejected);
        rejected
    }

    /// Adds a frame to the totals of GPU instances, by id. Another instance that gets an id begins at 0.
    fn integrate_instances(&mut self, frame: &Frame, tick: &Tick, rejected: &mut Vec<Rejection>) {
        if tick.before.is_none() {
            self.instance_totals.clear();
        }
        let mut last = None;
        for instance in &*frame.instances {
            let id = instance.identity.id.gpu_instance;
            // Compute instances of one GPU instance have the same values.
            if last.replace(id) == Some(id) {
                continue;
            }
            let begin = |since| InstanceCounters {
                instance: instance.identity.clone(),
                since,
                values: vec![Err(Absence::NotYet); InstanceValue::ALL.len()].into(),
            };
            let kept = self.instances.entry(id).or_insert_with(|| begin(None));
            if is_another(&kept.instance, &instance.identity) {
                *kept = begin(Some(frame.begun.utc));
            }
            let totals = self.instance_totals.entry(id).or_default();
            let readings = InstanceValue::ALL.iter().zip(&*instance.readings);
            for ((integral, total), (value, reading)) in kept.values.iter_mut().zip(totals).zip(readings) {
                if value.is_ratio() {
                    let counter = tick.counter(&instance.counters, value.counter());
                    let growth = total.grow(counter, tick.before, tick.integrate_ratio(*reading));
                    add_to(integral, growth.by);
                    rejected.extend(growth.rejected);
                }
            }
        }
    }
}

/// Whether an id belongs to another instance now. UUIDs alone do not show it: a driver may derive them from the ids.
fn is_another(before: &InstanceIdentity, now: &InstanceIdentity) -> bool {
    (&before.uuid, &before.profile, &before.placement) != (&now.uuid, &now.profile, &now.placement)
}

struct Tick {
    /// Boot time of the frame before; none if nothing may be measured up to this frame.
    before: Option<Nanoseconds>,
    at: Nanoseconds,
    span: Nanoseconds,
}

impl Tick {
    fn new(before: Option<&Frame>, frame: &Frame) -> Self {
        let span = before.map_or(Nanoseconds(0), |before| frame.begun.since(before.begun));
        Self { before: before.map(|before| before.begun.boottime), at: frame.begun.boottime, span }
    }

    fn at_most(&self, longest: Nanoseconds) -> Self {
        Self { span: self.span.min(longest), ..*self }
    }

    /// The reading of one of GPM's counters, with the cycles that have passed if it counts cycles. A frame without
    /// counters has no pair of samples.
    fn counter(&self, counters: &[Reading], counter: Option<Counter>) -> Result<GpmReading, Absence> {
        let counter = counter.ok_or(Absence::NotSupported)?;
        let read = |counter: Counter| counters.get(counter as usize).copied().unwrap_or(Err(Absence::NotYet));
        let cycles = if counter.is_of_time() { Some(read(Counter::Elapsed)?) } else { None };
        Ok(GpmReading { at: self.at, value: read(counter)?, cycles })
    }

    fn integrate_ratio(&self, ratio: Reading) -> Result<u64, Absence> {
        ratio.map(|ratio| share(u64::try_from(ratio).unwrap_or(0), self.span))
    }

    /// The amount of a rate per second over the time, or the growth of the driver's count since `last`. A count that is
    /// smaller than before has wrapped or restarted at an unknown value, so nothing is added.
    fn integrate_flow(&self, last: &mut Option<u64>, now: Reading, is_rate: bool) -> Result<u64, Absence> {
        let now = u64::try_from(now?).unwrap_or(0);
        if is_rate {
            let amount = u128::from(now) * u128::from(self.span.0) / u128::from(Nanoseconds::SECOND.0);
            return Ok(u64::try_from(amount).unwrap_or(0));
        }
        Ok(now.saturating_sub(last.replace(now).unwrap_or(now)))
    }
}

fn reading(frame: &Frame, point: PointId) -> Reading {
    frame.readings.get(point).copied().unwrap_or(Err(Absence::NotYet))
}

/// Adds to a total, which begins with its first value and never goes back.
fn add_to(total: &mut Reading, added: Result<u64, Absence>) {
    match added {
        Ok(added) => *total = Ok(total.unwrap_or(0).saturating_add(i64::try_from(added).unwrap_or(0))),
        Err(absence) if total.is_err() => *total = Err(absence),
        Err(_) => {}
    }
}
