//! Turns claims on one slot into what is granted: as claimed, unless they sum above the whole.
//!
//! In go holdings, out come parts over one common denominator, so that fractions stay fractions and what
//! nobody holds is the exact rest. In a conflict claims are granted whole in the order of their rank, what
//! does not fit holds nothing, and only claims of equal rank that fit alone but not together share equally.
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
    /// Who got less than was claimed.
    pub(super) losers: Vec<HolderId>,
}

impl Grants {
    /// What the holdings of a slot grant.
    pub(super) fn of(holdings: &[Holding]) -> Self {
        let whole = common_denominator(holdings);
        let claims: BTreeMap<(u32, &HolderId), u64> = holdings
            .iter()
            .map(|holding| ((holding.rank, &holding.holder), part(holding.fraction, whole)))
            .collect();
        let mut grants = Self { parts: BTreeMap::new(), whole, losers: Vec::new() };
        let claims: Vec<Claim<'_>> =
            claims.into_iter().map(|((rank, holder), part)| Claim { rank, holder, part }).collect();
        for group in claims.chunk_by(|one, other| one.rank == other.rank) {
            grants.grant(group);
        }
        grants.losers.sort();
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
        let (mut fit, large): (Vec<&Claim<'_>>, Vec<_>) = group.iter().partition(|claim| claim.part <= rest);
        for claim in large {
            self.parts.insert(claim.holder.clone(), 0);
            self.losers.push(claim.holder.clone());
        }
        if sum(&fit) <= u128::from(rest) {
            self.parts.extend(fit.iter().map(|claim| (claim.holder.clone(), claim.part)));
            return;
        }
        fit.sort_by_key(|claim| (claim.part, claim.holder));
        self.share_equally(&fit);
    }

    /// The last resort: equal shares of the rest, never above one's claim; `claims` from small to large.
    fn share_equally(&mut self, claims: &[&Claim<'_>]) {
        let mut rest = self.rest();
        for (place, claim) in claims.iter().enumerate() {
            let sharers = (claims.len() - place) as u64;
            if claim.part.saturating_mul(sharers) <= rest {
                self.parts.insert(claim.holder.clone(), claim.part);
                rest -= claim.part;
                continue;
            }
            // A finer denominator, so that the share stays a fraction; it leaves room for this (see below).
            self.whole *= sharers;
            self.parts.values_mut().for_each(|part| *part *= sharers);
            for claim in claims.iter().skip(place) {
                self.parts.insert(claim.holder.clone(), rest);
                self.losers.push(claim.holder.clone());
            }
            return;
        }
    }
}

struct Claim<'a> {
    rank: u32,
    holder: &'a HolderId,
    part: u64,
}

fn sum(claims: &[&Claim<'_>]) -> u128 {
    claims.iter().map(|claim| u128::from(claim.part)).sum()
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

    /// Grants as (parts, whole, losers) of claims given as (rank, numerator, denominator), named a, b, c …
    fn granted(claims: &[(u32, u32, u32)]) -> (Vec<u64>, u64, String) {
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
        let losers = grants.losers.iter().map(HolderId::as_str).collect();
        (grants.parts.into_values().collect(), grants.whole, losers)
    }

    #[test]
    fn claims_that_fit_are_granted_and_the_rest_is_exact() {
        assert_eq!(granted(&[(0, 1, 2), (0, 1, 3)]), (vec![3, 2], 6, String::new()));
        assert_eq!(granted(&[(0, 1, 3), (0, 1, 3), (0, 1, 3)]), (vec![1, 1, 1], 3, String::new()));
        assert_eq!(granted(&[]), (vec![], 1, String::new()));
    }

    #[test]
    fn what_does_not_fit_after_an_earlier_rank_holds_nothing() {
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2)]), (vec![3, 0], 4, "b".into()));
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2), (1, 1, 4)]), (vec![3, 0, 1], 4, "b".into()));
    }

    #[test]
    fn equal_ranks_share_equally_but_never_above_their_claim() {
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 2)]), (vec![1, 1], 2, "a".into()));
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 1), (0, 1, 1)]), (vec![1, 1, 1], 3, "abc".into()));
        assert_eq!(granted(&[(0, 1, 1), (0, 1, 4), (0, 1, 1)]), (vec![3, 2, 3], 8, "ac".into()));
    }

    #[test]
    fn denominators_without_a_common_multiple_that_fits_still_sum_to_at_most_the_whole() {
        let primes = [4_294_967_291, 4_294_967_279, 4_294_967_231, 4_294_967_197];
        let (parts, whole, losers) = granted(&primes.map(|prime| (0, prime / 4, prime)));
        assert!(parts.iter().sum::<u64>() <= whole && losers.is_empty());
    }
}
