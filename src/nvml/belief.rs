//! What is believed of a counter of the driver: only steps that its hardware can make.
//!
//! In go answers with the time at which they were asked for, out comes the value or why it was dropped. An
//! answer that goes on from the last believed one, without falling and no faster than its kind can count, is
//! believed at once. Any other, be it below or far above, stands for election: answers that go on from it
//! speak for it, others against it, one that goes on from the believed value ends it. So a counter that was
//! cleared is seen to be that after [`AGREEING`] answers, and a driver that answers garbage for as long as it
//! likes sets nothing back: its answers do not go on from one another.
//!
//! Where the hardware is faster than is thought here, answers that grow on and on at one rate say so: the counter is
//! believed after as many of them, and may then grow as fast.
//!
//! A lie within what the hardware can do is not told from the truth.

use super::door::Door;
use crate::catalogue::Bound;
use crate::model::{Absence, Nanoseconds, Reading, Rejection, Unit};

/// What is read of an answer, times a factor: it is within its bound, and a counter makes a step that its hardware
/// can make. What is dropped is counted by its reason.
pub(super) fn taken(
    door: &mut Door,
    raw: Result<i64, Absence>,
    (times, bound): (i64, Bound),
    counter: Option<&mut Belief>,
) -> Reading {
    let held = |raw: i64| raw.checked_mul(times).and_then(|value| bound.hold(value)).ok_or(Absence::Rejected);
    let value = raw.and_then(held);
    door.reject(Rejection::OutOfRange, u64::from(value == Err(Absence::Rejected)));
    match (value, counter) {
        (Ok(value), Some(counter)) => counter.read(door, value),
        _ => value,
    }
}

/// So many more answers must speak for another value than against it before it is the counter's. Of random
/// answers in a row, fewer than one in a million bring that about.
pub(super) const AGREEING: u8 = 10;

/// At the beginning nothing stands against the first two that go on from one another.
const BEGINNING: u8 = 2;

/// Drivers bring some counters up to date once a second.
const LATE: Nanoseconds = Nanoseconds::SECOND;

/// One counter of one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Belief {
    /// The most that it grows by in a second, in its unit.
    pace: i64,
    believed: Option<Mark>,
    /// Another value, and by how many answers it leads.
    other: Option<(Mark, u8)>,
    /// Answers in a row that were not believed and outrun the pace.
    run: Option<Run>,
}

/// Answers that grow at one rate.
#[derive(Clone, Copy, Debug)]
struct Run {
    last: Mark,
    /// By how much they grew in a second, from the one before to the last; 0 where there is one alone.
    rate: i64,
    count: u8,
}

impl Run {
    const fn of(first: Mark) -> Self {
        Self { last: first, rate: 0, count: 1 }
    }

    /// With one answer more: it begins anew with one that does not outrun the pace, or not at about the same rate.
    fn and(self, next: Mark, pace: i64) -> Self {
        let elapsed = i128::from(next.at.0.saturating_sub(self.last.at.0));
        let grown = i128::from(next.value) - i128::from(self.last.value);
        let rate = (grown * i128::from(Nanoseconds::SECOND.0)).checked_div(elapsed).unwrap_or(0);
        // What falls, or grows by more than can be counted, has no rate.
        let rate = i64::try_from(rate).unwrap_or(0);
        let is_like = self.count == 1 || (self.rate / 2..=self.rate.saturating_mul(2)).contains(&rate);
        if rate > pace && is_like {
            Self { last: next, rate, count: self.count.saturating_add(1) }
        } else {
            Self::of(next)
        }
    }
}

/// Where a counter stood, and when.
#[derive(Clone, Copy, Debug)]
struct Mark {
    value: i64,
    at: Nanoseconds,
}

impl Mark {
    fn goes_on_to(self, next: Self, pace: i64) -> bool {
        let elapsed = next.at.0.saturating_sub(self.at.0).saturating_add(LATE.0);
        let most = i128::from(pace) * i128::from(elapsed) / i128::from(Nanoseconds::SECOND.0);
        let grown = i128::from(next.value) - i128::from(self.value);
        (0..=most).contains(&grown)
    }
}

impl Belief {
    /// A counter in that unit, of which nothing is known.
    pub(super) const fn new(unit: Unit) -> Self {
        Self::of_pace(pace(unit))
    }

    /// A counter that grows by at most so much in a second, of which nothing is known.
    pub(super) const fn of_pace(pace: i64) -> Self {
        Self { pace, believed: None, other: None, run: None }
    }

