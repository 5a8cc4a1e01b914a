//! A ledger that was opened after the agent's start.
//!
//! In: where its account ends. GPUs were followed without an account until then, so their accounts start at that time. What
//! the driver has reported since the agent's start is applied to what the ledger has stored.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::registered::RegisteredHolders;
use super::{Account, Meter};
use crate::ledger::{Expected, GpuRegistration, LedgerBatch, Recovered, Resumed};
use crate::model::Stamp;

impl Meter {
    /// Goes on from a ledger that was opened after the start: the account begins now, and the time since its last
    /// commit is not bridged.
    pub(super) fn open_late(&mut self, recovered: Recovered, now: Stamp, batch: &mut LedgerBatch) {
        self.timeline = recovered.timeline;
        self.ledger = Some(recovered.created);
        batch.now = self.timeline.at(now.boottime);
        self.begun = batch.now;
        self.registered = RegisteredHolders::default();
        let resting: BTreeSet<Arc<str>> = recovered
            .inventory
            .iter()
            .filter(|expected| expected.attachment.rests())
            .map(|expected| Arc::clone(&expected.gpu))
            .collect();
        self.recover(recovered, batch.now);
        for (uuid, gpu) in &mut self.gpus {
            if gpu.health.is_under_another(self.module) {
                gpu.account.forget_energy();
                gpu.health.renew();
            }
            if gpu.location.was_seen() && resting.contains(uuid) {
                // Another GPU, or nobody, has the time since its account rested.
                gpu.account = Account::begin(batch.now);
                batch.resumed.push(Resumed { gpu: Arc::clone(uuid), at: batch.now });
            }
            gpu.account.bridge_nothing();
            if gpu.location.is_missing() {
                gpu.account.mark_lost();
            }
            if !gpu.location.was_seen() {
                continue;
            }
            let model =
                gpu.frame.as_ref().map_or_else(|| "".into(), |frame| Arc::clone(&frame.identity.model));
            batch.registrations.push(GpuRegistration { gpu: gpu.id.clone(), model, at: batch.now });
            gpu.location.since = batch.now;
            batch.expected.push(Expected {
                gpu: Arc::clone(uuid),
                bus: gpu.location.bus().into(),
                attachment: gpu.location.attachment,
                since: batch.now,
            });
        }
        if self.grants.has_all_listed() {
            // GPUs that only the ledger knows are not among those that the driver has counted.
            self.mark_uncounted_gpus();
        }
        self.shown = None;
    }
}
