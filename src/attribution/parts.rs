//! Held and used meet: within, beyond, outside; what was lent, and what lay waste.
//!
//! In go what was held and used of a measured segment, out come the parts of each holding and the use of each
//! user. What is used above the holdings is drawn from what nobody held, then lent by those with slack, in
//! proportion to it (L3); always coverable, since nobody is busy longer than there is time. It knows no
//! energy.

use std::collections::BTreeMap;

use super::apportion::apportion;
use super::carries::{Carries, Owed};
use super::claims::Grants;
use super::held::Held;
use super::quota::Quota;
use super::used::Used;
use crate::model::{HolderId, Parts, SlotState, Use};

/// The parts of each holding and of the remainder, and the use of each user.
#[derive(Clone, Debug, Default)]
pub(super) struct Paid {
    /// By holder; the remainder is one.
    pub(super) parts: BTreeMap<HolderId, Parts>,
    /// By user.
    pub(super) uses: BTreeMap<HolderId, Use>,
}

/// The parts of a segment whose activity is not known: no use is claimed (L18).
pub(super) fn unused(held: &Held, state: SlotState) -> Paid {
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
    Paid { parts, uses: BTreeMap::new() }
}

/// The parts of a measured segment.
pub(super) fn paid(
    held: &Held,
    used: &BTreeMap<HolderId, Used>,
    covers: &Covers<'_>,
    carries: &mut Carries,
) -> Paid {
    let mut paid = Paid::default();
    for (holder, time) in &held.parts {
        let users = covers.covered(holder, used);
        let within = within(*time, &users, carries.within.entry(holder.clone()).or_default());
        let sum = within.values().sum();
        paid.parts.insert(holder.clone(), Parts { within: sum, waste: *time - sum, ..Parts::default() });
        for (user, within) in within {
            paid.uses.insert(user, Use { within, ..Use::default() });
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

impl Paid {
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

/// Which holding covers whom, on one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covers<'a> {
    /// What is granted.
    pub(super) grants: &'a Grants,
    /// User to the holder of the holding that covers him.
    pub(super) covered_by: &'a BTreeMap<HolderId, HolderId>,
}

impl Covers<'_> {
    /// The innermost holding that covers the user and was granted something: his own, or another's.
    fn holding<'u>(&'u self, user: &'u HolderId) -> Option<&'u HolderId> {
        if self.grants.holds(user) {
            return Some(user);
        }
        self.covered_by.get(user).filter(|holder| self.grants.holds(holder))
    }

    /// What the users covered by the holding of `holder` used.
    fn covered(&self, holder: &HolderId, used: &BTreeMap<HolderId, Used>) -> BTreeMap<HolderId, u64> {
        used.iter()
            .filter(|(user, _)| self.holding(user) == Some(holder))
            .map(|(user, used)| (user.clone(), used.time))
            .collect()
    }
}

/// What lies within a holding of `held` nanoseconds: covered users share it by what they used.
fn within(held: u64, users: &BTreeMap<HolderId, u64>, owed: &mut Owed) -> BTreeMap<HolderId, u64> {
    let sum: u64 = users.values().sum();
    let total = sum.min(held);
    let quotas = users.iter().map(|(user, time)| (user.clone(), Quota::of(total, *time, sum))).collect();
    apportion(total, &quotas, owed)
}
