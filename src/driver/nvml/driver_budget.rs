//! Keeps the time of a node's samplers inside the driver below a share of wall time by stretching intervals.
//!
//! Calls of all GPUs wait for one lock in the driver, so the share is the node's, and what all samplers need
//! together decides. While that is too much, each sampler doubles one interval of [`INTERVALS`] per check, and none that
//! saves nothing. The fast tier is never stretched, since the account integrates it: the budget may change how exact an
//! account is, never its rule.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::model::frame::Tier;
use crate::model::{Nanoseconds, Stretch};

/// The default share of wall time that all samplers of a node may spend inside the driver, in millionths.
pub(super) const SHARE: u32 = 5_000;

/// Costs are averaged over this time.
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// Those of lists are over this time, since at full stretch lists may be 40 s apart.
const TWO_MINUTES: Nanoseconds = Nanoseconds::from_seconds(120);

/// How often the stretch is reconsidered.
const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// An interval is shortened only if the node then needs no more than this percentage of its share; otherwise a
/// cost near the limit would change the intervals on every check.
const RELAXED: u64 = 90;

/// A longer interval must save one part in so many of what a sampler of the node needs on average; less cannot help.
const LEAST_SAVING: u64 = 60;

/// An interval that the budget doubles and halves.
struct StretchedInterval {
    of: fn(&mut Stretch) -> &mut u32,
    /// The most by which it is multiplied.
    most: u32,
}

/// The intervals in the order in which they are doubled; they are halved in the reverse order. What no rule of health
/// needs comes first. The two tiers have the inputs of health, so they are doubled once at most.
const INTERVALS: [StretchedInterval; 4] = [
    StretchedInterval { of: |stretch| &mut stretch.others, most: 4 },
    StretchedInterval { of: |stretch| &mut stretch.slow, most: 2 },
    StretchedInterval { of: |stretch| &mut stretch.medium, most: 2 },
    StretchedInterval { of: |stretch| &mut stretch.lists, most: 8 },
];

/// A call counts as at most this many times the mean of its function's last ones, without their longest.
const MOST_TIMES: u64 = 10;

/// How many last calls of a function that mean takes into account.
const CALLS: usize = 10;

/// What a driver call counts as in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CostClass {
    /// Calls that are never stretched, and tiers read outside their schedule because of an event.
    Fast,
    Medium,
    Slow,
    /// Calls of these tiers that no rule of health needs.
    MediumOthers,
    SlowOthers,
    Lists,
    /// Calls that compile a plan; they are rare and not counted in the cost of a tick.
    Plan,
}

impl CostClass {
    /// The class of a tier. One that is read outside its schedule could not wait, and its cost is not that of a
    /// scheduled read.
    pub(super) const fn of(tier: Tier, is_scheduled: bool) -> Self {
        match tier {
            Tier::Medium if is_scheduled => Self::Medium,
            Tier::Slow if is_scheduled => Self::Slow,
            _ => Self::Fast,
        }
    }

    /// The class of the calls of a tier that no rule of health needs.
    pub(super) const fn of_others(tier: Tier, is_scheduled: bool) -> Self {
        match tier {
            Tier::Medium if is_scheduled => Self::MediumOthers,
            Tier::Slow if is_scheduled => Self::SlowOthers,
            _ => Self::Fast,
        }
    }
}

/// Time inside the driver in one tick, by [`CostClass`].
pub(super) type TickCosts = [Nanoseconds; CostClass::Plan as usize + 1];

/// Sums the time inside the driver of one tick. A call that takes far longer than the last ones of its function in its
/// class counts as less, since one that waited for a processor or for another program says nothing about the next one.
#[derive(Default)]
pub(super) struct CallCosts {
    sums: TickCosts,
    recent: BTreeMap<(CostClass, &'static str), VecDeque<Nanoseconds>>,
}

impl CallCosts {
    pub(super) fn add(&mut self, class: CostClass, function: &'static str, took: Nanoseconds) {
        if class == CostClass::Plan {
            return;
        }
        let recent = self.recent.entry((class, function)).or_default();
        if recent.len() == CALLS {
            recent.pop_front();
        }
        recent.push_back(took);
        let sum = recent.iter().fold(0, |sum: u64, took| sum.saturating_add(took.0));
        let longest = recent.iter().map(|took| took.0).max().unwrap_or(0);
        let typical = match recent.len() as u64 {
            1 => sum,
            calls => sum.saturating_sub(longest) / (calls - 1),
        };
        self.sums[class as usize] += took.min(Nanoseconds(typical.saturating_mul(MOST_TIMES)));
    }

