//! Turns claims on one slot into what is granted: as claimed, unless they sum above the whole.
//!
//! In go holdings, out come parts over one common denominator, so that fractions stay fractions and what
//! nobody holds is the exact rest. In a conflict claims are granted whole in the order of their rank, and one
//! that does not fit holds nothing. Claims of one rank that do not fit together share what earlier ranks left
//! equally, none above its claim. If any claim has no rank, all form one rank.
//! It does not know times. Nested holdings, which are no conflict, will come as children of their outer one.

use std::collections::BTreeMap;

use crate::model::{Fraction, HolderId, Holding};

/// What each claim was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grants {
    /// Parts of `whole`; 0 for a conflict's loser. They sum to at most `whole`.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// The whole slot.
    pub(super) whole: u64,
    /// Whose claims did not fit, in order of rank and then of id.
    pub(super) conflicts: Vec<HolderId>,
}

impl Grants {
    /// What the holdings of a slot grant.
    pub(super) fn of(holdings: &[Holding]) -> Self {
        let whole = common_denominator(holdings);
        let ranked = holdings.iter().all(|holding| holding.rank.is_some());
        let mut claims: Vec<Claim<'_>> = holdings
            .iter()
            .map(|holding| Claim {
                rank: holding.rank.filter(|_| ranked),
                holder: &holding.holder,
                part: part(holding.fraction, whole),
            })
            .collect();
        claims.sort_by_key(|claim| (claim.rank, claim.holder));
        let mut grants = Self { parts: BTreeMap::new(), whole, conflicts: Vec::new() };
        for group in claims.chunk_by(|one, other| one.rank == other.rank) {
            grants.grant(group);
        }
        grants
    }

    /// Whether the holder has a claim, granted or not.
    pub(super) fn claimed(&self, holder: &HolderId) -> bool {
        self.parts.contains_key(holder)
    }

    /// Whether the holder holds something.
    pub(super) fn holds(&self, holder: &HolderId) -> bool {
        self.parts.get(holder).is_some_and(|part| *part > 0)
    }

    /// Whether anybody holds something.
    pub(super) fn anybody_holds(&self) -> bool {
        self.parts.values().any(|part| *part > 0)
    }

    /// What nobody holds.
    pub(super) fn rest(&self) -> u64 {
        self.whole.saturating_sub(self.parts.values().sum())
    }

