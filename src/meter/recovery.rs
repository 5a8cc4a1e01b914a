//! Continuing the account of the ledger, at the agent's start or later.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::account::Account;
use super::unused::UnusedHoldings;
use super::versions::HolderVersions;
use super::{Meter, TrackedGpu};
use crate::accounting::batches::{Expected, LedgerBatch, Recovered, Resumed};
use crate::model::{Attachment, Stamp, Utc};

impl Meter {
    pub(super) fn recover(&mut self, recovered: Recovered, begun: Utc) {
        self.accounts.recover(&recovered, begun);
        self.versions = HolderVersions::recover(&recovered.holders, begun);
        (self.received, self.has_new_grants) = (None, true);
        for gpu in self.gpus.values_mut() {
            gpu.account = Account::begin(begun);
            gpu.unused = UnusedHoldings::default();
        }
        for (uuid, known) in recovered.gpus {
            let counter = known.energy_counter;
            let id = known.gpu.clone();
            let unused = UnusedHoldings::recover(&known.evidence, known.settled_until);
            let account = Account::recover(known, begun, recovered.boot);
            let gpu = match self.gpus.entry(uuid) {
                Entry::Vacant(vacant) => vacant.insert(TrackedGpu::new(id, account, begun)),
                Entry::Occupied(occupied) => {
                    let gpu = occupied.into_mut();
                    gpu.account = account;
                    gpu
                }
            };
            gpu.unused = unused;
            gpu.health.set_energy_counter(counter);
        }
        self.recover_sticky_faults(recovered.sticky_faults);
        self.recover_xids(recovered.xids);
        for expected in recovered.inventory {
            if let Some(gpu) = self.gpus.get_mut(&expected.gpu).filter(|gpu| !gpu.location.seen) {
                match expected.attachment {
                    Attachment::Present => {}
                    Attachment::Lost | Attachment::Gone => gpu.health.mark_gone(),
                    Attachment::Guest | Attachment::Replaced | Attachment::Forgotten => gpu.health.forget(),
                }
                gpu.account.failed = gpu.health.has_failed();
                if expected.attachment != Attachment::Present {
                    gpu.account.mark_lost();
                }
                gpu.location.recover(expected);
            }
        }
    }

    /// Continues the account of a ledger that was opened after the agent had started. GPUs had no account until now, so
    /// the time since the last commit is not bridged.
    pub(super) fn open_late(&mut self, recovered: Recovered, now: Stamp, batch: &mut LedgerBatch) {
        self.timeline = recovered.timeline;
        self.ledger = Some(recovered.created);
        batch.now = self.timeline.at(now.boottime);
        self.begun = batch.now;
        let paused: BTreeSet<Arc<str>> = recovered
            .inventory
            .iter()
            .filter(|expected| expected.attachment.is_account_paused())
            .map(|expected| Arc::clone(&expected.gpu))
            .collect();
        self.recover(recovered, batch.now);
        for (uuid, gpu) in &mut self.gpus {
            if gpu.health.is_another_module(self.module) {
                gpu.restart();
            }
            if gpu.location.seen && paused.contains(uuid) {
                // Time since its account was paused is not billed to this GPU.
                gpu.account = Account::begin(batch.now);
                batch.resumed.push(Resumed { gpu: Arc::clone(uuid), at: batch.now });
            }
            gpu.account.bridge_nothing();
            gpu.health.incidents = None;
            if gpu.location.is_missing() {
                gpu.account.mark_lost();
            }
            if !gpu.location.seen {
                continue;
            }
            batch.registrations.push(gpu.registration(batch.now));
            gpu.location.since = batch.now;
            batch.expected.push(Expected {
                gpu: Arc::clone(uuid),
                bus: Arc::clone(&gpu.location.bus),
                attachment: gpu.location.attachment,
                since: batch.now,
            });
        }
        if self.grants.all_listed {
            // GPUs that only the ledger knows were not in the driver's list.
            self.mark_unlisted_gpus();
        }
        self.publisher.accounts.invalidate();
    }
}