    pub(super) fn take(&mut self) -> TickCosts {
        std::mem::take(&mut self.sums)
    }
}

/// What each sampler that uses one driver library needs, in millionths of wall time.
#[derive(Debug, Default)]
pub(super) struct NodeDemand(Mutex<Vec<Weak<AtomicU64>>>);

impl NodeDemand {
    fn register(&self) -> Arc<AtomicU64> {
        let own = Arc::default();
        self.0.lock().push(Arc::downgrade(&own));
        own
    }
}

pub(super) struct DriverBudget {
    /// Of the node, in millionths of wall time.
    share: u64,
    node: Arc<NodeDemand>,
    /// What this sampler needed at the last check.
    demand: Arc<AtomicU64>,
    stretch: Stretch,
    begun: Option<Nanoseconds>,
    checked: Nanoseconds,
    tiers: [TierTurns; 3],
    /// By [`CostClass`]; those of lists are multiplied by the stretch in force when they arose.
    costs: [RecentCosts; CostClass::Plan as usize],
    /// The time of the costs of lists: two minutes, or since the first tick.
    lists_time: u64,
}

#[derive(Default)]
struct TierTurns {
    due: u64,
    reads: u64,
    last_due: Option<Nanoseconds>,
    period: Option<Nanoseconds>,
    /// Whether the last read made the calls that no rule of health needs.
    has_read_others: bool,
}

/// Costs of a time until now; the last one is kept even if it is older.
#[derive(Default)]
struct RecentCosts(VecDeque<(Nanoseconds, u64)>);

impl DriverBudget {
    /// A budget within `share` millionths of wall time for all samplers of the node.
    pub(super) fn new(share: u32, node: Arc<NodeDemand>) -> Self {
        Self {
            share: share.into(),
            demand: node.register(),
            node,
            stretch: Stretch::default(),
            begun: None,
            checked: Nanoseconds(0),
            tiers: Default::default(),
            costs: Default::default(),
            lists_time: 0,
        }
    }

    pub(super) fn set_share(&mut self, share: u32) {
        self.share = share.into();
    }

    pub(super) fn stretch(&self) -> Stretch {
        self.stretch
    }

    pub(super) fn select_tiers(&mut self, now: Nanoseconds, due: [bool; 3]) -> [bool; 3] {
        let stretch = self.stretch;
        Tier::ALL.map(|tier| due[tier as usize] && self.tiers[tier as usize].select(now, stretch.of(tier)))
    }

    /// Whether the calls of a tier that no rule of health needs are made in this read of it. The first read of a plan
    /// makes all calls.
    pub(super) fn select_others(&mut self, tier: Tier, is_first: bool) -> bool {
        let tier = &mut self.tiers[tier as usize];
        tier.has_read_others = is_first || tier.reads.is_multiple_of(self.stretch.others.into());
        tier.reads += 1;
        tier.has_read_others
    }

    /// Adds the costs of a tick that read the `selected` tiers, and returns the stretch if it changed.
    pub(super) fn add_tick(
        &mut self,
        now: Nanoseconds,
        selected: [bool; 3],
        costs: TickCosts,
    ) -> Option<Stretch> {
        let mut add = |class: CostClass, factor: u32, time: Nanoseconds| {
            let cost = costs[class as usize].0.saturating_mul(factor.into());
            self.costs[class as usize].add(now, cost, time);
        };
        add(CostClass::Fast, 1, MINUTE);
        add(CostClass::Lists, self.stretch.lists, TWO_MINUTES);
        for tier in [Tier::Medium, Tier::Slow].into_iter().filter(|tier| selected[*tier as usize]) {
            add(CostClass::of(tier, true), 1, MINUTE);
            if self.tiers[tier as usize].has_read_others {
                add(CostClass::of_others(tier, true), 1, MINUTE);
            }
        }
        let begun = *self.begun.get_or_insert(now);
        let age = now.0.saturating_sub(begun.0);
        self.lists_time = age.min(TWO_MINUTES.0);
        if age < MINUTE.0 || now.0.saturating_sub(self.checked.0) < CHECK_INTERVAL.0 {
            return None;
        }
        self.checked = now;
        self.check()
    }

