//! Settles the slots of a GPU together: the root split among MIG instances, each slot, and one energy pool.
//!
//! A slot's time is its weight x the GPU's: its spans are scaled to that before they are settled like those of a whole
//! GPU. `settle_gpu` settles one segment and shows each slot's account in full and, for each user, how much of the use
//! lies within each holding; between two epochs there is no slot and all time is unavailable.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::SettleError;
use super::apportion::apportion;
use super::check::{check, check_layout};
use super::energy::MeteredEnergy;
use super::fallback::UseFallback;
use super::quota::Quota;
use super::segment::WindowSegment;
use super::settle::{OpenSlot, OpenWindow, SettledSegment, SettledSlot, WindowCarry, add_flag};
use crate::model::{Carry, Grade, HolderId, Microjoules, MigLayout, Parts, SlotState, Span, Use, Utc};

/// Energy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuEnergy {
    /// The difference of the driver's counter.
    pub delta: Microjoules,
    /// Idle power x time, the most that can be floor.
    pub floor: Microjoules,
}

/// A segment of one GPU, in which layout, holdings and states are constant.
#[derive(Clone, Debug)]
pub struct GpuSegment {
    /// Where it begins.
    pub from: Utc,
    /// Where it ends.
    pub to: Utc,
    /// Whether its slots are MIG instances.
    pub mig: bool,
    /// None between two epochs.
    pub layout: Option<MigLayout>,
    /// The spans of each slot of the layout, in the GPU's time and without energy.
    pub slots: BTreeMap<Arc<str>, Vec<Span>>,
    /// The weights of each slot's window before; there are none of MIG instances.
    pub previous: BTreeMap<Arc<str>, BTreeMap<HolderId, u64>>,
    /// Of the whole GPU; none where the counter's difference is not known.
    pub energy: Option<GpuEnergy>,
    /// What the segment before left.
    pub carry: Carry,
}

/// What one user used of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserShare {
    /// In all.
    pub used: Use,
    /// What of it lies within whose holding.
    pub within: BTreeMap<HolderId, u64>,
}

/// The account of one slot.
#[derive(Clone, Debug)]
pub struct SlotSettlement {
    /// Its slot time.
    pub time: u64,
    /// What could be known.
    pub state: SlotState,
    /// The remainder that has the time that nobody held.
    pub remainder: HolderId,
    /// How much it has.
    pub unheld: u64,
    /// How much of that was used.
    pub drawn: u64,
    /// Time busy.
    pub busy: u64,
    /// The worst grade of its use.
    pub grade: Grade,
    /// What each held, with what nested holdings have of it.
    pub gross: BTreeMap<HolderId, u64>,
    /// The parts of what each held, without that.
    pub parts: BTreeMap<HolderId, Parts>,
    /// What each used.
    pub used: BTreeMap<HolderId, UserShare>,
}

/// Energy by slot and holder, in microjoules; that of time without a slot is under `root`.
pub type SlotEnergy = BTreeMap<Arc<str>, BTreeMap<HolderId, u64>>;

/// The account of a segment.
#[derive(Clone, Debug)]
pub struct GpuSettlement {
    /// The GPU's time by slot and remainder.
    pub root: BTreeMap<Arc<str>, u64>,
    /// The slots.
    pub slots: BTreeMap<Arc<str>, SlotSettlement>,
    /// Floor and dynamic energy, where the difference is known.
    pub energy: Option<(SlotEnergy, SlotEnergy)>,
    /// Remarks.
    pub flags: Vec<String>,
    /// For the next segment.
    pub carry: Carry,
}

