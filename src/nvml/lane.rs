//! One GPU, one thread, one plan: reads what is due and brings home a frame.
//!
//! The thread itself belongs to the app; a lane only knows how to do one tick.

use std::sync::Arc;

use super::calls;
use super::door::{CallSlot, Door};
use super::inventory::Found;
use super::library::Library;
use super::plan::{Plan, TierPlan, believe};
use super::processes::Processes;
use crate::catalogue::Level;
use crate::clock::Clock;
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, InstanceFrame, Nanoseconds, Reading, Stamp};

/// When a provisional plan is first compared with a new one, and the longest wait between comparisons.
const FIRST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(10);
const LAST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// What reads one GPU.
pub struct Lane {
    found: Found,
    level: Level,
    door: Door,
    plan: Option<Plan>,
    generation: u32,
    /// When a provisional plan is next compared with a new one, and how long was waited for that.
    review: Option<Nanoseconds>,
    patience: Nanoseconds,
    processes: Processes,
    /// The latest reading of every point, and when each tier was read.
    readings: Box<[Reading]>,
    tiers: [Option<Stamp>; 3],
    instances: Arc<[InstanceFrame]>,
}

impl Lane {
    /// A lane for a GPU that was found; nothing is asked yet.
    pub fn new(library: Arc<Library>, found: &Found, slot: CallSlot, clock: Clock, level: Level) -> Self {
        Self {
            found: found.clone(),
            level,
            door: Door::new(library, slot, clock),
            plan: None,
            generation: 0,
            review: None,
            patience: FIRST_REVIEW,
            processes: Processes::new(),
            readings: Box::default(),
            tiers: [None; 3],
            instances: Arc::default(),
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuId {
        &self.found.id
    }

    /// Reads what is due. A GPU that says it is lost loses its plan; the next tick tries a new one.
    pub fn tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        let answer = self.try_tick(due);
        if answer.is_err() {
            // What belongs to a tick that brought nothing is not told of the next one.
            self.door.take_calls();
            self.door.take_lost();
        }
        answer
    }

    fn try_tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        self.review();
        if due[Tier::Medium as usize] && self.plan.as_ref().is_some_and(|plan| plan.is_recut(&mut self.door))
        {
            self.forget_plan();
        }
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.compile()?,
        };
        // A new plan has read nothing yet.
        let due = if self.tiers == [None; 3] { [true; 3] } else { due };
        let begun = self.door.clock().now();
        self.read(&mut plan, due, begun);
        if self.door.take_lost() {
            plan.free(&mut self.door);
            return Err(Absence::Lost);
        }
        let frame = self.frame(&mut plan, begun);
        self.plan = Some(plan);
        Ok(frame)
    }

    /// Reads what that level exports from the next tick on, by a new plan.
    pub fn set_level(&mut self, level: Level) {
        if self.level != level {
            self.level = level;
            self.forget_plan();
        }
    }

    /// Drops the plan: after a call that hung, nothing before it may be subtracted from what comes after.
    pub fn forget_plan(&mut self) {
        if let Some(plan) = self.plan.take() {
            plan.free(&mut self.door);
        }
    }

    fn compile(&mut self) -> Result<Plan, Absence> {
        let plan = Plan::compile(&mut self.door, &self.found, self.level)?;
        self.patience = FIRST_REVIEW;
        self.begin(&plan);
        Ok(plan)
    }

    fn begin(&mut self, plan: &Plan) {
        self.generation += 1;
        self.readings.clone_from(&plan.blank);
        self.tiers = [None; 3];
        self.instances = Arc::default();
        self.review = plan.provisional.then(|| self.door.clock().now().boottime + self.patience);
    }

    /// Compares a provisional plan with a new one. A board may fail at the same thing for ever: while the
    /// plans are alike the old one stays, since a new generation would leave a tick unmeasured, and the next
    /// look is twice as far away.
    fn review(&mut self) {
        if self.review.is_none_or(|at| self.door.clock().now().boottime < at) {
            return;
        }
        self.patience = Nanoseconds(self.patience.0.saturating_mul(2)).min(LAST_REVIEW);
        self.review = Some(self.door.clock().now().boottime + self.patience);
        let Some(old) = self.plan.take() else { return };
        let (plan, spare) = match Plan::compile(&mut self.door, &self.found, self.level) {
            Ok(new) if new.is_like(&old) => {
                if !new.provisional {
                    self.review = None;
                }
                (old, Some(new))
            }
            Ok(new) => {
                self.begin(&new);
                (new, Some(old))
            }
            Err(_) => (old, None),
        };
        self.plan = Some(plan);
        if let Some(spare) = spare {
            spare.free(&mut self.door);
        }
    }

    fn read(&mut self, plan: &mut Plan, due: [bool; 3], begun: Stamp) {
        // First, so that the pair's span is that from one frame's beginning to the next one's.
        self.read_gpm(plan);
        for tier in Tier::ALL {
            if due[tier as usize] {
                self.read_tier(plan, tier);
                self.tiers[tier as usize] = Some(begun);
            }
        }
        let (door, device) = (&mut self.door, plan.device);
        if !plan.instances.is_empty() {
            self.instances = plan.instances.iter_mut().map(|instance| instance.read(door, device)).collect();
        }
    }

    fn read_gpm(&mut self, plan: &mut Plan) {
        let Some(gpm) = &mut plan.gpm else { return };
        let answer = gpm
            .pair
            .sample(&mut self.door, plan.device, None)
            .and_then(|()| gpm.pair.compute(&mut self.door));
        for ask in &gpm.metrics {
            // The factor is applied before rounding: half a percent is not nothing.
            let value = answer.and_then(|()| gpm.pair.value(ask.from, ask.times));
            self.readings[ask.point] = believe(value, 1, ask.unit);
        }
    }

    fn read_tier(&mut self, plan: &mut Plan, tier: Tier) {
        let device = plan.device;
        let TierPlan { batch, fields, margins, calls, reasons } = &mut plan.tiers[tier as usize];
        let answered = batch.read(&mut self.door, device);
        for ask in fields.iter() {
            let value = answered.and_then(|()| batch.value(ask.from));
            self.readings[ask.point] = believe(value, ask.times, ask.unit);
        }
        if !margins.is_empty() {
            let margin = calls::margin(&mut self.door, device);
            for ask in margins.iter() {
                let distance = answered
                    .and_then(|()| batch.value(ask.from))
                    .and_then(|limit| margin?.checked_sub(limit).ok_or(Absence::Rejected));
                self.readings[ask.point] = believe(distance, ask.times, ask.unit);
            }
        }
        for (function, asks) in calls.iter() {
            let answer = calls::call(&mut self.door, device, *function);
            for ask in asks {
                let value = answer
                    .and_then(|values| values.get(ask.from))
                    .and_then(|value| i64::try_from(value).map_err(|_| Absence::Rejected));
                self.readings[ask.point] = believe(value, ask.times, ask.unit);
            }
        }
        if !reasons.is_empty() {
            let bits = calls::reasons(&mut self.door, device);
            for ask in reasons.iter() {
                self.readings[ask.point] = bits.map(|bits| i64::from(bits & ask.from != 0));
            }
        }
    }

    fn frame(&mut self, plan: &mut Plan, begun: Stamp) -> Frame {
        let processes = self.processes.list(&mut self.door, plan.device).map(Into::into);
        let samples = self.processes.samples(&mut self.door, plan.device, begun.utc);
        Frame {
            gpu: self.found.id.clone(),
            identity: Arc::clone(&plan.identity),
            generation: self.generation,
            begun,
            ended: self.door.clock().now(),
            tiers: self.tiers,
            readings: self.readings.clone(),
            instances: Arc::clone(&self.instances),
            processes,
            samples,
            calls: self.door.take_calls(),
        }
    }
}
