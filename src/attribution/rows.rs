//! Adds what segments settled into one row per holder and window.
//!
//! In go the parts, use, energy and memory of segments, out come rows ordered by holder, remainders among
//! them; a row that is all zero is left out. It splits nothing.

use std::collections::BTreeMap;

use super::energy::{EnergySplit, slot_and_holder};
use super::segment::WindowSegment;
use super::settle::{SettledSegment, SettledSlot};
use crate::model::{
    ActivitySource, Amounts, HolderId, Microjoules, Nanoseconds, Parts, Row, SlotState, Span,
};

/// The rows of a window while it is settled, by slot and holder.
#[derive(Debug, Default)]
pub(super) struct WindowRows(BTreeMap<(Option<u32>, HolderId), RowSum>);

#[derive(Debug)]
struct RowSum {
    row: Row,
    /// Memory x time in byte-nanoseconds; rounded once, at the row.
    memory: u128,
}

impl WindowRows {
    /// Adds what a segment settled.
    pub(super) fn add(&mut self, segment: &WindowSegment<'_>, settled: &SettledSegment<'_>) {
        for slot in &settled.slots {
            self.add_slot(slot);
        }
        for (remainder, time) in &settled.free {
            let parts = match remainder.as_str() {
                HolderId::UNAVAILABLE => Parts { unavailable: *time, ..Parts::default() },
                HolderId::UNOBSERVED => Parts { unmeasured: *time, ..Parts::default() },
                _ => Parts { waste: *time, ..Parts::default() },
            };
            let row = &mut self.entry(None, remainder, None).row;
            row.method = row.method.max(segment.constant().method);
            row.amounts.parts.add(&parts);
        }
    }

    fn add_slot(&mut self, slot: &SettledSlot<'_>) {
        let Some(constant) = slot.spans.first() else { return };
        let slot_id = gpu_instance(&slot.name);
        for (holder, parts) in &slot.settled.parts {
            self.entry(slot_id, holder, Some(constant)).row.amounts.parts.add(parts);
        }
        for (user, share) in &slot.settled.uses {
            self.entry(slot_id, user, Some(constant)).row.amounts.used.add(share);
        }
        for (user, used) in &slot.used {
            let row = &mut self.entry(slot_id, user, Some(constant)).row;
            row.amounts.measured += used.measured;
            row.grade = row.grade.max(used.grade);
        }
        for span in &*slot.spans {
            for (user, presence) in &span.present {
                let Some(memory) = presence.memory else { continue };
                let product = u128::from(memory).saturating_mul(span.length().0.into());
                let entry = self.entry(slot_id, user, Some(constant));
                entry.memory = entry.memory.saturating_add(product);
            }
        }
    }

    /// Adds the energy of a segment, of which it added the rest before.
    pub(super) fn add_energy(&mut self, segment: &WindowSegment<'_>, energy: &EnergySplit) {
        let whole = segment.constant();
        let mut add = |id: &HolderId, add: &dyn Fn(&mut Row)| {
            let (slot, holder) = slot_and_holder(id);
            let slot_id = gpu_instance(slot);
            // Who has energy on a MIG instance was there, held or used it, and has a row with its source.
            let constant = whole.instances.is_none().then_some(whole);
            add(&mut self.entry(slot_id, &holder, constant).row);
        };
        for (id, energy) in &energy.floor {
            add(id, &|row| row.amounts.energy_static += Microjoules(*energy));
        }
        for (id, energy) in &energy.dynamic {
            add(id, &|row| row.amounts.energy_dynamic += Microjoules(*energy));
        }
    }

    /// The rows, ordered by slot and holder.
    pub(super) fn close(self) -> Vec<Row> {
        self.0.into_values().map(RowSum::close).filter(|row| !is_empty(row)).collect()
    }

    /// The holder's entry, which now also stands for a segment of that kind.
    fn entry(&mut self, slot: Option<u32>, holder: &HolderId, constant: Option<&Span>) -> &mut RowSum {
        let key = (slot, holder.clone());
        let entry = self.0.entry(key).or_insert_with(|| RowSum {
            row: Row { gpu_instance: slot, ..Row::empty(holder.clone()) },
            memory: 0,
        });
        if let Some(constant) = constant {
            entry.row.method = entry.row.method.max(constant.method);
            if constant.state == SlotState::Measured {
                entry.row.source = coarser(entry.row.source, constant.source);
            }
        }
        entry
    }
}

/// The GPU instance of a slot; none of the whole GPU, and for what is no slot's.
fn gpu_instance(slot: &str) -> Option<u32> {
    slot.parse().ok()
}

impl RowSum {
    fn close(mut self) -> Row {
        let byte_seconds = self.memory / u128::from(Nanoseconds::SECOND.0);
        self.row.amounts.memory_byte_seconds = u64::try_from(byte_seconds).unwrap_or(u64::MAX);
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
    let Amounts { parts, used, energy_static, energy_dynamic, memory_byte_seconds, .. } = row.amounts;
    parts.held() == 0
        && used.total() == 0
        && energy_static.0 == 0
        && energy_dynamic.0 == 0
        && memory_byte_seconds == 0
}
