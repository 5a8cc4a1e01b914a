//! Grants the claims on one slot: as claimed, unless they exceed the whole.
//!
//! Claims are granted whole in the order of their rank, and one that does not fit yields: it holds nothing. Claims of one
//! rank that do not fit together are a conflict: they share equally what earlier ranks left, none above its claim. If any claim has no rank,
//! all form one rank. A holding whose holder another one covers is nested: it is granted out of the outer holding by the
//! same rules, and a single nested claim is capped to it. Grants are parts of one common denominator, so that fractions stay
//! exact.

use std::collections::BTreeMap;

use crate::model::{Fraction, HolderId, Holding};

/// What is granted on a slot. A pool is what claims are granted from: an outer holding, or without one the slot.
#[derive(Debug)]
pub(super) struct SlotGrants<'a> {
    /// Parts of `whole` by holder, nested holdings included; 0 for the loser of a conflict. The holdings in a pool sum to
    /// at most the pool.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// Nested holder to the holder of the holding in which its own lies.
    outer: BTreeMap<HolderId, HolderId>,
    pub(super) whole: u64,
    /// Holders whose claims of one rank did not fit together, in order of rank and then of id.
    pub(super) conflicts: Vec<HolderId>,
    /// Holders whose claims did not fit beside those of earlier ranks, with the holders of these.
    pub(super) yields: Vec<(HolderId, Vec<HolderId>)>,
    /// User to the holder of the holding that covers it.
    covered_by: &'a BTreeMap<HolderId, HolderId>,
}

impl<'a> SlotGrants<'a> {
    pub(super) fn new(holdings: &[Holding], covered_by: &'a BTreeMap<HolderId, HolderId>) -> Self {
        let outer = outer_holders(holdings, covered_by);
        let whole = common_denominator(holdings);
        let mut grants = Self {
            parts: BTreeMap::new(),
            outer,
            whole,
            conflicts: Vec::new(),
            yields: Vec::new(),
            covered_by,
        };
        let mut pools: BTreeMap<(usize, Option<HolderId>), Vec<&Holding>> = BTreeMap::new();
        for holding in holdings {
            let pool = grants.outer.get(&holding.holder).cloned();
            pools.entry((grants.depth(&holding.holder), pool)).or_default().push(holding);
        }
        // An outer holding is less deep than those in it, so it is granted before them.
        for ((_, pool), holdings) in pools {
            grants.grant_pool(pool.as_ref(), &holdings);
        }
        grants
    }

    fn grant_pool(&mut self, pool: Option<&HolderId>, holdings: &[&Holding]) {
        let are_ranked = holdings.iter().all(|holding| holding.rank.is_some());
        let mut claims: Vec<RankedClaim<'_>> = holdings
            .iter()
            .map(|holding| RankedClaim {
                rank: holding.rank.filter(|_| are_ranked),
                holder: &holding.holder,
                part: part(holding.fraction, self.whole),
            })
            .collect();
        if let (Some(_), [single]) = (pool, &mut claims[..]) {
            single.part = single.part.min(self.remaining_part(pool));
        }
        claims.sort_by_key(|claim| (claim.rank, claim.holder));
        for rank in claims.chunk_by(|one, other| one.rank == other.rank) {
            self.grant_rank(pool, rank);
        }
    }

