//! Keeps a lane's time inside the driver below its share of wall time, by reading less often what can wait.
//!
//! In goes what each part of a tick cost; out comes how far the slow tier, the medium tier and the process
//! lists are stretched, in that order. The fast tier is what the account integrates and is never stretched:
//! sampling changes how exact an account is, never by which rule it is made. Calls of all GPUs wait for one lock,
//! so the share is the node's, and a lane is told its part. It calls no driver and reads no clock.

use std::collections::VecDeque;

use crate::model::frame::Tier;
use crate::model::{Nanoseconds, Stretch};

/// The share of wall time that a node's lanes may spend inside the driver unless they are told otherwise, in
/// millionths: calls take a lock that tenants' own calls wait for.
pub(super) const SHARE: u32 = 5_000;

/// Costs are means over this time.
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// How often it is judged whether the time is enough.
const JUDGED_EVERY: Nanoseconds = Nanoseconds::from_seconds(10);

/// A step back is taken only to where less than this part of the share is needed, in percent, and a minute
/// after the last change: or a cost near the limit would change the intervals at every look.
const RELAXED: u64 = 70;

/// Each is stretched by 2, 4, 8 before the next one begins, the medium tier by 16, too.
const SLOW_STEPS: u32 = 3;
const MEDIUM_STEPS: u32 = 4;
const LIST_STEPS: u32 = 3;
const LAST_STEP: u32 = SLOW_STEPS + MEDIUM_STEPS + LIST_STEPS;

/// Time inside the driver in one tick, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// What cannot wait.
    pub(super) fast: Nanoseconds,
    /// The medium tier; none where it was not read.
    pub(super) medium: Option<Nanoseconds>,
    /// The slow tier, likewise.
    pub(super) slow: Option<Nanoseconds>,
    /// Process lists.
    pub(super) lists: Nanoseconds,
}

impl Spent {
    /// The same, where only those tiers had their turn: what was read out of turn is no measure of what a turn costs,
    /// and could not wait.
    pub(super) fn in_turn(mut self, turn: [bool; 3]) -> Self {
        for (tier, cost) in [(Tier::Medium, &mut self.medium), (Tier::Slow, &mut self.slow)] {
            if !turn[tier as usize] {
                self.fast += cost.take().unwrap_or_default();
            }
        }
        self
    }
}

/// One lane's governor.
pub(super) struct Governor {
    share: u64,
    /// Whether the share is another than at the last judgement.
    is_new: bool,
    step: u32,
    begun: Option<Nanoseconds>,
    judged: Nanoseconds,
    changed: Nanoseconds,
    /// How often each tier came up, and which of these times were taken.
    medium: Turn,
    slow: Turn,
    fast: Costs,
    medium_costs: Costs,
    slow_costs: Costs,
    /// Times the stretch under which they arose.
    lists: Costs,
    last: Last,
    /// When a tick was last forgiven.
    forgiven: Option<Nanoseconds>,
}

/// The last tick that was taken account of, and what it may have changed: the step before it, and when that began.
#[derive(Clone, Copy, Default)]
struct Last {
    at: Nanoseconds,
    step: u32,
    changed: Nanoseconds,
}

/// The turns of one tier.
#[derive(Default)]
struct Turn {
    count: u64,
    last: Option<Nanoseconds>,
    period: Option<Nanoseconds>,
}

/// What was spent within the last minute; at least the last cost stays.
#[derive(Default)]
struct Costs(VecDeque<(Nanoseconds, u64)>);

impl Governor {
    /// A governor that allows that many millionths of wall time.
    pub(super) fn new(share: u64) -> Self {
        Self {
            share,
            is_new: false,
            step: 0,
            begun: None,
            judged: Nanoseconds(0),
            changed: Nanoseconds(0),
            medium: Turn::default(),
            slow: Turn::default(),
            fast: Costs::default(),
            medium_costs: Costs::default(),
            slow_costs: Costs::default(),
            lists: Costs::default(),
            last: Last::default(),
            forgiven: None,
        }
    }

    /// Allows another share from now on: what things cost is known already.
    pub(super) fn allow(&mut self, share: u64) {
        self.is_new |= self.share != share;
        self.share = share;
    }

    /// What is in force.
    pub(super) fn stretch(&self) -> Stretch {
        stretch(self.step)
    }

    /// What of the due tiers is read in this tick. What is read for another reason than its turn is asked for past
    /// this, and is told as what cannot wait.
    pub(super) fn turn(&mut self, now: Nanoseconds, due: [bool; 3]) -> [bool; 3] {
        let Stretch { medium, slow, .. } = self.stretch();
        [
            due[Tier::Fast as usize],
            due[Tier::Medium as usize] && self.medium.take(now, medium),
            due[Tier::Slow as usize] && self.slow.take(now, slow),
        ]
    }

