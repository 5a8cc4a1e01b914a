//! Reads one GPU: each tick makes the driver calls that are due and returns a frame.
//!
//! `session` owns the thread; a sampler only knows how to do one tick. A tick makes few calls, since they take a
//! lock that the tenants' own calls wait for: one batch of fields, two GPM calls or one read of the utilization
//! ring, and one call for the processes' utilization. Other calls are made less often, and the driver-time
//! budget stretches them further where the driver is slow.

mod process_reads;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::activity::{ActivityReader, store_all};
use super::calls::{self, DriverFunction};
use super::driver_api::{CallSlot, DriverApi, Handle};
use super::driver_budget::{CostClass, DriverBudget, SHARE};
use super::inventory::FoundGpu;
use super::library::Library;
use super::mig_instances::{self, MigInstance};
use super::plan::{Plan, ReadTarget, TierPlan};
use super::plausibility::AGREEING;
use super::probe::ProbeRequest;
use super::process_lists::ProcessLists;
use super::process_samples::ProcessSamples;
use super::quirks::ListForm;
use super::readings::Readings;
use crate::model::catalogue::{Level, PointId, Source, device_points};
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, InstanceFrame, Nanoseconds, Rejection, Stamp, Stretch, Unframed};
use crate::runtime::clock::Clock;
use process_reads::ProcessReads;

/// When a provisional plan is first compared with a new one, and the longest wait between comparisons.
const FIRST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(10);
const LAST_REVIEW: Nanoseconds = Nanoseconds::from_seconds(3_600);

pub struct Sampler {
    found: FoundGpu,
    level: Level,
    api: DriverApi,
    plan: Option<Plan>,
    generation: u32,
    /// When a provisional plan is next compared with a new one, and the current wait between comparisons.
    review: Option<Nanoseconds>,
    review_interval: Nanoseconds,
    /// Whether the use of each process is published below level full too.
    shows_processes: bool,
    budget: DriverBudget,
    /// GPM metrics that the board refused one by one, and whether the plan must be compiled again.
    refused: BTreeSet<u32>,
    outdated: bool,
    /// Points whose field returned implausible values for long while a call returned plausible ones.
    implausible: BTreeSet<PointId>,
    activity: ActivityReader,
    process_samples: ProcessSamples,
    lists: ProcessLists,
    readings: Readings,
    tiers: [Option<Stamp>; 3],
    stretched: Stretch,
    instances: Arc<[InstanceFrame]>,
    reads_all: bool,
    /// How often in a row each tier was read while a counter of it was below its last value.
    falls: [u8; 3],
    /// Calls and rejected values of the last tick, if it produced no frame.
    unframed: Unframed,
}

impl Sampler {
    /// A sampler for a GPU; it makes no driver call yet.
    pub fn new(library: Arc<Library>, found: &FoundGpu, slot: CallSlot, clock: Clock, level: Level) -> Self {
        Self {
            found: found.clone(),
            level,
            budget: DriverBudget::new(SHARE, library.driver_demand()),
            api: DriverApi::new(library, slot, clock),
            plan: None,
            generation: 0,
            review: None,
            review_interval: FIRST_REVIEW,
            shows_processes: false,
            refused: BTreeSet::new(),
            outdated: false,
            implausible: BTreeSet::new(),
            activity: ActivityReader::new(),
            process_samples: ProcessSamples::new(),
            lists: ProcessLists::new(false, ListForm::V3),
            readings: Readings::default(),
            tiers: [None; 3],
            stretched: Stretch::default(),
            instances: Arc::default(),
            reads_all: false,
            falls: [0; 3],
            unframed: Unframed::default(),
        }
    }

    pub fn gpu(&self) -> &GpuId {
        &self.found.id
    }

    /// Makes the next tick read every tier, however far they are stretched; used after events such as XIDs.
    pub fn read_all_tiers_next(&mut self) {
        self.reads_all = true;
    }

