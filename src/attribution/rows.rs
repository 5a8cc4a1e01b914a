//! Adds up what the segments of a window settled into one row per slot and holder.

use std::collections::BTreeMap;

use super::energy::EnergySplit;
use super::settle::{SettledSegment, SettledSlot};
use super::window::WindowSegment;
use crate::model::{
    ActivitySource, Amounts, HolderId, Microjoules, Nanoseconds, Parts, Row, SlotState, Span,
};

/// The rows of a window while it is settled, by GPU instance and holder.
#[derive(Debug, Default)]
pub(super) struct WindowRows(BTreeMap<(Option<u32>, HolderId), RowSum>);

#[derive(Debug)]
struct RowSum {
    row: Row,
    /// Memory x time in byte-nanoseconds, rounded once in [`WindowRows::into_rows`].
    memory: u128,
}

impl WindowRows {
    /// Adds what a segment settled, without its energy.
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
            row.method = row.method.max(segment.constant.method);
            row.amounts.parts.add(&parts);
        }
    }

    fn add_slot(&mut self, slot: &SettledSlot<'_>) {
        let Some(constant) = slot.spans.first() else { return };
        let gpu_instance = gpu_instance(&slot.name);
        for (holder, parts) in &slot.settled.parts {
            self.entry(gpu_instance, holder, Some(constant)).row.amounts.parts.add(parts);
        }
        for (user, share) in &slot.settled.users {
            self.entry(gpu_instance, user, Some(constant)).row.amounts.used.add(&share.used);
        }
        for (user, used) in &slot.used {
            let row = &mut self.entry(gpu_instance, user, Some(constant)).row;
            row.amounts.measured += used.measured;
            row.grade = row.grade.max(used.grade);
        }
        for span in &*slot.spans {
            for (user, presence) in &span.present {
                let Some(memory) = presence.memory else { continue };
                let product = u128::from(memory).saturating_mul(span.length().0.into());
                let entry = self.entry(gpu_instance, user, Some(constant));
                entry.memory = entry.memory.saturating_add(product);
            }
        }
    }

    /// Adds the energy of a segment that was added before.
    pub(super) fn add_energy(&mut self, segment: &WindowSegment<'_>, energy: &EnergySplit) {
        // Holders on a MIG instance already have a row with the instance's source.
        let constant = segment.constant.instances.is_none().then_some(segment.constant);
        for (id, energy) in &energy.floor {
            let row = &mut self.entry(gpu_instance(&id.slot), &id.holder, constant).row;
            row.amounts.energy_static += Microjoules(*energy);
        }
        for (id, energy) in &energy.dynamic {
            let row = &mut self.entry(gpu_instance(&id.slot), &id.holder, constant).row;
            row.amounts.energy_dynamic += Microjoules(*energy);
        }
    }

    /// The rows with any amount, ordered by GPU instance and holder.
    pub(super) fn into_rows(self) -> Vec<Row> {
        let rows = self.0.into_values().map(|RowSum { mut row, memory }| {
            let byte_seconds = memory / u128::from(Nanoseconds::SECOND.0);
            row.amounts.memory_byte_seconds = u64::try_from(byte_seconds).unwrap_or(u64::MAX);
            row
        });
        rows.filter(|row| !is_empty(row)).collect()
    }

    /// The holder's sum, to which a segment with these constants is added.
    fn entry(
        &mut self,
        gpu_instance: Option<u32>,
        holder: &HolderId,
        constant: Option<&Span>,
    ) -> &mut RowSum {
        let entry = self
            .0
            .entry((gpu_instance, holder.clone()))
            .or_insert_with(|| RowSum { row: Row { gpu_instance, ..Row::empty(holder.clone()) }, memory: 0 });
        if let Some(constant) = constant {
            entry.row.method = entry.row.method.max(constant.method);
            if constant.state == SlotState::Measured {
                entry.row.source = coarser(entry.row.source, constant.source);
            }
        }
        entry
    }
}

/// The GPU instance id that is the slot's name; none for a whole GPU, and for time that belongs to no slot.
fn gpu_instance(slot: &str) -> Option<u32> {
    slot.parse().ok()
}

/// The coarser of two sources; none at all does not count beside one that measured.
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
