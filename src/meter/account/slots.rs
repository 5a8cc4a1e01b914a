//! The slots of a GPU, one per GPU instance with MIG, otherwise one in all, and who holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::holders::{GrantedSlot, SessionGpu, holdings};
use crate::meter::Policy;
use crate::meter::attribution::{conflicts, granted_shares};
use crate::meter::identify::{HolderList, PresentBySlot};
use crate::meter::unified_memory::total_memory;
use crate::model::{
    ActivitySource, Fraction, Frame, HolderId, Holding, InstanceSpan, MigLayout, MigSlot, MigSpan,
    Nanoseconds, SlotState, Span, TickShares,
};

/// Memory slices of a GPU whose driver does not report placements.
const PARTS: u64 = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Division {
    /// There was no frame yet.
    #[default]
    Unknown,
    Whole,
    Instances(Arc<MigLayout>),
}

#[derive(Clone, Default)]
pub(super) struct SlotHoldings {
    pub(super) holdings: Arc<[Holding]>,
    /// The users who are present, with the holder whose holding covers them.
    pub(super) covered_by: BTreeMap<HolderId, HolderId>,
    /// Holders of claims of one rank that do not fit together.
    conflicts: Vec<HolderId>,
    /// The present holders and the policy that these were computed from; none if they must be computed again.
    computed_from: Option<(HolderList, Arc<Policy>)>,
}

/// Who holds what of a GPU, as of the last frame; before the first frame, as of the last run of the agent.
#[derive(Clone, Default)]
pub(in crate::meter) struct Slots {
    pub(super) division: Division,
    pub(super) whole: SlotHoldings,
    instances: BTreeMap<Arc<str>, SlotHoldings>,
}

pub(in crate::meter) struct GrantedHolding<'a> {
    /// GPU instance id; empty for a whole GPU.
    pub(in crate::meter) gpu_instance: Arc<str>,
    pub(in crate::meter) holding: &'a Holding,
    /// What it grants without the holdings that are nested in it.
    pub(in crate::meter) granted: Fraction,
}

impl std::fmt::Display for Division {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Whole => f.write_str("whole"),
            Self::Instances(layout) => {
                let slots =
                    layout.slots.iter().map(|(id, slot)| format!("{id} ({}/{})", slot.size, layout.total));
                write!(f, "GPU instances {}", slots.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl Division {
    pub(super) fn of_frame(frame: &Frame) -> Self {
        if frame.identity.mig { Self::Instances(layout(frame).into()) } else { Self::Whole }
    }

    fn of_span(span: &Span) -> Self {
        match (&span.instances, span.state) {
            (Some(mig), _) => Self::Instances(Arc::clone(&mig.layout)),
            (None, SlotState::Measured | SlotState::Unmeasured) => Self::Whole,
            // A span of a MIG GPU between two layouts has no instances either.
            (None, SlotState::Unavailable | SlotState::Unobserved) => Self::Unknown,
        }
    }

    /// Whether both are known and differ.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Instances(one), Self::Instances(other)) => !one.is_divided_like(other),
            (Self::Unknown, _) | (_, Self::Unknown) => false,
            (one, other) => one != other,
        }
    }

    pub(super) const fn layout(&self) -> Option<&Arc<MigLayout>> {
        match self {
            Self::Instances(layout) => Some(layout),
            Self::Unknown | Self::Whole => None,
        }
    }
}

impl Slots {
    /// The slots at the end of the ledger's last span; `holdings` are those of a whole GPU then.
    pub(super) fn recover(last: Option<&Span>, holdings: Arc<[Holding]>) -> Self {
        let division = last.map_or(Division::Unknown, Division::of_span);
        let mig = last.and_then(|span| span.instances.as_ref());
        let instances = mig.into_iter().flat_map(|mig| &mig.slots).map(|(slot, span)| {
            let holdings = Arc::clone(&span.holdings);
            (Arc::clone(slot), SlotHoldings { holdings, ..SlotHoldings::default() })
        });
        Self {
            division,
            whole: SlotHoldings { holdings, ..SlotHoldings::default() },
            instances: instances.collect(),
        }
    }

