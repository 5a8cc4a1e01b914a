//! How busy a GPU is, for as few calls as will do: GPM where it answers, else the driver's ring of samples,
//! else the plain utilization call; and the video engines.
//!
//! The plain call is made whenever the medium tier is due, however far that is stretched, where something better tells
//! activity, and at once in a tick in which that fails: what the account takes for activity was always read in its own
//! tick, and utilization that is shown is no older than the medium interval. While
//! all video engines rest, each is asked every fifth tick, in turn; as soon as one works, or could not be asked,
//! all are asked in every tick. So a value that was not read in this tick is 0.

use super::calls::{self, Answer};
use super::door::Door;
use super::plan::{Ask, Plan, UTILIZATION};
use super::quirks::{Appearance, Haunting, is_ghost};
use super::readings::Readings;
use super::samples::{Drained, Ring};
use crate::catalogue::{CallValue, PointId, first_point};
use crate::model::{Absence, Nanoseconds, Reading, Rejection, Sampled};

pub(super) const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
const GPU_UTILIZATION: PointId = first_point("gpu_utilization_ratio");
pub(super) const MEMORY_USED: PointId = first_point("gpu_memory_used_bytes");
const POWER: PointId = first_point("gpu_power_watts");
const POWER_LIMIT: PointId = first_point("gpu_power_limit_watts");

/// Each resting video engine is asked once in so many ticks.
const RESTING: usize = 5;

/// What tells a GPU's activity, from tick to tick.
pub(super) struct Activity {
    ring: Ring,
    tick: usize,
    sampled: Option<Sampled>,
    /// Whether the plain utilization is of this tick.
    plain: bool,
    /// By GPM and by the plain utilization.
    haunted: (Haunting, Haunting),
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { ring: Ring::new(), tick: 0, sampled: None, plain: false, haunted: Default::default() }
    }

    /// Mean activity by the ring, in this tick.
    pub(super) fn sampled(&self) -> Option<Sampled> {
        self.sampled
    }

    /// Reads what tells activity beside GPM, which was read before.
    pub(super) fn read(&mut self, door: &mut Door, plan: &Plan, readings: &mut Readings, medium: bool) {
        (self.sampled, self.plain) = (None, false);
        if plan.utilization.is_empty() || (readings.get(GR_ENGINE).is_ok() && !medium) {
            // Refused for good, or told by GPM.
        } else if plan.gpm.is_some() || plan.identity.mig {
            self.read_plain(door, plan, readings);
        } else {
            self.read_ring(door, plan, readings, medium);
        }
        self.read_video(door, plan, readings);
        self.tick = self.tick.wrapping_add(1);
    }

    fn read_ring(&mut self, door: &mut Door, plan: &Plan, readings: &mut Readings, medium: bool) {
        let drained = self.ring.drain(door, plan.device);
        // Memory activity comes with the plain call alone.
        if medium || !matches!(drained, Ok(Drained::Samples { rest: Nanoseconds(0), .. })) {
            self.read_plain(door, plan, readings);
        }
        let plain = readings.get(GPU_UTILIZATION).ok().and_then(|ratio| u64::try_from(ratio).ok());
        match drained {
            Ok(Drained::Samples { mean, rest, .. }) if rest.0 > 0 && plain == Some(0) => {
                self.sampled = Some(self.ring.ended(mean, rest));
            }
            Ok(Drained::Samples { last, mean, .. }) => {
                self.sampled = Some(mean);
                self.plain = true;
                for ask in plan.utilization.iter().filter(|ask| ask.from == CallValue::UtilizationGpu) {
                    readings.put(door, ask, Ok(last.into()));
                }
            }
            Ok(Drained::Nothing) => {
                let now = door.clock().now().boottime;
                self.sampled = plain.and_then(|ratio| self.ring.when_empty(ratio, now));
            }
            Err(_) => {}
        }
    }

    fn read_plain(&mut self, door: &mut Door, plan: &Plan, readings: &mut Readings) {
        let answer = calls::call(door, plan.device, UTILIZATION);
        put_all(door, readings, &plan.utilization, answer);
        self.plain = true;
    }

    fn read_video(&self, door: &mut Door, plan: &Plan, readings: &mut Readings) {
        // An engine that could not be asked is not known to rest.
        let rests =
            |reading: Reading| reading == Ok(0) || reading.is_err_and(|absence| absence.is_permanent());
        let points = plan.video.iter().flat_map(|(_, asks)| asks);
        let resting = points.into_iter().all(|ask| rests(readings.get(ask.point)));
        for (place, (function, asks)) in plan.video.iter().enumerate() {
            if !resting || self.tick % RESTING == place % RESTING {
                let answer = calls::call(door, plan.device, *function);
                put_all(door, readings, asks, answer);
            }
        }
    }

    /// Whether the GPU, or a video engine of it, did anything in this tick; none where the whole of it is not
    /// known, since the plain utilization is of its last part.
    pub(super) fn is_busy(&self, plan: &Plan, readings: &Readings) -> Option<bool> {
        let worked = |point| readings.get(point).is_ok_and(|ratio| ratio > 0);
        let engines = readings.get(GR_ENGINE).is_ok() || self.sampled.is_some();
        let busy = (self.plain && worked(GPU_UTILIZATION))
            || worked(GR_ENGINE)
            || self.sampled.is_some_and(|sampled| sampled.ratio > 0)
            || plan.video.iter().flat_map(|(_, asks)| asks).any(|ask| worked(ask.point));
        (busy || engines).then_some(busy)
    }

    /// Drops activity of a GPU that says it is busy and on which nobody is: it is nobody's use. The time is
    /// then unmeasured, and the dropped answers are counted.
    pub(super) fn exorcise(&mut self, door: &mut Door, readings: &mut Readings, deserted: bool) {
        let is_ghost = |activity: Reading| {
            is_ghost(&Appearance {
                activity,
                deserted,
                memory: readings.get(MEMORY_USED),
                power: readings.get(POWER),
                limit: readings.get(POWER_LIMIT),
            })
        };
        let engine = readings.get(GR_ENGINE).is_ok().then(|| is_ghost(readings.get(GR_ENGINE)));
        let plain = self.plain.then(|| is_ghost(readings.get(GPU_UTILIZATION)));
        let (engine, plain) = (self.haunted.0.look(engine), self.haunted.1.look(plain));
        if engine {
            door.reject(Rejection::GhostBusy, 1);
            readings.set(GR_ENGINE, Err(Absence::Rejected));
        }
        if plain {
            door.reject(Rejection::GhostBusy, 1);
            self.sampled = None;
        }
        if engine || plain {
            // With the engine gone the account would fall back to the plain value, which is as wrong.
            readings.set(GPU_UTILIZATION, Err(Absence::Rejected));
        }
    }
}

/// Hands one call's values to the points that it serves.
pub(super) fn put_all(door: &mut Door, readings: &mut Readings, asks: &[Ask<CallValue>], answer: Answer) {
    for ask in asks {
        let value = answer
            .and_then(|values| values.get(ask.from))
            .and_then(|value| i64::try_from(value).map_err(|_| Absence::Rejected));
        readings.put(door, ask, value);
    }
}