    /// Chooses the stretch from now on, and publishes what this sampler needs under it; returns it if it changed.
    /// Samplers choose one after the other, so that no more of them stretch than the share asks for.
    fn check(&mut self) -> Option<Stretch> {
        let node = Arc::clone(&self.node);
        let mut demands = node.0.lock();
        demands.retain(|demand| demand.strong_count() > 0);
        self.demand.store(0, Ordering::Relaxed);
        let of_others = demands.iter().filter_map(Weak::upgrade).map(|demand| demand.load(Ordering::Relaxed));
        let chosen = self.choose(of_others.fold(0, u64::saturating_add), demands.len() as u64);
        self.demand.store(self.share_needed(chosen), Ordering::Relaxed);
        let before = std::mem::replace(&mut self.stretch, chosen);
        (before != chosen).then_some(chosen)
    }

    /// The stretch in force, or one with one interval doubled or halved, given what the other samplers need.
    fn choose(&self, of_others: u64, samplers: u64) -> Stretch {
        let of_node = |stretch: Stretch| of_others.saturating_add(self.share_needed(stretch));
        let needed = of_node(self.stretch);
        let changed = |interval: &StretchedInterval, change: fn(u32) -> u32| {
            let mut stretch = self.stretch;
            let factor = (interval.of)(&mut stretch);
            *factor = change(*factor).clamp(1, interval.most);
            stretch
        };
        if needed > self.share {
            let helps = |longer: &Stretch| {
                let saving = needed.saturating_sub(of_node(*longer));
                saving.saturating_mul(samplers * LEAST_SAVING) >= needed
            };
            let mut longer = INTERVALS.iter().map(|interval| changed(interval, |factor| factor * 2));
            return longer.find(helps).unwrap_or(self.stretch);
        }
        let fits = |shorter: &Stretch| {
            *shorter != self.stretch && of_node(*shorter) <= self.share.saturating_mul(RELAXED) / 100
        };
        let mut shorter = INTERVALS.iter().rev().map(|interval| changed(interval, |factor| factor / 2));
        shorter.find(fits).unwrap_or(self.stretch)
    }