    pub(in crate::meter) const fn layout(&self) -> Option<&Arc<MigLayout>> {
        self.division.layout()
    }

    pub(in crate::meter) fn holdings(&self) -> impl Iterator<Item = GrantedHolding<'_>> {
        let instances = self.instances.iter().flat_map(|(slot, held)| held.granted(Arc::clone(slot)));
        self.whole.granted(Arc::default()).chain(instances)
    }

    pub(in crate::meter) fn conflicts(&self) -> Vec<HolderId> {
        let slots = std::iter::once(&self.whole).chain(self.instances.values());
        slots.flat_map(|held| held.conflicts.iter().cloned()).collect()
    }

    pub(in crate::meter) fn count_holdings(&self) -> usize {
        self.whole.holdings.len() + self.instances.values().map(|held| held.holdings.len()).sum::<usize>()
    }

    /// Sets the division; another one ends all holdings.
    pub(super) fn divide(&mut self, division: Division) {
        if self.division == division {
            return;
        }
        match &division {
            Division::Instances(layout) => {
                self.whole = SlotHoldings::default();
                self.instances =
                    layout.slots.keys().map(|slot| (Arc::clone(slot), SlotHoldings::default())).collect();
            }
            Division::Unknown | Division::Whole => self.instances.clear(),
        }
        self.division = division;
    }

    pub(super) fn retain(&mut self, stays: impl Fn(Option<(&str, &MigSlot)>, &Holding) -> bool) {
        let layout = self.division.layout();
        let of_instances = self.instances.iter_mut().map(|(id, held)| {
            let slot = layout.and_then(|layout| layout.slots.get(id));
            (slot.map(|slot| (&**id, slot)), held)
        });
        for (slot, held) in std::iter::once((None, &mut self.whole)).chain(of_instances) {
            if !held.holdings.iter().all(|holding| stays(slot, holding)) {
                held.holdings =
                    held.holdings.iter().filter(|holding| stays(slot, holding)).cloned().collect();
            }
            held.computed_from = None;
        }
    }

    pub(super) fn update_holdings(
        &mut self,
        gpu: &SessionGpu,
        present: &PresentBySlot,
        policy: &Arc<Policy>,
    ) {
        let Division::Instances(layout) = &self.division else {
            self.whole.update(GrantedSlot::Whole(gpu), &present.whole.holders, policy);
            return;
        };
        for (name, slot) in &layout.slots {
            let holders = present.instances.get(name).map(|slot| Arc::clone(&slot.holders));
            let held = self.instances.entry(Arc::clone(name)).or_default();
            held.update(GrantedSlot::Instance { gpu, id: name, slot }, &holders.unwrap_or_default(), policy);
        }
    }

    /// Spans of the instances with nothing but what is `held`; none on a GPU without MIG.
    pub(super) fn unknown_span(&self, held: &Self, state: SlotState) -> Option<Box<MigSpan>> {
        let layout = held.division.layout()?;
        let blank = |slot: &Arc<str>| InstanceSpan {
            state,
            source: ActivitySource::None,
            holdings: held.instances.get(slot).map(|held| Arc::clone(&held.holdings)).unwrap_or_default(),
            covered_by: self.instances.get(slot).map(|held| held.covered_by.clone()).unwrap_or_default(),
            busy: 0,
            shares: TickShares::default(),
            present: BTreeMap::new(),
            blind: false,
        };
        let slots = layout.slots.keys().map(|slot| (Arc::clone(slot), blank(slot))).collect();
        Some(Box::new(MigSpan { layout: Arc::clone(layout), slots }))
    }