    /// Takes account of a tick; the stretch, if it changed by that.
    pub(super) fn spend(&mut self, now: Nanoseconds, spent: Spent) -> Option<Stretch> {
        self.last = Last { at: now, step: self.step, changed: self.changed };
        let lists = spent.lists.0.saturating_mul(self.stretch().lists.into());
        self.fast.add(now, spent.fast.0);
        self.lists.add(now, lists);
        for (costs, cost) in [(&mut self.medium_costs, spent.medium), (&mut self.slow_costs, spent.slow)] {
            if let Some(cost) = cost {
                costs.add(now, cost.0);
            }
        }
        let begun = *self.begun.get_or_insert(now);
        let young = now.0.saturating_sub(begun.0) < MINUTE.0;
        if young || now.0.saturating_sub(self.judged.0) < JUDGED_EVERY.0 {
            return None;
        }
        self.judged = now;
        let step = self.judge(now);
        self.is_new = false;
        if step == self.step {
            return None;
        }
        self.step = step;
        self.changed = now;
        Some(self.stretch())
    }

    /// Takes the last tick back: a call of it hung, which tells nothing of what calls cost. Once in a minute at
    /// most, or a driver that is as slow as that for good would never be spared. The stretch, if it changed by that.
    pub(super) fn forgive(&mut self) -> Option<Stretch> {
        let Last { at, step, changed } = self.last;
        if self.forgiven.is_some_and(|forgiven| at.0.saturating_sub(forgiven.0) < MINUTE.0) {
            return None;
        }
        let stood = self.step == step;
        self.forgiven = Some(at);
        (self.step, self.changed) = (step, changed);
        for costs in [&mut self.fast, &mut self.medium_costs, &mut self.slow_costs, &mut self.lists] {
            costs.0.retain(|(spent, _)| *spent != at);
        }
        (!stood).then(|| self.stretch())
    }

    /// The step to be on: up as far as needed, down one at a time; under a new share at once to where it fits.
    fn judge(&self, now: Nanoseconds) -> u32 {
        if self.is_new || self.needs(self.step) > self.share {
            let first = if self.is_new { 0 } else { self.step };
            return (first..=LAST_STEP).find(|step| self.needs(*step) <= self.share).unwrap_or(LAST_STEP);
        }
        let settled = now.0.saturating_sub(self.changed.0) >= MINUTE.0;
        match self.step.checked_sub(1) {
            Some(back) if settled && self.needs(back) <= self.share * RELAXED / 100 => back,
            _ => self.step,
        }
    }

