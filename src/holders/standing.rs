//! Standing grants: holdings that the operator configures for condo nodes, reservations and pools.
//!
//! Holdings are ranked here; conflicts between them are resolved at attribution.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resolved_workloads::AllocatedDevice;
use crate::model::{
    Fact, Fraction, GpuId, GpuSelector, Holder, HolderId, Holding, HoldingSource, MigSlot, Selector,
    StandingGrant,
};

/// A GPU as grants select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionGpu {
    /// The driver's index in the current driver session; none for a GPU that has no index in it.
    pub index: Option<u32>,
    /// The UUID as the driver prints it.
    pub uuid: Arc<str>,
}

#[derive(Clone, Copy, Debug)]
pub enum GrantedSlot<'a> {
    Whole(&'a SessionGpu),
    Instance {
        gpu: &'a SessionGpu,
        /// Id of the GPU instance.
        id: &'a str,
        slot: &'a MigSlot,
    },
}

impl<'a> GrantedSlot<'a> {
    pub const fn gpu(self) -> &'a SessionGpu {
        match self {
            Self::Whole(gpu) | Self::Instance { gpu, .. } => gpu,
        }
    }

    /// The share of the slot that a device has; none where it is not on the slot. A share of a GPU is the same share of
    /// each of its instances.
    pub(super) fn share_of(self, device: &AllocatedDevice) -> Option<Fraction> {
        match (self, device) {
            (_, AllocatedDevice::Uuid(uuid)) if *uuid == self.gpu().uuid => Some(Fraction::WHOLE),
            (Self::Instance { slot, .. }, AllocatedDevice::Uuid(uuid)) => slot.devices.get(uuid).copied(),
            (Self::Instance { gpu, id, .. }, AllocatedDevice::Instance { gpu: parent, id: own }) => {
                (*parent == gpu.uuid && id.parse() == Ok(*own)).then_some(Fraction::WHOLE)
            }
            (Self::Instance { gpu, slot, .. }, AllocatedDevice::Slices { gpu: parent, start, size }) => {
                let is_at = slot.start == Some((*start).into())
                    && size.is_none_or(|size| slot.size == u64::from(size));
                (*parent == gpu.uuid && is_at).then_some(Fraction::WHOLE)
            }
            (Self::Whole(_), _) => None,
        }
    }
}

impl<'a> From<&'a SessionGpu> for GrantedSlot<'a> {
    fn from(gpu: &'a SessionGpu) -> Self {
        Self::Whole(gpu)
    }
}

impl From<&GpuId> for SessionGpu {
    fn from(gpu: &GpuId) -> Self {
        Self { index: Some(gpu.index), uuid: Arc::clone(&gpu.uuid) }
    }
}

impl GpuSelector {
    fn selects(&self, gpu: &SessionGpu) -> bool {
        match self {
            Self::All => true,
            Self::Index(index) => gpu.index == Some(*index),
            Self::Uuid(uuid) => **uuid == *gpu.uuid,
        }
    }
}

impl Selector {
    pub fn holder(&self) -> Holder {
        match self {
            Self::User(name) => Holder::user(name, None),
            Self::Uid { uid, name } => Holder::user(name, Some(*uid)),
            Self::Unit(name) => Holder::unit(name, None, None),
            Self::Group { name, .. } => Holder::group(name),
            Self::Namespace(name) | Self::Team { name, .. } => Holder::team(name),
        }
    }

    fn covers(&self, holder: &Holder) -> bool {
        match self {
            Self::Uid { uid, .. } => holder.facts.uid == Some(*uid),
            Self::User(name) => owner(holder).is_some_and(|user| *user == **name),
            Self::Unit(name) => [Fact::Unit, Fact::UnitTemplate]
                .iter()
                .any(|fact| holder.facts.get(*fact).is_some_and(|unit| **unit == **name)),
            Self::Namespace(name) => {
                holder.facts.get(Fact::Namespace).is_some_and(|namespace| **namespace == **name)
            }
            Self::Group { members, .. } => holder.facts.uid.is_some_and(|uid| members.contains(&uid)),
            Self::Team { users, uids, .. } => {
                owner(holder).is_some_and(|user| users.contains(user))
                    || holder.facts.uid.is_some_and(|uid| uids.contains(&uid))
            }
        }
    }

    /// Whether it covers several users, so that a grant to one of them goes before it.
    const fn is_for_several(&self) -> bool {
        matches!(self, Self::Group { .. } | Self::Namespace(_) | Self::Team { .. })
    }

    /// Whether both have the same configuration, whatever the name service returned for either.
    fn is_configured_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Group { name, .. }, Self::Group { name: others, .. }) => name == others,
            _ => self == other,
        }
    }
}

/// The name of the Unix user of a holder, where it is known.
fn owner(holder: &Holder) -> Option<&str> {
    let facts = [Fact::User, Fact::SlurmUser].into_iter().filter_map(|fact| holder.facts.get(fact));
    facts.map(|user| &**user).next()
}

