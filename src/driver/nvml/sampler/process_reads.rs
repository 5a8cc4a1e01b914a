//! Finds out which processes were on the GPU in a tick, from memory in use, utilization samples per process and
//! process lists.
//!
//! `process_schedule` decides which of them a tick reads. Resolving processes to holders is not done here.

use super::{DueTiers, Sampler};
use crate::driver::nvml::activity::MEMORY_USED;
use crate::driver::nvml::calls;
use crate::driver::nvml::driver_budget::CostClass;
use crate::driver::nvml::plan::Plan;
use crate::driver::nvml::process_schedule::TickState;
use crate::model::catalogue::{CallValue, InstanceValue, Level, MEMORY};
use crate::model::frame::Tier;
use crate::model::{Absence, ProcessSample, Reading, Stamp};

/// The most calls of a tick in which only the fast tier is due, and how many more for each MIG instance.
const MOST_CALLS: usize = 8;
const MOST_CALLS_OF_INSTANCE: usize = 3;

/// Process readings of a tick other than the lists.
pub(super) struct ProcessReads {
    pub(super) samples: Result<Vec<ProcessSample>, Absence>,
    pub(super) known_empty: bool,
    pub(super) instance_missing: bool,
}

impl Sampler {
    pub(super) fn read_processes(&mut self, plan: &Plan, tiers: &DueTiers, begun: Stamp) -> ProcessReads {
        let state = TickState {
            begun,
            medium: tiers.due[Tier::Medium as usize],
            slow: tiers.due[Tier::Slow as usize],
            read: tiers.all || tiers.selected[Tier::Medium as usize],
            all: tiers.all,
            may_have_samples: self.process_samples.are_available(),
            shown: self.level == Level::Full || self.shows_processes,
            busy: self.activity.is_busy(plan, &self.readings),
            samples: None,
        };
        let instance_missing = self.read_memory(plan, &state);
        let needs_samples = self.lists.schedule.needs_samples(&state);
        let deferred = !needs_samples && state.may_have_samples;
        if deferred {
            self.process_samples.defer(begun.utc);
        }
        if self.lists.schedule.drops_deferred_samples(&state) {
            self.process_samples.drop_deferred();
        }
        let samples = if deferred {
            Ok(Vec::new())
        } else {
            self.process_samples.read(&mut self.api, plan.device, begun.utc)
        };
        let state = TickState { samples: samples.as_deref().ok().filter(|_| needs_samples), ..state };
        // Set on every tick, since the lists or the budget may have been recreated.
        self.lists.schedule.stretch(self.budget.stretch().lists);
        self.api.charge(CostClass::Lists);
        let room = if state.read || state.slow { usize::MAX } else { self.room(plan) };
        self.lists.read_due(&mut self.api, plan, &state, room);
        let known_empty = self.lists.is_known_empty(begun);
        self.activity.clear_stale_utilization(&mut self.api, &mut self.readings, known_empty);
        ProcessReads { samples, known_empty, instance_missing }
    }

    /// Sets memory in use for the schedule: from the medium tier if it was read, else from calls if the schedule
    /// needs it. Returns whether the driver reported that an instance no longer exists.
    fn read_memory(&mut self, plan: &Plan, state: &TickState<'_>) -> bool {
        let in_use = self.in_use(plan);
        let instances_were_there = plan.identity.mig && in_use.is_ok();
        let schedule = &self.lists.schedule;
        // Samples and a list are read after memory; if the tick has no calls left for all three, memory is left
        // out.
        let has_room = state.slow || self.room(plan) > plan.devices().count() + 1;
        let mut missing = false;
        let answer = if !schedule.needs_memory(state) {
            None
        } else if state.read {
            Some(in_use)
        } else if has_room && !schedule.memory.is_refused {
            self.api.take_not_found();
            let api = &mut self.api;
            let used =
                |device| calls::memory(api, device).and_then(|memory| memory.get(CallValue::of(MEMORY, 1)));
            let answer = plan.devices().map(used).collect();
            missing = instances_were_there && self.api.take_not_found();
            Some(answer)
        } else {
            None
        };
        self.lists.schedule.memory.set(answer);
        missing
    }

    /// Memory in use as the medium tier has just read it, of the GPU or of each MIG instance.
    fn in_use(&self, plan: &Plan) -> Result<Vec<u64>, Absence> {
        let bytes =
            |reading: Reading| reading.and_then(|bytes| u64::try_from(bytes).map_err(|_| Absence::Rejected));
        if !plan.identity.mig {
            return Ok(vec![bytes(self.readings.get(MEMORY_USED))?]);
        }
        let instances = self.instances.iter().zip(&plan.instances);
        let own = instances.filter(|(_, instance)| instance.device().is_some());
        own.map(|(frame, _)| bytes(frame.readings[InstanceValue::MemoryUsed as usize])).collect()
    }

    fn room(&self, plan: &Plan) -> usize {
        let most = MOST_CALLS + MOST_CALLS_OF_INSTANCE * plan.instances.len();
        most.saturating_sub(self.api.calls_made())
    }
}