    /// The share of wall time, in millionths, that a step would take by what things cost lately.
    fn needs(&self, step: u32) -> u64 {
        let Stretch { medium, slow, lists } = stretch(step);
        let share = |cost: u64, time: u64| u128::from(cost) * 1_000_000 / u128::from(time.max(1));
        let sum = share(self.fast.sum(), MINUTE.0)
            + share(self.lists.sum(), MINUTE.0) / u128::from(lists)
            + share(self.medium_costs.mean(), self.medium.period(medium))
            + share(self.slow_costs.mean(), self.slow.period(slow));
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

impl Turn {
    fn take(&mut self, now: Nanoseconds, stretch: u32) -> bool {
        self.period = self.last.map(|last| Nanoseconds(now.0.saturating_sub(last.0))).or(self.period);
        self.last = Some(now);
        let mine = self.count.is_multiple_of(stretch.into());
        self.count += 1;
        mine
    }

    /// The time between two readings; before it was seen, a minute.
    fn period(&self, stretch: u32) -> u64 {
        self.period.unwrap_or(MINUTE).0.saturating_mul(stretch.into())
    }
}

impl Costs {
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

    /// What a tick costs in microseconds: fast, medium, slow, lists.
    struct Load(u64, u64, u64, u64);

    /// Runs ticks of a second, medium every 5 s, slow every minute, lists with the medium tier.
    fn run(governor: &mut Governor, from: u64, seconds: u64, load: &Load) -> Vec<Stretch> {
        let micros = |number: u64| Nanoseconds(number * 1_000);
        let mut changes = Vec::new();
        for second in from..from + seconds {
            let now = Nanoseconds::from_seconds(second);
            let turn = governor.turn(now, [true, second.is_multiple_of(5), second.is_multiple_of(60)]);
            let listed = second.is_multiple_of(5 * u64::from(governor.stretch().lists));
            let spent = Spent {
                fast: micros(load.0),
                medium: turn[1].then(|| micros(load.1)),
                slow: turn[2].then(|| micros(load.2)),
                lists: micros(if listed { load.3 } else { 0 }),
            };
            changes.extend(governor.spend(now, spent));
        }
        changes
    }

    #[test]
    fn a_quick_driver_is_never_stretched() {
        let mut governor = Governor::new(SHARE.into());
        assert_eq!(run(&mut governor, 0, 3_600, &Load(500, 500, 5_000, 5_000)), []);
        assert_eq!(governor.stretch(), Stretch::default());
    }

    #[test]
    fn the_slow_tier_gives_way_first_then_the_medium_then_the_lists() {
        let mut governor = Governor::new(SHARE.into());
        // 1 ms of every second, 300 ms of every minute: 6 per mille.
        run(&mut governor, 0, 300, &Load(1_000, 1_000, 300_000, 0));
        assert_eq!(governor.stretch(), Stretch { slow: 2, medium: 1, lists: 1 });
        run(&mut governor, 300, 300, &Load(1_000, 30_000, 300_000, 0));
        let Stretch { medium, slow, lists } = governor.stretch();
        assert!(slow == 8 && medium > 1 && lists == 1, "{:?}", governor.stretch());
        run(&mut governor, 600, 300, &Load(1_000, 30_000, 300_000, 40_000));
        let Stretch { medium, slow, lists } = governor.stretch();
        assert!(slow == 8 && medium == 16 && lists > 1, "{:?}", governor.stretch());
    }

    #[test]
    fn what_the_fast_tier_costs_is_spent_whatever_is_stretched() {
        let mut governor = Governor::new(SHARE.into());
        run(&mut governor, 0, 600, &Load(20_000, 10, 10, 10));
        assert_eq!(governor.stretch(), Stretch { slow: 8, medium: 16, lists: 8 });
        assert_eq!(governor.turn(Nanoseconds::from_seconds(600), [true, false, false]), [true, false, false]);
    }

    #[test]
    fn it_comes_back_step_by_step_and_does_not_swing() {
        let mut governor = Governor::new(SHARE.into());
        run(&mut governor, 0, 300, &Load(1_000, 40_000, 10, 0));
        assert!(governor.stretch().medium > 1);
        let changes = run(&mut governor, 300, 3_600, &Load(1_000, 1_000, 10, 0));
        assert_eq!(governor.stretch(), Stretch::default());
        assert!(changes.windows(2).all(|pair| pair[1].medium <= pair[0].medium), "{changes:?}");
        // A cost that needs just less than everything without a stretch stays where it is.
        let mut governor = Governor::new(SHARE.into());
        let changes = run(&mut governor, 0, 3_600, &Load(1_000, 21_000, 10, 0));
        assert!(changes.len() <= 1, "{changes:?}");
    }

    #[test]
    fn a_new_share_is_followed_at_once_by_what_things_are_known_to_cost() {
        let mut governor = Governor::new(SHARE.into());
        let load = Load(500, 500, 5_000, 5_000);
        run(&mut governor, 0, 300, &load);
        governor.allow(u64::from(SHARE) / 8);
        run(&mut governor, 300, 10, &load);
        let eighth = governor.stretch();
        assert!(eighth > Stretch::default(), "{eighth:?}");
        governor.allow(SHARE.into());
        assert_eq!(run(&mut governor, 310, 10, &load), [Stretch::default()]);
    }

    #[test]
    fn a_call_that_hung_is_forgiven_and_a_driver_that_hangs_again_and_again_is_not() {
        let hang = |governor: &mut Governor, second| {
            let spent = Spent { fast: Nanoseconds::from_seconds(60), ..Spent::default() };
            governor.spend(Nanoseconds::from_seconds(second), spent);
            let stretched = governor.stretch();
            governor.forgive();
            stretched
        };
        let mut governor = Governor::new(SHARE.into());
        run(&mut governor, 0, 300, &Load(500, 500, 5_000, 5_000));
        assert_ne!(hang(&mut governor, 310), Stretch::default(), "or there is nothing to forgive");
        assert_eq!(governor.stretch(), Stretch::default());
        assert_eq!(run(&mut governor, 370, 300, &Load(500, 500, 5_000, 5_000)), []);
        hang(&mut governor, 680);
        hang(&mut governor, 700);
        assert_eq!(governor.stretch(), Stretch { slow: 8, medium: 16, lists: 8 });
    }

    #[test]
    fn what_is_read_out_of_turn_could_not_wait_and_is_no_measure_of_a_turn() {
        let spent = |fast, medium: Option<u64>, slow: Option<u64>| Spent {
            fast: Nanoseconds(fast),
            medium: medium.map(Nanoseconds),
            slow: slow.map(Nanoseconds),
            lists: Nanoseconds(4),
        };
        let all = spent(1, Some(2), Some(3));
        assert_eq!(all.in_turn([true, false, true]), spent(3, None, Some(3)));
        assert_eq!(all.in_turn([true; 3]), all);
    }

    #[test]
    fn a_medium_tier_that_waits_is_read_every_so_many_times() {
        let mut governor = Governor::new(SHARE.into());
        run(&mut governor, 0, 300, &Load(1_000, 40_000, 10, 0));
        let stretch = u64::from(governor.stretch().medium);
        let taken = (300..340)
            .filter(|second| governor.turn(Nanoseconds::from_seconds(*second), [true; 3])[1])
            .count() as u64;
        assert!((40 / stretch).abs_diff(taken) <= 1, "{taken} of 40 by {stretch}");
    }
}
