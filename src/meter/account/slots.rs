//! The slots of a GPU in its account: how it is divided, and who holds what of each.
//!
//! A GPU is one slot, or, with MIG, one for each GPU instance. It knows no time.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attribution::granted_shares;
use crate::catalogue::{PointId, first_point};
use crate::holders::{GrantedSlot, SessionGpu, holdings};
use crate::meter::Policy;
use crate::meter::integrate::{HolderList, PresentBySlot};
use crate::model::{
    ActivitySource, Fraction, Frame, HolderId, Holding, InstanceSpan, MigLayout, MigSlot, MigSpan,
    Nanoseconds, SlotState, Span,
};

const MEMORY_TOTAL: PointId = first_point("gpu_memory_total_bytes");

/// Into how many equal parts of memory a GPU counts as divided whose driver tells no placements.
const PARTS: u64 = 8;

/// How a GPU is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Division {
    /// No frame has told yet.
    #[default]
    Unknown,
    /// One slot.
    Whole,
    /// MIG instances.
    Instances(Arc<MigLayout>),
}

/// Who holds what of one slot.
#[derive(Default)]
struct SlotHoldings {
    holdings: Arc<[Holding]>,
    covered_by: BTreeMap<HolderId, HolderId>,
    /// The holders present and the policy that this was computed from; none where it has to be computed again.
    computed_from: Option<(HolderList, Arc<Policy>)>,
}

/// Who holds what of a GPU, as of the last frame; before the first one, as of the agent's last life.
#[derive(Default)]
pub(super) struct Slots {
    division: Division,
    whole: SlotHoldings,
    instances: BTreeMap<Arc<str>, SlotHoldings>,
}

/// The claims on the slots of a GPU at some moment.
#[derive(Clone, Default)]
pub(super) struct Claims {
    pub(super) division: Division,
    whole: Arc<[Holding]>,
    instances: BTreeMap<Arc<str>, Arc<[Holding]>>,
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
    /// As a frame tells it.
    pub(super) fn of(frame: &Frame) -> Self {
        if frame.identity.mig { Self::Instances(layout(frame).into()) } else { Self::Whole }
    }

    /// As a stored span tells it.
    fn of_span(span: &Span) -> Self {
        match (&span.instances, span.state) {
            (Some(mig), _) => Self::Instances(Arc::clone(&mig.layout)),
            (None, SlotState::Measured | SlotState::Unmeasured) => Self::Whole,
            // A MIG GPU between two epochs looks like that, too.
            (None, SlotState::Unavailable | SlotState::Unobserved) => Self::Unknown,
        }
    }

    /// Whether it is known to be another one.
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
    /// As the ledger's last span left them, with the holdings of a whole GPU at its end.
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

    /// The holdings of a whole GPU.
    pub(super) const fn whole(&self) -> &Arc<[Holding]> {
        &self.whole.holdings
    }

    pub(super) const fn division(&self) -> &Division {
        &self.division
    }

