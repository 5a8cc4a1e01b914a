//! A total that grows by GPM's own counter where that can be believed, else by its rate.
//!
//! In go, at every tick, what the counter had reached and what the rate makes of the tick; out comes what the total
//! grew by. Between two readings of the counter nothing is lost, however many ticks lie between them: what the rate
//! told meanwhile is only an estimate, and is replaced. Bytes are exact that way. Of cycles the share that was active is,
//! and the time that this makes of the gap as far as the clock that counts them stood still: what ran while it was
//! fast weighs more than what ran while it was slow. What exactly a board counts stands nowhere, so until a counter has
//! once agreed with its rate while something happened, a difference that does not agree is not believed. While a
//! counter is not asked for, as at a level that does not show it, its total rests, and so does what it counts.
//! It does not know where either comes from.

use crate::model::{Absence, Nanoseconds, Rejection};

/// What a counter has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// When it was read.
    pub(super) at: Nanoseconds,
    /// Bytes, or cycles.
    pub(super) value: i64,
    /// Of how many cycles these are a part; none where bytes are counted.
    pub(super) whole: Option<i64>,
}

/// What is known of one counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterTotal {
    last: Option<Count>,
    /// What was added by the rate since, in the total's unit.
    estimated: u64,
    /// Whether it has agreed with its rate.
    proven: bool,
    /// Differences in a row that could not be believed.
    doubts: u8,
}

/// So many doubts end it: a counter that never agrees counts something else.
const MOST_DOUBTS: u8 = 5;

/// No GPU moves more over PCIe, in bytes per second: a difference above it is a counter that jumped.
const MOST_BYTES: u128 = 1 << 40;

/// Below that a rate proves nothing: a twentieth of the time, or 64 MiB.
const PROOF: u64 = 20;
const PROOF_BYTES: u64 = 64 << 20;

/// What a total grew by, and the answer that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// In the total's unit; absent where neither told anything.
    pub(super) by: Result<u64, Absence>,
    /// Why the counter's difference could not be true, where that was so.
    pub(super) refused: Option<Rejection>,
}

impl CounterTotal {
    /// Whether the counter is what the total goes by.
    pub(super) fn is_in_force(&self) -> bool {
        self.last.is_some() && self.doubts < MOST_DOUBTS
    }

    /// Takes a tick that began at `before`: what the counter had reached at its end, if it told, and what the rate
    /// makes of it. A counter that is absent for good goes on from where it is found another time.
    pub(super) fn grow(
        &mut self,
        now: Result<Count, Absence>,
        before: Option<Nanoseconds>,
        rated: Result<u64, Absence>,
    ) -> Growth {
        if now.is_err_and(Absence::is_permanent) {
            self.rest();
        }
        let Some(now) = now.ok().filter(|_| self.doubts < MOST_DOUBTS) else {
            return self.add_estimate(rated);
        };
        let Some(last) = self.last else { return self.begin(now, rated) };
        let grown = match growth_between(last, now) {
            Ok(Some(grown)) => grown,
            Ok(None) => return self.add_estimate(rated),
            Err(rejection) => return self.doubt(rejection, now, rated),
        };
        if !self.proven {
            let span = Nanoseconds(now.at.0.saturating_sub(last.at.0));
            let alone = before == Some(last.at) && self.estimated == 0;
            match rated {
                Ok(told) if alone && !agree(grown, told, span, now) => {
                    return self.doubt(Rejection::OutOfRange, now, rated);
                }
                Ok(told) if alone => self.proven = is_proof(told, span, now),
                // Nothing to compare with, for good: then there is nothing better, either.
                Err(absence) if absence.is_permanent() => {}
                // What lies in a gap cannot be compared with anything.
                rated => return self.begin(now, rated),
            }
        }
        let by = grown.saturating_sub(self.estimated);
        *self = Self { last: Some(now), estimated: self.estimated.saturating_sub(grown), doubts: 0, ..*self };
        Growth { by: Ok(by), refused: None }
    }

    /// Nobody asks for the counter: what it counts from here on belongs to no total.
    fn rest(&mut self) {
        (self.last, self.estimated) = (None, 0);
    }

    /// Adds the rate as an estimate until the counter is read again.
    fn add_estimate(&mut self, rated: Result<u64, Absence>) -> Growth {
        self.estimated = self.estimated.saturating_add(rated.unwrap_or(0));
        Growth { by: rated, refused: None }
    }

