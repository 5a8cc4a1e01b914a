//! Adds what segments settled into one row per holder and window.
//!
//! In go the parts, use, energy and memory of segments, out come rows ordered by holder, remainders among
//! them; a row that is all zero is left out. It splits nothing.

use std::collections::BTreeMap;

use super::energy::Energy;
use super::parts::Paid;
use super::segment::Segment;
use super::used::Used;
use crate::model::{ActivitySource, HolderId, Microjoules, Nanoseconds, Row, SlotState};

/// The rows of a window while it is settled.
#[derive(Debug, Default)]
pub(super) struct Rows(BTreeMap<HolderId, Entry>);

#[derive(Debug)]
struct Entry {
    row: Row,
    /// Memory x time in byte-nanoseconds; rounded once, at the row.
    memory: u128,
}

impl Rows {
    /// Adds what a segment settled.
    pub(super) fn add(
        &mut self,
        segment: &Segment<'_>,
        paid: &Paid,
        used: &BTreeMap<HolderId, Used>,
        energy: &Energy,
    ) {
        for (holder, parts) in &paid.parts {
            self.row(holder, segment).parts.add(parts);
        }
        for (user, share) in &paid.uses {
            self.row(user, segment).used.add(share);
        }
        for (user, used) in used {
            let row = self.row(user, segment);
            row.measured += used.measured;
            row.grade = row.grade.max(used.grade);
        }
        for (holder, energy) in &energy.floor {
            self.row(holder, segment).energy_static += Microjoules(*energy);
        }
        for (holder, energy) in &energy.dynamic {
            self.row(holder, segment).energy_dynamic += Microjoules(*energy);
        }
        self.add_memory(segment);
    }

    fn add_memory(&mut self, segment: &Segment<'_>) {
        for span in segment.spans {
            for (user, presence) in &span.present {
                let Some(memory) = presence.memory else { continue };
                let product = u128::from(memory).saturating_mul(span.length().0.into());
                let entry = self.entry(user, segment);
                entry.memory = entry.memory.saturating_add(product);
            }
        }
    }

    /// The rows, ordered by holder.
    pub(super) fn close(self) -> Vec<Row> {
        self.0.into_values().map(Entry::close).filter(|row| !is_empty(row)).collect()
    }

    fn row(&mut self, holder: &HolderId, segment: &Segment<'_>) -> &mut Row {
        &mut self.entry(holder, segment).row
    }

    /// The holder's entry, which now also stands for this segment.
    fn entry(&mut self, holder: &HolderId, segment: &Segment<'_>) -> &mut Entry {
        let entry = self
            .0
            .entry(holder.clone())
            .or_insert_with(|| Entry { row: Row::empty(holder.clone()), memory: 0 });
        let constant = segment.constant();
        entry.row.method = entry.row.method.max(constant.method);
        if constant.state == SlotState::Measured {
            entry.row.source = coarser(entry.row.source, constant.source);
        }
        entry
    }
}

impl Entry {
    fn close(mut self) -> Row {
        let byte_seconds = self.memory / u128::from(Nanoseconds::SECOND.0);
        self.row.memory_byte_seconds = u64::try_from(byte_seconds).unwrap_or(u64::MAX);
        self.row
    }
}

/// The coarser of two meters; none at all says nothing of a row that another segment measured.
fn coarser(one: ActivitySource, other: ActivitySource) -> ActivitySource {
    match (one, other) {
        (ActivitySource::None, known) | (known, ActivitySource::None) => known,
        (one, other) => one.max(other),
    }
}

fn is_empty(row: &Row) -> bool {
    row.parts.held() == 0
        && row.used.total() == 0
        && row.energy_static.0 == 0
        && row.energy_dynamic.0 == 0
        && row.memory_byte_seconds == 0
}
