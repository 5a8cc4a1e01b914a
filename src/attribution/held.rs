//! Slot to held parts and the remainder: `P = Σ held + U` (L1).
//!
//! In go the segment's length and the grants, out come integer nanoseconds per holder and what nobody held,
//! under the remainder's name. It does not know use.

use std::collections::BTreeMap;

use super::apportion::apportion;
use super::carries::Owed;
use super::claims::Grants;
use super::quota::Quota;
use crate::model::{HolderId, SlotState};

/// What was held of a segment.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// By holder, losers of a conflict with 0 among them.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// Whose the time is that nobody held.
    pub(super) remainder: HolderId,
    /// How much that is: U.
    pub(super) rest: u64,
}

impl Held {
    /// Splits a segment of `length` nanoseconds along its grants.
    pub(super) fn of(length: u64, state: SlotState, grants: &Grants, owed: &mut Owed) -> Self {
        let remainder = HolderId::new(remainder(state));
        let mut quotas: BTreeMap<HolderId, Quota> = grants
            .parts
            .iter()
            .map(|(holder, part)| (holder.clone(), Quota::of(length, *part, grants.whole)))
            .collect();
        quotas.insert(remainder.clone(), Quota::of(length, grants.rest(), grants.whole));
        let mut parts = apportion(length, &quotas, owed);
        let rest = parts.remove(&remainder).unwrap_or(0);
        Self { parts, remainder, rest }
    }

    /// What was held by holder, the remainder among them.
    pub(super) fn with_remainder(&self) -> impl Iterator<Item = (&HolderId, u64)> {
        self.parts
            .iter()
            .map(|(holder, held)| (holder, *held))
            .chain(std::iter::once((&self.remainder, self.rest)))
    }
}

/// Who has the time that nobody holds: where only activity is unknown, it is still unallocated.
const fn remainder(state: SlotState) -> &'static str {
    match state {
        SlotState::Measured | SlotState::Unmeasured => HolderId::UNALLOCATED,
        SlotState::Unavailable => HolderId::UNAVAILABLE,
        SlotState::Unobserved => HolderId::UNOBSERVED,
    }
}
