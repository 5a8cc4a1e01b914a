//! Settles one window of one GPU: checks, cuts into segments, splits each, adds rows.
//!
//! The order is that of the account's section 3: held, used, parts, energy. This file only leads; each split
//! has its own.

use std::collections::BTreeMap;

use super::carries::Carries;
use super::check::check;
use super::claims::Grants;
use super::energy::Energy;
use super::held::Held;
use super::ladder::Ladder;
use super::parts::{Covers, Paid, paid, unused};
use super::rows::Rows;
use super::segment::{Segment, segments};
use super::used::{Used, used};
use super::{SLOT, Unsettled};
use crate::model::{Carry, HolderId, Settlement, SlotState, Span, Utc};

/// Settles the window from `from` to `to`, which `spans` cover exactly and in order.
///
/// `carry` and `previous` are the `carry` and `weights` of the settlement before, empty where there is none
/// or the slot is another. The held parts of the rows sum to the window, their use to the time busy. Input
/// that fits no account is refused whole.
pub fn settle(
    from: Utc,
    to: Utc,
    spans: &[Span],
    carry: &Carry,
    previous: &BTreeMap<HolderId, u64>,
) -> Result<Settlement, Unsettled> {
    check(from, to, spans)?;
    let mut window = Window {
        slot: SLOT,
        ladder: Ladder::new(spans, previous),
        carries: Carries::open(SLOT, carry),
        rows: Rows::default(),
        flags: Vec::new(),
    };
    for segment in segments(spans) {
        window.settle(&segment);
    }
    Ok(Settlement {
        from,
        to,
        rows: window.rows.close(),
        carry: window.carries.close(SLOT),
        weights: window.ladder.into_weights(),
        flags: window.flags,
    })
}

/// A window while it is settled.
pub(super) struct Window<'a> {
    /// The slot's name.
    pub(super) slot: &'a str,
    pub(super) ladder: Ladder<'a>,
    pub(super) carries: Carries,
    pub(super) rows: Rows,
    pub(super) flags: Vec<String>,
}

/// What was held and used of a segment.
pub(super) struct Settled {
    pub(super) held: Held,
    pub(super) used: BTreeMap<HolderId, Used>,
    pub(super) paid: Paid,
}

impl Window<'_> {
    pub(super) fn settle(&mut self, segment: &Segment<'_>) -> Settled {
        let constant = segment.constant();
        let grants = Grants::of(&constant.holdings, &constant.covered_by);
        for holder in &grants.conflicts {
            self.flag(format!("{}: conflict {holder}", self.slot));
        }
        let held = Held::of(segment.length(), constant.state, &grants, &mut self.carries);
        let (used, paid) = self.use_of(segment, &held, &grants);
        let energy = Energy::of(segment, &held, &used);
        self.rows.add(segment, &paid, &used, &energy);
        self.drop_debts(segment, &grants, &used);
        Settled { held, used, paid }
    }

    /// Adds a remark, once a window.
    fn flag(&mut self, remark: String) {
        if !self.flags.contains(&remark) {
            self.flags.push(remark);
        }
    }

    /// Who used what of the segment, and what that makes of the holdings.
    fn use_of(
        &mut self,
        segment: &Segment<'_>,
        held: &Held,
        grants: &Grants,
    ) -> (BTreeMap<HolderId, Used>, Paid) {
        let constant = segment.constant();
        if constant.state != SlotState::Measured {
            if segment.busy() > 0 {
                self.flag(format!("{}: activity while not measured", self.slot));
            }
            return (BTreeMap::new(), unused(held, constant.state));
        }
        let used = used(segment, grants, &self.ladder, &mut self.carries.used);
        let covers = Covers { grants, covered_by: &constant.covered_by };
        let paid = paid(held, &used, &covers, &mut self.carries);
        (used, paid)
    }

    /// Forgets what is owed to those who went. A moment without length, and one in which nobody looked, show
    /// nobody going; where activity is unknown, users may still be there.
    fn drop_debts(&mut self, segment: &Segment<'_>, grants: &Grants, used: &BTreeMap<HolderId, Used>) {
        let state = segment.constant().state;
        if segment.length() == 0 || state == SlotState::Unobserved {
            return;
        }
        self.carries.drop_holders(grants);
        if state == SlotState::Measured {
            let is_present =
                |user: &HolderId| segment.spans.iter().any(|span| span.present.contains_key(user));
            self.carries
                .drop_users(|user| grants.claimed(user) || used.contains_key(user) || is_present(user));
        }
    }
}
