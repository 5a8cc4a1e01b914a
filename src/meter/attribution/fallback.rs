//! How the busy time of a tick is split between its users: by its own weights, else by the first fallback that is known.
//!
//! Fallback order of a tick without weights: what the window's other ticks measured, then what the window before measured,
//! both for holders still present; resident memory; equally; `__unattributed__`. Where processes cannot be seen by
//! construction, holders stand for them. NVML's accounting records of processes that just ended are not used: such a pid is
//! gone from `/proc`, so it names no holder, and a reused pid would name a wrong one.
//!
//! Other ticks count by the busy time that their weights split and not by the weights, whose unit is constant within one
//! span only (law L6).

use std::collections::BTreeMap;

use super::apportion::{Quota, Shares};
use super::claims::SlotGrants;
use crate::model::{Grade, HolderId, Presence, SlotState, Span};

/// How to split a tick without weights: by the other ticks of its window, then by the window before.
#[derive(Debug)]
pub(super) struct UseFallback<'a> {
    /// Nanoseconds used in this window's ticks with weights.
    window: BTreeMap<HolderId, u64>,
    previous: Option<&'a BTreeMap<HolderId, u64>>,
    /// Whether the slot is a GPU instance, of which NVML reports no weights.
    is_instance: bool,
}

impl<'a> UseFallback<'a> {
    /// The fallbacks of a whole GPU; `previous` is what the window before measured.
    pub(super) fn of_gpu(spans: &[Span], previous: &'a BTreeMap<HolderId, u64>) -> Self {
        let mut window: BTreeMap<HolderId, Quota> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.state == SlotState::Measured) {
            for (user, quota) in own_shares(span).iter().flat_map(|shares| shares.quotas(span.busy)) {
                window.entry(user.clone()).or_default().add(quota);
            }
        }
        let window = window.into_iter().map(|(user, quota)| (user, quota.floor())).collect();
        Self { window, previous: Some(previous), is_instance: false }
    }

    pub(super) const fn of_instance() -> Self {
        Self { window: BTreeMap::new(), previous: None, is_instance: true }
    }

    pub(super) fn into_weights(mut self) -> BTreeMap<HolderId, u64> {
        self.window.retain(|_, weight| *weight > 0);
        self.window
    }

    pub(super) fn shares(&self, span: &Span, grants: &SlotGrants<'_>) -> (Shares<HolderId>, Grade) {
        if span.blind
            && let Some(shares) = shares_along_held(grants)
        {
            // A slot with a single holder is used by that one.
            let grade = if shares.is_single() { Grade::Measured } else { Grade::SplitByHolding };
            return (shares, grade);
        }
        if let Some(shares) = own_shares(span).filter(|_| !self.is_instance) {
            return (shares, Grade::Measured);
        }
        if let Some(user) = only_user(span) {
            return (Shares::single(user.clone()), Grade::Measured);
        }
        if self.is_instance
            && let Some(shares) = held_shares_of_present(span, grants)
        {
            return (shares, Grade::SplitByHolding);
        }
        earlier_shares(&self.window, span)
            .or_else(|| earlier_shares(self.previous?, span))
            .map(|shares| (shares, Grade::SplitByActivity))
            .or_else(|| Some((shares_of_present(span, |user| user.memory)?, Grade::SplitByMemory)))
            .or_else(|| Some((shares_of_present(span, |_| Some(1))?, Grade::SplitEqually)))
            .unwrap_or_else(|| (Shares::single(HolderId::new(HolderId::UNATTRIBUTED)), Grade::Unknown))
    }
}

/// Shares by the tick's own weights. Weights of a blind tick are ignored.
fn own_shares(span: &Span) -> Option<Shares<HolderId>> {
    if span.blind { None } else { shares_of_present(span, |user| user.weight) }
}

fn shares_of_present(span: &Span, weight: impl Fn(&Presence) -> Option<u64>) -> Option<Shares<HolderId>> {
    let weights = span.present.iter();
    Shares::from_weights(
        weights.filter_map(|(user, presence)| Some((user.clone(), weight(presence)?.into()))),
    )
}

/// The user of a tick with only one. A remainder does not count: the real user may have ended before the
/// process list was read.
fn only_user(span: &Span) -> Option<&HolderId> {
    let mut present = span.present.keys();
    match (present.next(), present.next()) {
        (Some(user), None) if !user.is_remainder() => Some(user),
        _ => None,
    }
}

fn earlier_shares(weights: &BTreeMap<HolderId, u64>, span: &Span) -> Option<Shares<HolderId>> {
    let weight = |user: &HolderId| Some((user.clone(), u128::from(*weights.get(user)?)));
    Shares::from_weights(span.present.keys().filter_map(weight))
}

/// Shares by the granted fractions. The integer times are rounded; splitting by them would give equal holders different
/// shares (law L11).
fn shares_along_held(grants: &SlotGrants<'_>) -> Option<Shares<HolderId>> {
    let own_part = |holder: &HolderId| u128::from(grants.remaining_part(Some(holder)));
    Shares::from_weights(grants.parts.keys().map(|holder| (holder.clone(), own_part(holder))))
}

/// Shares of present users by what they hold; several users whom one holding covers share it equally.
fn held_shares_of_present(span: &Span, grants: &SlotGrants<'_>) -> Option<Shares<HolderId>> {
    let mut users: BTreeMap<&HolderId, Vec<&HolderId>> = BTreeMap::new();
    for user in span.present.keys() {
        if let Some(holder) = grants.covering_holder(user) {
            users.entry(holder).or_default().push(user);
        }
    }
    Shares::from_weights(users.into_iter().flat_map(|(holder, users)| {
        // 32 more bits, so that the rounding of the division does not count.
        let own_part = u128::from(grants.remaining_part(Some(holder))) << 32;
        let share = own_part / users.len().max(1) as u128;
        users.into_iter().map(move |user| (user.clone(), share))
    }))
}
