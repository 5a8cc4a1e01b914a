//! Plausibility check of driver counters: accepts only increments that the hardware can make.
//!
//! A value that does not fall below the last accepted one and grows no faster than its kind of counter can is
//! accepted at once. Any other value becomes a candidate: values that continue it count for it, others against
//! it, and a value that continues the accepted one ends it. So a counter that was cleared is accepted after
//! [`AGREEING`] values, and random garbage never is, since its values do not continue one another.
//!
//! A wrong value within what the hardware can do is not detected.

use super::driver_api::DriverApi;
use crate::model::catalogue::Bound;
use crate::model::{Absence, Nanoseconds, Reading, Rejection, Unit};

/// The reading of a value, checked against its bound and, for a counter, against its last values. Rejected values
/// are counted by reason.
pub(super) fn check_reading(
    api: &mut DriverApi,
    value: Result<i64, Absence>,
    bound: Bound,
    counter: Option<&mut CounterCheck>,
) -> Reading {
    let value = value.and_then(|value| bound.accept(value).ok_or(Absence::Rejected));
    api.reject(Rejection::OutOfRange, u64::from(value == Err(Absence::Rejected)));
    match (value, counter) {
        (Ok(value), Some(counter)) => counter.check_and_count(api, value),
        _ => value,
    }
}

/// How many more values must support a candidate than contradict it. Fewer than one in a million random series
/// reaches that.
pub(super) const AGREEING: u8 = 10;

/// A new counter is accepted with the first two values that continue one another.
const BEGINNING: u8 = 2;

/// Some counters are updated by the driver once a second only.
const LATE: Nanoseconds = Nanoseconds::SECOND;

#[derive(Clone, Copy, Debug)]
pub(super) struct CounterCheck {
    /// The most that it may grow in a second, in its unit.
    max_rate: i64,
    accepted: Option<CounterReading>,
    /// A candidate value and its lead.
    candidate: Option<(CounterReading, u8)>,
}

#[derive(Clone, Copy, Debug)]
struct CounterReading {
    value: i64,
    at: Nanoseconds,
}

impl CounterReading {
    fn may_grow_to(self, next: Self, max_rate: i64) -> bool {
        let elapsed = next.at.0.saturating_sub(self.at.0).saturating_add(LATE.0);
        let most = i128::from(max_rate) * i128::from(elapsed) / i128::from(Nanoseconds::SECOND.0);
        let grown = i128::from(next.value) - i128::from(self.value);
        (0..=most).contains(&grown)
    }
}

impl CounterCheck {
    pub(super) const fn new(unit: Unit) -> Self {
        Self::with_max_rate(max_rate(unit))
    }

    pub(super) const fn with_max_rate(max_rate: i64) -> Self {
        Self { max_rate, accepted: None, candidate: None }
    }

    /// The reading of a value: the value if it is accepted, `NotYet` for the first one, else rejected and
    /// counted.
    fn check_and_count(&mut self, api: &mut DriverApi, value: i64) -> Reading {
        let begins = self.is_new();
        self.check(value, api.last_call_at()).map_err(|why| {
            if begins {
                return Absence::NotYet;
            }
            api.reject(why, 1);
            Absence::Rejected
        })
    }

    /// Whether it has had no value yet.
    pub(super) const fn is_new(&self) -> bool {
        self.accepted.is_none() && self.candidate.is_none()
    }

    /// Whether a value read at that time would be accepted at once.
    pub(super) fn accepts(&self, value: i64, at: Nanoseconds) -> bool {
        self.accepted.is_none_or(|accepted| accepted.may_grow_to(CounterReading { value, at }, self.max_rate))
    }

    pub(super) fn check(&mut self, value: i64, at: Nanoseconds) -> Result<i64, Rejection> {
        let mark = CounterReading { value, at };
        let continues = self.accepted.is_some_and(|accepted| accepted.may_grow_to(mark, self.max_rate));
        let fell = self.accepted.is_some_and(|accepted| value < accepted.value);
        let needed = if self.accepted.is_some() { AGREEING } else { BEGINNING };
        if continues || self.count_candidate(mark, needed) {
            self.accepted = Some(mark);
            self.candidate = None;
            return Ok(value);
        }
        Err(if fell { Rejection::CounterBack } else { Rejection::OutOfRange })
    }

    /// Counts a value for or against the candidate; whether the candidate is accepted by it.
    fn count_candidate(&mut self, mark: CounterReading, needed: u8) -> bool {
        let candidate = match self.candidate {
            Some((candidate, lead)) if candidate.may_grow_to(mark, self.max_rate) => {
                (mark, lead.saturating_add(1))
            }
            Some((candidate, lead)) if lead > 1 => (candidate, lead - 1),
            _ => (mark, 1),
        };
        self.candidate = Some(candidate);
        candidate.1 >= needed
    }
}

