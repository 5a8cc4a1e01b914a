//! Keeps a sampler's time inside the driver below its share of wall time by stretching intervals.
//!
//! It stretches the slow tier first, then the medium tier, then the process lists, by the measured cost of each.
//! The fast tier is never stretched, since the account integrates it: the budget may change how exact an account
//! is, never its rule. Calls of all GPUs wait for one lock in the driver, so the share is the node's and each
//! sampler has a part of it.

use std::collections::VecDeque;

use crate::model::frame::Tier;
use crate::model::{Nanoseconds, Stretch};

/// The default share of wall time that all samplers of a node may spend inside the driver, in millionths.
pub(super) const SHARE: u32 = 5_000;

/// Costs are averaged over this time.
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// How often the stretch is reconsidered.
const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// The stretch is lowered only if the lower step needs less than this percentage of the share, and not within a
/// minute of the last change; otherwise a cost near the limit would change the intervals on every check.
const RELAXED: u64 = 70;

/// Steps of a factor of 2: three for the slow tier, then four for the medium tier, then three for the lists.
const SLOW_STEPS: u32 = 3;
const MEDIUM_STEPS: u32 = 4;
const LIST_STEPS: u32 = 3;
const LAST_STEP: u32 = SLOW_STEPS + MEDIUM_STEPS + LIST_STEPS;

/// What a driver call counts as in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostClass {
    /// Calls that are never stretched, and tiers read outside their schedule because of an event.
    Fast,
    Medium,
    Slow,
    /// Process lists.
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
}

/// Time inside the driver in one tick, by [`CostClass`].
pub(super) type TickCosts = [Nanoseconds; CostClass::Plan as usize + 1];

/// The budget of one sampler.
#[derive(Default)]
pub(super) struct DriverBudget {
    share: u64,
    /// Whether the share changed since the last check.
    is_new: bool,
    step: u32,
    begun: Option<Nanoseconds>,
    checked: Nanoseconds,
    changed: Nanoseconds,
    medium: StretchedTier,
    slow: StretchedTier,
    fast: RecentCosts,
    /// Multiplied by the stretch in force when they arose.
    lists: RecentCosts,
    last: LastTick,
    /// When a tick was last ignored.
    ignored: Option<Nanoseconds>,
}

/// The last tick that was counted, with the step before it and the time of that step's change.
#[derive(Clone, Copy, Default)]
struct LastTick {
    at: Nanoseconds,
    step: u32,
    changed: Nanoseconds,
}

/// A tier that can be stretched: how often it was due, when, at which interval, and what reading it costs.
#[derive(Default)]
struct StretchedTier {
    count: u64,
    last: Option<Nanoseconds>,
    period: Option<Nanoseconds>,
    costs: RecentCosts,
}

/// Costs of the last minute; the last one is kept even if it is older.
#[derive(Default)]
struct RecentCosts(VecDeque<(Nanoseconds, u64)>);

impl DriverBudget {
    /// A budget of `share` millionths of wall time.
    pub(super) fn new(share: u64) -> Self {
        Self { share, ..Self::default() }
    }

    /// Sets another share; the measured costs stay valid.
    pub(super) fn set_share(&mut self, share: u64) {
        self.is_new |= self.share != share;
        self.share = share;
    }

    /// The stretch in force.
    pub(super) fn stretch(&self) -> Stretch {
        stretch(self.step)
    }

    /// Selects which of the due tiers are read in this tick.
    pub(super) fn select_tiers(&mut self, now: Nanoseconds, due: [bool; 3]) -> [bool; 3] {
        let Stretch { medium, slow, .. } = self.stretch();
        [
            due[Tier::Fast as usize],
            due[Tier::Medium as usize] && self.medium.select(now, medium),
            due[Tier::Slow as usize] && self.slow.select(now, slow),
        ]
    }

    /// Adds the costs of a tick that read the `selected` tiers, and returns the stretch if it changed.
    pub(super) fn add_tick(
        &mut self,
        now: Nanoseconds,
        selected: [bool; 3],
        costs: TickCosts,
    ) -> Option<Stretch> {
        self.last = LastTick { at: now, step: self.step, changed: self.changed };
        let cost = |class: CostClass| costs[class as usize].0;
        self.fast.add(now, cost(CostClass::Fast));
        self.lists.add(now, cost(CostClass::Lists).saturating_mul(self.stretch().lists.into()));
        if selected[Tier::Medium as usize] {
            self.medium.costs.add(now, cost(CostClass::Medium));
        }
        if selected[Tier::Slow as usize] {
            self.slow.costs.add(now, cost(CostClass::Slow));
        }
        let begun = *self.begun.get_or_insert(now);
        let young = now.0.saturating_sub(begun.0) < MINUTE.0;
        if young || now.0.saturating_sub(self.checked.0) < CHECK_INTERVAL.0 {
            return None;
        }
        self.checked = now;
        let step = self.choose_step(now);
        self.is_new = false;
        if step == self.step {
            return None;
        }
        self.step = step;
        self.changed = now;
        Some(self.stretch())
    }

