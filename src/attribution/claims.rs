//! Turns claims on one slot into what is granted: as claimed, unless they sum above the whole.
//!
//! In go holdings, out come parts over one common denominator, so that fractions stay fractions and what
//! nobody holds is the exact rest. In a conflict claims are granted whole in the order of their rank, and one
//! that does not fit holds nothing. Claims of one rank that do not fit together share what earlier ranks left
//! equally, none above its claim. If any claim has no rank, all form one rank.
//! A holding whose holder another one covers is nested: it is granted out of that one's part in the same way, and one
//! alone is cut to it. It does not know times.

use std::collections::BTreeMap;

use crate::model::{Fraction, HolderId, Holding};

/// What each claim was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotGrants {
    /// Parts of `whole`, each with those that are nested in it; 0 for a conflict's loser. Those that are not nested sum
    /// to at most `whole`, those in one to at most that one.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// Of each nested holder, the one in whose holding its own lies.
    outer: BTreeMap<HolderId, HolderId>,
    /// The whole slot.
    pub(super) whole: u64,
    /// Whose claims did not fit, in order of rank and then of id.
    pub(super) conflicts: Vec<HolderId>,
}

impl SlotGrants {
    /// What the holdings of a slot grant; `covered_by` names the holder by whose holding each is covered.
    pub(super) fn of(holdings: &[Holding], covered_by: &BTreeMap<HolderId, HolderId>) -> Self {
        let outer = outer_holders(holdings, covered_by);
        let whole = common_denominator(holdings);
        let mut grants = Self { parts: BTreeMap::new(), outer, whole, conflicts: Vec::new() };
        let mut nested: BTreeMap<(usize, Option<HolderId>), Vec<&Holding>> = BTreeMap::new();
        for holding in holdings {
            let pool = grants.outer.get(&holding.holder).cloned();
            nested.entry((grants.depth(&holding.holder), pool)).or_default().push(holding);
        }
        // An outer holding is granted before those in it: it is less deep.
        for ((_, pool), holdings) in nested {
            grants.grant_pool(pool.as_ref(), &holdings);
        }
        grants
    }

    /// Grants the holdings that lie in one pool: the slot, or the holding of that holder.
    fn grant_pool(&mut self, pool: Option<&HolderId>, holdings: &[&Holding]) {
        let ranked = holdings.iter().all(|holding| holding.rank.is_some());
        let mut claims: Vec<RankedClaim<'_>> = holdings
            .iter()
            .map(|holding| RankedClaim {
                rank: holding.rank.filter(|_| ranked),
                holder: &holding.holder,
                part: part(holding.fraction, self.whole),
            })
            .collect();
        if let (Some(_), [alone]) = (pool, &mut claims[..]) {
            alone.part = alone.part.min(self.rest_of(pool));
        }
        claims.sort_by_key(|claim| (claim.rank, claim.holder));
        for group in claims.chunk_by(|one, other| one.rank == other.rank) {
            self.grant(pool, group);
        }
    }

    /// In how many holdings that of the holder lies.
    fn depth(&self, holder: &HolderId) -> usize {
        std::iter::successors(self.outer.get(holder), |outer| self.outer.get(outer)).count()
    }

    /// The holder in whose holding that of the holder lies.
    pub(super) fn outer(&self, holder: &HolderId) -> Option<&HolderId> {
        self.outer.get(holder)
    }

    /// Those whose holdings lie in that of the holder; without one, those that lie in none.
    pub(super) fn inner(&self, pool: Option<&HolderId>) -> impl Iterator<Item = (&HolderId, u64)> {
        let lies_in = move |holder: &HolderId| self.outer.get(holder) == pool;
        self.parts.iter().filter(move |(holder, _)| lies_in(holder)).map(|(holder, part)| (holder, *part))
    }

    /// The holders, those before in whose holdings others lie.
    pub(super) fn outer_first(&self) -> Vec<&HolderId> {
        let mut holders: Vec<&HolderId> = self.parts.keys().collect();
        if !self.outer.is_empty() {
            holders.sort_by_key(|holder| self.depth(holder));
        }
        holders
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

    /// What a holder's holding has beside those that lie in it; without a holder, what nobody holds.
    pub(super) fn rest_of(&self, pool: Option<&HolderId>) -> u64 {
        let pool_part = pool.map_or(self.whole, |holder| self.parts.get(holder).copied().unwrap_or(0));
        pool_part.saturating_sub(self.inner(pool).map(|(_, part)| part).sum())
    }

    /// Grants the claims of one rank.
    fn grant(&mut self, pool: Option<&HolderId>, group: &[RankedClaim<'_>]) {
        let rest = self.rest_of(pool);
        let claimed: u128 = group.iter().map(|claim| u128::from(claim.part)).sum();
        if claimed <= u128::from(rest) {
            self.parts.extend(group.iter().map(|claim| (claim.holder.clone(), claim.part)));
            return;
        }
        // Steps of a job may overlap, as containers in their pod's claim: that they share is no conflict.
        if !pool.is_some_and(|outer| group.iter().all(|claim| claim.holder.is_within(outer))) {
            self.conflicts.extend(group.iter().map(|claim| claim.holder.clone()));
        }
        if group.len() == 1 || rest == 0 {
            self.parts.extend(group.iter().map(|claim| (claim.holder.clone(), 0)));
            return;
        }
        let mut smallest_first: Vec<&RankedClaim<'_>> = group.iter().collect();
        smallest_first.sort_by_key(|claim| (claim.part, claim.holder));
        self.share_equally(&smallest_first, rest);
    }

    /// Gives each claim an equal share of `rest`, which they exceed together, and none more than it claims.
    fn share_equally(&mut self, smallest_first: &[&RankedClaim<'_>], mut rest: u64) {
        for (place, claim) in smallest_first.iter().enumerate() {
            let sharers = (smallest_first.len() - place) as u64;
            if u128::from(claim.part) * u128::from(sharers) <= u128::from(rest) {
                self.parts.insert(claim.holder.clone(), claim.part);
                rest -= claim.part;
                continue;
            }
            // A finer denominator keeps the share a fraction. Nothing is left to share for later ranks, so this
            // happens once in a pool, and `common_denominator` leaves room for one; where there is none left, the
            // share loses less than one part.
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
}

/// What each holding of a slot grants beside those that are nested in it, in the order of the holdings; none where each
/// grants what it claims.
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
    let grants = SlotGrants::of(holdings, covered_by);
    let share = |holding: &Holding| {
        Fraction::reduced(grants.rest_of(Some(&holding.holder)).into(), grants.whole.into())
    };
    Some(holdings.iter().map(share).collect())
}

struct RankedClaim<'a> {
    rank: Option<u32>,
    holder: &'a HolderId,
    part: u64,
}

/// Of each holder whose holding lies in another, whose that is: the nearest one that covers it. Holders that cover each
/// other lie in none.
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
        let grants = SlotGrants::of(&holdings, &BTreeMap::new());
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