/// The most that a counter in that unit grows in a second: several times what any board does, since a faster counter
/// is absent and counted as rejected.
const fn max_rate(unit: Unit) -> i64 {
    match unit {
        // 20 kW, in microjoules.
        Unit::Joules => 20_000_000_000,
        // NVLink 5 carries 0.9 TB/s each way.
        Unit::Bytes => 8_000_000_000_000,
        // A second has one second, in nanoseconds; twice that allows for two clocks that differ.
        Unit::Seconds => 2 * 1_000_000_000,
        // Errors: each takes the board some microseconds, on one of up to 36 links.
        _ => 10_000_000,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn second(second: u64) -> Nanoseconds {
        Nanoseconds::from_seconds(second)
    }

    fn accepted_values(unit: Unit, values: &[i64]) -> Vec<Option<i64>> {
        let mut counter = CounterCheck::new(unit);
        (0..).zip(values).map(|(time, value)| counter.check(*value, second(time)).ok()).collect()
    }

    const WATT: i64 = 1_000_000;

    #[test]
    fn a_counter_begins_with_the_first_two_answers_that_go_on_from_one_another() {
        assert_eq!(accepted_values(Unit::None, &[5, 5, 6]), [None, Some(5), Some(6)]);
        assert_eq!(accepted_values(Unit::None, &[1 << 40, 5, 6]), [None, None, Some(6)]);
        assert_eq!(accepted_values(Unit::None, &[5, 1 << 40, 6, 7]), [None, None, None, Some(7)]);
    }

    #[test]
    fn an_answer_below_the_last_or_far_above_it_is_dropped() {
        assert_eq!(accepted_values(Unit::None, &[5, 5, 0, 1 << 40, 6]), [None, Some(5), None, None, Some(6)]);
    }

    #[test]
    fn every_kind_has_its_pace() {
        let accepted = |unit, step| accepted_values(unit, &[0, 0, step])[2].is_some();
        for (unit, possible, impossible) in [
            (Unit::Joules, 2_000 * WATT, 50_000 * WATT),
            (Unit::Bytes, 1_800_000_000_000, 1 << 45),
            (Unit::Seconds, 1_000_000_000, 10_000_000_000),
            (Unit::None, 1_000_000, i64::from(u32::MAX)),
        ] {
            assert!(accepted(unit, possible) && !accepted(unit, impossible), "{unit:?}");
        }
    }

    #[test]
    fn after_a_pause_it_may_have_counted_all_the_while() {
        let mut counter = CounterCheck::new(Unit::Joules);
        let hour = 3_600 * 1_000 * WATT;
        assert!(counter.check(7, second(0)).is_err() && counter.check(7, second(0)).is_ok());
        assert_eq!(counter.check(hour, second(60)), Err(Rejection::OutOfRange));
        assert_eq!(counter.check(hour, second(3_600)), Ok(hour));
    }

    #[test]
    fn a_counter_that_was_cleared_is_accepted_after_ten_values() {
        let values: Vec<i64> = [900, 901].into_iter().chain(0..12).collect();
        let accepted: Vec<i64> = accepted_values(Unit::None, &values).into_iter().flatten().collect();
        assert_eq!(accepted, [901, 9, 10, 11]);
    }

    #[test]
    fn a_counter_that_was_cleared_is_accepted_among_garbage_too() {
        let cleared = (0..60).map(|time| if time % 3 == 2 { 1 << 50 } else { time });
        let values: Vec<i64> = [900, 901].into_iter().chain(cleared).collect();
        let last = accepted_values(Unit::None, &values).into_iter().flatten().last();
        assert_eq!(last, Some(58));
    }

    fn garbage(truth: i64) -> impl Strategy<Value = i64> {
        prop_oneof![0..=i64::MAX, truth / 4..=truth / 4 * 3, 0..100_i64,]
    }

    const JOULES_BEFORE: i64 = 400_000_000 * WATT;

    /// Up to half of the values are replaced by garbage; none where the true value is returned.
    fn lies() -> impl Strategy<Value = Vec<Option<i64>>> {
        (0.0..0.5_f64).prop_flat_map(|chance| {
            prop::collection::vec(prop::option::weighted(chance, garbage(JOULES_BEFORE)), 300)
        })
    }

    proptest! {
        #[test]
        fn a_glitch_that_always_says_the_same_is_no_counter_that_was_cleared(
            glitches in prop::collection::vec(prop::bool::weighted(0.2), 300),
            glitch in prop_oneof![Just(0), Just(i64::from(u32::MAX)), 0..JOULES_BEFORE],
        ) {
            // That many in a row are indistinguishable from a counter that was cleared.
            prop_assume!(!glitches.windows(AGREEING.into()).any(|run| run.iter().all(|glitch| *glitch)));
            let mut counter = CounterCheck::new(Unit::Joules);
            let _ = counter.check(JOULES_BEFORE, second(0));
            let _ = counter.check(JOULES_BEFORE, second(0));
            for (time, glitches) in (1..).zip(glitches) {
                let truth = JOULES_BEFORE + time * 300 * WATT;
                let at = second(time.unsigned_abs());
                let taken = counter.check(if glitches { glitch } else { truth }, at);
                prop_assert_eq!(taken.ok(), (!glitches).then_some(truth));
            }
        }

        #[test]
        fn what_is_published_never_goes_back_and_ends_at_the_truth(
            lies in lies(),
            watts in prop::collection::vec(0..2_000_i64, 330),
        ) {
            let mut counter = CounterCheck::new(Unit::Joules);
            let (mut truth, mut published) = (JOULES_BEFORE, 0);
            let lies = lies.into_iter().chain(std::iter::repeat(None));
            for ((time, watts), lie) in (0..).zip(watts).zip(lies) {
                truth += watts * WATT;
                if let Ok(value) = counter.check(lie.unwrap_or(truth), second(time)) {
                    prop_assert!(value >= published, "{published} then {value}");
                    published = value;
                }
            }
            prop_assert_eq!(published, truth);
        }

    }

    // Of random series fewer than one in a million resets it, so other series in each run would fail one day.
    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn a_driver_that_only_returns_garbage_resets_nothing(
            lies in prop::collection::vec(garbage(JOULES_BEFORE), 300),
        ) {
            let mut counter = CounterCheck::new(Unit::Joules);
            let _ = counter.check(JOULES_BEFORE, second(0));
            prop_assert_eq!(counter.check(JOULES_BEFORE, second(0)), Ok(JOULES_BEFORE));
            for (time, lie) in (1..).zip(lies) {
                let taken = counter.check(lie, second(time));
                prop_assert!(taken.is_err(), "{taken:?} at {time}");
            }
        }
    }
}
