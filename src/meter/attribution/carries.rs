//! Carries of one slot: what each part of a split is still owed, in units of 2^-32 nanoseconds.
//!
//! They are kept by tree node, as they are stored: `held`, `nested/<holder>`, `busy`, `used`, `lent` and `within/<holder>`, each
//! behind the slot's name. A carry is kept through segments whose activity is unknown, and dropped when its holder goes.

use std::collections::BTreeMap;

use super::claims::SlotGrants;
use crate::model::{Carry, HolderId};

pub(super) type Owed = BTreeMap<HolderId, i64>;

/// The split of slot time to held parts and the remainder.
pub(super) const HELD: &str = "held";
/// Of a MIG instance: the split of slot time to busy time.
pub(super) const BUSY: &str = "busy";
/// The split of busy time to users.
pub(super) const USED: &str = "used";
/// The split of lent time to idle holders.
pub(super) const LENT: &str = "lent";
/// Per outer holding: the split of its time to nested holdings and itself.
pub(super) const NESTED: &str = "nested";
/// Per holding: the split of its time within to the users that it covers.
pub(super) const WITHIN: &str = "within";

#[derive(Clone, Debug, Default)]
pub(super) struct Carries(Carry);

impl Carries {
    pub(super) fn from_stored(slot: &str, carry: &Carry) -> Self {
        let of_slot = |node: &str| Some(node.strip_prefix(slot)?.strip_prefix('/')?.to_owned());
        Self(carry.iter().filter_map(|(node, owed)| Some((of_slot(node)?, owed.clone()))).collect())
    }

    /// The carries as they are stored, without zeros and empty nodes.
    pub(super) fn into_stored(self, slot: &str) -> Carry {
        let stored = self.0.into_iter().map(|(node, mut owed)| {
            owed.retain(|_, units| *units != 0);
            (format!("{slot}/{node}"), owed)
        });
        stored.filter(|(_, owed)| !owed.is_empty()).collect()
    }

    pub(super) fn owed(&mut self, node: &str) -> &mut Owed {
        self.0.entry(node.to_owned()).or_default()
    }

    /// The carries of a split of one holding.
    pub(super) fn owed_in(&mut self, node: &str, holder: &HolderId) -> &mut Owed {
        self.owed(&format!("{node}/{holder}"))
    }

    /// Drops the carries of those who no longer hold. Remainders never go.
    pub(super) fn drop_holders(&mut self, grants: &SlotGrants<'_>) {
        let stays = |holder: &HolderId| holder.is_remainder() || grants.has_claim(holder);
        self.0.retain(|node, owed| {
            let (node, outer) = node.split_once('/').unwrap_or((node, ""));
            if matches!(node, HELD | LENT | NESTED) {
                owed.retain(|holder, _| stays(holder));
            }
            outer.is_empty() || stays(&HolderId::new(outer))
        });
    }

    /// Drops the carries of users who are neither present nor hold.
    pub(super) fn drop_users(&mut self, stays: impl Fn(&HolderId) -> bool) {
        for (node, owed) in &mut self.0 {
            if matches!(node.split('/').next(), Some(USED | WITHIN)) {
                owed.retain(|user, _| user.is_remainder() || stays(user));
            }
        }
    }
}
