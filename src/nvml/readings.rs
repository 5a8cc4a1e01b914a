//! The latest reading of every point of one GPU. Every answer is believed here or dropped, and what is dropped
//! is counted by its reason.
//!
//! A counter is believed along steps that its hardware can make ([`Belief`]): a glitch of
//! one answer would be booked as a restart by everybody who reads it. A new plan goes on from what the last
//! one believed, unless the GPU was lost in between: what restarts with the driver comes with a new lane.

use super::belief::{AGREEING, Belief, taken};
use super::door::Door;
use super::plan::Ask;
use crate::catalogue::{PointId, device_points};
use crate::model::{Absence, Nanoseconds, Reading};

/// The readings of one plan.
#[derive(Default)]
pub(super) struct Readings {
    values: Box<[Reading]>,
    counters: Vec<Option<Belief>>,
    /// How many answers in a row were dropped, by point.
    dropped: Vec<u8>,
}

/// So many answers in a row that were dropped are garbage for good: some more than a counter takes that begins anew.
const GARBLED: u8 = AGREEING + 2;

impl Readings {
    /// The readings that the next plan begins with, after these: what each point starts from, and what the
    /// probe was answered at that time, so that a counter's first answer is its second.
    pub(super) fn renewed(&self, blank: &[Reading], probed: &[Option<i64>], at: Nanoseconds) -> Self {
        let counters = device_points().enumerate().map(|(point, (family, _))| {
            let known = self.counters.get(point).copied().flatten();
            let mut counter =
                family.is_driver_counter().then(|| known.unwrap_or(Belief::new(family.unit)))?;
            if let Some(value) = probed.get(point).copied().flatten() {
                // Whether it is believed shows with the next.
                let _ = counter.take(value, at);
            }
            Some(counter)
        });
        Self { values: blank.into(), counters: counters.collect(), dropped: vec![0; blank.len()] }
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
        let counter = self.counters.get_mut(ask.point).and_then(Option::as_mut);
        let reading = taken(door, answer, (times, ask.bound), counter);
        if let Some(dropped) = self.dropped.get_mut(ask.point) {
            *dropped = if reading == Err(Absence::Rejected) { dropped.saturating_add(1) } else { 0 };
        }
        self.set(ask.point, reading);
    }

    /// Whether a point's answers have just turned out to be garbage; true once, at the last that was needed.
    pub(super) fn is_garbled(&self, point: PointId) -> bool {
        self.dropped.get(point) == Some(&GARBLED)
    }

    /// Whether the answer of another source would be believed.
    pub(super) fn would_take<T>(&self, door: &Door, ask: &Ask<T>, value: i64) -> bool {
        let counter = self.counters.get(ask.point).copied().flatten();
        value
            .checked_mul(ask.times)
            .and_then(|value| ask.bound.hold(value))
            .is_some_and(|value| counter.is_none_or(|counter| counter.accepts(value, door.asked())))
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