    /// Removes the last tick, in which a call hung, and returns the stretch if that changed it. At most one tick
    /// a minute is ignored, or a driver that is always slow would never be relieved.
    pub(super) fn ignore_last_tick(&mut self) -> Option<Stretch> {
        let LastTick { at, step, changed } = self.last;
        if self.ignored.is_some_and(|ignored| at.0.saturating_sub(ignored.0) < MINUTE.0) {
            return None;
        }
        let changed_nothing = self.step == step;
        self.ignored = Some(at);
        (self.step, self.changed) = (step, changed);
        for costs in [&mut self.fast, &mut self.medium.costs, &mut self.slow.costs, &mut self.lists] {
            costs.0.retain(|(tick, _)| *tick != at);
        }
        (!changed_nothing).then(|| self.stretch())
    }

    /// Chooses the step: up as far as needed, down one at a time; after a change of the share, directly the
    /// first that fits.
    fn choose_step(&self, now: Nanoseconds) -> u32 {
        if self.is_new || self.share_needed(self.step) > self.share {
            let first = if self.is_new { 0 } else { self.step };
            return (first..=LAST_STEP)
                .find(|step| self.share_needed(*step) <= self.share)
                .unwrap_or(LAST_STEP);
        }
        let settled = now.0.saturating_sub(self.changed.0) >= MINUTE.0;
        match self.step.checked_sub(1) {
            Some(back) if settled && self.share_needed(back) <= self.share * RELAXED / 100 => back,
            _ => self.step,
        }
    }