    fn grant_rank(&mut self, pool: Option<&HolderId>, claims: &[RankedClaim<'_>]) {
        let rest = self.remaining_part(pool);
        let claimed: u128 = claims.iter().map(|claim| u128::from(claim.part)).sum();
        if claimed <= u128::from(rest) {
            self.parts.extend(claims.iter().map(|claim| (claim.holder.clone(), claim.part)));
            return;
        }
        if let [single] = claims {
            let earlier = self.inner(pool).filter(|(_, part)| *part > 0).map(|(holder, _)| holder.clone());
            let earlier = earlier.collect();
            self.yields.push((single.holder.clone(), earlier));
        // Steps of a job may overlap, as containers in their pod's claim may: that they share is no conflict.
        } else if !pool.is_some_and(|outer| claims.iter().all(|claim| claim.holder.is_within(outer))) {
            self.conflicts.extend(claims.iter().map(|claim| claim.holder.clone()));
        }
        if claims.len() == 1 || rest == 0 {
            self.parts.extend(claims.iter().map(|claim| (claim.holder.clone(), 0)));
            return;
        }
        let mut smallest_first: Vec<&RankedClaim<'_>> = claims.iter().collect();
        smallest_first.sort_by_key(|claim| (claim.part, claim.holder));
        self.share_equally(&smallest_first, rest);
    }

    /// Shares `rest` equally among claims whose sum exceeds it; none gets more than it claims.
    fn share_equally(&mut self, smallest_first: &[&RankedClaim<'_>], mut rest: u64) {
        for (place, claim) in smallest_first.iter().enumerate() {
            let sharers = (smallest_first.len() - place) as u64;
            if u128::from(claim.part) * u128::from(sharers) <= u128::from(rest) {
                self.parts.insert(claim.holder.clone(), claim.part);
                rest -= claim.part;
                continue;
            }
            // A finer denominator keeps the share a fraction. Later ranks find nothing left to share, so this happens
            // once in a pool, and `common_denominator` leaves room for one factor. Where there is none left, the share
            // loses less than one part.
            let share = match self.whole.checked_mul(sharers) {
                Some(whole) => {
                    self.whole = whole;
                    self.parts.values_mut().for_each(|part| *part *= sharers);
                    rest
                }
                None => rest / sharers,
            };
            for claim in smallest_first.iter().skip(place) {
                self.parts.insert(claim.holder.clone(), share);
            }
            return;
        }
    }

    /// Number of holdings in which that of the holder lies.
    fn depth(&self, holder: &HolderId) -> usize {
        std::iter::successors(self.outer.get(holder), |outer| self.outer.get(outer)).count()
    }

    /// The holdings directly inside a pool: holder and part.
    pub(super) fn inner(&self, pool: Option<&HolderId>) -> impl Iterator<Item = (&HolderId, u64)> {
        let lies_in = move |holder: &HolderId| self.outer.get(holder) == pool;
        self.parts.iter().filter(move |(holder, _)| lies_in(holder)).map(|(holder, part)| (holder, *part))
    }

    /// All holders, an outer one before those nested in its holding.
    pub(super) fn outer_first(&self) -> Vec<&HolderId> {
        let mut holders: Vec<&HolderId> = self.parts.keys().collect();
        if !self.outer.is_empty() {
            holders.sort_by_key(|holder| self.depth(holder));
        }
        holders
    }

    /// Whether the holder has a claim, granted or not.
    pub(super) fn has_claim(&self, holder: &HolderId) -> bool {
        self.parts.contains_key(holder)
    }

    fn holds(&self, holder: &HolderId) -> bool {
        self.parts.get(holder).is_some_and(|part| *part > 0)
    }

    pub(super) fn anybody_holds(&self) -> bool {
        self.parts.values().any(|part| *part > 0)
    }

    /// The holder of the innermost holding above zero that covers the user; this may be the user.
    pub(super) fn covering_holder<'u>(&'u self, user: &'u HolderId) -> Option<&'u HolderId> {
        std::iter::successors(Some(user), |at| self.covered_by.get(*at))
            .take(self.covered_by.len() + 1)
            .find(|holder| self.holds(holder))
    }

    /// The holder of the next outer holding that has a part and contains that of `holder`.
    pub(super) fn outer_holder(&self, holder: &HolderId) -> Option<&HolderId> {
        std::iter::successors(self.outer.get(holder), |outer| self.outer.get(outer))
            .find(|outer| self.holds(outer))
    }

    /// The part of a pool that no holding in it has; of the slot, what nobody holds.
    pub(super) fn remaining_part(&self, pool: Option<&HolderId>) -> u64 {
        let pool_part = pool.map_or(self.whole, |holder| self.parts.get(holder).copied().unwrap_or(0));
        pool_part.saturating_sub(self.inner(pool).map(|(_, part)| part).sum())
    }
}

/// Share of the slot that each holding has without those nested in it, in the order of the holdings; none where each
/// has what it claims.
pub fn granted_shares(
    holdings: &[Holding],
    covered_by: &BTreeMap<HolderId, HolderId>,
) -> Option<Vec<Fraction>> {
    const ONE: u128 = 1 << 64;
    let claimed = |holding: &Holding| {
        let Fraction { numerator, denominator } = holding.fraction;
        u128::from(numerator) * ONE / u128::from(denominator.max(1))
    };
    let is_nested = |holding: &Holding| covered_by.contains_key(&holding.holder);
    if holdings.iter().map(claimed).sum::<u128>() <= ONE && !holdings.iter().any(is_nested) {
        return None;
    }
    let grants = SlotGrants::new(holdings, covered_by);
    let share = |holding: &Holding| {
        Fraction::reduced(grants.remaining_part(Some(&holding.holder)).into(), grants.whole.into())
    };
    Some(holdings.iter().map(share).collect())
}

/// The holders whose claims of one rank do not fit together, so that each holds less than it claims.
pub fn conflicts(holdings: &[Holding], covered_by: &BTreeMap<HolderId, HolderId>) -> Vec<HolderId> {
    if granted_shares(holdings, covered_by).is_none() {
        return Vec::new();
    }
    SlotGrants::new(holdings, covered_by).conflicts
}

struct RankedClaim<'a> {
    rank: Option<u32>,
    holder: &'a HolderId,
    part: u64,
}

/// Nested holder to the nearest holder that covers it and holds something itself. Holders that cover each other are not
/// nested.
fn outer_holders(
    holdings: &[Holding],
    covered_by: &BTreeMap<HolderId, HolderId>,
) -> BTreeMap<HolderId, HolderId> {
    let holds = |holder: &HolderId| holdings.iter().any(|holding| holding.holder == *holder);
    let covers = |holder: &HolderId| {
        let next = |at: &&'_ HolderId| covered_by.get(*at);
        std::iter::successors(covered_by.get(holder), next).take(covered_by.len())
    };
    holdings
        .iter()
        .map(|holding| &holding.holder)
        .filter(|holder| !covers(holder).any(|cover| cover == *holder))
        .filter_map(|holder| {
            let outer = covers(holder).find(|cover| holds(cover))?;
            Some((holder.clone(), outer.clone()))
        })
        .collect()
}

/// A denominator that all fractions share and that can still be multiplied by the number of claims.
///
/// Unlike denominators (six large primes, say) may have none that fits in 64 bits. Then it is the largest number that
/// leaves that room: each claim is rounded down to it, so equals stay equal and no new conflict arises.
fn common_denominator(holdings: &[Holding]) -> u64 {
    let limit = u64::MAX / (holdings.len() as u64 + 1);
    holdings
        .iter()
        .map(|holding| u64::from(holding.fraction.denominator))
        .try_fold(1, |whole, denominator| {
            let divisor = greatest_common_divisor(whole, denominator);
            let multiple = (denominator / divisor).checked_mul(whole)?;
            (multiple <= limit).then_some(multiple)
        })
        .unwrap_or(limit)
}

const fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

fn part(fraction: Fraction, whole: u64) -> u64 {
    let parts = u128::from(fraction.numerator) * u128::from(whole) / u128::from(fraction.denominator.max(1));
    u64::try_from(parts).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HoldingSource;

    #[test]
    fn what_a_holding_grants_is_without_what_is_nested_in_it_and_what_a_conflict_leaves() {
        let shares = |claims: &[(&str, u32, u32)], covered: &[(&str, &str)]| {
            let holding = |&(holder, numerator, denominator): &(&str, u32, u32)| Holding {
                holder: HolderId::new(holder),
                fraction: Fraction { numerator, denominator },
                source: HoldingSource::Slurm,
                rank: Some(0),
            };
            let holdings: Vec<Holding> = claims.iter().map(holding).collect();
            let covered = covered.iter().map(|(user, holder)| (HolderId::new(*user), HolderId::new(*holder)));
            let shares = granted_shares(&holdings, &covered.collect())?;
            Some(shares.iter().map(Fraction::to_string).collect::<Vec<_>>())
        };
        assert_eq!(shares(&[("slurm:c/7", 1, 3), ("slurm:c/8", 2, 3)], &[("user:ada", "slurm:c/7")]), None);
        let step = [("slurm:c/7.0", "slurm:c/7")];
        let nested = |part, of| shares(&[("slurm:c/7", 1, 1), ("slurm:c/7.0", part, of)], &step).unwrap();
        assert_eq!(nested(1, 4), ["3/4", "1/4"]);
        assert_eq!(nested(1, 1), ["0/1", "1/1"]);
        let conflict = shares(&[("slurm:c/7", 1, 1), ("slurm:c/8", 1, 1)], &[]).unwrap();
        assert_eq!(conflict, ["1/2", "1/2"]);
    }

    /// Grants as (parts, whole, conflicts and who yields) of claims given as (rank, numerator, denominator), named a, b, c …
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
        let nobody = BTreeMap::new();
        let grants = SlotGrants::new(&holdings, &nobody);
        let conflicts: String = grants.conflicts.iter().map(HolderId::as_str).collect();
        let name = |ids: &[HolderId]| ids.iter().map(HolderId::as_str).collect::<String>();
        let yields = grants.yields.iter().map(|(holder, to)| format!(" {holder}<{}", name(to)));
        (grants.parts.into_values().collect(), grants.whole, conflicts + &yields.collect::<String>())
    }

    #[test]
    fn claims_that_fit_are_granted_and_the_rest_is_exact() {
        assert_eq!(granted(&[(0, 1, 2), (0, 1, 3)]), (vec![3, 2], 6, String::new()));
        assert_eq!(granted(&[(0, 1, 3), (0, 1, 3), (0, 1, 3)]), (vec![1, 1, 1], 3, String::new()));
        assert_eq!(granted(&[]), (vec![], 1, String::new()));
    }

    #[test]
    fn a_claim_that_does_not_fit_after_earlier_ranks_holds_nothing() {
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2)]), (vec![3, 0], 4, " b<a".into()));
        // A later rank that still fits is granted whole.
        assert_eq!(granted(&[(0, 3, 4), (1, 1, 2), (2, 1, 4)]), (vec![3, 0, 1], 4, " b<a".into()));
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
    fn claims_yield_in_order_of_rank() {
        assert_eq!(granted(&[(2, 1, 1), (1, 1, 1), (0, 3, 4)]), (vec![0, 0, 3], 4, " b<c a<c".into()));
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