    /// The share of wall time, in millionths, that this sampler needs under a stretch at recent costs.
    fn share_needed(&self, stretch: Stretch) -> u64 {
        let costs = |class: CostClass| &self.costs[class as usize];
        let of_tier = |tier: Tier| {
            let period = self.tiers[tier as usize].period(stretch.of(tier));
            let others = period.saturating_mul(stretch.others.into());
            share(costs(CostClass::of(tier, true)).mean(), period)
                + share(costs(CostClass::of_others(tier, true)).mean(), others)
        };
        let sum = share(costs(CostClass::Fast).sum(), MINUTE.0)
            + share(costs(CostClass::Lists).sum(), self.lists_time) / u128::from(stretch.lists)
            + of_tier(Tier::Medium)
            + of_tier(Tier::Slow);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

/// A cost in a time, in millionths.
fn share(cost: u64, time: u64) -> u128 {
    u128::from(cost) * 1_000_000 / u128::from(time.max(1))
}

impl TierTurns {
    /// Notes that the tier is due; whether it is read under this stretch.
    fn select(&mut self, now: Nanoseconds, stretch: u32) -> bool {
        self.period = self.last_due.map(|last| Nanoseconds(now.0.saturating_sub(last.0))).or(self.period);
        self.last_due = Some(now);
        let is_read = self.due.is_multiple_of(stretch.into());
        self.due += 1;
        is_read
    }

    /// The time between two reads under this stretch; a minute until an interval was seen.
    fn period(&self, stretch: u32) -> u64 {
        self.period.unwrap_or(MINUTE).0.saturating_mul(stretch.into())
    }
}

impl RecentCosts {
    fn add(&mut self, now: Nanoseconds, cost: u64, time: Nanoseconds) {
        self.0.push_back((now, cost));
        while self.0.len() > 1 && self.0.front().is_some_and(|(at, _)| now.0.saturating_sub(at.0) >= time.0) {
            self.0.pop_front();
        }
    }

    fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
    }

    fn mean(&self) -> u64 {
        self.sum() / (self.0.len() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of each class in microseconds: fast, medium, slow, lists.
    struct Load(u64, u64, u64, u64);

    /// Runs ticks of a second, medium every 5 s, slow every minute, lists with the medium tier.
    fn run(budget: &mut DriverBudget, from: u64, seconds: u64, load: &Load) -> Vec<Stretch> {
        let micros = |number: u64| Nanoseconds(number * 1_000);
        let mut changes = Vec::new();
        for second in from..from + seconds {
            let now = Nanoseconds::from_seconds(second);
            let selected =
                budget.select_tiers(now, [true, second.is_multiple_of(5), second.is_multiple_of(60)]);
            let listed = second.is_multiple_of(5 * u64::from(budget.stretch().lists));
            let lists = if listed { load.3 } else { 0 };
            for tier in Tier::ALL.into_iter().filter(|tier| selected[*tier as usize]) {
                budget.select_others(tier, false);
            }
            let costs = [load.0, load.1, load.2, 0, 0, lists, 0].map(micros);
            changes.extend(budget.add_tick(now, selected, costs));
        }
        changes
    }

    fn alone() -> DriverBudget {
        DriverBudget::new(SHARE, Arc::default())
    }

    #[test]
    fn a_quick_driver_is_never_stretched() {
        let mut budget = alone();
        assert_eq!(run(&mut budget, 0, 3_600, &Load(500, 500, 5_000, 5_000)), []);
        assert_eq!(budget.stretch(), Stretch::default());
    }

    #[test]
    fn the_slow_tier_gives_way_first_then_the_medium_then_the_lists() {
        let mut budget = alone();
        // 1 ms of every second, 300 ms of every minute: 6 per mille.
        run(&mut budget, 0, 300, &Load(1_000, 1_000, 300_000, 0));
        assert_eq!(budget.stretch(), Stretch { slow: 2, ..Stretch::default() });
        run(&mut budget, 300, 300, &Load(1_000, 15_000, 300_000, 0));
        assert_eq!(budget.stretch(), Stretch { slow: 2, medium: 2, ..Stretch::default() });
        run(&mut budget, 600, 300, &Load(1_000, 15_000, 300_000, 20_000));
        let Stretch { medium, slow, lists, .. } = budget.stretch();
        assert!(slow == 2 && medium == 2 && lists > 1, "{:?}", budget.stretch());
    }

    #[test]
    fn health_is_read_at_half_its_cadence_at_the_least_however_slow_the_driver_is() {
        let mut budget = alone();
        run(&mut budget, 0, 600, &Load(20_000, 900_000, 900_000, 900_000));
        assert_eq!(budget.stretch(), Stretch { slow: 2, medium: 2, lists: 8, others: 1 });
    }

    #[test]
    fn calls_that_no_rule_of_health_needs_give_way_first() {
        let mut budget = alone();
        let mut made = 0;
        for second in 0..600 {
            let now = Nanoseconds::from_seconds(second);
            let selected = budget.select_tiers(now, [true, second % 5 == 0, false]);
            let others = selected[Tier::Medium as usize] && budget.select_others(Tier::Medium, false);
            // 1 ms of every second, and every 5 s 1 ms that health needs and 60 ms that it does not: 13 per mille.
            let costs = [1_000, 1_000, 0, if others { 60_000 } else { 0 }, 0, 0, 0];
            budget.add_tick(now, selected, costs.map(|micros| Nanoseconds(micros * 1_000)));
            made += u32::from(others && second >= 200);
        }
        assert_eq!(budget.stretch(), Stretch { others: 4, ..Stretch::default() });
        assert_eq!(made, 20, "every 20 s");
    }

    #[test]
    fn a_tier_that_cannot_help_is_not_stretched() {
        let mut budget = alone();
        assert_eq!(
            run(&mut budget, 0, 600, &Load(20_000, 10, 10, 10)),
            [],
            "the fast tier alone takes the share"
        );
        let changes = run(&mut budget, 600, 600, &Load(20_000, 10, 10, 90_000));
        assert_eq!(changes.last(), Some(&Stretch { lists: 8, ..Stretch::default() }));
        assert_eq!(
            budget.select_tiers(Nanoseconds::from_seconds(1_200), [true, false, false]),
            [true, false, false]
        );
    }

    #[test]
    fn intervals_change_by_one_step_a_check_up_and_down_alike_and_do_not_swing() {
        let steps = |changes: &[Stretch]| changes.iter().map(|change| change.lists).collect::<Vec<_>>();
        let mut budget = alone();
        assert_eq!(steps(&run(&mut budget, 0, 91, &Load(1_000, 10, 10, 90_000))), [2, 4, 8]);
        assert_eq!(run(&mut budget, 91, 600, &Load(1_000, 10, 10, 90_000)), []);
        // The costs of lists are those of two minutes.
        let back = run(&mut budget, 691, 150, &Load(1_000, 10, 10, 0));
        assert_eq!(steps(&back), [4, 2, 1]);
        // A cost just below the share does not change the stretch back and forth.
        let mut budget = alone();
        let changes = run(&mut budget, 0, 3_600, &Load(1_000, 21_000, 10, 0));
        assert!(changes.len() <= 1, "{changes:?}");
    }

    #[test]
    fn what_the_whole_node_needs_decides_and_not_the_equal_part_of_a_gpu() {
        let node: Arc<NodeDemand> = Arc::default();
        let mut gpus: Vec<DriverBudget> =
            (0..8).map(|_| DriverBudget::new(SHARE, Arc::clone(&node))).collect();
        let run_all = |gpus: &mut Vec<DriverBudget>, from, seconds, loads: &dyn Fn(usize) -> Load| {
            for second in from..from + seconds {
                for (gpu, budget) in gpus.iter_mut().enumerate() {
                    run(budget, second, 1, &loads(gpu));
                }
            }
        };
        // One GPU needs 2 per mille, three times its eighth of 5 per mille, and the node 2.7.
        let one_slow = |gpu: usize| if gpu == 3 { Load(1_900, 500, 50, 0) } else { Load(100, 10, 10, 0) };
        run_all(&mut gpus, 0, 600, &one_slow);
        assert!(gpus.iter().all(|gpu| gpu.stretch() == Stretch::default()));
        // Two slow medium tiers take 6 per mille; those of the others cost nothing and stay.
        let two_slow = |gpu: usize| if gpu < 2 { Load(100, 15_000, 10, 0) } else { Load(100, 10, 10, 0) };
        run_all(&mut gpus, 600, 600, &two_slow);
        let medium: Vec<u32> = gpus.iter().map(|gpu| gpu.stretch().medium).collect();
        assert_eq!(medium.iter().sum::<u32>(), 8 + 2, "{medium:?}");
        assert_eq!(medium[2..], [1; 6]);
        // Samplers that end leave their part to the others.
        gpus.truncate(1);
        run_all(&mut gpus, 1_200, 60, &two_slow);
        assert_eq!(gpus[0].stretch(), Stretch::default());
    }

    #[test]
    fn a_new_share_is_followed_step_by_step() {
        let mut budget = alone();
        let load = Load(500, 500, 5_000, 5_000);
        run(&mut budget, 0, 300, &load);
        budget.set_share(SHARE / 8);
        run(&mut budget, 300, 60, &load);
        assert_ne!(budget.stretch(), Stretch::default());
        budget.set_share(SHARE);
        run(&mut budget, 360, 60, &load);
        assert_eq!(budget.stretch(), Stretch::default());
    }

    #[test]
    fn one_slow_call_of_ten_counts_as_ten_usual_ones_and_a_second_one_is_believed() {
        let mut costs = CallCosts::default();
        let mut add = |micros: u64| {
            costs.add(CostClass::Fast, "nvmlDeviceGetFieldValues", Nanoseconds(micros * 1_000));
            costs.take()[CostClass::Fast as usize].0 / 1_000
        };
        assert_eq!([300, 310, 60_000, 290].map(&mut add), [300, 310, 3_050, 290]);
        assert_eq!(add(60_000), 60_000);
        // Functions and classes are kept apart, and calls of a plan are not counted.
        costs.add(CostClass::Slow, "nvmlDeviceGetFieldValues", Nanoseconds(7));
        costs.add(CostClass::Slow, "nvmlDeviceGetTemperature", Nanoseconds(5));
        costs.add(CostClass::Plan, "nvmlDeviceGetTemperature", Nanoseconds(1_000));
        assert_eq!(costs.take(), [0, 0, 12, 0, 0, 0, 0].map(Nanoseconds));
    }

    #[test]
    fn a_tier_that_is_read_outside_its_schedule_counts_as_fast() {
        let classes = |is_scheduled| Tier::ALL.map(|tier| CostClass::of(tier, is_scheduled));
        assert_eq!(classes(true), [CostClass::Fast, CostClass::Medium, CostClass::Slow]);
        assert_eq!(classes(false), [CostClass::Fast; 3]);
    }

    #[test]
    fn a_medium_tier_that_waits_is_read_every_so_many_times() {
        let mut budget = alone();
        run(&mut budget, 0, 300, &Load(1_000, 40_000, 10, 0));
        let stretch = u64::from(budget.stretch().medium);
        let taken = (300..340)
            .filter(|second| budget.select_tiers(Nanoseconds::from_seconds(*second), [true; 3])[1])
            .count() as u64;
        assert!((40 / stretch).abs_diff(taken) <= 1, "{taken} of 40 by {stretch}");
    }
}
