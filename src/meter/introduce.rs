//! Which holders the ledger has been told of, with their facts.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::holders::{Granting, Identities};
use crate::ledger::Batch;
use crate::model::HolderId;

/// Holders that the ledger has been told of.
#[derive(Default)]
pub(super) struct Introduced {
    /// Only holders that have a process now.
    holders: BTreeSet<HolderId>,
    /// The identities of the last call. None after the grants or the ledger changed.
    identities: Option<Arc<Identities>>,
}

impl Introduced {
    /// Makes the next call introduce the holders of grants again.
    pub(super) fn grants_changed(&mut self) {
        self.identities = None;
    }

    /// Tells the ledger of holders that have come.
    pub(super) fn introduce(
        &mut self,
        identities: &Arc<Identities>,
        granting: Granting<'_>,
        batch: &mut Batch,
    ) {
        if self.identities.as_ref().is_some_and(|known| known.are_those_of(identities)) {
            return;
        }
        let mut here = BTreeSet::new();
        for holder in identities.holders() {
            if here.insert(holder.id.clone()) && !self.holders.contains(&holder.id) {
                batch.holders.push((**holder).clone());
            }
        }
        // A grant knows less of its holder than a process of that holder does: the ledger takes it only where it knows
        // nothing.
        batch.grantees.extend(granting.standing.iter().map(|grant| grant.selector.holder()));
        batch.grantees.extend(granting.allocations.iter().map(|one| one.holder.clone()));
        (self.holders, self.identities) = (here, Some(Arc::clone(identities)));
    }
}