    /// Grants the claims of one rank.
    fn grant(&mut self, group: &[Claim<'_>]) {
        let rest = self.rest();
        let claimed: u128 = group.iter().map(|claim| u128::from(claim.part)).sum();
        if claimed <= u128::from(rest) {
            self.parts.extend(group.iter().map(|claim| (claim.holder.clone(), claim.part)));
            return;
        }
        self.conflicts.extend(group.iter().map(|claim| claim.holder.clone()));
        if group.len() == 1 || rest == 0 {
            self.parts.extend(group.iter().map(|claim| (claim.holder.clone(), 0)));
            return;
        }
        let mut smallest_first: Vec<&Claim<'_>> = group.iter().collect();
        smallest_first.sort_by_key(|claim| (claim.part, claim.holder));
        self.share_equally(&smallest_first, rest);
    }

    /// Gives each claim an equal share of `rest`, which they exceed together, and none more than it claims.
    fn share_equally(&mut self, smallest_first: &[&Claim<'_>], mut rest: u64) {
        for (place, claim) in smallest_first.iter().enumerate() {
            let sharers = (smallest_first.len() - place) as u64;
            if u128::from(claim.part) * u128::from(sharers) <= u128::from(rest) {
                self.parts.insert(claim.holder.clone(), claim.part);
                rest -= claim.part;
                continue;
            }
            // A finer denominator keeps the share a fraction. Nothing is left to share for later ranks, so this
            // happens once, and `common_denominator` leaves room for it.
            self.whole *= sharers;
            self.parts.values_mut().for_each(|part| *part *= sharers);
            for claim in smallest_first.iter().skip(place) {
                self.parts.insert(claim.holder.clone(), rest);
            }
            return;
        }
    }
}

struct Claim<'a> {
    rank: Option<u32>,
    holder: &'a HolderId,
    part: u64,
}

/// A denominator that all fractions share and that can still be multiplied by the number of claims.
///
/// Where unlike denominators (six large primes, say) have none that fits, the largest that fits; then a claim
/// loses less than that part of the slot, equals stay equals, and no conflict arises that was none.
fn common_denominator(holdings: &[Holding]) -> u64 {
    let limit = u64::MAX / (holdings.len() as u64 + 1);
    holdings
        .iter()
        .map(|holding| u64::from(holding.fraction.denominator))
        .try_fold(1, |whole, denominator| {
            let multiple = (denominator / divisor(whole, denominator)).checked_mul(whole)?;
            (multiple <= limit).then_some(multiple)
        })
        .unwrap_or(limit)
}

/// The greatest common divisor.
const fn divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// A fraction as parts of `whole`.
fn part(fraction: Fraction, whole: u64) -> u64 {
    let parts = u128::from(fraction.numerator) * u128::from(whole) / u128::from(fraction.denominator.max(1));
    u64::try_from(parts).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HoldingSource;

    /// Grants as (parts, whole, conflicts) of claims given as (rank, numerator, denominator), named a, b, c …
    fn granted(claims: &[(u32, u32, u32)]) -> (Vec<u64>, u64, String) {
        let ranked =
            claims.iter().map(|&(rank, numerator, denominator)| (Some(rank), numerator, denominator));
        granted_by_optional_rank(&ranked.collect::<Vec<_>>())
    }

    fn granted_by_optional_rank(claims: &[(Option<u32>, u32, u32)]) -> (Vec<u64>, u64, String) {
        let holdings: Vec<Holding> = claims
            .iter()
            .zip('a'..)
            .map(|(&(rank, numerator, denominator), name)| Holding {
                holder: HolderId::new(name.to_string()),
                fraction: Fraction { numerator, denominator },
                source: HoldingSource::Standing,
                rank,
            })
            .collect();
        let grants = Grants::of(&holdings);
        let conflicts = grants.conflicts.iter().map(HolderId::as_str).collect();
        (grants.parts.into_values().collect(), grants.whole, conflicts)
    }

    #[test]
    fn claims_that_fit_are_granted_and_the_rest_is_exact() {
        assert_eq!(granted(&[(0, 1, 2), (0, 1, 3)]), (vec![3, 2], 6, String::new()));
        assert_eq!(granted(&[(0, 1, 3), (0, 1, 3), (0, 1, 3)]), (vec![1, 1, 1], 3, String::new()));
        assert_eq!(granted(&[]), (vec![], 1, String::new()));
    }

    #[test]
    fn a_claim_that_does_not_fit_after_earlier_ranks_holds_nothing() {
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2)]), (vec![3, 0], 4, "b".into()));
        // A later rank that still fits is granted whole.
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2), (2, 1, 4)]), (vec![3, 0, 1], 4, "b".into()));
    }

    #[test]
    fn claims_of_one_rank_that_do_not_fit_together_share_what_earlier_ranks_left() {
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2), (1, 1, 4)]), (vec![6, 1, 1], 8, "bc".into()));
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 2)]), (vec![1, 1], 2, "ab".into()));
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 1), (0, 1, 1)]), (vec![1, 1, 1], 3, "abc".into()));
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 4), (0, 1, 1)]), (vec![3, 2, 3], 8, "abc".into()));
        // Nothing is left for two claims of a later rank.
        assert_eq!(granted(&[(0, 1, 1), (1, 1, 2), (1, 1, 4)]), (vec![4, 0, 0], 4, "bc".into()));
    }

    #[test]
    fn conflicts_are_in_order_of_rank() {
        assert_eq!(granted(&[(2, 1, 1), (1, 1, 1), (0, 3, 4)]), (vec![0, 0, 3], 4, "ba".into()));
    }

    #[test]
    fn where_any_claim_has_no_rank_all_form_one_rank() {
        let claims = [(Some(0), 3, 4), (None, 1, 2), (Some(1), 1, 4)];
        assert_eq!(granted_by_optional_rank(&claims), (vec![3, 3, 2], 8, "abc".into()));
    }

    #[test]
    fn denominators_without_a_common_multiple_that_fits_still_sum_to_at_most_the_whole() {
        let primes = [4_294_967_291, 4_294_967_279, 4_294_967_231, 4_294_967_197];
        let (parts, whole, conflicts) = granted(&primes.map(|prime| (0, prime / 4, prime)));
        assert!(parts.iter().sum::<u64>() <= whole && conflicts.is_empty());
    }
}
