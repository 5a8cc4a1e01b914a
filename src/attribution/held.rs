//! Slot to held parts and the remainder: `P = Σ held + U` (L1); a held part to those that are nested in it and what is
//! left of it.
//!
//! In go the segment's length and the grants, out come integer nanoseconds per holder and what nobody held,
//! under the remainder's name. It does not know use.

use std::collections::BTreeMap;

use super::apportion::apportion;
use super::carries::Carries;
use super::claims::SlotGrants;
use super::quota::Quota;
use crate::model::{HolderId, SlotState};

/// What was held of a segment.
#[derive(Clone, Debug)]
pub(super) struct HeldTime {
    /// By holder, without what nested holdings have of it; losers of a conflict with 0 among them.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// The same with what nested holdings have of it.
    pub(super) gross: BTreeMap<HolderId, u64>,
    /// Reserved tenant that receives the time that nobody held.
    pub(super) remainder: HolderId,
    /// How much that is: U.
    pub(super) rest: u64,
}

impl HeldTime {
    /// Splits a segment of `length` nanoseconds along its grants.
    pub(super) fn of(length: u64, state: SlotState, grants: &SlotGrants, carries: &mut Carries) -> Self {
        let remainder = HolderId::new(remainder(state));
        let quotas = pool_quotas(length, grants, None, &remainder);
        let mut gross = apportion(length, &quotas, &mut carries.held);
        let rest = gross.remove(&remainder).unwrap_or(0);
        let mut parts = gross.clone();
        for outer in grants.outer_first() {
            if grants.inner(Some(outer)).next().is_none() {
                continue;
            }
            let whole = gross.get(outer).copied().unwrap_or(0);
            let quotas = pool_quotas(whole, grants, Some(outer), outer);
            let owed = carries.nested.entry(outer.clone()).or_default();
            for (holder, part) in apportion(whole, &quotas, owed) {
                if holder != *outer {
                    gross.insert(holder.clone(), part);
                }
                parts.insert(holder, part);
            }
        }
        Self { parts, gross, remainder, rest }
    }

    /// What was held by holder, the remainder among them.
    pub(super) fn with_remainder(&self) -> impl Iterator<Item = (&HolderId, u64)> {
        self.parts
            .iter()
            .map(|(holder, held)| (holder, *held))
            .chain(std::iter::once((&self.remainder, self.rest)))
    }
}

/// The quotas of those whose holdings lie in a pool of that length, and of `left` for what they leave of it.
fn pool_quotas(
    length: u64,
    grants: &SlotGrants,
    pool: Option<&HolderId>,
    left: &HolderId,
) -> BTreeMap<HolderId, Quota> {
    let whole = pool.map_or(grants.whole, |holder| grants.parts.get(holder).copied().unwrap_or(0));
    let inner = grants.inner(pool).map(|(holder, part)| (holder.clone(), Quota::of(length, part, whole)));
    inner.chain([(left.clone(), Quota::of(length, grants.rest_of(pool), whole))]).collect()
}

/// Who has the time that nobody holds: where only activity is unknown, it is still unallocated.
const fn remainder(state: SlotState) -> &'static str {
    match state {
        SlotState::Measured | SlotState::Unmeasured => HolderId::UNALLOCATED,
        SlotState::Unavailable => HolderId::UNAVAILABLE,
        SlotState::Unobserved => HolderId::UNOBSERVED,
    }
}
