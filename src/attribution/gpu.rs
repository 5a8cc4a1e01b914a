//! Settles one segment of a GPU with all its slots: the root split among instances, each slot, and one energy pool.
//!
//! In go the layout, the spans of each slot and the carries; out comes each slot's account in full and, for each user,
//! how much of the use lies within each holding. A slot's time is its weight x the GPU's: its spans are scaled to that before they are
//! settled like those of a whole GPU. Between two epochs there is no slot and all time is unavailable.

use std::collections::BTreeMap;

use super::Unsettled;
use super::apportion::apportion;
use super::carries::{Carries, Owed};
use super::check::check;
use super::energy::OfSlots;
use super::ladder::Ladder;
use super::quota::Quota;
use super::rows::Rows;
use super::segment::segments;
use super::settle::{Settled, Window};
use crate::model::{Carry, Grade, HolderId, Microjoules, Parts, SlotState, Span, Use, Utc};

/// The carry node of the root split.
const ROOT: &str = "root";

/// Separates slot and holder in the ids of the energy split; no id contains it.
const SEPARATOR: char = '\0';

/// How the slots of a GPU divide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The placements of the whole GPU.
    pub total: u64,
    /// Those of each slot.
    pub slots: BTreeMap<String, u64>,
    /// Those that a profile could still use.
    pub unallocated: u64,
    /// Those that none can.
    pub stranded: u64,
}

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
    pub layout: Option<Layout>,
    /// The spans of each slot of the layout, in the GPU's time and without energy.
    pub slots: BTreeMap<String, Vec<Span>>,
    /// The weights of each slot's window before.
    pub previous: BTreeMap<String, BTreeMap<HolderId, u64>>,
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
    /// The remainder that has the time that nobody held, how much that is, and how much of it was drawn.
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
pub type SlotEnergy = BTreeMap<String, BTreeMap<HolderId, u64>>;

/// The account of a segment.
#[derive(Clone, Debug)]
pub struct GpuSettlement {
    /// The GPU's time by slot and remainder.
    pub root: BTreeMap<String, u64>,
    /// The slots.
    pub slots: BTreeMap<String, SlotSettlement>,
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
/// Spans that do not cover the segment, or that no account can hold.
pub fn settle_gpu(segment: &GpuSegment) -> Result<GpuSettlement, Unsettled> {
    for spans in segment.slots.values() {
        check(segment.from, segment.to, spans)?;
    }
    let mut carry = Carry::new();
    let root = root(segment, &mut carry);
    let mut slots = BTreeMap::new();
    let mut flags = Vec::new();
    let mut energy = OfSlots { held: Vec::new(), active: Vec::new(), memory: Vec::new() };
    for (name, time) in &root {
        match segment.slots.get(name) {
            Some(spans) => {
                let slot = Slot { name, time: *time, segment };
                let settlement = slot.settle(spans, (&mut carry, &mut flags), &mut energy);
                slots.insert(name.clone(), settlement);
            }
            None => energy.held.push((in_slot(ROOT, &HolderId::new(name.as_str())), *time)),
        }
    }
    let energy = segment.energy.map(|of| {
        let split = energy.split(of.delta.0, of.floor.0);
        (by_slot(split.floor), by_slot(split.dynamic))
    });
    Ok(GpuSettlement { root, slots, energy, flags, carry })
}

/// The GPU's time by slot, and by remainder for what is no slot.
fn root(segment: &GpuSegment, carry: &mut Carry) -> BTreeMap<String, u64> {
    let time = segment.to.since(segment.from).0;
    let Some(layout) = &segment.layout else {
        return BTreeMap::from([(HolderId::UNAVAILABLE.to_owned(), time)]);
    };
    let free = [(HolderId::UNALLOCATED, layout.unallocated), (HolderId::STRANDED, layout.stranded)];
    let free = free.into_iter().filter(|(_, size)| *size > 0);
    let sizes = layout.slots.iter().map(|(name, size)| (name.as_str(), *size)).chain(free);
    let quotas =
        sizes.map(|(name, size)| (HolderId::new(name), Quota::of(time, size, layout.total))).collect();
    let mut owed = segment.carry.get(ROOT).cloned().unwrap_or_default();
    owed.retain(|name, _| BTreeMap::contains_key(&quotas, name));
    let parts = apportion(time, &quotas, &mut owed);
    store(carry, ROOT.to_owned(), owed);
    parts.into_iter().map(|(name, time)| (name.as_str().to_owned(), time)).collect()
}

fn store(carry: &mut Carry, node: String, owed: Owed) {
    if !owed.is_empty() {
        carry.insert(node, owed);
    }
}

/// A slot while it is settled.
#[derive(Clone, Copy)]
struct Slot<'a> {
    name: &'a str,
    /// Its slot time.
    time: u64,
    segment: &'a GpuSegment,
}