    /// The share of wall time, in millionths, that a step would need at recent costs.
    fn share_needed(&self, step: u32) -> u64 {
        let Stretch { medium, slow, lists } = stretch(step);
        let share = |cost: u64, time: u64| u128::from(cost) * 1_000_000 / u128::from(time.max(1));
        let sum = share(self.fast.sum(), MINUTE.0)
            + share(self.lists.sum(), MINUTE.0) / u128::from(lists)
            + share(self.medium.costs.mean(), self.medium.period(medium))
            + share(self.slow.costs.mean(), self.slow.period(slow));
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

fn stretch(step: u32) -> Stretch {
    let factor = |before: u32, steps: u32| 1 << step.saturating_sub(before).min(steps);
    Stretch {
        slow: factor(0, SLOW_STEPS),
        medium: factor(SLOW_STEPS, MEDIUM_STEPS),
        lists: factor(SLOW_STEPS + MEDIUM_STEPS, LIST_STEPS),
    }
}

impl StretchedTier {
    /// Notes that the tier is due; whether it is read under this stretch.
    fn select(&mut self, now: Nanoseconds, stretch: u32) -> bool {
        self.period = self.last.map(|last| Nanoseconds(now.0.saturating_sub(last.0))).or(self.period);
        self.last = Some(now);
        let is_read = self.count.is_multiple_of(stretch.into());
        self.count += 1;
        is_read
    }

    /// The time between two reads under this stretch; a minute until an interval was seen.
    fn period(&self, stretch: u32) -> u64 {
        self.period.unwrap_or(MINUTE).0.saturating_mul(stretch.into())
    }
}

impl RecentCosts {
    fn add(&mut self, now: Nanoseconds, cost: u64) {
        self.0.push_back((now, cost));
        while self.0.len() > 1 && self.0.front().is_some_and(|(at, _)| now.0.saturating_sub(at.0) >= MINUTE.0)
        {
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
            let costs = [load.0, load.1, load.2, lists, 0].map(micros);
            changes.extend(budget.add_tick(now, selected, costs));
        }
        changes
    }

    #[test]
    fn a_quick_driver_is_never_stretched() {
        let mut budget = DriverBudget::new(SHARE.into());
        assert_eq!(run(&mut budget, 0, 3_600, &Load(500, 500, 5_000, 5_000)), []);
        assert_eq!(budget.stretch(), Stretch::default());
    }

    #[test]
    fn the_slow_tier_gives_way_first_then_the_medium_then_the_lists() {
        let mut budget = DriverBudget::new(SHARE.into());
        // 1 ms of every second, 300 ms of every minute: 6 per mille.
        run(&mut budget, 0, 300, &Load(1_000, 1_000, 300_000, 0));
        assert_eq!(budget.stretch(), Stretch { slow: 2, medium: 1, lists: 1 });
        run(&mut budget, 300, 300, &Load(1_000, 30_000, 300_000, 0));
        let Stretch { medium, slow, lists } = budget.stretch();
        assert!(slow == 8 && medium > 1 && lists == 1, "{:?}", budget.stretch());
        run(&mut budget, 600, 300, &Load(1_000, 30_000, 300_000, 40_000));
        let Stretch { medium, slow, lists } = budget.stretch();
        assert!(slow == 8 && medium == 16 && lists > 1, "{:?}", budget.stretch());
    }

    #[test]
    fn what_the_fast_tier_costs_is_spent_whatever_is_stretched() {
        let mut budget = DriverBudget::new(SHARE.into());
        run(&mut budget, 0, 600, &Load(20_000, 10, 10, 10));
        assert_eq!(budget.stretch(), Stretch { slow: 8, medium: 16, lists: 8 });
        assert_eq!(
            budget.select_tiers(Nanoseconds::from_seconds(600), [true, false, false]),
            [true, false, false]
        );
    }

    #[test]
    fn it_comes_back_step_by_step_and_does_not_swing() {
        let mut budget = DriverBudget::new(SHARE.into());
        run(&mut budget, 0, 300, &Load(1_000, 40_000, 10, 0));
        assert!(budget.stretch().medium > 1);
        let changes = run(&mut budget, 300, 3_600, &Load(1_000, 1_000, 10, 0));
        assert_eq!(budget.stretch(), Stretch::default());
        assert!(changes.windows(2).all(|pair| pair[1].medium <= pair[0].medium), "{changes:?}");
        // A cost just below the share does not change the stretch back and forth.
        let mut budget = DriverBudget::new(SHARE.into());
        let changes = run(&mut budget, 0, 3_600, &Load(1_000, 21_000, 10, 0));
        assert!(changes.len() <= 1, "{changes:?}");
    }

    #[test]
    fn a_new_share_is_followed_at_once_by_what_things_are_known_to_cost() {
        let mut budget = DriverBudget::new(SHARE.into());
        let load = Load(500, 500, 5_000, 5_000);
        run(&mut budget, 0, 300, &load);
        budget.set_share(u64::from(SHARE) / 8);
        run(&mut budget, 300, 10, &load);
        let eighth = budget.stretch();
        assert!(eighth > Stretch::default(), "{eighth:?}");
        budget.set_share(SHARE.into());
        assert_eq!(run(&mut budget, 310, 10, &load), [Stretch::default()]);
    }

    #[test]
    fn a_call_that_hung_is_forgiven_and_a_driver_that_hangs_again_and_again_is_not() {
        let hang = |budget: &mut DriverBudget, second| {
            let costs = [60, 0, 0, 0, 0].map(Nanoseconds::from_seconds);
            budget.add_tick(Nanoseconds::from_seconds(second), [true, false, false], costs);
            let stretched = budget.stretch();
            budget.ignore_last_tick();
            stretched
        };
        let mut budget = DriverBudget::new(SHARE.into());
        run(&mut budget, 0, 300, &Load(500, 500, 5_000, 5_000));
        assert_ne!(
            hang(&mut budget, 310),
            Stretch::default(),
            "the hang must have raised the stretch, or the test proves nothing"
        );
        assert_eq!(budget.stretch(), Stretch::default());
        assert_eq!(run(&mut budget, 370, 300, &Load(500, 500, 5_000, 5_000)), []);
        hang(&mut budget, 680);
        hang(&mut budget, 700);
        assert_eq!(budget.stretch(), Stretch { slow: 8, medium: 16, lists: 8 });
    }

    #[test]
    fn a_tier_that_is_read_outside_its_schedule_counts_as_fast() {
        let classes = |is_scheduled| Tier::ALL.map(|tier| CostClass::of(tier, is_scheduled));
        assert_eq!(classes(true), [CostClass::Fast, CostClass::Medium, CostClass::Slow]);
        assert_eq!(classes(false), [CostClass::Fast; 3]);
    }

    #[test]
    fn a_medium_tier_that_waits_is_read_every_so_many_times() {
        let mut budget = DriverBudget::new(SHARE.into());
        run(&mut budget, 0, 300, &Load(1_000, 40_000, 10, 0));
        let stretch = u64::from(budget.stretch().medium);
        let taken = (300..340)
            .filter(|second| budget.select_tiers(Nanoseconds::from_seconds(*second), [true; 3])[1])
            .count() as u64;
        assert!((40 / stretch).abs_diff(taken) <= 1, "{taken} of 40 by {stretch}");
    }
}