    /// The counter goes on from here; the tick is the rate's.
    fn begin(&mut self, now: Count, rated: Result<u64, Absence>) -> Growth {
        *self = Self { last: Some(now), estimated: 0, ..*self };
        // A total is born with its counter.
        Growth {
            by: rated.or_else(|absence| if absence.is_permanent() { Ok(0) } else { Err(absence) }),
            refused: None,
        }
    }

    fn doubt(&mut self, rejection: Rejection, now: Count, rated: Result<u64, Absence>) -> Growth {
        self.doubts += 1;
        self.proven = false;
        Growth { refused: Some(rejection), ..self.begin(now, rated) }
    }
}

/// What a total grew by between two readings; none where no cycle has passed.
fn growth_between(last: Count, now: Count) -> Result<Option<u64>, Rejection> {
    let difference = |before: i64, after: i64| {
        u128::try_from(i128::from(after) - i128::from(before)).map_err(|_| Rejection::CounterBack)
    };
    let span = u128::from(now.at.0.saturating_sub(last.at.0));
    let grown = difference(last.value, now.value)?;
    let amount = match (last.whole, now.whole) {
        (Some(before), Some(after)) => {
            let passed = difference(before, after)?;
            // The registers are not read at one moment: up to 2 % above is the whole.
            if grown > passed + passed / 50 {
                return Err(Rejection::OutOfRange);
            }
            if passed == 0 {
                return Ok(None);
            }
            grown.min(passed) * span / passed
        }
        _ if grown > MOST_BYTES * (span / SECOND + 1) => return Err(Rejection::OutOfRange),
        _ => grown,
    };
    Ok(u64::try_from(amount).ok())
}

const SECOND: u128 = Nanoseconds::SECOND.0 as u128;

/// Whether the rate tells the same: within a twentieth, and 2 % of the time or 16 MiB.
fn agree(grown: u64, rated: u64, span: Nanoseconds, count: Count) -> bool {
    let slack = if count.whole.is_some() { span.0 / 50 } else { 16 << 20 };
    grown.abs_diff(rated) <= rated / 20 + slack
}

