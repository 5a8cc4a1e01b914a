//! Who was on the GPU in a tick: memory in use, samples per process and lists, each when it is due and has room.
//!
//! In: the tick's round, and what its tiers have just read; out: samples and what all that cost. When to ask is
//! decided by `attention`; who the processes are is not known here.

use super::{Lane, Round, since};
use crate::catalogue::{InstanceValue, Level};
use crate::model::frame::Tier;
use crate::model::{Absence, Nanoseconds, ProcessSample, Reading, Stamp};
use crate::nvml::activity::MEMORY_USED;
use crate::nvml::attention::{Occasion, Signs};
use crate::nvml::plan::Plan;

/// Calls in a tick in which only the fast tier is due, and more for each MIG instance.
const MOST_CALLS: usize = 8;
const MOST_CALLS_OF_INSTANCE: usize = 3;

/// Who was there in a tick, beside the lists, and the time that the lists and the rest cost.
pub(super) struct Present {
    pub(super) samples: Result<Vec<ProcessSample>, Absence>,
    /// Whether it is known of this tick that nobody was.
    pub(super) deserted: bool,
    pub(super) lists: Nanoseconds,
    pub(super) fast: Nanoseconds,
    /// Whether the driver no longer knew an instance.
    pub(super) missed: bool,
}

impl Lane {
    /// Who is there: activity per process and lists, each when it is due.
    pub(super) fn look(&mut self, plan: &Plan, round: &Round, begun: Stamp) -> Present {
        let all = self.door.spent();
        let occasion = Occasion {
            now: begun.boottime,
            medium: round.due[Tier::Medium as usize],
            slow: round.due[Tier::Slow as usize],
            read: round.all || round.turn[Tier::Medium as usize],
            all: round.all,
            gives_samples: self.processes.may_tell(),
            shown: self.level == Level::Full,
            busy: self.activity.is_busy(plan, &self.readings),
        };
        let tier = occasion.read || occasion.slow;
        // Samples and a list come after memory: a tick without room for all three goes by the list alone.
        let has_room = tier || self.room(plan) > plan.devices().count() + 1;
        let told = occasion.read.then(|| self.in_use(plan));
        let (were_there, mut missed) = (plan.identity.mig && self.in_use(plan).is_ok(), false);
        let door = &mut self.door;
        let asked = self.lists.weigh(&occasion, begun, |memory| match told {
            Some(told) => memory.take(told),
            None if has_room => {
                door.take_missed();
                memory.read(door, plan.devices());
                missed = were_there && door.take_missed();
            }
            None => {}
        });
        let rests = !asked && occasion.gives_samples;
        if rests {
            self.processes.rest(begun.utc);
        }
        if self.lists.attention().counts_anew(&occasion) {
            self.processes.skip();
        }
        let samples = if rests {
            Ok(Vec::new())
        } else {
            self.processes.samples(&mut self.door, plan.device, begun.utc)
        };
        let signs = Signs { occasion, samples: samples.as_deref().ok().filter(|_| asked) };
        let before = self.door.spent();
        // Told at every look: neither lists nor a governor that begin anew know of one another.
        self.lists.attention().stretch(self.governor.stretch().lists);
        let room = if tier { usize::MAX } else { self.room(plan) };
        self.lists.look((&mut self.door, &plan.listed_devices()), &signs, begun, room);
        let lists = since(&self.door, before);
        let deserted = self.lists.is_deserted(begun);
        self.activity.exorcise(&mut self.door, &mut self.readings, deserted);
        let fast = Nanoseconds(since(&self.door, all).0.saturating_sub(lists.0));
        Present { samples, deserted, lists, fast, missed }
    }

    /// Memory in use, of the GPU or of each instance, as the medium tier has just read it.
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

    /// The calls that a fast tick has left.
    fn room(&self, plan: &Plan) -> usize {
        let most = MOST_CALLS + MOST_CALLS_OF_INSTANCE * plan.instances.len();
        most.saturating_sub(self.door.made())
    }
}
