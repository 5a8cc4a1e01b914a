//! A total that grows by one of GPM's own counters where that is plausible, otherwise by the rate of each tick.
//!
//! The counter's difference is exact over any number of missed ticks; estimates added by the rate meanwhile are subtracted
//! from it. Time is the share of counted cycles in which the engine was active, so over a gap it weighs fast clocks more
//! than slow ones. NVIDIA does not document what each board counts. Therefore a difference is used only once the counter
//! has agreed with the rate of a tick with activity. While a counter is not read, as below its level, its total stands
//! still.

use crate::model::{Absence, Nanoseconds, Rejection};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpmReading {
    pub(super) at: Nanoseconds,
    /// Bytes, or active cycles.
    pub(super) value: i64,
    /// All cycles that have passed; none for bytes.
    pub(super) cycles: Option<i64>,
}

/// What is known of one counter; the total itself is kept by the caller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterTotal {
    last: Option<GpmReading>,
    /// What the rate has added since the last reading, in the total's unit.
    estimated: u64,
    /// Whether it has agreed with its rate.
    proven: bool,
    rejections: u8,
}

/// After so many implausible differences the counter is ignored: it counts something else.
const MOST_REJECTIONS: u8 = 5;

/// No GPU moves more over PCIe, in bytes per second; a larger difference is a counter that jumped.
const MOST_BYTES: u128 = 1 << 40;

/// The least activity of a tick that proves a counter: a twentieth of the time, or 64 MiB.
const PROOF_SHARE: u64 = 20;
const PROOF_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// In the total's unit; absent if neither counter nor rate were read.
    pub(super) by: Result<u64, Absence>,
    pub(super) rejected: Option<Rejection>,
}

impl CounterTotal {
    pub(super) fn uses_counter(&self) -> bool {
        self.last.is_some() && self.rejections < MOST_REJECTIONS
    }

    /// The growth over a tick that began at `before`, from the counter at its end and the amount by the rate. A counter
    /// that is permanently absent starts from its next reading.
    pub(super) fn grow(
        &mut self,
        now: Result<GpmReading, Absence>,
        before: Option<Nanoseconds>,
        rated: Result<u64, Absence>,
    ) -> Growth {
        if now.is_err_and(Absence::is_permanent) {
            (self.last, self.estimated) = (None, 0);
        }
        let Some(now) = now.ok().filter(|_| self.rejections < MOST_REJECTIONS) else {
            return self.add_estimate(rated);
        };
        let Some(last) = self.last else { return self.begin(now, rated) };
        let grown = match growth_between(last, now) {
            Ok(Some(grown)) => grown,
            Ok(None) => return self.add_estimate(rated),
            Err(rejection) => return self.reject(rejection, now, rated),
        };
        if !self.proven {
            let span = Nanoseconds(now.at.0.saturating_sub(last.at.0));
            let is_one_tick = before == Some(last.at) && self.estimated == 0;
            match rated {
                Ok(rated_growth) if is_one_tick => {
                    if !agrees(grown, rated_growth, span, now) {
                        return self.reject(Rejection::OutOfRange, now, rated);
                    }
                    self.proven = is_proof(rated_growth, span, now);
                }
                // There is no rate to compare with, so the counter is trusted.
                Err(absence) if absence.is_permanent() => {}
                // Growth over a gap cannot be compared with the rate of a tick.
                _ => return self.begin(now, rated),
            }
        }
        let by = grown.saturating_sub(self.estimated);
        let estimated = self.estimated.saturating_sub(grown);
        *self = Self { last: Some(now), estimated, rejections: 0, ..*self };
        Growth { by: Ok(by), rejected: None }
    }

    /// Adds the rate as an estimate until the counter is read again.
    fn add_estimate(&mut self, rated: Result<u64, Absence>) -> Growth {
        self.estimated = self.estimated.saturating_add(rated.unwrap_or(0));
        Growth { by: rated, rejected: None }
    }

    /// Takes the reading as the new beginning; the tick itself grows by the rate.
    fn begin(&mut self, now: GpmReading, rated: Result<u64, Absence>) -> Growth {
        *self = Self { last: Some(now), estimated: 0, ..*self };
        // A total without a rate starts at 0 with its counter.
        let by = rated.or_else(|absence| if absence.is_permanent() { Ok(0) } else { Err(absence) });
        Growth { by, rejected: None }
    }