/// Whether so much has happened that it cannot agree by chance.
fn is_proof(rated: u64, span: Nanoseconds, count: Count) -> bool {
    rated >= if count.whole.is_some() { span.0 / PROOF } else { PROOF_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A counter at 2 GHz, second by second.
    #[derive(Default)]
    struct World {
        since: CounterTotal,
        second: u64,
        before: Option<u64>,
        active: i64,
        total: u64,
        refused: u32,
    }

    impl World {
        fn at(&self) -> Nanoseconds {
            Nanoseconds(self.second * SECOND)
        }

        /// A second in which so many percent were active; the counter and the rate tell it, or do not.
        fn second(&mut self, percent: i64, counter: bool, rate: bool) {
            self.second += 1;
            self.active += 20_000_000 * percent;
            let whole = Some(i64::try_from(self.second).unwrap_or(0) * 2_000_000_000);
            let count = Count { at: self.at(), value: self.active, whole };
            let rated = u64::try_from(percent).unwrap_or(0) * SECOND / 100;
            self.tick(counter.then_some(count), if rate { Ok(rated) } else { Err(Absence::Failed) });
        }

        fn tick(&mut self, count: Option<Count>, rated: Result<u64, Absence>) {
            self.tick_of(count.ok_or(Absence::Failed), rated);
        }

        fn tick_of(&mut self, count: Result<Count, Absence>, rated: Result<u64, Absence>) {
            let before = self.before.replace(self.second);
            let before = before.map(|second| Nanoseconds(second * SECOND));
            let growth = self.since.grow(count, before, rated);
            self.total += growth.by.unwrap_or(0);
            self.refused += u32::from(growth.refused.is_some());
        }
    }

    #[test]
    fn what_happened_while_nothing_was_told_is_added_when_the_counter_speaks_again() {
        let mut world = World::default();
        for (percent, told) in [(50, true), (50, true), (100, false), (90, false), (10, true)] {
            world.second(percent, told, told);
        }
        assert_eq!((world.total, world.refused), (3 * SECOND, 0));
    }

    #[test]
    fn what_the_rate_told_meanwhile_is_not_counted_twice() {
        let mut world = World::default();
        for (percent, counter) in [(50, true), (50, true), (30, false), (30, false), (40, true), (40, true)] {
            world.second(percent, counter, true);
        }
        assert_eq!(world.total, 240 * SECOND / 100);
    }

    #[test]
    fn a_rate_that_lent_too_much_is_waited_for() {
        let mut world = World::default();
        world.second(50, true, true);
        world.second(50, true, true);
        let lent = |world: &mut World| {
            world.second += 1;
            world.tick(None, Ok(SECOND));
        };
        lent(&mut world);
        assert_eq!(world.total, 2 * SECOND);
        world.second(20, true, true);
        assert_eq!(world.total, 2 * SECOND, "it never goes back");
        for _ in 0..10 {
            world.second(20, true, true);
        }
        assert_eq!(world.total, SECOND + (20 + 200) * SECOND / 100);
    }

    #[test]
    fn a_counter_that_goes_back_leaves_the_tick_to_the_rate_and_goes_on_from_there() {
        let mut world = World::default();
        world.second(50, true, true);
        world.second(50, true, true);
        world.active = 0;
        world.second(50, true, true);
        assert_eq!((world.total, world.refused), (3 * SECOND / 2, 1));
        world.second(50, true, true);
        world.second(50, false, false);
        world.second(50, true, true);
        assert_eq!((world.total, world.refused), (3 * SECOND, 1));
    }

    #[test]
    fn more_than_passed_is_refused_and_a_hair_above_is_the_whole() {
        let mut world = World::default();
        world.second(100, true, true);
        world.second(101, true, false);
        world.second(101, true, true);
        let before = world.total;
        world.second(500, true, false);
        assert_eq!((world.total - before, world.refused), (0, 1));
    }

    #[test]
    fn a_counter_of_something_else_is_given_up_and_the_rate_stays() {
        // Four pipes are counted where the rate speaks of their mean.
        let mut world = World::default();
        for second in 1..=20 {
            world.second = second;
            let value = i64::try_from(second).unwrap_or(0) * 1_600_000_000;
            let whole = Some(i64::try_from(second).unwrap_or(0) * 2_000_000_000);
            world.tick(Some(Count { at: world.at(), value, whole }), Ok(SECOND / 5));
        }
        assert_eq!(world.total, 4 * SECOND);
        assert_eq!(world.refused, u32::from(MOST_DOUBTS));
        assert!(!world.since.is_in_force());
    }

    #[test]
    fn a_gap_is_not_filled_by_a_counter_that_has_proven_nothing() {
        let mut world = World::default();
        world.second(0, true, true);
        world.second(0, true, true);
        world.second(80, false, false);
        world.second(80, true, true);
        assert_eq!(world.total, 80 * SECOND / 100, "the rate's tick alone");
        world.second(80, true, true);
        world.second(80, false, false);
        world.second(80, true, true);
        assert_eq!(world.total, 320 * SECOND / 100, "then it has");
    }

    #[test]
    fn a_counter_that_nobody_asked_for_goes_on_from_where_it_is_found_and_stays_believed() {
        let mut world = World::default();
        world.second(50, true, true);
        world.second(50, true, true);
        for _ in 0..60 {
            world.second += 1;
            world.active += 2_000_000_000;
            world.tick_of(Err(Absence::NotSupported), Err(Absence::NotSupported));
        }
        let before = world.total;
        world.second(50, true, false);
        world.second(50, true, false);
        assert_eq!(world.total - before, SECOND / 2, "the tick between the two");
    }

    #[test]
    fn a_clock_that_stands_still_tells_nothing() {
        let mut since = CounterTotal::default();
        let count = |second: u64| Count { at: Nanoseconds(second * SECOND), value: 7, whole: Some(9) };
        let before = |second: u64| Some(Nanoseconds(second * SECOND));
        since.grow(Ok(count(1)), None, Ok(0));
        let growth = since.grow(Ok(count(2)), before(1), Ok(5));
        assert_eq!(growth, Growth { by: Ok(5), refused: None });
    }

    #[test]
    fn bytes_that_jump_are_refused() {
        let mut since = CounterTotal::default();
        let count = |second: u64, value| Count { at: Nanoseconds(second * SECOND), value, whole: None };
        let before = |second: u64| Some(Nanoseconds(second * SECOND));
        let gib = 1_u64 << 30;
        assert_eq!(since.grow(Ok(count(1, 5)), None, Ok(0)).by, Ok(0));
        assert_eq!(since.grow(Ok(count(2, 5 + (1 << 30))), before(1), Ok(gib)).by, Ok(gib));
        // Three seconds later, of which nothing was told.
        let failed = Err(Absence::Failed);
        assert_eq!(since.grow(failed, before(2), Err(Absence::Failed)).by, Err(Absence::Failed));
        assert_eq!(since.grow(Ok(count(5, 5 + (4 << 30))), before(4), Ok(gib)).by, Ok(3 * gib));
        let growth = since.grow(Ok(count(6, i64::MAX)), before(5), Ok(gib));
        assert_eq!(growth, Growth { by: Ok(gib), refused: Some(Rejection::OutOfRange) });
    }
}
