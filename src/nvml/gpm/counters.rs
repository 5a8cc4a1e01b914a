//! What GPM counts of a GPU or a MIG instance since it was started, as last read.
//!
//! In goes a pair of samples that was computed, out come integers by the catalogue's order, each along steps that the
//! hardware can make. It does not know what time a counter tells: differences are the meter's.

use super::Pair;
use crate::catalogue::{Bound, Counter};
use crate::model::{Absence, Reading, Unit};
use crate::nvml::belief::{Belief, taken};
use crate::nvml::door::Door;

const COUNT: usize = Counter::ALL.len();

/// The counters of one pair.
pub(in crate::nvml) struct Counters {
    asked: Vec<Counter>,
    known: [Belief; COUNT],
    readings: [Reading; COUNT],
}

impl Counters {
    /// Nothing is read yet; what is not asked for is not there.
    pub(in crate::nvml) fn new(asked: Vec<Counter>) -> Self {
        let mut readings = [Err(Absence::NotSupported); COUNT];
        for counter in &asked {
            readings[*counter as usize] = Err(Absence::NotYet);
        }
        Self { asked, known: Counter::ALL.map(known), readings }
    }

    /// The driver's ids of what is asked for.
    pub(in crate::nvml) fn ids(&self) -> impl Iterator<Item = u32> {
        self.asked.iter().map(|counter| counter.id())
    }

    /// Takes what the pair tells, if it could be computed.
    pub(in crate::nvml) fn read(&mut self, door: &mut Door, pair: &Pair, answer: Result<(), Absence>) {
        for counter in &self.asked {
            let raw = answer.and_then(|()| pair.value(counter.id(), 1));
            let belief = &mut self.known[*counter as usize];
            self.readings[*counter as usize] = taken(door, raw, (1, Bound::COUNTER), Some(belief));
        }
    }

    /// All of them, in the catalogue's order.
    pub(in crate::nvml) fn readings(&self) -> Box<[Reading]> {
        self.readings.into()
    }
}

/// The most cycles that are counted in a second: of a clock of 4 GHz, on each of a thousand units.
const CYCLES: i64 = 4_000_000_000_000;

fn known(counter: Counter) -> Belief {
    if counter.is_of_time() { Belief::of_pace(CYCLES) } else { Belief::new(Unit::Bytes) }
}