    fn reject(&mut self, reason: Rejection, now: GpmReading, rated: Result<u64, Absence>) -> Growth {
        self.rejections += 1;
        self.proven = false;
        Growth { rejected: Some(reason), ..self.begin(now, rated) }
    }
}

/// The growth of a total between two readings; none if no cycle has passed.
fn growth_between(last: GpmReading, now: GpmReading) -> Result<Option<u64>, Rejection> {
    const SECOND: u128 = Nanoseconds::SECOND.0 as u128;
    let difference = |before: i64, after: i64| {
        u128::try_from(i128::from(after) - i128::from(before)).map_err(|_| Rejection::CounterBack)
    };
    let span = u128::from(now.at.0.saturating_sub(last.at.0));
    let grown = difference(last.value, now.value)?;
    let amount = match (last.cycles, now.cycles) {
        (Some(before), Some(after)) => {
            let passed = difference(before, after)?;
            // The two counters are not read at the same moment: up to 2 % above counts as all.
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

/// Whether counter and rate agree to a twentieth, plus 2 % of the time or 16 MiB.
fn agrees(grown: u64, rated: u64, span: Nanoseconds, reading: GpmReading) -> bool {
    let slack = if reading.cycles.is_some() { span.0 / 50 } else { 16 << 20 };
    grown.abs_diff(rated) <= rated / 20 + slack
}

/// Whether there was so much activity that counter and rate do not agree by chance.
fn is_proof(rated: u64, span: Nanoseconds, reading: GpmReading) -> bool {
    rated >= if reading.cycles.is_some() { span.0 / PROOF_SHARE } else { PROOF_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A counter at 2 GHz, second by second.
    #[derive(Default)]
    struct World {
        counter: CounterTotal,
        second: u64,
        before: Option<u64>,
        active: i64,
        total: u64,
        rejected: u32,
    }

    impl World {
        fn at(&self) -> Nanoseconds {
            Nanoseconds(self.second * SECOND)
        }

        fn second(&mut self, percent: i64, has_counter: bool, has_rate: bool) {
            self.second += 1;
            self.active += 20_000_000 * percent;
            let cycles = Some(i64::try_from(self.second).unwrap_or(0) * 2_000_000_000);
            let count = GpmReading { at: self.at(), value: self.active, cycles };
            let rated = u64::try_from(percent).unwrap_or(0) * SECOND / 100;
            self.tick(has_counter.then_some(count), if has_rate { Ok(rated) } else { Err(Absence::Failed) });
        }

        fn tick(&mut self, count: Option<GpmReading>, rated: Result<u64, Absence>) {
            self.tick_of(count.ok_or(Absence::Failed), rated);
        }

        fn tick_of(&mut self, reading: Result<GpmReading, Absence>, rated: Result<u64, Absence>) {
            let before = self.before.replace(self.second);
            let before = before.map(|second| Nanoseconds(second * SECOND));
            let growth = self.counter.grow(reading, before, rated);
            self.total += growth.by.unwrap_or(0);
            self.rejected += u32::from(growth.rejected.is_some());
        }
    }

    #[test]
    fn growth_over_ticks_without_readings_is_added_when_the_counter_is_read_again() {
        let mut world = World::default();
        for (percent, is_read) in [(50, true), (50, true), (100, false), (90, false), (10, true)] {
            world.second(percent, is_read, is_read);
        }
        assert_eq!((world.total, world.rejected), (3 * SECOND, 0));
    }

    #[test]
    fn estimates_by_the_rate_are_not_counted_twice() {
        let mut world = World::default();
        for (percent, counter) in [(50, true), (50, true), (30, false), (30, false), (40, true), (40, true)] {
            world.second(percent, counter, true);
        }
        assert_eq!(world.total, 240 * SECOND / 100);
    }

    #[test]
    fn after_an_estimate_that_was_too_high_the_total_waits_for_the_counter() {
        let mut world = World::default();
        world.second(50, true, true);
        world.second(50, true, true);
        let overestimate = |world: &mut World| {
            world.second += 1;
            world.tick(None, Ok(SECOND));
        };
        overestimate(&mut world);
        assert_eq!(world.total, 2 * SECOND);
        world.second(20, true, true);
        assert_eq!(world.total, 2 * SECOND, "it never goes back");
        for _ in 0..10 {
            world.second(20, true, true);
        }
        assert_eq!(world.total, SECOND + (20 + 200) * SECOND / 100);
    }

    #[test]
    fn after_a_counter_went_back_the_tick_grows_by_the_rate_and_the_counter_begins_anew() {
        let mut world = World::default();
        world.second(50, true, true);
        world.second(50, true, true);
        world.active = 0;
        world.second(50, true, true);
        assert_eq!((world.total, world.rejected), (3 * SECOND / 2, 1));
        world.second(50, true, true);
        world.second(50, false, false);
        world.second(50, true, true);
        assert_eq!((world.total, world.rejected), (3 * SECOND, 1));
    }

    #[test]
    fn more_active_cycles_than_passed_are_rejected_and_up_to_2_percent_more_count_as_all() {
        let mut world = World::default();
        world.second(100, true, true);
        world.second(101, true, false);
        world.second(101, true, true);
        let before = world.total;
        world.second(500, true, false);
        assert_eq!((world.total - before, world.rejected), (0, 1));
    }

    #[test]
    fn a_counter_that_never_agrees_is_ignored() {
        // The counter sums four pipes, the rate is their mean.
        let mut world = World::default();
        for second in 1..=20 {
            world.second = second;
            let value = i64::try_from(second).unwrap_or(0) * 1_600_000_000;
            let cycles = Some(i64::try_from(second).unwrap_or(0) * 2_000_000_000);
            world.tick(Some(GpmReading { at: world.at(), value, cycles }), Ok(SECOND / 5));
        }
        assert_eq!(world.total, 4 * SECOND);
        assert_eq!(world.rejected, u32::from(MOST_REJECTIONS));
        assert!(!world.counter.uses_counter());
    }

    #[test]
    fn a_gap_is_not_filled_by_a_counter_that_is_not_proven() {
        let mut world = World::default();
        world.second(0, true, true);
        world.second(0, true, true);
        world.second(80, false, false);
        world.second(80, true, true);
        assert_eq!(world.total, 80 * SECOND / 100, "the rate's tick alone");
        world.second(80, true, true);
        world.second(80, false, false);
        world.second(80, true, true);
        assert_eq!(world.total, 320 * SECOND / 100, "now the counter is proven");
    }

    #[test]
    fn a_counter_that_was_not_read_for_a_while_begins_anew_and_stays_proven() {
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
    fn without_a_passed_cycle_the_rate_is_used() {
        let mut counter = CounterTotal::default();
        let count = |second: u64| GpmReading { at: Nanoseconds(second * SECOND), value: 7, cycles: Some(9) };
        let before = |second: u64| Some(Nanoseconds(second * SECOND));
        counter.grow(Ok(count(1)), None, Ok(0));
        let growth = counter.grow(Ok(count(2)), before(1), Ok(5));
        assert_eq!(growth, Growth { by: Ok(5), rejected: None });
    }

    #[test]
    fn bytes_that_jump_are_rejected() {
        let mut counter = CounterTotal::default();
        let count = |second: u64, value| GpmReading { at: Nanoseconds(second * SECOND), value, cycles: None };
        let before = |second: u64| Some(Nanoseconds(second * SECOND));
        let gib = 1_u64 << 30;
        assert_eq!(counter.grow(Ok(count(1, 5)), None, Ok(0)).by, Ok(0));
        assert_eq!(counter.grow(Ok(count(2, 5 + (1 << 30))), before(1), Ok(gib)).by, Ok(gib));
        // Three seconds later, without readings in between.
        let failed = Err(Absence::Failed);
        assert_eq!(counter.grow(failed, before(2), Err(Absence::Failed)).by, Err(Absence::Failed));
        assert_eq!(counter.grow(Ok(count(5, 5 + (4 << 30))), before(4), Ok(gib)).by, Ok(3 * gib));
        let growth = counter.grow(Ok(count(6, i64::MAX)), before(5), Ok(gib));
        assert_eq!(growth, Growth { by: Ok(gib), rejected: Some(Rejection::OutOfRange) });
    }
}
