//! What GPM counts of a GPU or a MIG instance since it was started, as last read.
//!
//! In goes a pair of samples that was computed, out come integers by the catalogue's order. An answer that goes back is
//! dropped and counted, until several agree that the counter began anew. It does not know what time a counter tells:
//! differences are the meter's.

use super::door::Door;
use super::gpm::Pair;
use super::plan::believe;
use super::readings::Counter as Known;
use crate::catalogue::Counter;
use crate::model::{Absence, Reading, Rejection, Unit};

const COUNT: usize = Counter::ALL.len();

/// The counters of one pair.
pub(super) struct Counters {
    asked: Vec<Counter>,
    known: [Known; COUNT],
    readings: [Reading; COUNT],
}

impl Counters {
    /// Nothing is read yet; what is not asked for is not there.
    pub(super) fn new(asked: Vec<Counter>) -> Self {
        let mut readings = [Err(Absence::NotSupported); COUNT];
        for counter in &asked {
            readings[*counter as usize] = Err(Absence::NotYet);
        }
        Self { asked, known: [Known::default(); COUNT], readings }
    }

    /// The driver's ids of what is asked for.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.asked.iter().map(|counter| counter.id())
    }

    /// Takes what the pair tells, if it could be computed.
    pub(super) fn read(&mut self, door: &mut Door, pair: &Pair, answer: Result<(), Absence>) {
        for counter in &self.asked {
            let raw = answer.and_then(|()| pair.value(counter.id(), 1));
            let unit = if counter.is_of_time() { Unit::None } else { Unit::Bytes };
            let value = believe(raw, 1, unit);
            door.reject(Rejection::OutOfRange, u64::from(value == Err(Absence::Rejected)));
            let reading = value.and_then(|value| self.known[*counter as usize].take(value));
            door.reject(Rejection::CounterBack, u64::from(value.is_ok() && reading.is_err()));
            self.readings[*counter as usize] = reading;
        }
    }

    /// All of them, in the catalogue's order.
    pub(super) fn readings(&self) -> Box<[Reading]> {
        self.readings.into()
    }
}