    /// The holdings, each with what it grants and its GPU instance; that is empty for a whole GPU.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (Arc<str>, &Holding, Fraction)> {
        let whole = self.whole.granted().map(|(holding, share)| (Arc::default(), holding, share));
        let instances = self.instances.iter().flat_map(|(slot, held)| {
            held.granted().map(move |(holding, share)| (Arc::clone(slot), holding, share))
        });
        whole.chain(instances)
    }

    /// How many holdings there are.
    pub(super) fn count_holdings(&self) -> usize {
        self.whole.holdings.len() + self.instances.values().map(|held| held.holdings.len()).sum::<usize>()
    }

    /// What is claimed of them.
    pub(super) fn claims(&self) -> Claims {
        let instances =
            self.instances.iter().map(|(slot, held)| (Arc::clone(slot), Arc::clone(&held.holdings)));
        Claims {
            division: self.division.clone(),
            whole: Arc::clone(&self.whole.holdings),
            instances: instances.collect(),
        }
    }

    /// Goes back to earlier claims.
    pub(super) fn restore(&mut self, claims: Claims) {
        self.divide(claims.division);
        (self.whole.holdings, self.whole.computed_from) = (claims.whole, None);
        for (slot, holdings) in claims.instances {
            let held = self.instances.entry(slot).or_default();
            (held.holdings, held.computed_from) = (holdings, None);
        }
    }

    /// The GPU is divided so from now on.
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

    /// Keeps the claims for which that holds.
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

    /// Who holds what while these are there.
    pub(super) fn update_holdings(&mut self, gpu: &SessionGpu, there: &PresentBySlot, policy: &Arc<Policy>) {
        let Division::Instances(layout) = &self.division else {
            self.whole.hold(GrantedSlot::Whole(gpu), &there.whole.holders, policy);
            return;
        };
        for (name, slot) in &layout.slots {
            let who =
                there.instances.get(name).map(|present| Arc::clone(&present.holders)).unwrap_or_default();
            let held = self.instances.entry(Arc::clone(name)).or_default();
            held.hold(GrantedSlot::Instance { gpu, id: name, slot }, &who, policy);
        }
    }

    /// Of a whole GPU, by whose holding users are covered.
    pub(super) const fn covered_by(&self) -> &BTreeMap<HolderId, HolderId> {
        &self.whole.covered_by
    }

    /// A span of the instances of which nothing but the holdings is known; none of a whole GPU.
    pub(super) fn unknown_span(&self, claims: &Claims, state: SlotState) -> Option<Box<MigSpan>> {
        let layout = claims.division.layout()?;
        let blank = |slot: &Arc<str>| InstanceSpan {
            state,
            source: ActivitySource::None,
            holdings: claims.instances.get(slot).cloned().unwrap_or_default(),
            covered_by: self.instances.get(slot).map(|held| held.covered_by.clone()).unwrap_or_default(),
            busy: 0,
            present: BTreeMap::new(),
            blind: false,
        };
        let slots = layout.slots.keys().map(|slot| (Arc::clone(slot), blank(slot))).collect();
        Some(Box::new(MigSpan { layout: Arc::clone(layout), slots }))
    }
}

impl SlotHoldings {
    /// The holdings with what each grants beside those that are nested in it.
    fn granted(&self) -> impl Iterator<Item = (&Holding, Fraction)> {
        let shares = granted_shares(&self.holdings, &self.covered_by);
        self.holdings.iter().enumerate().map(move |(at, holding)| {
            let share = shares.as_ref().and_then(|shares| shares.get(at));
            (holding, share.copied().unwrap_or(holding.fraction))
        })
    }

    fn hold(&mut self, slot: GrantedSlot<'_>, who: &HolderList, policy: &Arc<Policy>) {
        let is_current =
            |(of, by): &(HolderList, Arc<Policy>)| Arc::ptr_eq(of, who) && Arc::ptr_eq(by, policy);
        if self.computed_from.as_ref().is_some_and(is_current) {
            return;
        }
        let (holdings, covered_by) = holdings(slot, policy.granting(), who.iter().map(|holder| &**holder));
        if *self.holdings != *holdings {
            self.holdings = holdings.into();
        }
        self.covered_by = covered_by;
        self.computed_from = Some((Arc::clone(who), Arc::clone(policy)));
    }
}

impl Claims {
    pub(super) const fn whole(&self) -> &Arc<[Holding]> {
        &self.whole
    }

    /// Those that stood before, too.
    pub(super) fn also_of(&self, before: &Self) -> Self {
        let both = |now: &Arc<[Holding]>, before: Option<&Arc<[Holding]>>| {
            let stood = |holding: &&Holding| before.is_some_and(|before| before.contains(holding));
            now.iter().filter(stood).cloned().collect()
        };
        let instances = self
            .instances
            .iter()
            .map(|(slot, now)| (Arc::clone(slot), both(now, before.instances.get(slot))));
        Self {
            division: self.division.clone(),
            whole: both(&self.whole, Some(&before.whole)),
            instances: instances.collect(),
        }
    }