/// Whether two lists of grants have the same configuration, whatever the members of groups.
pub fn are_configured_alike(one: &[StandingGrant], other: &[StandingGrant]) -> bool {
    let alike = |(one, other): (&StandingGrant, &StandingGrant)| {
        (&one.id, &one.gpus, one.fraction) == (&other.id, &other.gpus, other.fraction)
            && one.selector.is_configured_as(&other.selector)
    };
    one.len() == other.len() && one.iter().zip(other).all(alike)
}

impl StandingGrant {
    pub fn holder_id(&self) -> HolderId {
        self.selector.holder().id.with_version(self.version)
    }

    pub fn selects(&self, gpu: &SessionGpu) -> bool {
        self.gpus.iter().any(|selector| selector.selects(gpu))
    }

    /// Whether both have the same id and holder, whatever the name service returned for the holder.
    pub fn has_id_and_holder_of(&self, other: &Self) -> bool {
        let one_holder = match (&self.selector, &other.selector) {
            (Selector::Uid { uid, .. }, Selector::Uid { uid: others, .. }) => uid == others,
            (one, other) => one.is_configured_as(other),
        };
        self.id == other.id && one_holder
    }

    pub fn unmatched<'a>(&self, gpus: impl Iterator<Item = &'a SessionGpu> + Clone) -> Vec<GpuSelector> {
        let is_there = |selector: &&GpuSelector| gpus.clone().any(|gpu| selector.selects(gpu));
        self.gpus.iter().filter(|selector| !is_there(selector)).cloned().collect()
    }
}

/// Formats selectors: `GPU 0, GPU 1`.
pub fn in_words(gpus: &[GpuSelector]) -> String {
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The standing grants on one GPU, each with its rank: its position in the configuration.
pub(super) fn grants_on<'a>(
    gpu: &SessionGpu,
    standing: &'a [StandingGrant],
) -> Vec<(u32, &'a StandingGrant)> {
    (0..).zip(standing).filter(|(_, grant)| grant.selects(gpu)).collect()
}

/// One holding per holder, by holder. Several grants to one holder are summed, with the rank of the first.
pub(super) fn standing_holdings(grants: &[(u32, &StandingGrant)]) -> Vec<Holding> {
    let mut holdings: BTreeMap<HolderId, Holding> = BTreeMap::new();
    for (rank, grant) in grants {
        let holder = grant.holder_id();
        let source = HoldingSource::Standing;
        let fraction = grant.fraction;
        holdings
            .entry(holder.clone())
            .and_modify(|holding| holding.fraction = sum(holding.fraction, fraction))
            .or_insert(Holding { holder, fraction, source, rank: Some(*rank) });
    }
    holdings.into_values().collect()
}

/// The holder whose standing holding covers another holder. A grant to a user or unit precedes one to a group or team;
/// then the last grant counts, then the larger id. Holders with a grant of their own here, and remainders, are not
/// covered; an older version of such a holder is covered by that grant.
pub(super) fn standing_cover(grants: &[(u32, &StandingGrant)], holder: &Holder) -> Option<HolderId> {
    if holder.id.is_remainder() {
        return None;
    }
    let own = grants.iter().map(|(_, grant)| grant.holder_id()).find(|id| id.name() == holder.id.name());
    if own.is_some() {
        return own.filter(|own| *own != holder.id);
    }
    let covering = grants.iter().filter(|(_, grant)| grant.selector.covers(holder));
    let latest =
        covering.max_by_key(|(rank, grant)| (!grant.selector.is_for_several(), *rank, grant.holder_id()))?;
    Some(latest.1.holder_id())
}

/// The sum of two fractions, at most the whole; rounded down where 32 bits are too few.
pub(super) fn sum(left: Fraction, right: Fraction) -> Fraction {
    let [a, b, c, d] = [left.numerator, left.denominator, right.numerator, right.denominator].map(u128::from);
    Fraction::reduced(a * d + c * b, b * d)
}

/// The product of two fractions; rounded down where 32 bits are too few.
pub(super) fn product(left: Fraction, right: Fraction) -> Fraction {
    let [a, b, c, d] = [left.numerator, left.denominator, right.numerator, right.denominator].map(u128::from);
    Fraction::reduced(a * c, b * d)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn of(numerator: u32, denominator: u32) -> Fraction {
        Fraction { numerator, denominator }
    }

    #[test]
    fn fractions_add_up_exactly_and_never_above_the_whole() {
        assert_eq!(sum(of(1, 4), of(1, 4)), of(1, 2));
        assert_eq!(sum(of(1, 3), of(1, 6)), of(1, 2));
        assert_eq!(sum(of(0, 5), of(0, 7)), of(0, 1));
        assert_eq!(sum(of(1, 3), of(2, 3)), Fraction::WHOLE);
        assert_eq!(sum(of(3, 4), of(3, 4)), Fraction::WHOLE);
    }

    proptest! {
        #[test]
        fn any_sum_is_a_fraction(a: u32, b in 1..=u32::MAX, c: u32, d in 1..=u32::MAX) {
            let (left, right) = (of(a.min(b), b), of(c.min(d), d));
            let sum = sum(left, right);
            prop_assert!(sum.denominator > 0 && sum.numerator <= sum.denominator);
        }
    }
}
