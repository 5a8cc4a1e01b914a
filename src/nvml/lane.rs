//! One GPU, one thread, one plan: reads what is due and brings home a frame.
//!
//! The thread itself belongs to the app; a lane only knows how to do one tick. A tick makes few calls, since
//! they take a lock that tenants' own calls wait for: one batch of fields, two of GPM or one look into the
//! sample ring, one for the processes' activity; what else there is has its turn less often, and a governor
//! makes that less often still where the driver is slow.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::activity::{Activity, MEMORY_USED, put_all};
use super::attention::{Occasion, Signs};
use super::calls;
use super::door::{CallSlot, Door};
use super::governor::{Governor, SHARE, Spent};
use super::instances::{self, Instance};
use super::inventory::Found;
use super::library::Library;
use super::lists::Lists;
use super::plan::{Plan, TierPlan};
use super::probe::Wanted;
use super::processes::Processes;
use super::quirks::ListForm;
use super::readings::Readings;
use crate::catalogue::{InstanceValue, Level};
use crate::clock::Clock;
use crate::model::frame::Tier;
use crate::model::{
    Absence, Frame, GpuId, InstanceFrame, Nanoseconds, ProcessSample, Reading, Stamp, Stretch,
};

/// When a provisional plan is first compared with a new one, and the longest wait between comparisons.
const FIRST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(10);
const LAST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// Calls in a tick in which only the fast tier is due, and more for each MIG instance.
const MOST_CALLS: usize = 8;
const MOST_CALLS_OF_INSTANCE: usize = 3;

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
    /// Whether presence decides who holds.
    presence: bool,
    governor: Governor,
    /// GPM's metrics that were refused alone, and whether the plan was made without knowing that.
    refused: BTreeSet<u32>,
    outdated: bool,
    activity: Activity,
    processes: Processes,
    lists: Lists,
    /// The latest reading of every point, and when each tier was read.
    readings: Readings,
    tiers: [Option<Stamp>; 3],
    /// The stretch under which each tier was read.
    stretched: Stretch,
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
            presence: false,
            governor: Governor::new(SHARE.into()),
            refused: BTreeSet::new(),
            outdated: false,
            activity: Activity::new(),
            processes: Processes::new(),
            lists: Lists::new(false, ListForm::Third),
            readings: Readings::default(),
            tiers: [None; 3],
            stretched: Stretch::default(),
            instances: Arc::default(),
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuId {
        &self.found.id
    }

    /// Reads what is due. Where the GPU is lost or the driver gone, the plan is lost; the next tick tries a
    /// new one.
    pub fn tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        let answer = self.try_tick(due);
        if answer.is_err() {
            // What belongs to a tick that brought nothing is not told of the next one.
            self.door.take_calls();
            self.door.take_gone();
        }
        if matches!(answer, Err(Absence::Lost | Absence::DriverGone)) {
            // It may come back reset, and counts from 0.
            self.readings = Readings::default();
        }
        answer
    }

    fn try_tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        self.review();
        let turn = self.governor.turn(self.door.clock().now().boottime, due);
        let before = self.door.spent();
        if turn[Tier::Medium as usize] && self.plan.as_ref().is_some_and(|plan| plan.is_recut(&mut self.door))
        {
            self.forget_plan();
        }
        let looked = since(&self.door, before);
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.compile()?,
        };
        // A new plan has read nothing yet.
        let (due, turn) = if self.tiers == [None; 3] { ([true; 3], [true; 3]) } else { (due, turn) };
        let begun = self.door.clock().now();
        self.door.take_heard();
        let spent = self.read(&mut plan, turn, begun);
        let present = self.look(&plan, (due, turn), begun);
        if present.missed || plan.instances.iter().any(Instance::is_gone) {
            // The GPU was cut anew, and ids are given again: this tick's readings may be of others.
            self.instances = instances::disown(&self.instances);
            self.outdated = true;
        }
        if let Some(absence) = self.door.take_gone() {
            plan.free(&mut self.door);
            return Err(absence);
        }
        let (fast, lists) = (spent.fast + present.fast, present.lists);
        // Looking whether the GPU was cut otherwise has its turn with the medium tier.
        let medium = spent.medium.map(|medium| medium + looked);
        self.govern(begun, Spent { fast, medium, lists, ..spent });
        let frame = self.frame(&plan, begun, present);
        if !self.door.take_heard() {
            // Readings of slower tiers would look alive for as long as theirs are not due.
            plan.free(&mut self.door);
            return Err(Absence::Failed);
        }
        if std::mem::take(&mut self.outdated) {
            plan.free(&mut self.door);
        } else {
            self.plan = Some(plan);
        }
        Ok(frame)
    }

    /// Reads as the configuration says from the next tick on: another level takes a new plan, presence begins
    /// anew what follows from it. `driver_share` is this lane's part, in millionths of wall time.
    pub fn follow(&mut self, level: Level, presence: bool, driver_share: u32) {
        if self.level != level {
            self.level = level;
            self.forget_plan();
        }
        if self.presence != presence {
            self.presence = presence;
            self.lists = Lists::new(presence, ListForm::Third);
            self.forget_plan();
        }
        self.governor.allow(driver_share.into());
    }

    /// The last tick came late, since a call of it hung: nothing before it may be subtracted from what comes
    /// after, and it is not what ticks cost.
    pub fn forget_tick(&mut self) {
        let stretch = self.governor.forgive();
        self.tell(stretch);
        self.forget_plan();
    }

    /// Drops the plan: the next tick makes a new one.
    pub fn forget_plan(&mut self) {
        self.refused.clear();
        if let Some(plan) = self.plan.take() {
            plan.free(&mut self.door);
        }
    }

    fn compile(&mut self) -> Result<Plan, Absence> {
        let wanted = Wanted { level: self.level, refused: &self.refused };
        let plan = Plan::compile(&mut self.door, &self.found, wanted)?;
        self.patience = FIRST_REVIEW;
        self.begin(&plan);
        Ok(plan)
    }

    fn begin(&mut self, plan: &Plan) {
        self.generation += 1;
        self.readings = self.readings.renewed(&plan.blank, &plan.probed, self.door.asked());
        self.activity = Activity::new();
        self.processes.begin();
        self.lists = Lists::new(self.presence, self.door.quirks().list_form());
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
        let wanted = Wanted { level: self.level, refused: &self.refused };
        let (plan, spare) = match Plan::compile(&mut self.door, &self.found, wanted) {
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

    /// Reads the tiers that are due, and what each cost.
    fn read(&mut self, plan: &mut Plan, due: [bool; 3], begun: Stamp) -> Spent {
        let before = self.door.spent();
        // First, so that the pair's span is that from one frame's beginning to the next one's.
        self.read_gpm(plan);
        let stretch = self.governor.stretch();
        let [_, medium, slow] = Tier::ALL.map(|tier| {
            let before = self.door.spent();
            if due[tier as usize] {
                self.read_tier(plan, tier);
                self.tiers[tier as usize] = Some(begun);
                match tier {
                    Tier::Fast => {}
                    Tier::Medium => self.stretched.medium = stretch.medium,
                    Tier::Slow => self.stretched.slow = stretch.slow,
                }
            }
            due[tier as usize].then(|| since(&self.door, before))
        });
        self.activity.read(&mut self.door, plan, &mut self.readings, due[Tier::Medium as usize]);
        let (door, device) = (&mut self.door, plan.device);
        if !plan.instances.is_empty() {
            self.instances =
                plan.instances.iter_mut().map(|instance| instance.read(door, device, due)).collect();
        }
        let others = medium.unwrap_or_default() + slow.unwrap_or_default();
        let fast = Nanoseconds(since(&self.door, before).0.saturating_sub(others.0));
        Spent { fast, medium, slow, lists: Nanoseconds(0) }
    }

    fn read_gpm(&mut self, plan: &mut Plan) {
        let Some(gpm) = &mut plan.gpm else { return };
        let answer = gpm
            .pair
            .sample(&mut self.door, plan.device, None)
            .and_then(|()| gpm.pair.compute(&mut self.door));
        for ask in &gpm.metrics {
            // The factor is applied before rounding: half a percent is not nothing.
            let value = answer.and_then(|()| gpm.pair.sum(ask.from, ask.times));
            // Support is told of GPM as a whole: what it then refuses has its turn by another source.
            if value.is_err_and(Absence::is_permanent) && gpm.replaceable.contains(&ask.from.first) {
                self.outdated |= self.refused.insert(ask.from.first);
            }
            self.readings.put_times(&mut self.door, ask, value, 1);
        }
        gpm.counters.read(&mut self.door, &gpm.pair, answer);
    }

    fn read_tier(&mut self, plan: &mut Plan, tier: Tier) {
        let device = plan.device;
        let (door, readings) = (&mut self.door, &mut self.readings);
        let TierPlan { batch, fields, margins, calls, reasons } = &mut plan.tiers[tier as usize];
        let answered = batch.read(door, device);
        for ask in fields.iter() {
            let value = answered.and_then(|()| batch.value(ask.from));
            readings.put(door, ask, value);
        }
        if !margins.is_empty() {
            let margin = calls::margin(door, device);
            for ask in margins.iter() {
                let distance = answered
                    .and_then(|()| batch.value(ask.from))
                    .and_then(|limit| margin?.checked_sub(limit).ok_or(Absence::Rejected));
                readings.put(door, ask, distance);
            }
        }
        for (function, asks) in calls.iter() {
            let answer = calls::call(door, device, *function);
            put_all(door, readings, asks, answer);
        }
        if !reasons.is_empty() {
            let bits = calls::reasons(door, device);
            for ask in reasons.iter() {
                let (bit, unless) = ask.from;
                let is_set = bits.map(|bits| bits & bit != 0 && bits & unless == 0);
                readings.put(door, ask, is_set.map(i64::from));
            }
        }
    }

    /// Who is there: activity per process and lists, each when it is due.
    fn look(&mut self, plan: &Plan, (due, turn): ([bool; 3], [bool; 3]), begun: Stamp) -> Present {
        let all = self.door.spent();
        let occasion = Occasion {
            now: begun.boottime,
            medium: due[Tier::Medium as usize],
            slow: due[Tier::Slow as usize],
            read: turn[Tier::Medium as usize],
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
        self.lists.look((&mut self.door, plan.device), &signs, begun, room);
        let lists = since(&self.door, before);
        let deserted = self.lists.is_deserted(begun);
        self.activity.exorcise(&mut self.door, &mut self.readings, deserted);
        let fast = Nanoseconds(since(&self.door, all).0.saturating_sub(lists.0));
        Present { samples, lists, fast, missed }
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

    /// Stays within the share of driver time. What cannot be stretched counts as fast.
    fn govern(&mut self, begun: Stamp, spent: Spent) {
        let spent = if self.presence {
            Spent { fast: spent.fast + spent.lists, lists: Nanoseconds(0), ..spent }
        } else {
            spent
        };
        let stretch = self.governor.spend(begun.boottime, spent);
        self.tell(stretch);
    }

    fn tell(&self, stretch: Option<Stretch>) {
        if let Some(stretch) = stretch {
            tracing::info!(
                gpu = self.found.id.index,
                medium = stretch.medium,
                slow = stretch.slow,
                lists = stretch.lists,
                "sampling is stretched so many times, for the share of time inside the driver"
            );
        }
    }

    fn frame(&mut self, plan: &Plan, begun: Stamp, present: Present) -> Frame {
        let (processes, listed) = self.lists.get();
        // What was read under a longer stretch stays for as long as that promised.
        let now = self.governor.stretch();
        let stretch = Stretch {
            medium: now.medium.max(self.stretched.medium),
            slow: now.slow.max(self.stretched.slow),
            lists: now.lists,
        };
        Frame {
            gpu: self.found.id.clone(),
            identity: Arc::clone(&plan.identity),
            generation: self.generation,
            begun,
            ended: self.door.clock().now(),
            tiers: self.tiers,
            readings: self.readings.all(),
            counters: plan.gpm.as_ref().map(|gpm| gpm.counters.readings()).unwrap_or_default(),
            instances: Arc::clone(&self.instances),
            sampled: self.activity.sampled(),
            processes,
            listed,
            samples: present.samples,
            stretch,
            rejected: self.door.take_rejected(),
            calls: self.door.take_calls(),
        }
    }
}

/// Who was there in a tick, beside the lists, the time that the lists and the rest cost, and whether the driver
/// no longer knew an instance.
struct Present {
    samples: Result<Vec<ProcessSample>, Absence>,
    lists: Nanoseconds,
    fast: Nanoseconds,
    missed: bool,
}

fn since(door: &Door, before: Nanoseconds) -> Nanoseconds {
    Nanoseconds(door.spent().0.saturating_sub(before.0))
}
