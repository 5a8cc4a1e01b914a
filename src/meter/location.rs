//! Where each GPU is, by reports of samplers, the search for GPUs and the PCI bus; changes go to the ledger.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::account::Account;
use super::numbers::MeterCounters;
use super::{GpuLabels, Meter, Policy, TrackedGpu};
use crate::accounting::batches::{Expected, LedgerBatch, Resumed};
use crate::holders::SessionGpu;
use crate::holders::host::Pci;
use crate::holders::host::pci::{address, is_passthrough_driver};
use crate::model::{Attachment, GpuId, Utc};

#[derive(Clone, Debug)]
pub(super) struct GpuLocation {
    /// PCI address; "" if unknown.
    pub(super) bus: Arc<str>,
    /// Whether the driver has listed it since its library was last opened.
    listed: bool,
    /// Whether the driver has listed it since the agent's start.
    pub(super) seen: bool,
    /// Whether its sampler has reported it as lost since its last frame.
    lost: bool,
    /// Whether the driver has listed all its GPUs and this one is not among them.
    unlisted: bool,
    replaced: bool,
    forgotten: bool,
    pub(super) attachment: Attachment,
    pub(super) since: Utc,
}

impl GpuLocation {
    pub(super) fn new(since: Utc) -> Self {
        Self {
            bus: "".into(),
            listed: false,
            seen: false,
            lost: false,
            unlisted: false,
            replaced: false,
            forgotten: false,
            attachment: Attachment::Present,
            since,
        }
    }

    pub(super) fn recover(&mut self, known: Expected) {
        self.bus = known.bus;
        self.attachment = known.attachment;
        self.since = known.since;
        self.replaced = known.attachment == Attachment::Replaced;
        self.forgotten = known.attachment == Attachment::Forgotten;
    }

    /// Whether its index may still be used in the current driver session: the driver lists it, or has not listed all yet.
    const fn may_have_index(&self) -> bool {
        let expected = matches!(self.attachment, Attachment::Present) && !self.forgotten;
        self.listed || (expected && !self.unlisted && !self.replaced)
    }

    pub(super) const fn is_there(&self) -> bool {
        self.seen && matches!(self.attachment, Attachment::Present)
    }

    /// Whether it is lost or unlisted, so that it cannot be read.
    pub(super) const fn is_missing(&self) -> bool {
        self.lost || self.unlisted
    }

    /// Whether a guest has it, or it was replaced or forgotten.
    pub(super) const fn is_elsewhere(&self) -> bool {
        matches!(self.attachment, Attachment::Guest | Attachment::Replaced | Attachment::Forgotten)
    }

    /// Since when its account is paused; none if it is not.
    pub(super) fn paused_since(&self) -> Option<Utc> {
        self.attachment.is_account_paused().then_some(self.since)
    }

    pub(super) const fn absence(&self) -> Option<&'static str> {
        match self.attachment {
            Attachment::Present | Attachment::Forgotten => None,
            absent => Some(absent.name()),
        }
    }

    fn mark_listed(&mut self, bus: Arc<str>) {
        if !bus.is_empty() {
            self.bus = bus;
        }
        self.listed = true;
        self.seen = true;
        self.unlisted = false;
        self.replaced = false;
        self.forgotten = false;
    }

    pub(super) fn mark_read(&mut self) {
        (self.listed, self.seen) = (true, true);
        (self.lost, self.unlisted) = (false, false);
    }

    fn locate(&self, pci: Option<&Pci>) -> Attachment {
        match pci.filter(|_| !self.bus.is_empty()).map(|pci| pci.driver(&self.bus)) {
            _ if self.forgotten => Attachment::Forgotten,
            _ if self.replaced => Attachment::Replaced,
            // The driver has not listed its GPUs yet.
            _ if !self.seen && !self.unlisted => self.attachment,
            _ if !self.is_missing() => Attachment::Present,
            Some(None) => Attachment::Gone,
            Some(Some(Some(driver))) if is_passthrough_driver(driver) => Attachment::Guest,
            Some(Some(_)) => Attachment::Lost,
            // If the PCI bus cannot be read, a listed GPU is lost and any other is gone.
            None if self.unlisted => Attachment::Gone,
            None => Attachment::Lost,
        }
    }
}

impl TrackedGpu {
    /// The driver was loaded again, which resets the GPU: its counters began at 0.
    pub(super) fn restart(&mut self) {
        self.account.restart_energy();
        self.health.record_reload();
    }

    /// Ends the pause of its account: the time before the pause is settled, the pause itself is skipped.
    fn resume_account(
        &mut self,
        policy: &Arc<Policy>,
        counters: &mut MeterCounters,
        batch: &mut LedgerBatch,
    ) {
        while self.settle_windows(Utc(u64::MAX), policy, counters, batch) {}
        self.account = Account::begin(batch.now);
        if self.location.lost {
            self.account.mark_lost();
        }
        batch.resumed.push(Resumed { gpu: Arc::clone(&self.id.uuid), at: batch.now });
    }
}