    /// What of an answer is read: its value where it is believed; not yet where it is the first of all, which tells
    /// nothing against it; else it is dropped and counted.
    fn read(&mut self, door: &mut Door, value: i64) -> Reading {
        let begins = self.is_new();
        self.take(value, door.asked()).map_err(|why| {
            if begins {
                return Absence::NotYet;
            }
            door.reject(why, 1);
            Absence::Rejected
        })
    }

    /// Whether nothing is known of it yet.
    pub(super) const fn is_new(&self) -> bool {
        self.believed.is_none() && self.other.is_none()
    }

    /// Whether an answer to a question that was asked at that time goes on from the last believed one, if there is one.
    pub(super) fn accepts(&self, value: i64, at: Nanoseconds) -> bool {
        self.believed.is_none_or(|believed| believed.goes_on_to(Mark { value, at }, self.pace))
    }

    /// Takes an answer to a question that was asked at that time; why it is dropped if it is not believed.
    pub(super) fn take(&mut self, value: i64, at: Nanoseconds) -> Result<i64, Rejection> {
        let mark = Mark { value, at };
        if self.believed.is_some_and(|believed| believed.goes_on_to(mark, self.pace)) {
            (self.believed, self.other, self.run) = (Some(mark), None, None);
            return Ok(value);
        }
        let fell = self.believed.is_some_and(|believed| value < believed.value);
        let needed = if self.believed.is_some() { AGREEING } else { BEGINNING };
        if self.elect(mark, needed) || self.outruns(mark) {
            (self.believed, self.other, self.run) = (Some(mark), None, None);
            return Ok(value);
        }
        Err(if fell { Rejection::CounterBack } else { Rejection::OutOfRange })
    }

    /// Whether the answer is the last that was needed for another value.
    fn elect(&mut self, mark: Mark, needed: u8) -> bool {
        let other = match self.other {
            Some((other, lead)) if other.goes_on_to(mark, self.pace) => (mark, lead.saturating_add(1)),
            Some((other, lead)) if lead > 1 => (other, lead - 1),
            _ => (mark, 1),
        };
        self.other = Some(other);
        other.1 >= needed
    }

    /// Whether the answer is the last that was needed to see that the counter is faster than was thought.
    fn outruns(&mut self, mark: Mark) -> bool {
        let run = self.run.map_or(Run::of(mark), |run| run.and(mark, self.pace));
        self.run = Some(run);
        let outruns = run.count >= AGREEING;
        if outruns {
            // It was seen for some seconds alone.
            self.pace = run.rate.saturating_mul(4);
        }
        outruns
    }
}

