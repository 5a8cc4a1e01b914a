//! Settles the slots of a GPU together: the split of its time among MIG instances, each slot, and one energy pool.
//!
//! Slot time is the slot's weight x the GPU's time; spans of an instance are scaled to it, and then settled like those of a
//! whole GPU.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::apportion::{Quota, apportion};
use super::carries::BUSY;
use super::fallback::UseFallback;
use super::settle::{OpenSlot, OpenWindow, SettledSegment, add_flag};
use super::window::WindowSegment;
use crate::model::{HolderId, MigLayout, SlotState, Span, Utc};

impl OpenWindow<'_> {
    pub(super) fn settle_instances<'s>(
        &mut self,
        segment: &WindowSegment<'s>,
        layout: &MigLayout,
    ) -> SettledSegment<'s> {
        if layout.stranded.is_none() {
            add_flag(&mut self.flags, "gpu: possible placements are not known".to_owned());
        }
        let mut parts = self.split_among_slots(segment.length(), layout, segment.constant.state);
        let mut slots = Vec::with_capacity(layout.slots.len());
        for name in layout.slots.keys() {
            let slot_time = parts.remove(&HolderId(Arc::clone(name))).unwrap_or(0);
            // In the GPU's time.
            let during = |span: &Span| Some(span.instances.as_ref()?.slots.get(name)?.during(span));
            let spans: Vec<Span> = segment.spans.iter().filter_map(during).collect();
            let (open, flags) = self.open_slot(name, UseFallback::of_instance);
            let scaled = open.scale(&spans, slot_time);
            if let Some(segment) = WindowSegment::new(&scaled) {
                slots.push(open.settle(name, &segment, Cow::Owned(spans), flags));
            }
        }
        let settled = SettledSegment { slots, free: parts.into_iter().collect() };
        if segment.shows_departures() {
            self.drop_other_slots(&settled);
        }
        settled
    }

    /// The GPU's time by slot, and by remainder for placements that are no slot. Where the GPU is lost or nobody looked at
    /// it, more than that is not known of them.
    fn split_among_slots(
        &mut self,
        time: u64,
        layout: &MigLayout,
        state: SlotState,
    ) -> BTreeMap<HolderId, u64> {
        let stranded = layout.stranded.unwrap_or(0);
        let free = match state {
            SlotState::Measured | SlotState::Unmeasured => {
                [(HolderId::UNALLOCATED, layout.unallocated), (HolderId::STRANDED, stranded)]
            }
            SlotState::Unavailable => [(HolderId::UNAVAILABLE, layout.unallocated + stranded), ("", 0)],
            SlotState::Unobserved => [(HolderId::UNOBSERVED, layout.unallocated + stranded), ("", 0)],
        };
        let free = free.into_iter().filter(|(_, size)| *size > 0);
        let free = free.map(|(remainder, size)| (HolderId::new(remainder), size));
        let slots = layout.slots.iter().map(|(name, slot)| (HolderId(Arc::clone(name)), slot.size));
        let quotas =
            slots.chain(free).map(|(name, size)| (name, Quota::new(time, size, layout.total))).collect();
        self.root.retain(|name, _| BTreeMap::contains_key(&quotas, name));
        apportion(time, &quotas, &mut self.root)
    }
}

impl OpenSlot<'_> {
    /// The spans in slot time. The busy part of it is split with a carry, so that no rounding adds up.
    fn scale(&mut self, spans: &[Span], slot_time: u64) -> Vec<Span> {
        let whole: u64 = spans.iter().map(|span| span.length().0).sum();
        let busy: u64 = spans.iter().map(|span| span.busy).sum();
        let [is_busy, is_free] = ["busy", "free"].map(HolderId::new);
        let quotas = BTreeMap::from([
            (is_busy.clone(), Quota::new(slot_time, busy, whole)),
            (is_free, Quota::new(slot_time, whole - busy, whole)),
        ]);
        let slot_busy = apportion(slot_time, &quotas, self.carries.owed(BUSY)).remove(&is_busy).unwrap_or(0);
        let scaled = |total, part, whole| Quota::new(total, part, whole).floor();
        let (mut time_before, mut busy_before) = (0, 0);
        let mut scale_span = |span: &Span| {
            let (time_after, busy_after) = (time_before + span.length().0, busy_before + span.busy);
            let from = Utc(scaled(slot_time, time_before, whole));
            let to = Utc(scaled(slot_time, time_after, whole));
            let busy = scaled(slot_busy, busy_after, busy) - scaled(slot_busy, busy_before, busy);
            (time_before, busy_before) = (time_after, busy_after);
            Span { from, to, busy, ..span.clone() }
        };
        spans.iter().map(&mut scale_span).collect()
    }
}