    /// The holdings that are in both, of the version of the holder that was known before; of two shares the smaller one.
    pub(super) fn intersect(&self, before: &Self) -> Self {
        let none = SlotHoldings::default();
        let both = |now: &SlotHoldings, before: &SlotHoldings| {
            let held = now.holdings.iter().filter_map(|now| {
                let is_same = |before: &&Holding| {
                    (before.holder.name(), before.source) == (now.holder.name(), now.source)
                };
                let before = before.holdings.iter().find(is_same)?;
                Some(Holding { fraction: now.fraction.smaller(before.fraction), ..before.clone() })
            });
            SlotHoldings { holdings: held.collect(), ..SlotHoldings::default() }
        };
        let instances = self
            .instances
            .iter()
            .map(|(slot, now)| (Arc::clone(slot), both(now, before.instances.get(slot).unwrap_or(&none))));
        Self {
            division: self.division.clone(),
            whole: both(&self.whole, &before.whole),
            instances: instances.collect(),
        }
    }

    /// How much of a time is held; where holdings exceed a slot, they conflict and count as the whole slot.
    pub(super) fn held_time(&self, length: Nanoseconds) -> Nanoseconds {
        let Some(layout) = self.division.layout() else {
            return held_slot_time(length, &self.whole.holdings);
        };
        let of_slot = |(slot, held): (&Arc<str>, &SlotHoldings)| {
            let size = layout.slots.get(slot).map_or(0, |slot| slot.size);
            let time = u128::from(length.0) * u128::from(size) / u128::from(layout.total.max(1));
            held_slot_time(Nanoseconds(u64::try_from(time).unwrap_or(length.0)), &held.holdings).0
        };
        Nanoseconds(self.instances.iter().map(of_slot).sum())
    }
}

impl SlotHoldings {
    fn granted(&self, gpu_instance: Arc<str>) -> impl Iterator<Item = GrantedHolding<'_>> {
        let shares = granted_shares(&self.holdings, &self.covered_by);
        self.holdings.iter().enumerate().map(move |(at, holding)| {
            let share = shares.as_ref().and_then(|shares| shares.get(at));
            let granted = share.copied().unwrap_or(holding.fraction);
            GrantedHolding { gpu_instance: Arc::clone(&gpu_instance), holding, granted }
        })
    }

    fn update(&mut self, slot: GrantedSlot<'_>, present: &HolderList, policy: &Arc<Policy>) {
        let is_current = |(holders, known): &(HolderList, Arc<Policy>)| {
            Arc::ptr_eq(holders, present) && Arc::ptr_eq(known, policy)
        };
        if self.computed_from.as_ref().is_some_and(is_current) {
            return;
        }
        let present_holders = present.iter().map(|holder| &**holder);
        let (holdings, covered_by) = holdings(slot, policy.granting(), present_holders);
        if *self.holdings != *holdings {
            self.holdings = holdings.into();
        }
        self.conflicts = conflicts(&self.holdings, &covered_by);
        self.covered_by = covered_by;
        self.computed_from = Some((Arc::clone(present), Arc::clone(policy)));
    }
}

fn held_slot_time(length: Nanoseconds, holdings: &[Holding]) -> Nanoseconds {
    let share = |holding: &Holding| {
        let Fraction { numerator, denominator } = holding.fraction;
        u128::from(length.0) * u128::from(numerator) / u128::from(denominator.max(1))
    };
    let held: u128 = holdings.iter().map(share).sum();
    Nanoseconds(u64::try_from(held).unwrap_or(length.0).min(length.0))
}

