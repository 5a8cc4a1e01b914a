//! GPM counters of a GPU or a MIG instance since the driver was started, as last read.
//!
//! Each is checked for plausibility. The meter computes differences over time.

use super::GpmPair;
use crate::catalogue::{Bound, Counter};
use crate::model::{Absence, Reading, Unit};
use crate::nvml::driver_api::DriverApi;
use crate::nvml::plausibility::{CounterCheck, check_reading};

const COUNT: usize = Counter::ALL.len();

/// The counters of one pair.
pub(in crate::nvml) struct GpmCounters {
    requested: Vec<Counter>,
    known: [CounterCheck; COUNT],
    readings: [Reading; COUNT],
}

impl GpmCounters {
    /// Counters that were never read; those that are not requested are not supported.
    pub(in crate::nvml) fn new(requested: Vec<Counter>) -> Self {
        let mut readings = [Err(Absence::NotSupported); COUNT];
        for counter in &requested {
            readings[*counter as usize] = Err(Absence::NotYet);
        }
        Self { requested, known: Counter::ALL.map(known), readings }
    }

    /// The driver's ids of the requested counters.
    pub(in crate::nvml) fn ids(&self) -> impl Iterator<Item = u32> {
        self.requested.iter().map(|counter| counter.id())
    }

    /// Reads the counters from the pair, if it could be computed.
    pub(in crate::nvml) fn read(&mut self, api: &mut DriverApi, pair: &GpmPair, answer: Result<(), Absence>) {
        for counter in &self.requested {
            let raw = answer.and_then(|()| pair.value(counter.id(), 1));
            let check = &mut self.known[*counter as usize];
            self.readings[*counter as usize] = check_reading(api, raw, Bound::COUNTER, Some(check));
        }
    }

    /// All of them, in the catalogue's order.
    pub(in crate::nvml) fn readings(&self) -> Box<[Reading]> {
        self.readings.into()
    }
}

/// The most cycles that are counted in a second: 4 GHz on a thousand units.
const CYCLES: i64 = 4_000_000_000_000;

fn known(counter: Counter) -> CounterCheck {
    if counter.is_of_time() { CounterCheck::with_max_rate(CYCLES) } else { CounterCheck::new(Unit::Bytes) }
}
