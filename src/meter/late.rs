//! A ledger that was opened after the agent's start.
//!
//! In: where its account ends. GPUs were followed without an account until then, so their accounts start at that time. What
//! the driver has reported since the agent's start is applied to what the ledger has stored.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::introduce::Introduced;
use super::{Account, Meter};
use crate::ledger::{Batch, Expected, Recovered, Resumed, Sight};
use crate::model::Stamp;

impl Meter {
    /// Goes on from a ledger that was opened after the start: the account begins now, and the time since its last
    /// commit is not bridged.
    pub(super) fn open_late(&mut self, recovered: Recovered, now: Stamp, batch: &mut Batch) {
        self.timeline = recovered.timeline;
        self.ledger = Some(recovered.created);
        batch.now = self.timeline.at(now.boottime);
        self.begun = batch.now;
        self.introduced = Introduced::default();
        let resting: BTreeSet<Arc<str>> = recovered
            .inventory
            .iter()
            .filter(|expected| expected.whereabouts.rests())
            .map(|expected| Arc::clone(&expected.gpu))
            .collect();
        self.recover(recovered, batch.now);
        for (uuid, gpu) in &mut self.gpus {
            if gpu.bench.is_under_another(self.module) {
                gpu.account.forget_energy();
                gpu.bench.renew();
            }
            if gpu.place.was_seen() && resting.contains(uuid) {
                // Another GPU, or nobody, has the time since its account rested.
                gpu.account = Account::begin(batch.now);
                batch.resumed.push(Resumed { gpu: Arc::clone(uuid), at: batch.now });
            }
            gpu.account.bridge_nothing();
            if gpu.place.is_missing() {
                gpu.account.lose();
            }
            if !gpu.place.was_seen() {
                continue;
            }
            let model =
                gpu.frame.as_ref().map_or_else(|| "".into(), |frame| Arc::clone(&frame.identity.model));
            batch.sights.push(Sight { gpu: gpu.id.clone(), model, at: batch.now });
            gpu.place.since = batch.now;
            batch.expected.push(Expected {
                gpu: Arc::clone(uuid),
                bus: gpu.place.bus().into(),
                whereabouts: gpu.place.whereabouts,
                since: batch.now,
            });
        }
        if self.grants.has_told() {
            // GPUs that only the ledger knows are not among those that the driver has counted.
            self.counted();
        }
        self.shown = None;
    }
}