/// Settles a segment of a GPU.
///
/// # Errors
/// A layout that does not sum, slots that are not those of the layout, spans that do not cover the segment, or that no
/// account can hold.
pub fn settle_gpu(segment: &GpuSegment) -> Result<GpuSettlement, SettleError> {
    let GpuSegment { from, to, mig, layout, slots, previous, energy, carry } = segment;
    check_layout(layout.as_ref(), |name| slots.contains_key(name), slots.keys())?;
    for spans in slots.values() {
        check(*from, *to, spans)?;
    }
    let none = BTreeMap::new();
    let previous = |name: &Arc<str>| previous.get(name).unwrap_or(&none);
    let mut window = OpenWindow::open(carry);
    let time = to.since(*from).0;
    let settled = match layout {
        None => {
            SettledSegment { slots: Vec::new(), free: vec![(HolderId::new(HolderId::UNAVAILABLE), time)] }
        }
        Some(layout) => window.settle_slots(time, layout, SlotState::Measured, |name| {
            let spans: &[Span] = slots.get(name).map_or(&[], Vec::as_slice);
            let fallback =
                if *mig { UseFallback::of_instance() } else { UseFallback::new(spans, previous(name)) };
            (Cow::Borrowed(spans), fallback)
        }),
    };
    window.keep_slots_of(&settled);
    let energy = energy.map(|of| {
        let split = settled.energy_pool().split(MeteredEnergy { total: of.delta.0, idle: of.floor.0 });
        (by_slot(split.floor), by_slot(split.dynamic))
    });
    let WindowCarry { carry, flags, .. } = window.close();
    let of_slots = settled.slots.iter().map(|slot| (Arc::clone(&slot.name), slot.time));
    let free = settled.free.iter().map(|(remainder, time)| (Arc::clone(&remainder.0), *time));
    let root = of_slots.chain(free).collect();
    let slots = settled.slots.into_iter().map(|slot| (Arc::clone(&slot.name), slot.account())).collect();
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
        let settled = self.settle_slots(segment.length(), layout, segment.constant().state, |name| {
            let slot = |span: &Span| {
                let mig = span.instances.as_ref()?;
                mig.slots.get(name).map(|slot| slot.during(span))
            };
            (Cow::Owned(segment.spans.iter().filter_map(slot).collect()), UseFallback::of_instance())
        });
        if segment.shows_who_went() {
            self.keep_slots_of(&settled);
        }
        settled
    }

    /// Settles the slots of a layout, each by its spans in the GPU's time and with the fallback order for its users.
    fn settle_slots<'s>(
        &mut self,
        time: u64,
        layout: &MigLayout,
        state: SlotState,
        slot: impl Fn(&Arc<str>) -> (Cow<'s, [Span]>, UseFallback<'a>),
    ) -> SettledSegment<'s> {
        let mut parts = self.divide(time, layout, state);
        let mut slots = Vec::with_capacity(layout.slots.len());
        for name in layout.slots.keys() {
            let slot_time = parts.remove(&HolderId(Arc::clone(name))).unwrap_or(0);
            let (spans, fallback) = slot(name);
            let open = self.slots.open(name, || fallback);
            let scaled = open.scale(&spans, slot_time);
            if let Some(segment) = WindowSegment::of(&scaled) {
                slots.push(open.settle(Arc::clone(name), &segment, spans, &mut self.flags));
            }
        }
        SettledSegment { slots, free: parts.into_iter().collect() }
    }

    /// The GPU's time by slot, and by remainder for what is no slot: where nobody looked at the GPU, or it is lost, nothing
    /// else is known of that.
    fn divide(&mut self, time: u64, layout: &MigLayout, state: SlotState) -> BTreeMap<HolderId, u64> {
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
            slots.chain(free).map(|(name, size)| (name, Quota::of(time, size, layout.total))).collect();
        self.root.retain(|name, _| BTreeMap::contains_key(&quotas, name));
        apportion(time, &quotas, &mut self.root)
    }
}

impl OpenSlot<'_> {
    /// The spans in slot time. How much of it was busy is split with a carry, so that nothing is lost to rounding.
    fn scale(&mut self, spans: &[Span], slot_time: u64) -> Vec<Span> {
        let whole: u64 = spans.iter().map(|span| span.length().0).sum();
        let busy: u64 = spans.iter().map(|span| span.busy).sum();
        let [is_busy, is_free] = ["busy", "free"].map(HolderId::new);
        let quotas = BTreeMap::from([
            (is_busy.clone(), Quota::of(slot_time, busy, whole)),
            (is_free, Quota::of(slot_time, whole - busy, whole)),
        ]);
        let slot_busy = apportion(slot_time, &quotas, &mut self.carries.busy).remove(&is_busy).unwrap_or(0);
        let mut before = (0, 0);
        let mut cut = |span: &Span| {
            let after = (before.0 + span.length().0, before.1 + span.busy);
            let part = |total, part: u64, whole| Quota::of(total, part, whole).floor();
            let at = |time| Utc(part(slot_time, time, whole));
            let length = (at(before.0), at(after.0));
            let busy = part(slot_busy, after.1, busy) - part(slot_busy, before.1, busy);
            before = after;
            Span { from: length.0, to: length.1, busy, ..span.clone() }
        };
        spans.iter().map(&mut cut).collect()
    }
}

impl SettledSlot<'_> {
    fn account(self) -> SlotSettlement {
        let Self { state, time, busy, held, used, settled: mut paid, .. } = self;
        let drawn = paid.parts.get(&held.remainder).map_or(0, |rest| rest.lent);
        paid.parts.remove(&held.remainder);
        let grade = used.values().map(|used| used.grade).max().unwrap_or_default();
        let share = |user: HolderId, used: Use| {
            let within = paid.within.get(&user).cloned().unwrap_or_default();
            (user, UserShare { used, within })
        };
        let shares = std::mem::take(&mut paid.uses).into_iter().filter(|(_, used)| used.total() > 0);
        let used = shares.map(|(user, used)| share(user, used)).collect();
        SlotSettlement {
            time,
            state,
            remainder: held.remainder,
            unheld: held.rest,
            drawn,
            busy,
            grade,
            gross: held.gross,
            parts: paid.parts,
            used,
        }
    }
}

fn by_slot(energy: BTreeMap<HolderId, u64>) -> SlotEnergy {
    let mut by_slot = SlotEnergy::new();
    for (id, energy) in energy {
        let (slot, holder) = super::energy::slot_and_holder(&id);
        by_slot.entry(slot.into()).or_default().insert(holder, energy);
    }
    by_slot
}
