//! Which holders are registered in the ledger, with their facts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::holders::{Granting, Identities};
use crate::ledger::LedgerBatch;
use crate::model::{Holder, HolderId};

/// Holders that are registered in the ledger.
#[derive(Default)]
pub(super) struct RegisteredHolders {
    /// Only holders that have a process now.
    holders: BTreeSet<HolderId>,
    /// Only holders that a scheduler has allocated something now.
    allocated: BTreeMap<HolderId, Holder>,
    /// The identities of the last call. None after the grants or the ledger changed.
    identities: Option<Arc<Identities>>,
}

impl RegisteredHolders {
    /// Makes the next call register the holders of grants again.
    pub(super) fn grants_changed(&mut self) {
        self.identities = None;
    }

    /// Registers the holders that are new or have changed.
    pub(super) fn register_holders(
        &mut self,
        identities: &Arc<Identities>,
        granting: Granting<'_>,
        batch: &mut LedgerBatch,
    ) {
        if self.identities.as_ref().is_some_and(|known| known.has_same_processes(identities)) {
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
        let allocated: BTreeMap<HolderId, Holder> =
            granting.allocations.iter().map(|one| (one.holder.id.clone(), one.holder.clone())).collect();
        for holder in allocated.values() {
            match self.allocated.get(&holder.id) {
                None => batch.grantees.push(holder.clone()),
                Some(registered) if registered == holder => {}
                // Ids of a job's array come from its processes, after its allocation.
                Some(_) => batch.holders.push(holder.clone()),
            }
        }
        self.allocated = allocated;
        (self.holders, self.identities) = (here, Some(Arc::clone(identities)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::Allocation;
    use crate::model::{Fact, Facts, Fraction, HolderKind, HoldingSource};

    #[test]
    fn facts_that_are_learned_after_an_allocation_are_told_and_those_of_a_first_one_yield_to_what_is_known() {
        let job = |facts: &[(Fact, &str)]| {
            let known = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, "211")];
            Holder::new(HolderKind::Slurm, Facts::new(known.into_iter().chain(facts.iter().copied())))
        };
        let identities = Arc::new(Identities::default());
        let mut introduced = RegisteredHolders::default();
        let mut told = |holder: &Holder| {
            let (holder, device, fraction) = (holder.clone(), "GPU-0".into(), Fraction::WHOLE);
            let source = HoldingSource::Slurm;
            let allocations = [Allocation { holder, device, fraction, source, since: None }];
            let granting = Granting { allocations: &allocations, standing: &[], presence: false };
            let mut batch = LedgerBatch::default();
            introduced.grants_changed();
            introduced.register_holders(&identities, granting, &mut batch);
            (batch.grantees, batch.holders)
        };
        let (recorded, named) = (job(&[]), job(&[(Fact::SlurmArrayJob, "210")]));
        assert_eq!(told(&recorded), (vec![recorded.clone()], vec![]));
        assert_eq!(told(&named), (vec![], vec![named.clone()]));
        assert_eq!(told(&named), (vec![], vec![]));
    }
}
