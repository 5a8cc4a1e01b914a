//! The latest reading of every point of one GPU. Every value is checked here, and rejected ones are counted by
//! reason.
//!
//! Counters go through [`CounterCheck`], since a single wrong value would be taken for a restart by every
//! consumer. A new plan continues the counters of the last one, unless the GPU was lost in between; a restarted
//! driver gets a new sampler.

use super::driver_api::DriverApi;
use super::plan::ReadTarget;
use super::plausibility::{AGREEING, CounterCheck, check_reading};
use crate::model::catalogue::{PointId, device_points};
use crate::model::{Absence, Nanoseconds, Reading};

#[derive(Default)]
pub(super) struct Readings {
    values: Box<[Reading]>,
    counters: Vec<Option<CounterCheck>>,
    /// How many values in a row were rejected, by point.
    dropped: Vec<u8>,
}

/// A field with that many rejected values in a row is replaced; it is more than a cleared counter needs.
const IMPLAUSIBLE_AFTER: u8 = AGREEING + 2;

impl Readings {
    /// The readings that the next plan starts with: the plan's initial values, and the probe's values as the
    /// first of each counter.
    pub(super) fn carry_over(&self, initial: &[Reading], probed: &[Option<i64>], at: Nanoseconds) -> Self {
        let counters = device_points().enumerate().map(|(point, (family, _))| {
            let known = self.counters.get(point).copied().flatten();
            let mut counter =
                family.is_driver_counter().then(|| known.unwrap_or(CounterCheck::new(family.unit)))?;
            if let Some(value) = probed.get(point).copied().flatten() {
                // The next value decides whether it is accepted.
                let _ = counter.check(value, at);
            }
            Some(counter)
        });
        Self { values: initial.into(), counters: counters.collect(), dropped: vec![0; initial.len()] }
    }

    pub(super) fn store<T>(
        &mut self,
        api: &mut DriverApi,
        target: &ReadTarget<T>,
        answer: Result<i64, Absence>,
    ) {
        let counter = self.counters.get_mut(target.point).and_then(Option::as_mut);
        let value = answer.and_then(|raw| raw.checked_mul(target.times).ok_or(Absence::Rejected));
        let reading = check_reading(api, value, target.bound, counter);
        if let Some(dropped) = self.dropped.get_mut(target.point) {
            *dropped = if reading == Err(Absence::Rejected) { dropped.saturating_add(1) } else { 0 };
        }
        self.set(target.point, reading);
    }

    /// Whether a point has just had its last tolerated rejected value; true once.
    pub(super) fn has_become_implausible(&self, point: PointId) -> bool {
        self.dropped.get(point) == Some(&IMPLAUSIBLE_AFTER)
    }

    pub(super) fn would_accept<T>(&self, api: &DriverApi, target: &ReadTarget<T>, value: i64) -> bool {
        let counter = self.counters.get(target.point).copied().flatten();
        value
            .checked_mul(target.times)
            .and_then(|value| target.bound.accept(value))
            .is_some_and(|value| counter.is_none_or(|counter| counter.accepts(value, api.last_call_at())))
    }

    pub(super) fn set(&mut self, point: PointId, reading: Reading) {
        if let Some(place) = self.values.get_mut(point) {
            *place = reading;
        }
    }

    pub(super) fn get(&self, point: PointId) -> Reading {
        self.values.get(point).copied().unwrap_or(Err(Absence::NotYet))
    }

    /// All of them, by point.
    pub(super) fn all(&self) -> Box<[Reading]> {
        self.values.clone()
    }
}