    /// Reads what is due. If the GPU is lost or the driver is gone, the plan is dropped and the next tick
    /// compiles a new one.
    pub fn tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        let answer = self.try_tick(due);
        if answer.is_err() {
            // The next frame must not include the calls of a tick that failed.
            self.unframed = Unframed { calls: self.api.take_calls(), rejected: self.api.take_rejected() };
            self.api.take_fatal();
        }
        if matches!(answer, Err(Absence::Lost | Absence::DriverGone)) {
            // The GPU may come back reset, with counters at 0.
            self.readings = Readings::default();
        }
        answer
    }

    pub fn take_unframed(&mut self) -> Unframed {
        std::mem::take(&mut self.unframed)
    }

    fn try_tick(&mut self, due: [bool; 3]) -> Result<Frame, Absence> {
        self.api.charge(CostClass::Plan);
        self.review();
        let all = std::mem::take(&mut self.reads_all);
        let selected = self.budget.select_tiers(self.api.clock().now().boottime, due);
        self.api.take_costs();
        if all || selected[Tier::Medium as usize] {
            self.api.charge(CostClass::of(Tier::Medium, selected[Tier::Medium as usize]));
            if self.plan.as_ref().is_some_and(|plan| plan.has_new_layout(&mut self.api)) {
                self.drop_plan();
            }
        }
        self.api.charge(CostClass::Plan);
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => {
                let plan = self.compile()?;
                self.review_interval = FIRST_REVIEW;
                self.begin(&plan);
                plan
            }
        };
        // Under a new plan every tier is read at once.
        let (due, selected) = if self.tiers == [None; 3] { ([true; 3], [true; 3]) } else { (due, selected) };
        let begun = self.api.clock().now();
        self.api.take_responded();
        let tiers = DueTiers { due, selected, all };
        self.read(&mut plan, &tiers, begun);
        let processes = self.read_processes(&plan, &tiers, begun);
        if processes.instance_missing || plan.instances.iter().any(MigInstance::is_missing) {
            // The MIG layout changed and instance ids are reused, so this tick's readings may belong to other
            // instances.
            self.instances = mig_instances::clear_readings(&self.instances);
            self.outdated = true;
        }
        if let Some(absence) = self.api.take_fatal() {
            plan.free(&mut self.api);
            return Err(absence);
        }
        let stretch = self.budget.add_tick(begun.boottime, selected, self.api.take_costs());
        self.log_stretch(stretch);
        let frame = self.frame(&plan, begun, processes);
        if !self.api.take_responded() {
            // Without this, old readings of slower tiers would be shown as current until they are due.
            plan.free(&mut self.api);
            return Err(Absence::Failed);
        }
        if std::mem::take(&mut self.outdated) {
            plan.free(&mut self.api);
        } else {
            self.plan = Some(plan);
        }
        Ok(frame)
    }

    pub const fn show_processes(&mut self, shown: bool) {
        self.shows_processes = shown;
    }

    /// Applies settings from the next tick on; a new level compiles a new plan.
    /// `driver_share` is what all samplers of the node may spend in the driver, in millionths of wall time.
    pub fn configure(&mut self, level: Level, presence: bool, driver_share: u32) {
        if self.level != level {
            self.level = level;
            self.drop_plan();
        }
        self.lists.schedule.presence = presence;
        self.budget.set_share(driver_share);
    }

    pub fn drop_plan(&mut self) {
        self.refused.clear();
        self.implausible.clear();
        if let Some(plan) = self.plan.take() {
            plan.free(&mut self.api);
        }
    }

    fn compile(&mut self) -> Result<Plan, Absence> {
        let request =
            ProbeRequest { level: self.level, refused: &self.refused, implausible: &self.implausible };
        Plan::compile(&mut self.api, &self.found, request)
    }

    fn begin(&mut self, plan: &Plan) {
        self.generation += 1;
        self.readings = self.readings.carry_over(&plan.initial, &plan.probed, self.api.last_call_at());
        self.activity = ActivityReader::new();
        self.process_samples.retry_refused();
        self.lists = ProcessLists::new(self.lists.schedule.presence, self.api.quirks().list_form());
        self.tiers = [None; 3];
        self.instances = Arc::default();
        self.review = plan.provisional.then(|| self.api.clock().now().boottime + self.review_interval);
    }

    /// Compares a provisional plan with a new one. Equal plans keep the old one, since replacing the plan leaves
    /// one tick unmeasured. The wait doubles after each comparison, since some boards fail at the same call for ever.
    fn review(&mut self) {
        if self.review.is_none_or(|at| self.api.clock().now().boottime < at) {
            return;
        }
        self.review_interval = Nanoseconds(self.review_interval.0.saturating_mul(2)).min(LAST_REVIEW);
        self.review = Some(self.api.clock().now().boottime + self.review_interval);
        let Some(old) = self.plan.take() else { return };
        let (plan, spare) = match self.compile() {
            Ok(new) if new.reads_same_as(&old) => {
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
            spare.free(&mut self.api);
        }
    }

    fn read(&mut self, plan: &mut Plan, tiers: &DueTiers, begun: Stamp) {
        // A counter that fell was cleared or is misread: the next ticks tell, not the next minutes.
        let falls = self.falls.map(|falls| (1..AGREEING).contains(&falls));
        let due = Tier::ALL.map(|tier| {
            let tier = tier as usize;
            tiers.selected[tier] || tiers.all || falls[tier]
        });
        self.api.charge(CostClass::Fast);
        // GPM is sampled first, so that its interval runs from the start of one frame to the start of the next.
        self.read_gpm(plan);
        let mut fallen = [false; 3];
        for tier in Tier::ALL.into_iter().filter(|tier| due[*tier as usize]) {
            let is_scheduled = tiers.selected[tier as usize];
            self.api.charge(CostClass::of(tier, is_scheduled));
            let before = self.api.rejections(Rejection::CounterBack);
            self.read_tier(plan, tier);
            let is_first = self.tiers[tier as usize].is_none();
            if !is_scheduled || self.budget.select_others(tier, is_first) {
                self.api.charge(CostClass::of_others(tier, is_scheduled));
                self.read_others(plan, tier);
            }
            fallen[tier as usize] = self.api.rejections(Rejection::CounterBack) > before;
            self.tiers[tier as usize] = Some(begun);
            match tier {
                Tier::Fast => {}
                Tier::Medium => self.stretched.medium = self.budget.stretch().medium,
                Tier::Slow => self.stretched.slow = self.budget.stretch().slow,
            }
        }
        self.api.charge(CostClass::Fast);
        // This call is cheap and belongs to the fast tier, so stretching does not delay it.
        let medium_is_due = tiers.due[Tier::Medium as usize] || tiers.all;
        self.activity.read(&mut self.api, plan, &mut self.readings, medium_is_due);
        let before = self.api.rejections(Rejection::CounterBack);
        let (api, device) = (&mut self.api, plan.device);
        if !plan.instances.is_empty() {
            self.instances =
                plan.instances.iter_mut().map(|instance| instance.read(api, device, due)).collect();
        }
        // The errors of instances are of the slow tier.
        fallen[Tier::Slow as usize] |= self.api.rejections(Rejection::CounterBack) > before;
        for tier in Tier::ALL.map(|tier| tier as usize).into_iter().filter(|tier| due[*tier]) {
            self.falls[tier] = if fallen[tier] { self.falls[tier].saturating_add(1) } else { 0 };
        }
    }

    fn read_gpm(&mut self, plan: &mut Plan) {
        let Some(gpm) = &mut plan.gpm else { return };
        let answer =
            gpm.pair.sample(&mut self.api, plan.device, None).and_then(|()| gpm.pair.compute(&mut self.api));
        for target in &gpm.metrics {
            let value = answer.and_then(|()| gpm.pair.sum(target.from));
            // A board reports GPM support as a whole; a metric that it then refuses is read from its next
            // source.
            if value.is_err_and(Absence::is_permanent) && gpm.replaceable.contains(&target.from.first) {
                self.outdated |= self.refused.insert(target.from.first);
            }
            self.readings.store(&mut self.api, target, value);
        }
        gpm.counters.read(&mut self.api, &gpm.pair, answer);
    }

    fn read_tier(&mut self, plan: &mut Plan, tier: Tier) {
        let device = plan.device;
        let (api, readings) = (&mut self.api, &mut self.readings);
        let TierPlan { batch, fields, calls, reasons, .. } = &mut plan.tiers[tier as usize];
        let answered = batch.read(api, device);
        for target in fields.iter() {
            let value = answered.and_then(|()| batch.value(target.from));
            readings.store(api, target, value);
            if readings.has_become_implausible(target.point) && has_better_call(api, device, readings, target)
            {
                self.implausible.insert(target.point);
                // A review, unlike `outdated`, keeps the present plan if a new one cannot be compiled.
                self.review = Some(api.clock().now().boottime);
            }
        }
        for (function, targets) in calls.iter() {
            let answer = calls::call(api, device, *function);
            store_all(api, readings, targets, answer);
        }
        if !reasons.is_empty() {
            let bits = calls::reasons(api, device);
            for target in reasons.iter() {
                let (bit, unless) = target.from;
                let value = bits
                    .map(|bits| if bits & unless == 0 { (bits & bit) >> bit.trailing_zeros() } else { 0 });
                // NVML's mask has 32 bits.
                let value = value.and_then(|value| i64::try_from(value).map_err(|_| Absence::Rejected));
                readings.store(api, target, value);
            }
        }
    }

    /// Makes the calls of a tier that no rule of health needs; the tier was read before.
    fn read_others(&mut self, plan: &mut Plan, tier: Tier) {
        let device = plan.device;
        let (api, readings) = (&mut self.api, &mut self.readings);
        let TierPlan { batch, margins, others, .. } = &plan.tiers[tier as usize];
        if !margins.is_empty() {
            let margin = calls::margin(api, device);
            for target in margins {
                // The limit is a constant of the board.
                let limit = batch.value(target.from);
                let distance = limit.and_then(|limit| margin?.checked_sub(limit).ok_or(Absence::Rejected));
                readings.store(api, target, distance);
            }
        }
        for (function, targets) in others {
            let answer = calls::call(api, device, *function);
            store_all(api, readings, targets, answer);
        }
    }

    fn log_stretch(&self, stretch: Option<Stretch>) {
        let gpu = self.found.id.index;
        match stretch {
            // A demo at `--speed 60` makes a minute's calls in a second: its driver is slow only beside that time.
            _ if self.api.clock().is_fast() => {}
            None => {}
            Some(stretch) if stretch == Stretch::default() => {
                tracing::info!(gpu, "every tier is read at its configured interval");
            }
            Some(Stretch { medium, slow, others, lists }) => tracing::info!(
                gpu,
                medium,
                slow,
                others,
                lists,
                "the driver answers slowly, so to keep within sampling.driver_share the intervals of the medium tier, the \
                 slow tier, what health does not need of both, and the process lists are multiplied by these numbers"
            ),
        }
    }

    fn frame(&mut self, plan: &Plan, begun: Stamp, reads: ProcessReads) -> Frame {
        // A reading taken under a longer stretch stays valid for that longer interval.
        let now = self.budget.stretch();
        let stretch = Stretch {
            medium: now.medium.max(self.stretched.medium),
            slow: now.slow.max(self.stretched.slow),
            ..now
        };
        Frame {
            gpu: self.found.id.clone(),
            identity: Arc::clone(&plan.identity),
            generation: self.generation,
            begun,
            ended: self.api.clock().now(),
            tiers: self.tiers,
            readings: self.readings.all(),
            counters: plan.gpm.as_ref().map(|gpm| gpm.counters.readings()).unwrap_or_default(),
            instances: Arc::clone(&self.instances),
            sampled: self.activity.sampled(),
            processes: self.lists.processes.clone(),
            listed: self.lists.listed,
            list_read: self.lists.read,
            known_empty: reads.known_empty,
            samples: reads.samples,
            stretch,
            rejected: self.api.take_rejected(),
            calls: self.api.take_calls(),
        }
    }
}

struct DueTiers {
    /// `due`: tiers that are due by their interval. `selected`: those of them that the budget lets be read.
    due: [bool; 3],
    selected: [bool; 3],
    all: bool,
}

fn has_better_call<T>(
    api: &mut DriverApi,
    device: Handle,
    readings: &Readings,
    target: &ReadTarget<T>,
) -> bool {
    let sources = device_points().nth(target.point).map(|(_, point)| point.sources).unwrap_or_default();
    sources.iter().any(|source| {
        let Source::Call { value, times } = *source else { return false };
        let answer = calls::call(api, device, DriverFunction::of(value)).and_then(|values| values.get(value));
        let of_call = ReadTarget { point: target.point, bound: target.bound, from: value, times };
        answer.is_ok_and(|answer| {
            i64::try_from(answer).is_ok_and(|answer| readings.would_accept(api, &of_call, answer))
        })
    })
}
