//! How the busy time of a tick is split between users: by its own weights, else by the first fallback that is known.
//!
//! The fallback order of a tick without weights, best first: what the window's other ticks measured, then what the window
//! before did, both for holders still present; resident memory; equally; `__unattributed__`. Where processes
//! cannot be seen by construction, holders stand for them. In goes one span, out come shares and their grade.
//! Accounting records of processes that just ended are not used: a pid alone, whose place in `/proc` is gone, names
//! nobody, and a pid that was given anew would name the wrong one.
//!
//! Other ticks count by the busy time that their weights split, not by the weights: those share a unit only
//! within their own span, and time can be cut without changing a share (L6).

use std::collections::BTreeMap;

use super::claims::SlotGrants;
use super::parts::Covers;
use super::quota::Quota;
use super::shares::Shares;
use crate::model::{Grade, HolderId, Presence, SlotState, Span};

/// What other ticks know about a tick without weights.
#[derive(Debug)]
pub(super) struct UseFallback<'a> {
    window: BTreeMap<HolderId, u64>,
    previous: Option<&'a BTreeMap<HolderId, u64>>,
    /// Whether the slot is a GPU instance: no weights exist there.
    is_instance: bool,
}

impl<'a> UseFallback<'a> {
    /// The fallbacks of a window: what its own ticks measured, in nanoseconds, and what the one before did.
    pub(super) fn new(spans: &[Span], previous: &'a BTreeMap<HolderId, u64>) -> Self {
        let mut window: BTreeMap<HolderId, Quota> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.state == SlotState::Measured) {
            for (user, quota) in own(span).iter().flat_map(|shares| shares.quotas(span.busy)) {
                window.entry(user.clone()).or_default().add(quota);
            }
        }
        let window = window.into_iter().map(|(user, quota)| (user, quota.floor())).collect();
        Self { window, previous: Some(previous), is_instance: false }
    }

    /// The fallbacks of a GPU instance, where what is held decides between several users, else memory.
    pub(super) const fn of_instance() -> Self {
        Self { window: BTreeMap::new(), previous: None, is_instance: true }
    }

    /// What the window's ticks measured, for the fallbacks of the next window.
    pub(super) fn into_weights(mut self) -> BTreeMap<HolderId, u64> {
        self.window.retain(|_, weight| *weight > 0);
        self.window
    }

    /// The shares in a tick's busy time, and how good they are.
    pub(super) fn shares(&self, span: &Span, grants: &SlotGrants) -> (Shares, Grade) {
        if span.blind
            && let Some(shares) = along_held(grants)
        {
            // A slot with one holder is simply his.
            let grade = if shares.len() == 1 { Grade::Measured } else { Grade::SplitByHolding };
            return (shares, grade);
        }
        if let Some(shares) = own(span).filter(|_| !self.is_instance) {
            return (shares, Grade::Measured);
        }
        if let Some(user) = sole(span) {
            return (Shares::all(user.clone()), Grade::Measured);
        }
        if self.is_instance
            && let Some(shares) = held_by_present(span, grants)
        {
            return (shares, Grade::SplitByHolding);
        }
        known(&self.window, span)
            .or_else(|| known(self.previous?, span))
            .map(|shares| (shares, Grade::SplitByActivity))
            .or_else(|| by_memory(span).map(|shares| (shares, Grade::SplitByMemory)))
            .or_else(|| equally(span).map(|shares| (shares, Grade::SplitEqually)))
            .unwrap_or_else(|| (Shares::all(HolderId::new(HolderId::UNATTRIBUTED)), Grade::Unknown))
    }
}

/// The tick's own weights; a blind tick has none, even if it says so.
fn own(span: &Span) -> Option<Shares> {
    if span.blind { None } else { by(span, |presence| presence.weight) }
}

/// The only user there: one user takes all. A remainder is none, it may just have outlived the user.
fn sole(span: &Span) -> Option<&HolderId> {
    let mut present = span.present.keys();
    match (present.next(), present.next()) {
        (Some(user), None) if !user.is_remainder() => Some(user),
        _ => None,
    }
}

/// Earlier measurements of those who are present.
fn known(weights: &BTreeMap<HolderId, u64>, span: &Span) -> Option<Shares> {
    Shares::by(
        span.present
            .keys()
            .filter_map(|user| weights.get(user).map(|weight| (user.clone(), u128::from(*weight)))),
    )
}

fn by_memory(span: &Span) -> Option<Shares> {
    by(span, |presence| presence.memory)
}

fn equally(span: &Span) -> Option<Shares> {
    by(span, |_| Some(1))
}

fn along_held(grants: &SlotGrants) -> Option<Shares> {
    // Along the granted fractions, not the integers they became: equals would drift apart (L11).
    Shares::by(grants.parts.keys().map(|holder| {
        let own = grants.rest_of(Some(holder));
        (holder.clone(), u128::from(own))
    }))
}

/// What those who are present hold; several whom one holding covers share it equally.
fn held_by_present(span: &Span, grants: &SlotGrants) -> Option<Shares> {
    let covers = Covers { grants, covered_by: &span.covered_by };
    let mut users: BTreeMap<&HolderId, Vec<&HolderId>> = BTreeMap::new();
    for user in span.present.keys() {
        if let Some(holder) = covers.holding(user) {
            users.entry(holder).or_default().push(user);
        }
    }
    Shares::by(users.into_iter().flat_map(|(holder, users)| {
        // 32 more bits, so that what a division loses does not count.
        let share = (u128::from(grants.rest_of(Some(holder))) << 32) / users.len().max(1) as u128;
        users.into_iter().map(move |user| (user.clone(), share))
    }))
}

fn by(span: &Span, weight: impl Fn(&Presence) -> Option<u64>) -> Option<Shares> {
    Shares::by(
        span.present
            .iter()
            .filter_map(|(user, presence)| weight(presence).map(|weight| (user.clone(), u128::from(weight)))),
    )
}
