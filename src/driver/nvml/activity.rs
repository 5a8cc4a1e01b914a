//! Reads how busy a GPU is with few calls: by GPM, else by the ring of utilization samples, else by the
//! utilization call. Also reads the video engines.
//!
//! With GPM or the ring, the utilization call is made only when the medium tier is due by its interval, and at
//! once in a tick in which they fail. So the account always has activity of the same tick, and the published
//! utilization is no older than the medium interval. While all video engines are idle, each is read on every
//! fifth tick, in rotation; if one works or cannot be read, all are read on every tick. So an engine that was
//! not read in a tick is idle.

use super::calls::{self, CallResult};
use super::driver_api::DriverApi;
use super::plan::{Plan, ReadTarget, UTILIZATION};
use super::quirks::{StaleFlag, UtilizationContext, is_stale_utilization};
use super::readings::Readings;
use super::utilization_ring::{RingRead, UtilizationRing};
use crate::model::catalogue::{CallValue, PointId, first_point};
use crate::model::{Absence, Nanoseconds, Reading, Rejection, Sampled};

pub(super) const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
const GPU_UTILIZATION: PointId = first_point("gpu_utilization_ratio");
pub(super) const MEMORY_USED: PointId = first_point("gpu_memory_used_bytes");
const POWER: PointId = first_point("gpu_power_watts");
const POWER_LIMIT: PointId = first_point("gpu_power_limit_watts");

/// Each idle video engine is read once in so many ticks.
const RESTING: usize = 5;

pub(super) struct ActivityReader {
    ring: UtilizationRing,
    tick: usize,
    sampled: Option<Sampled>,
    /// Whether [`GPU_UTILIZATION`] was read in this tick, from the utilization call or the ring.
    has_utilization: bool,
    /// Stale flags of GPM and of the utilization call.
    stale: (StaleFlag, StaleFlag),
}

impl ActivityReader {
    pub(super) fn new() -> Self {
        Self {
            ring: UtilizationRing::new(),
            tick: 0,
            sampled: None,
            has_utilization: false,
            stale: Default::default(),
        }
    }

    /// Mean activity of this tick by the ring.
    pub(super) fn sampled(&self) -> Option<Sampled> {
        self.sampled
    }

    /// Reads activity; GPM was read before.
    pub(super) fn read(&mut self, api: &mut DriverApi, plan: &Plan, readings: &mut Readings, medium: bool) {
        (self.sampled, self.has_utilization) = (None, false);
        if plan.utilization.is_empty() || (readings.get(GR_ENGINE).is_ok() && !medium) {
            // The call is refused for good, or GPM has the value.
        } else if plan.gpm.is_some() || plan.identity.mig {
            self.read_utilization_call(api, plan, readings);
        } else {
            self.read_ring(api, plan, readings, medium);
        }
        self.read_video(api, plan, readings);
        self.tick = self.tick.wrapping_add(1);
    }

    fn read_ring(&mut self, api: &mut DriverApi, plan: &Plan, readings: &mut Readings, medium: bool) {
        let drained = self.ring.read_new(api, plan.device);
        // Only the utilization call returns memory activity.
        if medium || !matches!(drained, Ok(RingRead::Samples { rest: Nanoseconds(0), .. })) {
            self.read_utilization_call(api, plan, readings);
        }
        let utilization = readings.get(GPU_UTILIZATION).ok().and_then(|ratio| u64::try_from(ratio).ok());
        match drained {
            Ok(RingRead::Samples { mean, rest, .. }) if rest.0 > 0 && utilization == Some(0) => {
                self.sampled = Some(self.ring.add_idle_rest(mean, rest));
            }
            Ok(RingRead::Samples { last, mean, .. }) => {
                self.sampled = Some(mean);
                self.has_utilization = true;
                for target in plan.utilization.iter().filter(|target| target.from.place == 0) {
                    readings.store(api, target, Ok(last.into()));
                }
            }
            Ok(RingRead::Nothing) => {
                let now = api.clock().now().boottime;
                self.sampled = utilization.and_then(|ratio| self.ring.interpret_empty(ratio, now));
            }
            Err(_) => {}
        }
    }

    fn read_utilization_call(&mut self, api: &mut DriverApi, plan: &Plan, readings: &mut Readings) {
        let answer = calls::call(api, plan.device, UTILIZATION);
        store_all(api, readings, &plan.utilization, answer);
        self.has_utilization = true;
    }

    fn read_video(&self, api: &mut DriverApi, plan: &Plan, readings: &mut Readings) {
        // An engine that could not be read may be busy.
        let is_idle =
            |reading: Reading| reading == Ok(0) || reading.is_err_and(|absence| absence.is_permanent());
        let points = plan.video.iter().flat_map(|(_, targets)| targets);
        let resting = points.into_iter().all(|target| is_idle(readings.get(target.point)));
        for (place, (function, targets)) in plan.video.iter().enumerate() {
            if !resting || self.tick % RESTING == place % RESTING {
                let answer = calls::call(api, plan.device, *function);
                store_all(api, readings, targets, answer);
            }
        }
    }

    /// Whether the GPU or a video engine did anything in this tick; none if only the last part of the tick is
    /// known, which is what the utilization call covers.
    pub(super) fn is_busy(&self, plan: &Plan, readings: &Readings) -> Option<bool> {
        let worked = |point| readings.get(point).is_ok_and(|ratio| ratio > 0);
        let engines = readings.get(GR_ENGINE).is_ok() || self.sampled.is_some();
        let busy = (self.has_utilization && worked(GPU_UTILIZATION))
            || worked(GR_ENGINE)
            || self.sampled.is_some_and(|sampled| sampled.ratio > 0)
            || plan.video.iter().flat_map(|(_, targets)| targets).any(|target| worked(target.point));
        (busy || engines).then_some(busy)
    }

    /// Clears the activity of a GPU that reports to be busy although no process is there. The time is then
    /// unmeasured, and the rejected values are counted.
    pub(super) fn clear_stale_utilization(
        &mut self,
        api: &mut DriverApi,
        readings: &mut Readings,
        known_empty: bool,
    ) {
        let is_stale_utilization = |activity: Reading| {
            is_stale_utilization(&UtilizationContext {
                activity,
                known_empty,
                memory: readings.get(MEMORY_USED),
                power: readings.get(POWER),
                limit: readings.get(POWER_LIMIT),
            })
        };
        let engine = readings.get(GR_ENGINE).is_ok().then(|| is_stale_utilization(readings.get(GR_ENGINE)));
        let utilization = self.has_utilization.then(|| is_stale_utilization(readings.get(GPU_UTILIZATION)));
        let (engine, utilization) = (self.stale.0.read(engine), self.stale.1.read(utilization));
        if engine {
            api.reject(Rejection::GhostBusy, 1);
            readings.set(GR_ENGINE, Err(Absence::Rejected));
        }
        if utilization {
            api.reject(Rejection::GhostBusy, 1);
            self.sampled = None;
        }
        if engine || utilization {
            // Without the engine value the account would fall back to the utilization call, which is just as
            // wrong.
            readings.set(GPU_UTILIZATION, Err(Absence::Rejected));
        }
    }
}

pub(super) fn store_all(
    api: &mut DriverApi,
    readings: &mut Readings,
    targets: &[ReadTarget<CallValue>],
    answer: CallResult,
) {
    for target in targets {
        let value = answer
            .and_then(|values| values.get(target.from))
            .and_then(|value| i64::try_from(value).map_err(|_| Absence::Rejected));
        readings.store(api, target, value);
    }
}
