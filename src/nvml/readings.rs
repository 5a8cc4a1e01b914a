//! The latest reading of every point of one GPU. Every answer is believed here or dropped, and what is dropped
//! is counted by its reason.
//!
//! A counter that goes back within one plan is not believed at first: a glitch of one answer would be booked
//! as a restart by everybody who reads it. When several answers in a row agree, somebody has cleared it: what
//! restarts with the driver comes with a new plan.

use super::door::Door;
use super::plan::{Ask, believe};
use crate::catalogue::{Family, Kind, PointId, Rows, device_points};
use crate::model::{Absence, Reading, Rejection};

/// The readings of one plan.
#[derive(Default)]
pub(super) struct Readings {
    values: Box<[Reading]>,
    counters: Vec<Option<Counter>>,
}

/// What is known of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    last: i64,
    /// The last of the values below it that came in a row and did not fall, and how many they are.
    below: Option<(i64, u8)>,
}

/// So many answers in a row must agree before a counter has really gone back.
const AGREEING: u8 = 5;

impl Readings {
    /// The readings that a plan begins with.
    pub(super) fn begin(blank: &[Reading]) -> Self {
        // What the agent counts itself from a rate, or from a count that may wrap, may fall.
        let is_counter =
            |family: &Family| family.kind == Kind::Counter && matches!(family.rows, Rows::Device(_));
        let counters = device_points().map(|(family, _)| is_counter(family).then(Counter::default)).collect();
        Self { values: blank.into(), counters }
    }

    /// Takes the answer to one question.
    pub(super) fn put<T>(&mut self, door: &mut Door, ask: &Ask<T>, answer: Result<i64, Absence>) {
        self.put_times(door, ask, answer, ask.times);
    }

    /// Takes an answer to which another factor applies than the row's.
    pub(super) fn put_times<T>(
        &mut self,
        door: &mut Door,
        ask: &Ask<T>,
        answer: Result<i64, Absence>,
        times: i64,
    ) {
        let mut reading = believe(answer, times, ask.unit);
        if reading == Err(Absence::Rejected) {
            door.reject(Rejection::OutOfRange, 1);
        }
        if let Some(Some(counter)) = self.counters.get_mut(ask.point) {
            let grown = reading.and_then(|value| counter.take(value));
            if grown.is_err() && reading.is_ok() {
                door.reject(Rejection::CounterBack, 1);
            }
            reading = grown;
        }
        self.set(ask.point, reading);
    }

    /// Takes a reading as it is.
    pub(super) fn set(&mut self, point: PointId, reading: Reading) {
        if let Some(place) = self.values.get_mut(point) {
            *place = reading;
        }
    }

    /// The latest reading of a point.
    pub(super) fn get(&self, point: PointId) -> Reading {
        self.values.get(point).copied().unwrap_or(Err(Absence::NotYet))
    }

    /// All of them, by point.
    pub(super) fn all(&self) -> Box<[Reading]> {
        self.values.clone()
    }
}

impl Counter {
    /// The value, if it is believed.
    pub(super) fn take(&mut self, value: i64) -> Reading {
        let agreeing = match self.below {
            _ if value >= self.last => AGREEING,
            Some((below, times)) if value >= below => times + 1,
            _ => 1,
        };
        if agreeing >= AGREEING {
            *self = Self { last: value, below: None };
            return Ok(value);
        }
        self.below = Some((value, agreeing));
        Err(Absence::Rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(values: &[i64]) -> Vec<Option<i64>> {
        let mut counter = Counter::default();
        values.iter().map(|value| counter.take(*value).ok()).collect()
    }

    #[test]
    fn one_answer_below_the_last_is_dropped() {
        assert_eq!(taken(&[5, 6, 0, 7]), [Some(5), Some(6), None, Some(7)]);
    }

    #[test]
    fn answers_that_agree_for_long_enough_are_a_counter_that_was_cleared() {
        assert_eq!(
            taken(&[5, 6, 1, 1, 2, 3, 3, 4]),
            [Some(5), Some(6), None, None, None, None, Some(3), Some(4)]
        );
    }

    #[test]
    fn answers_that_fall_begin_to_agree_anew() {
        assert_eq!(taken(&[9, 3, 4, 5, 6, 2, 2, 9]), [Some(9), None, None, None, None, None, None, Some(9)]);
    }
}
