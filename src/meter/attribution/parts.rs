//! Splits a segment of a slot into held time, used time and the five parts of what was held (laws L1 to L3).
//!
//! Use within a holding is that holding's part `within`. Use above the holdings is drawn from what nobody held, and then
//! lent by holdings with idle time, in proportion to that. Both always suffice, since nobody is busy longer than the slot
//! time.

use std::collections::BTreeMap;

use super::apportion::{Quota, apportion};
use super::carries::{Carries, HELD, LENT, NESTED, Owed, WITHIN};
use super::claims::SlotGrants;
use super::fallback::UseFallback;
use super::window::WindowSegment;
use crate::model::{Grade, HolderId, Parts, SlotState, Use};

#[derive(Clone, Debug)]
pub(super) struct HeldTime {
    /// By holder, without the time of nested holdings; the loser of a conflict is there with 0.
    pub(super) parts: BTreeMap<HolderId, u64>,
    /// Reserved tenant that receives unheld time in this segment.
    pub(super) remainder: HolderId,
    pub(super) unheld: u64,
}

impl HeldTime {
    /// Splits `length` nanoseconds of slot time along the grants.
    pub(super) fn split(
        length: u64,
        state: SlotState,
        grants: &SlotGrants<'_>,
        carries: &mut Carries,
    ) -> Self {
        // Where only activity is unknown, unheld time is still unallocated.
        let remainder = HolderId::new(match state {
            SlotState::Measured | SlotState::Unmeasured => HolderId::UNALLOCATED,
            SlotState::Unavailable => HolderId::UNAVAILABLE,
            SlotState::Unobserved => HolderId::UNOBSERVED,
        });
        let quotas = pool_quotas(length, grants, None, &remainder);
        let mut gross = apportion(length, &quotas, carries.owed(HELD));
        let unheld = gross.remove(&remainder).unwrap_or(0);
        let mut parts = gross.clone();
        for outer in grants.outer_first() {
            if grants.inner(Some(outer)).next().is_none() {
                continue;
            }
            let time = gross.get(outer).copied().unwrap_or(0);
            let quotas = pool_quotas(time, grants, Some(outer), outer);
            for (holder, part) in apportion(time, &quotas, carries.owed_in(NESTED, outer)) {
                if holder != *outer {
                    gross.insert(holder.clone(), part);
                }
                parts.insert(holder, part);
            }
        }
        Self { parts, remainder, unheld }
    }

    /// Held time by holder, and unheld time under its remainder.
    pub(super) fn with_remainder(&self) -> impl Iterator<Item = (&HolderId, u64)> {
        let parts = self.parts.iter().map(|(holder, held)| (holder, *held));
        parts.chain(std::iter::once((&self.remainder, self.unheld)))
    }
}

