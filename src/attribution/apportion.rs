//! Makes quotas whole: everyone gets the floor or the ceiling of his quota, and all together the total.
//!
//! In go the total, the quotas, and what each is still owed from earlier segments; the ceilings go to the
//! largest (owed + fraction), ties by id, and the debts are carried on, in units of 2^-32 rounded down. So no
//! part is negative and equals stay within one unit for ever (L11). It does not know what is split.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::carries::Owed;
use super::quota::Quota;
use crate::model::HolderId;

/// Splits `total` along quotas that sum to it; the parts sum to it exactly.
pub(super) fn apportion(
    total: u64,
    quotas: &BTreeMap<HolderId, Quota>,
    owed: &mut Owed,
) -> BTreeMap<HolderId, u64> {
    let mut children: Vec<QuotaShare<'_>> =
        quotas.iter().map(|(id, quota)| QuotaShare::new(id, *quota, owed)).collect();
    let floors = children.iter().fold(0_u64, |sum, child| sum.saturating_add(child.floor));
    let left = total.saturating_sub(floors);
    let count = children.len() as u64;
    if count == 0 {
        return BTreeMap::new();
    }
    // A whole quota gets no ceiling, whatever is owed to it: that would be more than its ceiling. The sort is
    // stable and the children come ordered by id, which breaks the ties.
    children.sort_by_key(|child| Reverse((child.fraction > 0, child.score)));
    let mut parts = BTreeMap::new();
    for (place, child) in (0_u64..).zip(&children) {
        // Quotas that sum to the total leave less than one unit per child; whatever else came is dealt round,
        // since the sum must hold even so.
        let ceiling = left / count + u64::from(place < left % count);
        child.carry_rest(ceiling, owed);
        parts.insert(child.id.clone(), child.floor.saturating_add(ceiling));
    }
    parts
}

/// Splits without a carry: energy and money, where the next segment owes nothing.
pub(super) fn apportion_once(total: u64, quotas: &BTreeMap<HolderId, Quota>) -> BTreeMap<HolderId, u64> {
    apportion(total, quotas, &mut Owed::new())
}

struct QuotaShare<'a> {
    id: &'a HolderId,
    floor: u64,
    fraction: u64,
    /// What is owed plus the fraction, in units of 2^-64.
    score: i128,
}

impl<'a> QuotaShare<'a> {
    fn new(id: &'a HolderId, quota: Quota, owed: &Owed) -> Self {
        let owed = i128::from(owed.get(id).copied().unwrap_or(0));
        let fraction = quota.fraction();
        Self { id, floor: quota.floor(), fraction, score: (owed << 32) + i128::from(fraction) }
    }

    /// Carries on what is still owed after `ceiling` units above the floor; a shift to the right rounds down.
    fn carry_rest(&self, ceiling: u64, owed: &mut Owed) {
        let rest = (self.score >> 32).saturating_sub(i128::from(ceiling).saturating_mul(1 << 32));
        let rest = i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX });
        if rest == 0 {
            owed.remove(self.id);
        } else {
            owed.insert(self.id.clone(), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(total: u64, parts: &[(&str, u64)]) -> BTreeMap<HolderId, Quota> {
        let whole = parts.iter().map(|(_, part)| part).sum();
        parts.iter().map(|(id, part)| (HolderId::new(*id), Quota::of(total, *part, whole))).collect()
    }

    fn given(total: u64, parts: &[(&str, u64)], owed: &mut Owed) -> Vec<u64> {
        apportion(total, &quotas(total, parts), owed).into_values().collect()
    }

    #[test]
    fn the_ceiling_goes_round_between_equals() {
        let mut owed = Owed::new();
        let thirds = [("a", 1), ("b", 1), ("c", 1)];
        assert_eq!(given(10, &thirds, &mut owed), [4, 3, 3]);
        assert_eq!(given(10, &thirds, &mut owed), [3, 4, 3]);
        assert_eq!(given(10, &thirds, &mut owed), [3, 3, 4]);
    }

    #[test]
    fn a_debt_is_kept_in_units_rounded_down() {
        let mut owed = Owed::new();
        given(10, &[("a", 1), ("b", 1), ("c", 1)], &mut owed);
        let debts: Vec<i64> = owed.values().copied().collect();
        assert_eq!(debts, [-2_863_311_531, 1_431_655_765, 1_431_655_765]);
    }

    #[test]
    fn a_whole_quota_is_paid_as_it_is_whatever_is_owed() {
        let mut owed = Owed::from([(HolderId::new("a"), i64::MAX)]);
        assert_eq!(given(4, &[("a", 2), ("b", 1), ("c", 1)], &mut owed), [2, 1, 1]);
        let mut owed = Owed::from([(HolderId::new("a"), i64::MAX), (HolderId::new("b"), i64::MIN)]);
        assert_eq!(given(3, &[("a", 4), ("b", 1), ("c", 1)], &mut owed), [2, 0, 1]);
    }

    #[test]
    fn the_largest_fraction_is_served_first() {
        assert_eq!(given(10, &[("a", 26), ("b", 27), ("c", 47)], &mut Owed::new()), [2, 3, 5]);
    }

    #[test]
    fn nobody_gets_nothing() {
        assert!(apportion_once(10, &BTreeMap::new()).is_empty());
    }
}