impl Meter {
    /// The driver's library was opened. GPUs stay where they were until the driver has listed all.
    pub(super) fn library_opened(&mut self, anew: bool, module: Option<u64>) {
        self.module = module;
        self.grants.all_listed = false;
        for gpu in self.gpus.values_mut() {
            gpu.location.listed = false;
            gpu.starts_anew = true;
            if anew || gpu.health.is_another_module(module) {
                gpu.restart();
            }
        }
    }

    /// The driver lists a GPU. An unlisted GPU at the same PCI address was replaced by it.
    pub(super) fn register_gpu(&mut self, id: &GpuId, bus: &str, batch: &mut LedgerBatch) {
        let at = batch.now;
        let bus = address(bus).unwrap_or_default();
        for gpu in self.gpus.values_mut() {
            let same_place = !bus.is_empty() && gpu.location.bus == bus && gpu.id.uuid != id.uuid;
            if same_place && !gpu.location.listed {
                gpu.location.replaced = true;
                gpu.account.mark_lost();
            }
        }
        if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
            gpu.starts_anew = true;
            gpu.location.mark_listed(bus);
            if gpu.location.attachment.is_account_paused() {
                gpu.resume_account(&self.policy, &mut self.counters, batch);
            } else if !gpu.location.lost {
                gpu.account.mark_found(at);
            }
            if gpu.id != *id {
                (gpu.id, gpu.labels) = (id.clone(), GpuLabels::of(id));
                batch.registrations.push(gpu.registration(at));
            }
        } else {
            let mut gpu = TrackedGpu::new(id.clone(), Account::begin(at), at);
            batch.registrations.push(gpu.registration(at));
            gpu.location.mark_listed(Arc::clone(&bus));
            let attachment = Attachment::Present;
            batch.expected.push(Expected { gpu: Arc::clone(&id.uuid), bus, attachment, since: at });
            self.gpus.insert(Arc::clone(&id.uuid), gpu);
        }
        self.assign_indices();
    }

    /// The driver has listed all its GPUs: the others are unlisted.
    pub(super) fn mark_unlisted_gpus(&mut self) {
        self.grants.all_listed = true;
        for gpu in self.gpus.values_mut().filter(|gpu| !gpu.location.listed) {
            gpu.location.unlisted = true;
            gpu.account.mark_lost();
        }
    }

    pub(super) fn mark_lost(&mut self, id: &GpuId) {
        if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
            gpu.location.lost = true;
            // It may return after a reset, with counters that have passed their old values.
            gpu.starts_anew = true;
            gpu.account.mark_lost();
        }
    }

    /// The operator removed a GPU from the inventory; one that is there stays.
    pub(super) fn forget_gpu(&mut self, uuid: &str, at: Utc) {
        if let Some(gpu) = self.gpus.get_mut(uuid).filter(|gpu| !gpu.location.is_there()) {
            gpu.location.forgotten = true;
            gpu.account.mark_lost();
            gpu.xids.forget(at);
        }
    }

    /// Finds where every GPU is; changes are logged and go to the ledger.
    pub(super) fn locate(&mut self, pci: Option<&Pci>, batch: &mut LedgerBatch) {
        for (uuid, gpu) in &mut self.gpus {
            let location = &mut gpu.location;
            let attachment = location.locate(pci);
            if attachment == location.attachment {
                continue;
            }
            if attachment == Attachment::Present {
                tracing::info!(%uuid, was = location.attachment.name(), "an absent GPU is present again");
            } else {
                tracing::warn!(%uuid, bus = %location.bus, attachment = attachment.name(), "an expected GPU is absent");
            }
            if !(location.attachment.is_account_paused() && attachment.is_account_paused()) {
                location.since = batch.now;
            }
            location.attachment = attachment;
            batch.expected.push(Expected {
                gpu: Arc::clone(uuid),
                bus: Arc::clone(&location.bus),
                attachment,
                since: location.since,
            });
        }
    }

    /// Finds which GPU has which index in the current driver session. A GPU that is not listed yet keeps its last index
    /// until another has it or the driver has listed all.
    pub(super) fn assign_indices(&mut self) {
        let mut taken = BTreeSet::new();
        for listed in [true, false] {
            for gpu in self.gpus.values_mut().filter(|gpu| gpu.location.listed == listed) {
                let index = gpu.id.index;
                let has_index = gpu.location.may_have_index() && taken.insert(index);
                let index = has_index.then_some(index);
                if gpu.in_session.index != index {
                    gpu.in_session = SessionGpu { index, uuid: Arc::clone(&gpu.id.uuid) };
                    gpu.account.select_gpu(&gpu.in_session, &self.policy);
                }
            }
        }
    }
}