/// Quotas of the holdings that lie directly in a pool of `length` nanoseconds, and of `rest` for what they leave of it.
fn pool_quotas(
    length: u64,
    grants: &SlotGrants<'_>,
    pool: Option<&HolderId>,
    rest: &HolderId,
) -> BTreeMap<HolderId, Quota> {
    let whole = pool.map_or(grants.whole, |holder| grants.parts.get(holder).copied().unwrap_or(0));
    let inner = grants.inner(pool).map(|(holder, part)| (holder.clone(), Quota::new(length, part, whole)));
    inner.chain([(rest.clone(), Quota::new(length, grants.remaining_part(pool), whole))]).collect()
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsedTime {
    /// In nanoseconds.
    pub(super) time: u64,
    /// Nanoseconds of it that were split by measurement.
    pub(super) measured: u64,
    pub(super) grade: Grade,
}

#[derive(Default)]
struct UserQuota {
    quota: Quota,
    measured: Quota,
    grade: Grade,
}

pub(super) fn split_busy_time(
    segment: &WindowSegment<'_>,
    grants: &SlotGrants<'_>,
    fallback: &UseFallback<'_>,
    owed: &mut Owed,
) -> BTreeMap<HolderId, UsedTime> {
    let mut users: BTreeMap<HolderId, UserQuota> = BTreeMap::new();
    for span in segment.spans.iter().filter(|span| span.busy > 0) {
        let (shares, grade) = fallback.shares(span, grants);
        for (user, quota) in shares.quotas(span.busy) {
            let user = users.entry(user.clone()).or_default();
            user.quota.add(quota);
            user.grade = user.grade.max(grade);
            if grade == Grade::Measured {
                user.measured.add(quota);
            }
        }
    }
    let quotas = users.iter().map(|(user, UserQuota { quota, .. })| (user.clone(), *quota)).collect();
    let times = apportion(segment.busy(), &quotas, owed);
    let used_time = |(user, UserQuota { measured, grade, .. })| match times.get(&user).copied().unwrap_or(0) {
        0 => (user, UsedTime::default()),
        time => {
            let measured = if grade == Grade::Measured { time } else { measured.floor().min(time) };
            (user, UsedTime { time, measured, grade })
        }
    };
    users.into_iter().map(used_time).collect()
}

#[derive(Clone, Debug, Default)]
pub(super) struct SettledParts {
    /// By holder, the remainder included.
    pub(super) parts: BTreeMap<HolderId, Parts>,
    /// By user: within holdings, beyond share, outside of holdings, and on a slot that nobody holds.
    pub(super) users: BTreeMap<HolderId, Use>,
}

impl SettledParts {
    /// The parts of a segment whose activity is unknown; no use is claimed in it (law L18).
    pub(super) fn of_unmeasured(held: &HeldTime, state: SlotState) -> Self {
        let part = |time: u64| match state {
            SlotState::Unavailable => Parts { unavailable: time, ..Parts::default() },
            _ => Parts { unmeasured: time, ..Parts::default() },
        };
        let mut parts: BTreeMap<HolderId, Parts> =
            held.parts.iter().map(|(holder, time)| (holder.clone(), part(*time))).collect();
        let unheld = match state {
            // Unheld time is lost to no tenant, so it is idle time of `__unallocated__` even when activity is unknown.
            SlotState::Measured | SlotState::Unmeasured => Parts { idle: held.unheld, ..Parts::default() },
            SlotState::Unavailable | SlotState::Unobserved => part(held.unheld),
        };
        parts.insert(held.remainder.clone(), unheld);
        Self { parts, users: BTreeMap::new() }
    }

    pub(super) fn of_measured(
        held: &HeldTime,
        used: &BTreeMap<HolderId, UsedTime>,
        grants: &SlotGrants<'_>,
        carries: &mut Carries,
    ) -> Self {
        let mut settled = Self::split_within(held, used, grants, carries);
        let mut above = 0;
        for (user, used) in used {
            let share = settled.users.entry(user.clone()).or_default();
            let rest = used.time - share.within;
            above += rest;
            match grants.covering_holder(user) {
                Some(_) => share.beyond = rest,
                None if grants.anybody_holds() => share.outside = rest,
                None => share.unheld = rest,
            }
        }
        let drawn = above.min(held.unheld);
        settled.lend(above - drawn, carries.owed(LENT));
        let unheld = Parts { lent: drawn, idle: held.unheld - drawn, ..Parts::default() };
        settled.parts.insert(held.remainder.clone(), unheld);
        settled
    }

    /// Counts use within the holdings that cover the users, the innermost first; the rest of each holding is idle.
    fn split_within(
        held: &HeldTime,
        used: &BTreeMap<HolderId, UsedTime>,
        grants: &SlotGrants<'_>,
        carries: &mut Carries,
    ) -> Self {
        let mut settled = Self::default();
        // Use that is in no holding yet, by the holder of the next holding that may contain it.
        let mut uncounted: BTreeMap<&HolderId, BTreeMap<HolderId, u64>> = BTreeMap::new();
        for (user, used) in used {
            if let Some(holder) = grants.covering_holder(user) {
                uncounted.entry(holder).or_default().insert(user.clone(), used.time);
            }
        }
        for holder in grants.outer_first().into_iter().rev() {
            let users = uncounted.remove(holder).unwrap_or_default();
            let time = held.parts.get(holder).copied().unwrap_or(0);
            let sum: u64 = users.values().sum();
            let total = sum.min(time);
            let quotas =
                users.iter().map(|(user, used)| (user.clone(), Quota::new(total, *used, sum))).collect();
            let within = apportion(total, &quotas, carries.owed_in(WITHIN, holder));
            let parts = Parts { within: total, idle: time - total, ..Parts::default() };
            settled.parts.insert(holder.clone(), parts);
            let outer = grants.outer_holder(holder);
            for (user, used) in users {
                let within = within.get(&user).copied().unwrap_or(0);
                // What is above this holding may lie within the outer one.
                if let Some(outer) = outer {
                    *uncounted.entry(outer).or_default().entry(user.clone()).or_default() += used - within;
                }
                settled.users.entry(user).or_default().within += within;
            }
        }
        settled
    }

    /// Moves `total` from idle to lent time, in proportion to idle time.
    fn lend(&mut self, total: u64, owed: &mut Owed) {
        let idle = self.parts.values().map(|parts| parts.idle).sum();
        let quotas = self
            .parts
            .iter()
            .map(|(holder, parts)| (holder.clone(), Quota::new(total, parts.idle, idle)))
            .collect();
        for (holder, lent) in apportion(total, &quotas, owed) {
            if let Some(parts) = self.parts.get_mut(&holder) {
                parts.lent = lent;
                parts.idle = parts.idle.saturating_sub(lent);
            }
        }
    }
}
