//! What the rows of a minute or quarter hour say of one workload on a slot: the same of a ledger and of the files of many.

use super::evidence::{IdleStretch, ProcessPresence};
use super::gates::unknown_part;
use crate::model::{Microjoules, Nanoseconds, Utc};

/// A row of the account, as far as idle time is concerned.
#[derive(Clone, Copy, Debug)]
pub struct SlotRow {
    pub idle: Nanoseconds,
    pub unmeasured: Nanoseconds,
    /// Whether nothing is known to have been used of it, and the GPU had not failed.
    pub is_quiet: bool,
    pub has_memory: bool,
    /// Energy above that of an idle board without a process.
    pub waiting: Microjoules,
    /// What an hour of its idle time costs, in nano-units; none without a price.
    pub rate: Option<i64>,
}

/// The sum of such rows of one workload.
#[derive(Clone, Copy, Debug)]
pub struct SlotTime {
    idle: Nanoseconds,
    unmeasured: Nanoseconds,
    is_quiet: bool,
    has_memory: bool,
    waiting: Microjoules,
    /// The lowest one, if any row has idle time.
    rate: Option<Option<i64>>,
}

impl Default for SlotTime {
    fn default() -> Self {
        let (idle, unmeasured, waiting) = (Nanoseconds(0), Nanoseconds(0), Microjoules(0));
        Self { idle, unmeasured, is_quiet: true, has_memory: false, waiting, rate: None }
    }
}

impl SlotTime {
    pub fn add(&mut self, row: SlotRow) {
        self.idle += row.idle;
        self.unmeasured += row.unmeasured;
        self.is_quiet &= row.is_quiet;
        self.has_memory |= row.has_memory;
        self.waiting.0 = self.waiting.0.saturating_add(row.waiting.0);
        if row.idle.0 > 0 {
            self.rate = Some(self.rate.map_or(row.rate, |rate| rate.min(row.rate)));
        }
    }

    /// The stretch that it is; none if the workload used the slot, or all that it held was lent. `is_unclear` says whether somebody had
    /// memory on the slot who may have worked for it. Where a part was not measured, no idle time is known.
    pub fn stretch(self, [from, to]: [Utc; 2], is_unclear: bool, is_whole_gpu: bool) -> Option<IdleStretch> {
        let length = to.since(from);
        let process = match (is_unclear, self.has_memory) {
            (true, _) => ProcessPresence::Unclear,
            (false, true) => ProcessPresence::Present,
            (false, false) => ProcessPresence::Absent,
        };
        let unmeasured = unknown_part(length, self.idle, self.unmeasured)?;
        self.is_quiet.then(|| IdleStretch {
            from,
            to,
            grid: length,
            idle: if unmeasured.0 == 0 { self.idle } else { Nanoseconds(0) },
            unknown: if is_unclear { length } else { unmeasured },
            process,
            waiting: self.waiting,
            rate: self.rate.flatten(),
            is_alone: is_whole_gpu && self.idle == length,
        })
    }
}