    /// How much of a time they hold; more than all of a slot is in conflict and counts as all.
    pub(super) fn held_of(&self, length: Nanoseconds) -> Nanoseconds {
        let Some(layout) = self.division.layout() else { return held_of(length, &self.whole) };
        let of_slot = |(slot, holdings): (&Arc<str>, &Arc<[Holding]>)| {
            let size = layout.slots.get(slot).map_or(0, |slot| slot.size);
            let time = u128::from(length.0) * u128::from(size) / u128::from(layout.total.max(1));
            held_of(Nanoseconds(u64::try_from(time).unwrap_or(length.0)), holdings).0
        };
        Nanoseconds(self.instances.iter().map(of_slot).sum())
    }
}

/// How much of a slot's time these holdings hold.
fn held_of(length: Nanoseconds, holdings: &[Holding]) -> Nanoseconds {
    let share = |holding: &Holding| {
        let Fraction { numerator, denominator } = holding.fraction;
        u128::from(length.0) * u128::from(numerator) / u128::from(denominator.max(1))
    };
    let held: u128 = holdings.iter().map(share).sum();
    Nanoseconds(u64::try_from(held).unwrap_or(length.0).min(length.0))
}

/// The layout of a MIG GPU: by placements where the driver tells them, else by memory in eighths of the GPU's.
fn layout(frame: &Frame) -> MigLayout {
    let mut slots: BTreeMap<Arc<str>, MigSlot> = BTreeMap::new();
    let gpu_memory = frame.readings.get(MEMORY_TOTAL).copied().and_then(Result::ok);
    let gpu_memory = gpu_memory.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    let slices = frame
        .identity
        .mig_slices
        .filter(|_| frame.instances.iter().all(|instance| instance.identity.slices().is_some()));
    for instance in &*frame.instances {
        let identity = &instance.identity;
        let size = match slices {
            Some(_) => identity.slices().map_or(1, u64::from),
            None => by_memory(identity.memory.0, gpu_memory),
        };
        let name = identity.id.gpu_instance.to_string().into();
        let slot = slots.entry(name).or_insert_with(|| {
            let start = identity.first_slice().map(u64::from);
            MigSlot { size, start, devices: BTreeMap::new() }
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

/// An instance's memory in eighths of the GPU's, of which a part is reserved; at least one.
fn by_memory(memory: u64, gpu_memory: u64) -> u64 {
    let parts = u128::from(memory) * u128::from(2 * PARTS) / u128::from(gpu_memory.max(1));
    u64::try_from(parts.div_ceil(2)).unwrap_or(PARTS).clamp(1, PARTS)
}

/// Which share of its GPU instance a compute instance is, by its profile: `1c.3g.40gb` is a third, `3g.40gb` the whole.
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
    fn the_time_that_holdings_hold_is_theirs_by_fraction_and_never_more_than_all() {
        let holding = |numerator, denominator| Holding {
            holder: HolderId::new("user:alice"),
            fraction: Fraction { numerator, denominator },
            source: HoldingSource::Standing,
            rank: None,
        };
        let length = Nanoseconds(1_000);
        assert_eq!(held_of(length, &[]), Nanoseconds(0));
        assert_eq!(held_of(length, &[holding(1, 4), holding(1, 2)]), Nanoseconds(750));
        assert_eq!(held_of(length, &[holding(1, 1), holding(1, 1)]), length);
    }

    #[test]
    fn a_compute_instance_is_its_part_of_the_gpu_instance() {
        let share = |profile| compute_share(profile).to_string();
        assert_eq!(share("3g.40gb"), "1/1");
        assert_eq!(share("1c.3g.40gb"), "1/3");
        assert_eq!(share("2c.4g.40gb+me"), "2/4");
        for odd in ["", "c.g", "4c.3g.40gb", "0c.3g.40gb"] {
            assert_eq!(share(odd), "1/1", "{odd:?}");
        }
    }

    #[test]
    fn without_placements_an_instance_counts_by_its_memory_in_eighths() {
        const GPU: u64 = 81_559;
        let sizes = [(9_984, 1), (20_096, 2), (40_448, 4), (81_152, 8), (0, 1)];
        for (memory, size) in sizes {
            assert_eq!(by_memory(memory, GPU), size, "{memory} MiB");
        }
        assert_eq!(by_memory(5_952, 24_576), 2, "a quarter of an A30");
        assert_eq!(by_memory(1, 0), 8);
    }
}
