//! One GPU, one thread, one plan: reads what is due and brings home a frame.
//!
//! The thread itself belongs to the app; a lane only knows how to do one tick. A tick makes few calls, since
//! they take a lock that tenants' own calls wait for: one batch of fields, two of GPM or one look into the
//! sample ring, one for the processes' activity; what else there is has its turn less often, and a governor
//! makes that less often still where the driver is slow.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::accounting::Accounting;
use super::activity::{Activity, put_all};
use super::attention::Signs;
use super::calls;
use super::door::{CallSlot, Door};
use super::governor::{Governor, SHARE, Spent};
use super::inventory::Found;
use super::library::Library;
use super::lists::Lists;
use super::plan::{Plan, TierPlan};
use super::probe::Wanted;
use super::processes::Processes;
use super::quirks::ListForm;
use super::readings::Readings;
use crate::catalogue::Level;
use crate::clock::Clock;
use crate::model::frame::Tier;
use crate::model::{
    Absence, EndedProcess, Frame, GpuId, InstanceFrame, Nanoseconds, ProcessSample, Stamp, Stretch,
};

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
    /// Whether presence decides who holds.
    presence: bool,
    /// The share of wall time that it may spend inside the driver, in millionths.
    driver_share: u32,
    governor: Governor,
    /// GPM's metrics that were refused alone, and whether the plan was made without knowing that.
    refused: BTreeSet<u32>,
    outdated: bool,
    activity: Activity,
    processes: Processes,
    lists: Lists,
    accounting: Accounting,
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
            driver_share: SHARE,
            governor: Governor::new(SHARE.into()),
            refused: BTreeSet::new(),
            outdated: false,
            activity: Activity::new(),
            processes: Processes::new(),
            lists: Lists::new(false, ListForm::Third),
            accounting: Accounting::default(),
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
        let due = if self.tiers == [None; 3] { [true; 3] } else { turn };
        let begun = self.door.clock().now();
        self.door.take_heard();
        let spent = self.read(&mut plan, due, begun);
        let present = self.look(&plan, due, begun);
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

    /// Reads as the configuration says from the next tick on: another level takes a new plan, presence and the
    /// driver's share begin anew what follows from them.
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
        if self.driver_share != driver_share {
            self.driver_share = driver_share;
            self.governor = Governor::new(driver_share.into());
        }
    }

    /// Drops the plan: after a call that hung, nothing before it may be subtracted from what comes after.
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
        self.readings = Readings::begin(&plan.blank);
        self.activity = Activity::new();
        self.processes.begin();
        self.lists = Lists::new(self.presence, self.door.quirks().list_form());
        self.accounting = Accounting::default();
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

    /// Who is there: activity per process in every tick, lists and records when they are due.
    fn look(&mut self, plan: &Plan, due: [bool; 3], begun: Stamp) -> Present {
        let all = self.door.spent();
        let samples = self.processes.samples(&mut self.door, plan.device, begun.utc);
        let [_, medium, slow] = due;
        let busy = self.activity.is_busy(&self.readings);
        let signs = Signs { now: begun.boottime, medium, slow, samples: samples.as_deref().ok(), busy };
        let before = self.door.spent();
        // Told at every look: neither lists nor a governor that begin anew know of one another.
        self.lists.attention().stretch(self.governor.stretch().lists);
        let strange = self.lists.look(&mut self.door, plan.device, &signs, begun);
        let lists = since(&self.door, before);
        if slow {
            self.accounting.check(&mut self.door, plan.device);
        }
        let mut ended = Vec::new();
        if self.accounting.is_on() && (medium || strange) {
            ended = self.accounting.ended(&mut self.door, plan.device, &self.lists.pids());
        }
        let deserted = self.lists.is_deserted(begun);
        self.activity.exorcise(&mut self.door, &mut self.readings, deserted);
        let fast = Nanoseconds(since(&self.door, all).0.saturating_sub(lists.0));
        Present { samples, ended, lists, fast }
    }

    /// Stays within the share of driver time. What cannot be stretched counts as fast.
    fn govern(&mut self, begun: Stamp, spent: Spent) {
        let spent = if self.presence {
            Spent { fast: spent.fast + spent.lists, lists: Nanoseconds(0), ..spent }
        } else {
            spent
        };
        if let Some(stretch) = self.governor.spend(begun.boottime, spent) {
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
            ended_processes: present.ended,
            stretch,
            rejected: self.door.take_rejected(),
            calls: self.door.take_calls(),
        }
    }
}

/// Who was there in a tick, beside the lists, and the time that the lists and the rest cost.
struct Present {
    samples: Result<Vec<ProcessSample>, Absence>,
    ended: Vec<EndedProcess>,
    lists: Nanoseconds,
    fast: Nanoseconds,
}

fn since(door: &Door, before: Nanoseconds) -> Nanoseconds {
    Nanoseconds(door.spent().0.saturating_sub(before.0))
}
