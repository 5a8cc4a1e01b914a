//! The holdings of one slot now, and the users that each covers besides its own holder.
//!
//! The order of the holders present has no effect. The caller begins a new segment when the result changes.

use std::collections::{BTreeMap, BTreeSet};

use super::resolved_workloads::Allocation;
use super::standing::{GrantedSlot, grants_on, standing_cover, standing_holdings, sum};
use crate::model::{Fraction, Holder, HolderId, Holding, HoldingSource, StandingGrant};

#[derive(Clone, Copy, Debug)]
pub struct Granting<'a> {
    /// Allocations of schedulers on any GPU. All have one rank, before the standing grants.
    pub allocations: &'a [Allocation],
    /// The configured standing grants, in the order of their rank.
    pub standing: &'a [StandingGrant],
    /// Whether the holders present on a GPU without other grants hold equal shares of it (`attribution.presence`).
    pub presence: bool,
}

/// The holdings of a slot, and which holding covers each holder that is present.
pub fn holdings<'a, 's>(
    slot: impl Into<GrantedSlot<'s>>,
    granting: Granting<'_>,
    present: impl IntoIterator<Item = &'a Holder>,
) -> (Vec<Holding>, BTreeMap<HolderId, HolderId>) {
    let slot = slot.into();
    let grants = grants_on(slot.gpu(), granting.standing);
    let allocated = allocated(slot, granting.allocations);
    let present = present.into_iter();
    if grants.is_empty() && allocated.is_empty() {
        let held = if granting.presence { share_equally(present) } else { Vec::new() };
        return (held, BTreeMap::new());
    }
    let mut covered_by: BTreeMap<HolderId, HolderId> = BTreeMap::new();
    let mut cover = |holder: &Holder| {
        let is_allocated = allocated.contains_key(&holder.id);
        // A process may have another version of its holder for a moment.
        let is_version = |outer: &HolderId| !is_allocated && outer.name() == holder.id.name();
        let outer = allocated.keys().filter(|outer| holder.id.is_within(outer) || is_version(outer));
        let innermost = outer.max_by_key(|outer| outer.name().len());
        // An init container or sidecar uses the devices of its pod.
        let in_pod = || allocated.keys().find(|other| holder.id.is_in_pod_of(other));
        // A job is within the pod in which it runs, also where it uses a GPU of the pod that is none of its own.
        let in_node = || {
            let is_job = |one: &&Allocation| {
                one.holder.id.name() == holder.id.name() || holder.id.is_within(&one.holder.id)
            };
            let mut pods = granting.allocations.iter().filter(is_job).filter_map(|one| one.within.as_ref());
            pods.find_map(|pod| allocated.keys().find(|other| other.name() == pod.name()))
        };
        let inside =
            innermost.or_else(|| if is_allocated { None } else { in_pod() }).or_else(in_node).cloned();
        let Some(cover) = inside.or_else(|| standing_cover(&grants, holder)) else { return };
        covered_by
            .entry(holder.id.clone())
            // One holder may be present with two sets of facts; the larger id wins, so that their order has no effect.
            .and_modify(|known| *known = known.clone().max(cover.clone()))
            .or_insert(cover);
    };
    present.filter(|holder| !allocated.contains_key(&holder.id)).for_each(&mut cover);
    // A holding whose holder is covered by another one is nested in that.
    let holders = granting.allocations.iter().map(|one| &one.holder);
    holders.filter(|holder| allocated.contains_key(&holder.id)).for_each(&mut cover);
    let ranks_before = u32::from(!allocated.is_empty());
    let mut held = standing_holdings(&grants);
    held.retain(|held| !allocated.contains_key(&held.holder));
    for held in &mut held {
        held.rank = held.rank.map(|rank| rank.saturating_add(ranks_before));
    }
    held.extend(allocated.into_values());
    held.sort_by(|one, other| one.holder.cmp(&other.holder));
    (held, covered_by)
}

/// One holding per holder present, by holder; the GPU system and other remainders hold nothing.
fn share_equally<'a>(present: impl Iterator<Item = &'a Holder>) -> Vec<Holding> {
    let present: BTreeSet<&HolderId> =
        present.map(|holder| &holder.id).filter(|id| !id.is_remainder()).collect();
    // A GPU never has more holders than fit in 32 bits.
    let denominator = u32::try_from(present.len()).unwrap_or(u32::MAX);
    let (fraction, source) = (Fraction { numerator: 1, denominator }, HoldingSource::Presence);
    let ranked = (0..).zip(present);
    ranked.map(|(rank, id)| Holding { holder: id.clone(), fraction, source, rank: Some(rank) }).collect()
}

fn allocated(slot: GrantedSlot<'_>, allocations: &[Allocation]) -> BTreeMap<HolderId, Holding> {
    let mut held: BTreeMap<HolderId, Holding> = BTreeMap::new();
    for one in allocations {
        let Some(fraction) = one.share_of(slot) else { continue };
        let holder = one.holder.id.clone();
        let holding = Holding { holder: holder.clone(), fraction, source: one.source, rank: Some(0) };
        held.entry(holder)
            .and_modify(|known| known.fraction = sum(known.fraction, fraction))
            .or_insert(holding);
    }
    held
}