impl Slot<'_> {
    fn settle(
        self,
        spans: &[Span],
        (carry, flags): (&mut Carry, &mut Vec<String>),
        energy: &mut OfSlots,
    ) -> SlotSettlement {
        let none = BTreeMap::new();
        let previous = self.segment.previous.get(self.name).unwrap_or(&none);
        let spans = self.scaled(spans, carry);
        let mut window = Window {
            slot: self.name,
            ladder: if self.segment.mig {
                Ladder::of_instance(previous)
            } else {
                Ladder::new(&spans, previous)
            },
            carries: Carries::open(self.name, &self.segment.carry),
            rows: Rows::default(),
            flags: Vec::new(),
        };
        // Its state, holdings and source are constant, so it is one segment.
        let settled = segments(&spans).first().map(|segment| window.settle(segment));
        carry.extend(window.carries.close(self.name));
        flags.append(&mut window.flags);
        let state = spans.first().map_or(SlotState::Unobserved, |span| span.state);
        let busy = if state == SlotState::Measured { spans.iter().map(|span| span.busy).sum() } else { 0 };
        let settlement =
            settled.map_or_else(|| self.empty(), |settled| self.settlement(settled, state, busy));
        self.add_energy(&settlement, &spans, energy);
        settlement
    }

    /// The spans in slot time. How much of it was busy is split with a carry, so that nothing is lost to rounding.
    fn scaled(self, spans: &[Span], carry: &mut Carry) -> Vec<Span> {
        let whole = self.segment.to.since(self.segment.from).0;
        let busy: u64 = spans.iter().map(|span| span.busy).sum();
        let node = format!("{}/busy", self.name);
        let mut owed = self.segment.carry.get(&node).cloned().unwrap_or_default();
        let [is_busy, is_free] = ["busy", "free"].map(HolderId::new);
        let quotas = BTreeMap::from([
            (is_busy.clone(), Quota::of(self.time, busy, whole)),
            (is_free, Quota::of(self.time, whole - busy, whole)),
        ]);
        let slot_busy = apportion(self.time, &quotas, &mut owed).remove(&is_busy).unwrap_or(0);
        store(carry, node, owed);
        let mut before = (0, 0);
        let mut cut = |span: &Span| {
            let after = (before.0 + span.length().0, before.1 + span.busy);
            let part = |total, part: u64, whole| Quota::of(total, part, whole).floor();
            let at = |time| Utc(part(self.time, time, whole));
            let length = (at(before.0), at(after.0));
            let busy = part(slot_busy, after.1, busy) - part(slot_busy, before.1, busy);
            before = after;
            Span { from: length.0, to: length.1, busy, ..span.clone() }
        };
        spans.iter().map(&mut cut).collect()
    }

    fn settlement(self, settled: Settled, state: SlotState, busy: u64) -> SlotSettlement {
        let Settled { held, used, mut paid } = settled;
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
            time: self.time,
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

    /// A slot without spans, which no segment has.
    fn empty(self) -> SlotSettlement {
        SlotSettlement {
            time: self.time,
            state: SlotState::Unobserved,
            remainder: HolderId::new(HolderId::UNOBSERVED),
            unheld: self.time,
            drawn: 0,
            busy: 0,
            grade: Grade::default(),
            gross: BTreeMap::new(),
            parts: BTreeMap::new(),
            used: BTreeMap::new(),
        }
    }

    fn add_energy(self, settlement: &SlotSettlement, spans: &[Span], energy: &mut OfSlots) {
        let held: Vec<(HolderId, u64)> = settlement
            .parts
            .iter()
            .map(|(holder, parts)| (in_slot(self.name, holder), parts.held()))
            .collect();
        match settlement.state {
            SlotState::Measured => energy.active.extend(
                settlement.used.iter().map(|(user, share)| (in_slot(self.name, user), share.used.total())),
            ),
            _ => energy.active.extend(held.iter().cloned()),
        }
        energy.held.extend(held);
        energy.held.push((in_slot(self.name, &settlement.remainder), settlement.unheld));
        for span in spans {
            energy.memory.extend(span.present.iter().map(|(user, presence)| {
                let memory = u128::from(presence.memory.unwrap_or(0)).saturating_mul(span.length().0.into());
                (in_slot(self.name, user), memory)
            }));
        }
    }
}

fn in_slot(slot: &str, holder: &HolderId) -> HolderId {
    HolderId::new(format!("{slot}{SEPARATOR}{holder}"))
}

fn by_slot(energy: BTreeMap<HolderId, u64>) -> SlotEnergy {
    let mut by_slot = SlotEnergy::new();
    for (id, energy) in energy {
        let Some((slot, holder)) = id.as_str().split_once(SEPARATOR) else { continue };
        by_slot.entry(slot.to_owned()).or_default().insert(HolderId::new(holder), energy);
    }
    by_slot
}
