//! Weights of any size as shares of a whole that the splitter can work with.
//!
//! In go holder and weight pairs, out come parts and their sum. Weights whose sum is above 64 bits are halved
//! together until it fits: equals stay equal, and a sum stays the sum of its parts.

use std::collections::BTreeMap;

use super::quota::Quota;
use crate::model::HolderId;

/// The largest weight that counts, so that four billion of them can be summed; memory x time stays far below.
const MOST: u128 = u128::MAX >> 32;

/// Parts of a whole, by holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    parts: BTreeMap<HolderId, u64>,
    whole: u64,
}

impl Shares {
    /// Shares by weight; none where nobody has any.
    pub(super) fn by(weights: impl IntoIterator<Item = (HolderId, u128)>) -> Option<Self> {
        let weights: Vec<(HolderId, u128)> = weights
            .into_iter()
            .filter(|(_, weight)| *weight > 0)
            .map(|(holder, weight)| (holder, weight.min(MOST)))
            .collect();
        let sum: u128 = weights.iter().map(|(_, weight)| weight).sum();
        // Each halved weight is floored, so their sum is at most the halved sum, which fits.
        let shift = 64_u32.saturating_sub(sum.leading_zeros());
        let mut parts = BTreeMap::new();
        for (holder, weight) in weights {
            *parts.entry(holder).or_insert(0) += u64::try_from(weight >> shift).unwrap_or(0);
        }
        let whole = parts.values().sum();
        (whole > 0).then_some(Self { parts, whole })
    }

    /// All to one.
    pub(super) fn all(holder: HolderId) -> Self {
        Self { parts: BTreeMap::from([(holder, 1)]), whole: 1 }
    }

    /// How many share.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// What each should get of `total`.
    pub(super) fn quotas(&self, total: u64) -> impl Iterator<Item = (&HolderId, Quota)> {
        self.parts.iter().map(move |(holder, part)| (holder, Quota::of(total, *part, self.whole)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_do_not_fit_keep_their_proportions() {
        let shares = Shares::by([
            (HolderId::new("a"), u128::from(u64::MAX)),
            (HolderId::new("b"), u128::from(u64::MAX)),
            (HolderId::new("c"), 0),
        ]);
        let given: Vec<u64> =
            shares.iter().flat_map(|shares| shares.quotas(10)).map(|(_, q)| q.floor()).collect();
        assert_eq!(given, [5, 5]);
        let huge = [(HolderId::new("a"), u128::MAX), (HolderId::new("b"), u128::MAX)];
        assert!(Shares::by(huge).is_some());
        assert_eq!(Shares::by([(HolderId::new("c"), 0)]), None);
    }
}
