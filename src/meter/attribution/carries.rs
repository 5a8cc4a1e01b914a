//! Carries of one slot: what each part of a split is still owed, in units of 2^-32 nanoseconds.
//!
//! They are stored by tree node: `<slot>/held`, `<slot>/nested/<holder>`, `<slot>/busy`, `<slot>/used`, `<slot>/lent` and
//! `<slot>/within/<holder>`. A carry is kept through segments whose activity is unknown, and dropped when its holder goes.

use std::collections::BTreeMap;

use super::claims::SlotGrants;
use crate::model::{Carry, HolderId};

pub(super) type Owed = BTreeMap<HolderId, i64>;

#[derive(Clone, Debug, Default)]
pub(super) struct Carries {
    /// Slot time to held parts and the remainder.
    pub(super) held: Owed,
    /// Per outer holding: its time to nested holdings and itself.
    pub(super) nested: BTreeMap<HolderId, Owed>,
    /// Of a MIG instance: slot time to busy time.
    pub(super) busy: Owed,
    /// Busy time to users.
    pub(super) used: Owed,
    /// Lent time to idle holders.
    pub(super) lent: Owed,
    /// Per holding: its time within to the users that it covers.
    pub(super) within: BTreeMap<HolderId, Owed>,
}

impl Carries {
    /// Reads the slot's carries from those of the last window.
    pub(super) fn from_stored(slot: &str, carry: &Carry) -> Self {
        let mut carries = Self::default();
        for (node, owed) in carry {
            match node.strip_prefix(slot).and_then(|rest| rest.strip_prefix('/')) {
                Some("held") => carries.held.clone_from(owed),
                Some("busy") => carries.busy.clone_from(owed),
                Some("used") => carries.used.clone_from(owed),
                Some("lent") => carries.lent.clone_from(owed),
                Some(name) => {
                    if let Some(holder) = name.strip_prefix("within/") {
                        carries.within.insert(HolderId::new(holder), owed.clone());
                    } else if let Some(holder) = name.strip_prefix("nested/") {
                        carries.nested.insert(HolderId::new(holder), owed.clone());
                    }
                }
                None => {}
            }
        }
        carries
    }

    /// The carries as they are stored, without zeros and empty nodes.
    pub(super) fn into_stored(self, slot: &str) -> Carry {
        let mut carry = Carry::new();
        let mut store = |node: String, mut owed: Owed| {
            owed.retain(|_, units| *units != 0);
            if !owed.is_empty() {
                carry.insert(node, owed);
            }
        };
        store(format!("{slot}/held"), self.held);
        store(format!("{slot}/busy"), self.busy);
        store(format!("{slot}/used"), self.used);
        store(format!("{slot}/lent"), self.lent);
        for (holder, owed) in self.nested {
            store(format!("{slot}/nested/{holder}"), owed);
        }
        for (holder, owed) in self.within {
            store(format!("{slot}/within/{holder}"), owed);
        }
        carry
    }

    /// Drops the carries of those who no longer hold. Remainders never go.
    pub(super) fn drop_holders(&mut self, grants: &SlotGrants<'_>) {
        let stays = |holder: &HolderId| holder.is_remainder() || grants.has_claim(holder);
        self.held.retain(|holder, _| stays(holder));
        self.lent.retain(|holder, _| stays(holder));
        self.within.retain(|holder, _| stays(holder));
        self.nested.retain(|holder, _| stays(holder));
        for owed in self.nested.values_mut() {
            owed.retain(|holder, _| stays(holder));
        }
    }

    /// Drops the carries of users who are neither present nor hold.
    pub(super) fn drop_users(&mut self, stays: impl Fn(&HolderId) -> bool) {
        for owed in self.within.values_mut().chain([&mut self.used]) {
            owed.retain(|user, _| user.is_remainder() || stays(user));
        }
    }
}