/// The layout of a MIG GPU, by placements where the driver reports them, else by the instances' memory.
fn layout(frame: &Frame) -> MigLayout {
    let mut slots: BTreeMap<Arc<str>, MigSlot> = BTreeMap::new();
    let gpu_memory = total_memory(frame).map_or(0, |memory| memory.0);
    let slices = frame
        .identity
        .mig_slices
        .filter(|_| frame.instances.iter().all(|instance| instance.identity.slices().is_some()));
    for instance in &*frame.instances {
        let identity = &instance.identity;
        let size = match slices {
            Some(_) => identity.slices().map_or(1, u64::from),
            None => slices_by_memory(identity.memory.0, gpu_memory),
        };
        let name = identity.id.gpu_instance.to_string().into();
        let slot = slots.entry(name).or_insert_with(|| {
            let start = identity.first_slice().map(u64::from);
            MigSlot {
                profile: gpu_instance_profile(&identity.profile).into(),
                size,
                start,
                devices: BTreeMap::new(),
            }
        });
        slot.devices.insert(Arc::clone(&identity.uuid), compute_share(&identity.profile));
    }
    let taken: u64 = slots.values().map(|slot| slot.size).sum();
    match slices {
        Some(slices) if taken + u64::from(slices.free + slices.stranded) == u64::from(slices.total) => {
            MigLayout {
                total: slices.total.into(),
                slots,
                unallocated: slices.free.into(),
                stranded: Some(slices.stranded.into()),
            }
        }
        _ => {
            let total = slices.map_or(PARTS, |slices| slices.total.into()).max(taken);
            MigLayout { total, slots, unallocated: total - taken, stranded: None }
        }
    }
}

/// An instance's memory in eighths of the GPU's, at least one. Instances have less than their eighths, since a part is
/// reserved.
fn slices_by_memory(memory: u64, gpu_memory: u64) -> u64 {
    let parts = u128::from(memory) * u128::from(2 * PARTS) / u128::from(gpu_memory.max(1));
    u64::try_from(parts.div_ceil(2)).unwrap_or(PARTS).clamp(1, PARTS)
}

/// The profile of the GPU instance of a compute instance: `3g.40gb` of `1c.3g.40gb`.
fn gpu_instance_profile(profile: &str) -> &str {
    match profile.split_once('.') {
        Some((slices, whole)) if slices.ends_with('c') => whole,
        _ => profile,
    }
}

/// The share of a compute instance in its GPU instance, by its profile: `1c.3g.40gb` is a third, `3g.40gb` the whole.
fn compute_share(profile: &str) -> Fraction {
    let number = |part: Option<&str>, unit: char| part?.strip_suffix(unit)?.parse::<u32>().ok();
    let mut parts = profile.split('.');
    match (number(parts.next(), 'c'), number(parts.next(), 'g')) {
        (Some(numerator), Some(denominator)) if (1..=denominator).contains(&numerator) => {
            Fraction { numerator, denominator }
        }
        _ => Fraction::WHOLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HoldingSource;

    #[test]
    fn held_time_is_the_sum_of_the_fractions_and_at_most_the_whole() {
        let holding = |numerator, denominator| Holding {
            holder: HolderId::new("user:alice"),
            fraction: Fraction { numerator, denominator },
            source: HoldingSource::Standing,
            rank: None,
        };
        let length = Nanoseconds(1_000);
        assert_eq!(held_slot_time(length, &[]), Nanoseconds(0));
        assert_eq!(held_slot_time(length, &[holding(1, 4), holding(1, 2)]), Nanoseconds(750));
        assert_eq!(held_slot_time(length, &[holding(1, 1), holding(1, 1)]), length);
    }

    #[test]
    fn a_compute_instance_has_the_share_of_its_profile() {
        let share = |profile| compute_share(profile).to_string();
        assert_eq!(share("3g.40gb"), "1/1");
        assert_eq!(share("1c.3g.40gb"), "1/3");
        assert_eq!(share("2c.4g.40gb+me"), "2/4");
        for odd in ["", "c.g", "4c.3g.40gb", "0c.3g.40gb"] {
            assert_eq!(share(odd), "1/1", "{odd:?}");
        }
    }

    #[test]
    fn without_placements_the_size_of_an_instance_is_its_memory_in_eighths() {
        const GPU: u64 = 81_559;
        let sizes = [(9_984, 1), (20_096, 2), (40_448, 4), (81_152, 8), (0, 1)];
        for (memory, size) in sizes {
            assert_eq!(slices_by_memory(memory, GPU), size, "{memory} MiB");
        }
        assert_eq!(slices_by_memory(5_952, 24_576), 2, "a quarter of an A30");
        assert_eq!(slices_by_memory(1, 0), 8);
    }
}
