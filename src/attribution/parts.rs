//! Held and used meet: within, beyond, outside; what was lent, and what lay waste.
//!
//! In go what was held and used of a measured segment, out come the parts of each holding and the use of each
//! user. What is used above the holdings is drawn from what nobody held, then lent by those with slack, in
//! proportion to it (L3); always coverable, since nobody is busy longer than there is time. It knows no
//! energy.

use std::collections::BTreeMap;

use super::apportion::apportion;
use super::carries::{Carries, Owed};
use super::claims::SlotGrants;
use super::held::HeldTime;
use super::quota::Quota;
use super::used::Used;
use crate::model::{HolderId, Parts, SlotState, Use};

/// The parts of each holding and of the remainder, and the use of each user.
#[derive(Clone, Debug, Default)]
pub(super) struct SettledParts {
    /// By holder; the remainder is one.
    pub(super) parts: BTreeMap<HolderId, Parts>,
    /// By user.
    pub(super) uses: BTreeMap<HolderId, Use>,
    /// By user, what lies within whose holding.
    pub(super) within: BTreeMap<HolderId, BTreeMap<HolderId, u64>>,
}

/// The parts of a segment whose activity is not known: no use is claimed (L18).
pub(super) fn unmeasured_parts(held: &HeldTime, state: SlotState) -> SettledParts {
    let part = |time: u64| match state {
        SlotState::Unavailable => Parts { unavailable: time, ..Parts::default() },
        _ => Parts { unmeasured: time, ..Parts::default() },
    };
    let mut parts: BTreeMap<HolderId, Parts> =
        held.parts.iter().map(|(holder, time)| (holder.clone(), part(*time))).collect();
    let rest = match state {
        // What nobody held is nobody's to lose: it stays unallocated, and its rest is waste.
        SlotState::Measured | SlotState::Unmeasured => Parts { waste: held.rest, ..Parts::default() },
        SlotState::Unavailable | SlotState::Unobserved => part(held.rest),
    };
    parts.insert(held.remainder.clone(), rest);
    SettledParts { parts, ..SettledParts::default() }
}

/// The parts of a measured segment.
pub(super) fn measured_parts(
    held: &HeldTime,
    used: &BTreeMap<HolderId, Used>,
    covers: &Covers<'_>,
    carries: &mut Carries,
) -> SettledParts {
    let mut paid = SettledParts::default();
    let mut users = UncoveredUse::of(used, covers);
    // What is above an inner holding may lie within the outer one.
    for holder in covers.grants.outer_first().into_iter().rev() {
        let time = held.parts.get(holder).copied().unwrap_or(0);
        let rest = users.take(holder);
        let within = split_within(time, &rest, carries.within.entry(holder.clone()).or_default());
        let sum = within.values().sum();
        paid.parts.insert(holder.clone(), Parts { within: sum, waste: time - sum, ..Parts::default() });
        for (user, within) in &within {
            paid.uses.entry(user.clone()).or_default().within += within;
            if *within > 0 {
                paid.within.entry(user.clone()).or_default().insert(holder.clone(), *within);
            }
        }
        if let Some(outer) = covers.outer(holder) {
            users.pass_to_outer(outer, rest, &within);
        }
    }
    let mut above = 0;
    for (user, used) in used {
        let share = paid.uses.entry(user.clone()).or_default();
        let rest = used.time - share.within;
        above += rest;
        match covers.holding(user) {
            Some(_) => share.beyond = rest,
            None if covers.grants.anybody_holds() => share.outside = rest,
            None => share.unheld = rest,
        }
    }
    let drawn = above.min(held.rest);
    paid.lend(above - drawn, &mut carries.lent);
    let rest = Parts { lent: drawn, waste: held.rest - drawn, ..Parts::default() };
    paid.parts.insert(held.remainder.clone(), rest);
    paid
}

impl SettledParts {
    /// Moves `total` from waste to lent, in proportion to the waste: all of it is slack until now.
    fn lend(&mut self, total: u64, owed: &mut Owed) {
        let slack = self.parts.values().map(|parts| parts.waste).sum();
        let quotas = self
            .parts
            .iter()
            .map(|(holder, parts)| (holder.clone(), Quota::of(total, parts.waste, slack)))
            .collect();
        for (holder, lent) in apportion(total, &quotas, owed) {
            if let Some(parts) = self.parts.get_mut(&holder) {
                parts.lent = lent;
                parts.waste = parts.waste.saturating_sub(lent);
            }
        }
    }
}

/// What users used and no holding has borne yet, by the innermost holding that may.
struct UncoveredUse(BTreeMap<HolderId, BTreeMap<HolderId, u64>>);

impl UncoveredUse {
    fn of(used: &BTreeMap<HolderId, Used>, covers: &Covers<'_>) -> Self {
        let mut users = Self(BTreeMap::new());
        for (user, used) in used {
            if let Some(holder) = covers.holding(user) {
                users.0.entry(holder.clone()).or_default().insert(user.clone(), used.time);
            }
        }
        users
    }

    /// Takes out the users that count within that holding, each with the time used.
    fn take(&mut self, holder: &HolderId) -> BTreeMap<HolderId, u64> {
        self.0.remove(holder).unwrap_or_default()
    }

    /// Passes on to the outer holding the use that exceeds the inner one.
    fn pass_to_outer(
        &mut self,
        outer: &HolderId,
        users: BTreeMap<HolderId, u64>,
        within: &BTreeMap<HolderId, u64>,
    ) {
        let outer = self.0.entry(outer.clone()).or_default();
        for (user, time) in users {
            let rest = time - within.get(&user).copied().unwrap_or(0);
            *outer.entry(user).or_default() += rest;
        }
    }
}

/// Which holding covers whom, on one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covers<'a> {
    /// What is granted.
    pub(super) grants: &'a SlotGrants,
    /// User to the holder of the holding that covers him.
    pub(super) covered_by: &'a BTreeMap<HolderId, HolderId>,
}

impl Covers<'_> {
    /// The innermost holding that covers the user and was granted something: his own, or another's.
    pub(super) fn holding<'u>(&'u self, user: &'u HolderId) -> Option<&'u HolderId> {
        std::iter::successors(Some(user), |at| self.covered_by.get(*at))
            .take(self.covered_by.len() + 1)
            .find(|holder| self.grants.holds(holder))
    }

    /// The next holding in which that of `holder` lies and that was granted something.
    fn outer(&self, holder: &HolderId) -> Option<&HolderId> {
        std::iter::successors(self.grants.outer(holder), |outer| self.grants.outer(outer))
            .find(|outer| self.grants.holds(outer))
    }
}

/// What lies within a holding of `held` nanoseconds: covered users share it by what they used.
fn split_within(held: u64, users: &BTreeMap<HolderId, u64>, owed: &mut Owed) -> BTreeMap<HolderId, u64> {
    let sum: u64 = users.values().sum();
    let total = sum.min(held);
    let quotas = users.iter().map(|(user, time)| (user.clone(), Quota::of(total, *time, sum))).collect();
    apportion(total, &quotas, owed)
}