/// The most that a counter in that unit grows by in a second: several times what any board does, since one that is
/// faster is silent for as long as it takes to see that.
const fn pace(unit: Unit) -> i64 {
    match unit {
        // 20 kW, in microjoules.
        Unit::Joules => 20_000_000_000,
        // NVLink 5 carries 0.9 TB/s each way.
        Unit::Bytes => 8_000_000_000_000,
        // A second holds one second, in nanoseconds; two clocks differ.
        Unit::Seconds => 2 * 1_000_000_000,
        // Errors: each takes the board some microseconds, on one of up to 36 links.
        _ => 10_000_000,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn second(second: u64) -> Nanoseconds {
        Nanoseconds::from_seconds(second)
    }

    /// Answers a second apart; those that were believed.
    fn taken(unit: Unit, values: &[i64]) -> Vec<Option<i64>> {
        let mut counter = Belief::new(unit);
        (0..).zip(values).map(|(time, value)| counter.take(*value, second(time)).ok()).collect()
    }

    const WATT: i64 = 1_000_000;

    #[test]
    fn a_counter_begins_with_the_first_two_answers_that_go_on_from_one_another() {
        assert_eq!(taken(Unit::None, &[5, 5, 6]), [None, Some(5), Some(6)]);
        assert_eq!(taken(Unit::None, &[1 << 40, 5, 6]), [None, None, Some(6)]);
        assert_eq!(taken(Unit::None, &[5, 1 << 40, 6, 7]), [None, None, None, Some(7)]);
    }

    #[test]
    fn an_answer_below_the_last_or_far_above_it_is_dropped() {
        assert_eq!(taken(Unit::None, &[5, 5, 0, 1 << 40, 6]), [None, Some(5), None, None, Some(6)]);
    }

    #[test]
    fn every_kind_has_its_pace() {
        let believed = |unit, step| taken(unit, &[0, 0, step])[2].is_some();
        for (unit, possible, impossible) in [
            (Unit::Joules, 2_000 * WATT, 50_000 * WATT),
            (Unit::Bytes, 1_800_000_000_000, 1 << 45),
            (Unit::Seconds, 1_000_000_000, 10_000_000_000),
            (Unit::None, 1_000_000, i64::from(u32::MAX)),
        ] {
            assert!(believed(unit, possible) && !believed(unit, impossible), "{unit:?}");
        }
    }

    #[test]
    fn after_a_pause_it_may_have_counted_all_the_while() {
        let mut counter = Belief::new(Unit::Joules);
        let hour = 3_600 * 1_000 * WATT;
        assert!(counter.take(7, second(0)).is_err() && counter.take(7, second(0)).is_ok());
        assert_eq!(counter.take(hour, second(60)), Err(Rejection::OutOfRange));
        assert_eq!(counter.take(hour, second(3_600)), Ok(hour));
    }

    #[test]
    fn a_counter_that_was_cleared_is_seen_to_be_after_ten_answers() {
        let values: Vec<i64> = [900, 901].into_iter().chain(0..12).collect();
        let believed: Vec<i64> = taken(Unit::None, &values).into_iter().flatten().collect();
        assert_eq!(believed, [901, 9, 10, 11]);
    }

    #[test]
    fn a_counter_that_was_cleared_is_seen_among_lies_too() {
        let cleared = (0..60).map(|time| if time % 3 == 2 { 1 << 50 } else { time });
        let values: Vec<i64> = [900, 901].into_iter().chain(cleared).collect();
        let last = taken(Unit::None, &values).into_iter().flatten().last();
        assert_eq!(last, Some(58));
    }

    #[test]
    fn a_counter_that_is_faster_than_was_thought_is_believed_after_ten_answers() {
        let values: Vec<i64> = (0..20).map(|time| time * 50_000_000).collect();
        let taken = taken(Unit::None, &values);
        assert_eq!(taken.iter().position(Option::is_some), Some(9));
        assert!(taken[9..].iter().all(Option::is_some), "{taken:?}");
    }

    #[test]
    fn answers_that_only_grow_or_grow_at_one_rate_for_a_while_are_no_fast_counter() {
        let faster = (0..20).map(|time| 50_000_000 * 3_i64.pow(time));
        assert!(taken(Unit::None, &faster.collect::<Vec<_>>()).iter().all(Option::is_none));
        let broken = (0..40_i64).map(|time| if time % 9 == 8 { 0 } else { time * 50_000_000 });
        assert!(taken(Unit::None, &broken.collect::<Vec<_>>()).iter().all(Option::is_none));
    }

    /// What a driver without its mind answers in place of that value.
    fn garbage(truth: i64) -> impl Strategy<Value = i64> {
        prop_oneof![0..=i64::MAX, truth / 4..=truth / 4 * 3, 0..100_i64,]
    }

    const JOULES_BEFORE: i64 = 400_000_000 * WATT;

    /// Up to half of the answers lie: what they say, or nothing where the truth is told.
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
            // So many in a row are a counter that was cleared.
            prop_assume!(!glitches.windows(AGREEING.into()).any(|run| run.iter().all(|glitch| *glitch)));
            let mut counter = Belief::new(Unit::Joules);
            let _ = counter.take(JOULES_BEFORE, second(0));
            let _ = counter.take(JOULES_BEFORE, second(0));
            for (time, glitches) in (1..).zip(glitches) {
                let truth = JOULES_BEFORE + time * 300 * WATT;
                let at = second(time.unsigned_abs());
                let taken = counter.take(if glitches { glitch } else { truth }, at);
                prop_assert_eq!(taken.ok(), (!glitches).then_some(truth));
            }
        }

        #[test]
        fn what_is_published_never_goes_back_and_ends_at_the_truth(
            lies in lies(),
            watts in prop::collection::vec(0..2_000_i64, 330),
        ) {
            let mut counter = Belief::new(Unit::Joules);
            let (mut truth, mut published) = (JOULES_BEFORE, 0);
            let lies = lies.into_iter().chain(std::iter::repeat(None));
            for ((time, watts), lie) in (0..).zip(watts).zip(lies) {
                truth += watts * WATT;
                if let Ok(value) = counter.take(lie.unwrap_or(truth), second(time)) {
                    prop_assert!(value >= published, "{published} then {value}");
                    published = value;
                }
            }
            prop_assert_eq!(published, truth);
        }

        #[test]
        fn a_driver_that_only_lies_sets_nothing_back(
            lies in prop::collection::vec(garbage(JOULES_BEFORE), 300),
        ) {
            let mut counter = Belief::new(Unit::Joules);
            let _ = counter.take(JOULES_BEFORE, second(0));
            prop_assert_eq!(counter.take(JOULES_BEFORE, second(0)), Ok(JOULES_BEFORE));
            for (time, lie) in (1..).zip(lies) {
                let taken = counter.take(lie, second(time));
                prop_assert!(taken.is_err(), "{taken:?} at {time}");
            }
        }
    }
}
