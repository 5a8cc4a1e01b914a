//! The latest reading of every point of one GPU. Every answer is believed here or dropped, and what is dropped
//! is counted by its reason.
//!
//! A counter that goes back within one plan is not believed at first: a glitch of one answer would be booked
//! as a restart by everybody who reads it. When the next answer agrees, it is a new epoch of the driver's.

use super::door::Door;
use super::plan::{Ask, believe};
use crate::catalogue::{Kind, PointId, device_points};
use crate::model::{Absence, Reading, Rejection};

/// The readings of one plan.
#[derive(Default)]
pub(super) struct Readings {
    values: Box<[Reading]>,
    counters: Vec<Option<Counter>>,
}

/// What is known of a counter.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    last: i64,
    /// A value below the last that came once.
    below: Option<i64>,
}

impl Readings {
    /// The readings that a plan begins with.
    pub(super) fn begin(blank: &[Reading]) -> Self {
        let counters = device_points()
            .map(|(family, _)| (family.kind == Kind::Counter).then(Counter::default))
            .collect();
        Self { values: blank.into(), counters }
    }

    /// Takes the answer to one question.
    pub(super) fn put<T>(&mut self, door: &mut Door, ask: &Ask<T>, answer: Result<i64, Absence>) {
        let mut reading = believed(door, ask, answer, ask.times);
        if let Some(Some(counter)) = self.counters.get_mut(ask.point) {
            let grown = reading.and_then(|value| counter.take(value));
            if grown.is_err() && reading.is_ok() {
                door.reject(Rejection::CounterBack, 1);
            }
            reading = grown;
        }
        self.set(ask.point, reading);
    }

    /// Takes what a pair of samples says, in the family's unit: it tells of the time between them, so also
    /// what becomes a counter later may be less than the last time.
    pub(super) fn put_rate<T>(&mut self, door: &mut Door, ask: &Ask<T>, answer: Result<i64, Absence>) {
        let reading = believed(door, ask, answer, 1);
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

/// The answer in the family's unit; one that cannot be is counted.
fn believed<T>(door: &mut Door, ask: &Ask<T>, answer: Result<i64, Absence>, times: i64) -> Reading {
    let reading = believe(answer, times, ask.unit);
    if reading == Err(Absence::Rejected) {
        door.reject(Rejection::OutOfRange, 1);
    }
    reading
}

impl Counter {
    fn take(&mut self, value: i64) -> Reading {
        let believed = value >= self.last || self.below.is_some_and(|below| value >= below);
        if believed {
            *self = Self { last: value, below: None };
            return Ok(value);
        }
        self.below = Some(value);
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
    fn a_second_answer_that_agrees_is_a_new_epoch() {
        assert_eq!(taken(&[5, 6, 1, 2, 3]), [Some(5), Some(6), None, Some(2), Some(3)]);
    }

    #[test]
    fn answers_that_only_fall_are_never_believed() {
        assert_eq!(taken(&[9, 3, 2, 1]), [Some(9), None, None, None]);
    }
}
