//! Holdings that the operator grants by configuration: condo nodes, reservations, pools.
//!
//! In: the standing holdings in the order of the configuration, a GPU, the holders present on it. Out: the
//! GPU's holdings, and whom each covers besides its own holder. It does not read the configuration, and
//! settles no conflict: it ranks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::{Fraction, GpuId, Holder, HolderId, Holding, HoldingSource};

/// A standing holding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The operator's name for it.
    pub id: String,
    /// On which GPUs.
    pub gpu: GpuSelector,
    /// How much of each.
    pub fraction: Fraction,
    /// Who holds it, and whom it covers.
    pub selector: Selector,
}

/// A GPU as grants select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionGpu {
    /// The driver's index in the current driver session; none for a GPU that has no index in it.
    pub index: Option<u32>,
    /// The UUID as the driver prints it.
    pub uuid: Arc<str>,
}

impl From<&GpuId> for SessionGpu {
    fn from(gpu: &GpuId) -> Self {
        Self { index: Some(gpu.index), uuid: Arc::clone(&gpu.uuid) }
    }
}

/// Which GPUs a standing holding is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelector {
    /// Every GPU of the node.
    All,
    /// The GPU that has this index in the current driver session.
    Index(u32),
    /// The GPU with this UUID.
    Uuid(String),
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("every GPU"),
            Self::Index(index) => write!(f, "GPU {index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// Who holds a standing holding: a name that covers everything that runs under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A Unix user, with his units.
    User(String),
    /// The same by uid, with the name that is known for it, else the number.
    Uid {
        /// Whom it covers.
        uid: u32,
        /// Under which name he holds.
        name: Arc<str>,
    },
    /// A systemd unit.
    Unit(String),
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
    /// The holder to whom it is granted.
    pub fn holder(&self) -> HolderId {
        match self {
            Self::User(name) => HolderId::new(format!("user:{name}")),
            Self::Uid { name, .. } => HolderId::new(format!("user:{name}")),
            Self::Unit(name) => HolderId::new(format!("unit:{name}")),
        }
    }

    fn covers(&self, holder: &Holder) -> bool {
        match self {
            Self::Uid { uid, .. } => holder.facts.uid == Some(*uid),
            Self::User(name) => holder.facts.user.as_deref() == Some(name),
            Self::Unit(name) => holder.facts.unit.as_deref() == Some(name),
        }
    }
}

/// The standing holdings that are on none of these GPUs.
pub fn unmatched<'a>(
    standing: &'a [Standing],
    gpus: impl Iterator<Item = &'a SessionGpu> + Clone,
) -> impl Iterator<Item = &'a Standing> {
    standing.iter().filter(move |entry| !gpus.clone().any(|gpu| entry.gpu.selects(gpu)))
}

/// The standing holdings of one GPU.
pub(super) struct Grants<'a> {
    /// In the order of the configuration; the position is the rank.
    entries: Vec<(u32, &'a Standing)>,
}

impl<'a> Grants<'a> {
    pub(super) fn on(gpu: &SessionGpu, standing: &'a [Standing]) -> Self {
        let entries = (0..).zip(standing).filter(|(_, entry)| entry.gpu.selects(gpu)).collect();
        Self { entries }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One holding per holder, by holder. Several grants to one holder are one holding of their sum, with
    /// the rank of the first.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let mut holdings: BTreeMap<HolderId, Holding> = BTreeMap::new();
        for (rank, entry) in &self.entries {
            let holder = entry.selector.holder();
            let source = HoldingSource::Standing;
            let fraction = entry.fraction;
            holdings
                .entry(holder.clone())
                .and_modify(|holding| holding.fraction = sum(holding.fraction, fraction))
                .or_insert(Holding { holder, fraction, source, rank: Some(*rank) });
        }
        holdings.into_values().collect()
    }

    /// Whose holding covers a holder: the latest granted, ties by id. One who holds something here himself
    /// is covered by that alone; remainders are covered by nobody.
    pub(super) fn cover(&self, holder: &Holder) -> Option<HolderId> {
        if holder.id.is_remainder()
            || self.entries.iter().any(|(_, entry)| entry.selector.holder() == holder.id)
        {
            return None;
        }
        let covering = self.entries.iter().filter(|(_, entry)| entry.selector.covers(holder));
        let latest = covering.max_by_key(|(rank, entry)| (*rank, entry.selector.holder()))?;
        Some(latest.1.selector.holder())
    }
}

/// The sum of two fractions, the whole at most; rounded down where no 32 bits hold it.
fn sum(left: Fraction, right: Fraction) -> Fraction {
    let [a, b, c, d] = [left.numerator, left.denominator, right.numerator, right.denominator].map(u128::from);
    let (numerator, denominator) = (a * d + c * b, b * d);
    if numerator >= denominator {
        return Fraction::WHOLE;
    }
    let divisor = greatest_common_divisor(numerator, denominator);
    let exact = (u32::try_from(numerator / divisor), u32::try_from(denominator / divisor));
    if let (Ok(numerator), Ok(denominator)) = exact {
        return Fraction { numerator, denominator };
    }
    let rounded = numerator * u128::from(u32::MAX) / denominator;
    Fraction { numerator: u32::try_from(rounded).unwrap_or(u32::MAX), denominator: u32::MAX }
}

const fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
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
