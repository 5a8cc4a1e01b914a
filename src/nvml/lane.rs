//! One GPU, one thread, one plan: reads what is due and brings home a frame.
//!
//! The thread itself belongs to the app; a lane only knows how to do one tick. A tick makes few calls, since
//! they take a lock that tenants' own calls wait for: one batch of fields, two of GPM or one look into the
//! sample ring, one for the processes' activity; what else there is has its turn less often, and a governor
//! makes that less often still where the driver is slow.

mod presence;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::activity::{Activity, put_all};
use super::calls;
use super::door::{CallSlot, Door, Handle};
use super::governor::{Governor, SHARE, Spent};
use super::instances::{self, Instance};
use super::inventory::Found;
use super::library::Library;
use super::lists::Lists;
use super::plan::{Ask, Plan, TierPlan};
use super::probe::Wanted;
use super::processes::Processes;
use super::quirks::ListForm;
use super::readings::Readings;
use crate::catalogue::{Level, PointId, Source, device_points};
use crate::clock::Clock;
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, InstanceFrame, Nanoseconds, Stamp, Stretch, Unframed};
use presence::Present;

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
    governor: Governor,
    /// GPM's metrics that were refused alone, and whether the plan was made without knowing that.
    refused: BTreeSet<u32>,
    outdated: bool,
    /// Points whose field answered garbage for long while a call answered well.
    garbled: BTreeSet<PointId>,
    activity: Activity,
    processes: Processes,
    lists: Lists,
    /// The latest reading of every point, and when each tier was read.
    readings: Readings,
    tiers: [Option<Stamp>; 3],
    /// The stretch under which each tier was read.
    stretched: Stretch,
    instances: Arc<[InstanceFrame]>,
    /// Whether the next tick reads every tier.
    reads_all: bool,
    /// What the last tick made and dropped, where it brought no frame.
    unframed: Unframed,
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
            garbled: BTreeSet::new(),
            activity: Activity::new(),
            processes: Processes::new(),
            lists: Lists::new(false, ListForm::Third),
            readings: Readings::default(),
            tiers: [None; 3],
            stretched: Stretch::default(),
            instances: Arc::default(),
            reads_all: false,
            unframed: Unframed::default(),
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuId {
        &self.found.id
    }

    /// Has the next tick read every tier, however far they are stretched: something happened that they tell of.
    pub fn read_all(&mut self) {
        self.reads_all = true;
    }

    /// Reads what is due. Where the GPU is lost or the driver gone, the plan is lost; the next tick tries a
    /// new one.
    pub fn tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        let answer = self.try_tick(due);
        if answer.is_err() {
            // What belongs to a tick that brought nothing is not told of the next one.
            self.unframed = Unframed { calls: self.door.take_calls(), rejected: self.door.take_rejected() };
            self.door.take_gone();
        }
        if matches!(answer, Err(Absence::Lost | Absence::DriverGone)) {
            // It may come back reset, and counts from 0.
            self.readings = Readings::default();
        }
        answer
    }

    /// What the last tick cost, if it brought no frame to tell that; told once.
    pub fn take_unframed(&mut self) -> Unframed {
        std::mem::take(&mut self.unframed)
    }

    fn try_tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        self.review();
        let all = std::mem::take(&mut self.reads_all);
        let turn = self.governor.turn(self.door.clock().now().boottime, due);
        let before = self.door.spent();
        if (all || turn[Tier::Medium as usize])
            && self.plan.as_ref().is_some_and(|plan| plan.is_recut(&mut self.door))
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
        let round = Round { due, turn, all };
        let spent = self.read(&mut plan, &round, begun);
        let present = self.look(&plan, &round, begun);
        if present.missed || plan.instances.iter().any(Instance::is_gone) {
            // The GPU was cut anew, and ids are given again: this tick's readings may be of others.
            self.instances = instances::disown(&self.instances);
            self.outdated = true;
        }
        if let Some(absence) = self.door.take_gone() {
            plan.free(&mut self.door);
            return Err(absence);
        }
        // Looking whether the GPU was cut otherwise has its turn with the medium tier.
        let medium = spent.medium.map(|medium| medium + looked);
        let spent = Spent { fast: spent.fast + present.fast, medium, lists: present.lists, ..spent };
        self.govern(begun, spent.in_turn(turn));
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

    /// The last tick came late, since a call of it hung: it is not what ticks cost.
    pub fn forgive_tick(&mut self) {
        let stretch = self.governor.forgive();
        self.tell(stretch);
    }

    /// The last tick came late and is dropped: nothing before it may be subtracted from what comes after.
    pub fn forget_tick(&mut self) {
        self.forgive_tick();
        self.forget_plan();
    }

    /// Drops the plan: the next tick makes a new one.
    pub fn forget_plan(&mut self) {
        self.refused.clear();
        self.garbled.clear();
        if let Some(plan) = self.plan.take() {
            plan.free(&mut self.door);
        }
    }

    fn compile(&mut self) -> Result<Plan, Absence> {
        let wanted = Wanted { level: self.level, refused: &self.refused, garbled: &self.garbled };
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
        let wanted = Wanted { level: self.level, refused: &self.refused, garbled: &self.garbled };
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
    fn read(&mut self, plan: &mut Plan, round: &Round, begun: Stamp) -> Spent {
        let due = round.turn.map(|turn| turn || round.all);
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
        // One cheap call, and what it tells is of the fast tier: it waits for no stretched turn.
        let medium_is_due = round.due[Tier::Medium as usize] || round.all;
        self.activity.read(&mut self.door, plan, &mut self.readings, medium_is_due);
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
            if readings.is_garbled(ask.point) && has_better_call(door, device, (readings, ask)) {
                self.garbled.insert(ask.point);
                // Not `outdated`: a review keeps the present plan where a new one cannot be made.
                self.review = Some(door.clock().now().boottime);
            }
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
            list_read: self.lists.read(),
            deserted: present.deserted,
            samples: present.samples,
            stretch,
            rejected: self.door.take_rejected(),
            calls: self.door.take_calls(),
        }
    }
}

/// What a tick reads beside the fast tier.
struct Round {
    /// The tiers that are due, however far they are stretched, and those of them whose turn it is.
    due: [bool; 3],
    turn: [bool; 3],
    /// Whether every tier is read out of turn.
    all: bool,
}

/// Whether a point whose field answers garbage has a call that answers well.
fn has_better_call<T>(door: &mut Door, device: Handle, (readings, ask): (&Readings, &Ask<T>)) -> bool {
    let sources = device_points().nth(ask.point).map(|(_, point)| point.sources).unwrap_or_default();
    sources.iter().any(|source| {
        let Source::Call { value, times } = *source else { return false };
        let answer = calls::call(door, device, calls::function(value)).and_then(|values| values.get(value));
        let of_call = Ask { point: ask.point, bound: ask.bound, from: value, times };
        answer.is_ok_and(|answer| {
            i64::try_from(answer).is_ok_and(|answer| readings.would_take(door, &of_call, answer))
        })
    })
}

fn since(door: &Door, before: Nanoseconds) -> Nanoseconds {
    Nanoseconds(door.spent().0.saturating_sub(before.0))
}
