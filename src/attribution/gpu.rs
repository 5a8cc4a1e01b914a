//! Settles the slots of a GPU together: the split of its time among MIG instances, each slot, and one energy pool.
//!
//! Slot time is the slot's weight x the GPU's time; spans of an instance are scaled to it, and then settled like those of a
//! whole GPU. `settle_gpu` settles a single segment and returns each slot's account in full.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::apportion::{Quota, apportion};
use super::check::{check_layout, check_window};
use super::fallback::UseFallback;
use super::settle::{OpenSlot, OpenWindow, SettledSegment, SettledSlot, add_flag};
use super::window::WindowSegment;
use super::{EnergySplit, GpuEnergy, SettleError, UserShare};
use crate::model::{Carry, Grade, HolderId, MigLayout, Parts, Settlement, SlotState, Span, Utc};

/// A segment of one GPU, in which layout, holdings and states are constant.
#[derive(Clone, Debug)]
pub struct GpuSegment {
    /// Begin of the segment.
    pub from: Utc,
    /// End of the segment.
    pub to: Utc,
    /// Whether its slots are MIG instances.
    pub mig: bool,
    /// None while the MIG layout changes: then there is no slot, and all time is unavailable.
    pub layout: Option<MigLayout>,
    /// The spans of each slot of the layout, in the GPU's time and without energy.
    pub slots: BTreeMap<Arc<str>, Vec<Span>>,
    /// The weights of each slot's window before; MIG instances have none.
    pub previous: BTreeMap<Arc<str>, BTreeMap<HolderId, u64>>,
    /// Energy of the whole GPU; none where the counter's difference is unknown.
    pub energy: Option<GpuEnergy>,
    /// The carries after the segment before.
    pub carry: Carry,
}

/// The account of one slot; times are nanoseconds of slot time.
#[derive(Clone, Debug)]
pub struct SlotSettlement {
    /// Slot time.
    pub time: u64,
    /// Whether holdings and activity were known.
    pub state: SlotState,
    /// Reserved tenant that receives unheld time.
    pub remainder: HolderId,
    /// Time that nobody held.
    pub unheld: u64,
    /// Unheld time that was used.
    pub drawn: u64,
    /// Busy time: activity x slot time.
    pub busy: u64,
    /// The worst grade of its use.
    pub grade: Grade,
    /// Held time by holder, with the time of nested holdings.
    pub gross: BTreeMap<HolderId, u64>,
    /// The parts of held time by holder, without the time of nested holdings.
    pub parts: BTreeMap<HolderId, Parts>,
    /// Used time by user.
    pub used: BTreeMap<HolderId, UserShare>,
}

/// The account of a segment.
#[derive(Clone, Debug)]
pub struct GpuSettlement {
    /// The GPU's time in nanoseconds, by slot and remainder.
    pub root: BTreeMap<Arc<str>, u64>,
    /// The slots, by name.
    pub slots: BTreeMap<Arc<str>, SlotSettlement>,
    /// Energy, where the counter's difference is known.
    pub energy: Option<EnergySplit>,
    /// Conflicts and other remarks.
    pub flags: Vec<String>,
    /// The carries for the next segment.
    pub carry: Carry,
}

/// Settles a segment of a GPU.
///
/// # Errors
/// A layout that does not sum to the GPU, slots that are not those of the layout, spans that do not cover the segment or
/// that no account can hold.
pub fn settle_gpu(segment: &GpuSegment) -> Result<GpuSettlement, SettleError> {
    let GpuSegment { from, to, mig, layout, slots, previous, energy, carry } = segment;
    check_layout(layout.as_ref(), slots)?;
    for spans in slots.values() {
        check_window(*from, *to, spans)?;
    }
    let none = BTreeMap::new();
    let previous = |name: &Arc<str>| previous.get(name).unwrap_or(&none);
    let mut window = OpenWindow::new(carry);
    let time = to.since(*from).0;
    let settled = match layout {
        None => {
            SettledSegment { slots: Vec::new(), free: vec![(HolderId::new(HolderId::UNAVAILABLE), time)] }
        }
        Some(layout) => window.settle_slots(time, layout, SlotState::Measured, |name| {
            let spans: &[Span] = slots.get(name).map_or(&[], Vec::as_slice);
            let fallback =
                if *mig { UseFallback::of_instance() } else { UseFallback::of_gpu(spans, previous(name)) };
            (Cow::Borrowed(spans), fallback)
        }),
    };
    window.drop_other_slots(&settled);
    let energy = energy.map(|energy| settled.split_energy(energy));
    let Settlement { carry, flags, .. } = window.close(*from, *to, Vec::new());
    let of_slots = settled.slots.iter().map(|slot| (Arc::clone(&slot.name), slot.time));
    let free = settled.free.iter().map(|(remainder, time)| (Arc::clone(&remainder.0), *time));
    let root = of_slots.chain(free).collect();
    let slots = settled.slots.into_iter().map(|slot| (Arc::clone(&slot.name), slot.into())).collect();
    Ok(GpuSettlement { root, slots, energy, flags, carry })
}

impl<'a> OpenWindow<'a> {
    /// Settles a segment of a MIG GPU.
    pub(super) fn settle_instances<'s>(
        &mut self,
        segment: &WindowSegment<'s>,
        layout: &MigLayout,
    ) -> SettledSegment<'s> {
        if layout.stranded.is_none() {
            add_flag(&mut self.flags, "gpu: possible placements are not known".to_owned());
        }
        let settled = self.settle_slots(segment.length(), layout, segment.constant.state, |name| {
            let slot = |span: &Span| Some(span.instances.as_ref()?.slots.get(name)?.during(span));
            (Cow::Owned(segment.spans.iter().filter_map(slot).collect()), UseFallback::of_instance())
        });
        if segment.shows_departures() {
            self.drop_other_slots(&settled);
        }
        settled
    }

    /// Settles the slots of a layout; `slot` returns the spans of one, in the GPU's time, and its fallbacks.
    fn settle_slots<'s>(
        &mut self,
        time: u64,
        layout: &MigLayout,
        state: SlotState,
        slot: impl Fn(&Arc<str>) -> (Cow<'s, [Span]>, UseFallback<'a>),
    ) -> SettledSegment<'s> {
        let mut parts = self.split_among_slots(time, layout, state);
        let mut slots = Vec::with_capacity(layout.slots.len());
        for name in layout.slots.keys() {
            let slot_time = parts.remove(&HolderId(Arc::clone(name))).unwrap_or(0);
            let (spans, fallback) = slot(name);
            let (open, flags) = self.open_slot(name, || fallback);
            let scaled = open.scale(&spans, slot_time);
            if let Some(segment) = WindowSegment::new(&scaled) {
                slots.push(open.settle(name, &segment, spans, flags));
            }
        }
        SettledSegment { slots, free: parts.into_iter().collect() }
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
        let slot_busy = apportion(slot_time, &quotas, &mut self.carries.busy).remove(&is_busy).unwrap_or(0);
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

impl From<SettledSlot<'_>> for SlotSettlement {
    fn from(SettledSlot { state, time, busy, held, used, settled, .. }: SettledSlot<'_>) -> Self {
        let (mut parts, mut users) = (settled.parts, settled.users);
        let drawn = parts.remove(&held.remainder).map_or(0, |unheld| unheld.lent);
        users.retain(|_, share| share.used.total() > 0);
        Self {
            time,
            state,
            remainder: held.remainder,
            unheld: held.unheld,
            drawn,
            busy,
            grade: used.values().map(|used| used.grade).max().unwrap_or_default(),
            gross: held.gross,
            parts,
            used: users,
        }
    }
}
