//! Where each GPU is: counted by the driver, lost, gone, lent to a guest, replaced, or not expected any more.
//!
//! In: what samplers and the search report, and what the PCI bus shows. Out: a word of a closed set for each GPU,
//! and since when, for the page and the ledger. It asks nobody itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Account, GpuLabels, Meter, MeterCounters, Policy, TrackedGpu};
use crate::holders::SessionGpu;
use crate::host::Pci;
use crate::host::pci::{address, is_passthrough_driver};
use crate::ledger::{Expected, GpuRegistration, LedgerBatch, Resumed};
use crate::model::{Attachment, GpuId, Utc};

/// Where a GPU is, and what is known of that.
#[derive(Clone, Debug)]
pub(super) struct GpuLocation {
    /// PCI address, "" where it is not known.
    bus: Arc<str>,
    /// Whether the driver has counted it since its library was last opened.
    counted: bool,
    /// Whether the driver has counted it in this life of the agent.
    seen: bool,
    /// Whether its sampler reports it as lost; a frame says that it is not.
    lost: bool,
    /// Whether the driver has counted all and not it.
    uncounted: bool,
    replaced: bool,
    forgotten: bool,
    pub(super) attachment: Attachment,
    pub(super) since: Utc,
}

impl GpuLocation {
    /// A GPU that nobody has looked for yet.
    pub(super) fn new(since: Utc) -> Self {
        Self {
            bus: "".into(),
            counted: false,
            seen: false,
            lost: false,
            uncounted: false,
            replaced: false,
            forgotten: false,
            attachment: Attachment::Present,
            since,
        }
    }

    /// Where the agent's last life left it.
    pub(super) fn recover(&mut self, known: Expected) {
        self.bus = known.bus;
        self.attachment = known.attachment;
        self.since = known.since;
        self.replaced = known.attachment == Attachment::Replaced;
        self.forgotten = known.attachment == Attachment::Forgotten;
    }

    /// Whether it may have its index in the current driver session: the driver counts it, or has not told of all.
    const fn may_have_index(&self) -> bool {
        let expected = matches!(self.attachment, Attachment::Present) && !self.forgotten;
        self.counted || (expected && !self.uncounted && !self.replaced)
    }

    /// Its PCI address, "" where it is not known.
    pub(super) fn bus(&self) -> &str {
        &self.bus
    }

    /// Whether the driver counts it and has not lost it.
    pub(super) const fn is_there(&self) -> bool {
        self.seen && matches!(self.attachment, Attachment::Present)
    }

    /// Whether the driver has counted it in this life of the agent.
    pub(super) const fn was_seen(&self) -> bool {
        self.seen
    }

    /// Whether there is any hope of readings.
    pub(super) const fn is_missing(&self) -> bool {
        self.lost || self.uncounted
    }

    /// Whether a guest has it, or it was taken out, or nobody expects it.
    pub(super) const fn is_elsewhere(&self) -> bool {
        matches!(self.attachment, Attachment::Guest | Attachment::Replaced | Attachment::Forgotten)
    }

    /// Since when its account rests, where it does: the time of its place is another GPU's, or nobody's.
    pub(super) fn rests_since(&self) -> Option<Utc> {
        self.attachment.rests().then_some(self.since)
    }

    /// Why the GPU is not there, for those that are expected.
    pub(super) const fn absence(&self) -> Option<&'static str> {
        match self.attachment {
            Attachment::Present | Attachment::Forgotten => None,
            absent => Some(absent.name()),
        }
    }

    fn mark_counted(&mut self, bus: Arc<str>) {
        if !bus.is_empty() {
            self.bus = bus;
        }
        self.counted = true;
        self.seen = true;
        self.uncounted = false;
        self.replaced = false;
        self.forgotten = false;
    }

    /// A frame came.
    pub(super) fn mark_read(&mut self) {
        (self.counted, self.seen) = (true, true);
        (self.lost, self.uncounted) = (false, false);
    }

    fn locate(&self, pci: Option<&Pci>) -> Attachment {
        match pci.filter(|_| !self.bus.is_empty()).map(|pci| pci.driver(&self.bus)) {
            _ if self.forgotten => Attachment::Forgotten,
            _ if self.replaced => Attachment::Replaced,
            // The driver has not answered yet.
            _ if !self.seen && !self.uncounted => self.attachment,
            _ if !self.is_missing() => Attachment::Present,
            Some(None) => Attachment::Gone,
            Some(Some(Some(driver))) if is_passthrough_driver(driver) => Attachment::Guest,
            Some(Some(_)) => Attachment::Lost,
            // Without a bus to look at, what the driver still counts is lost and all else is gone.
            None if self.uncounted => Attachment::Gone,
            None => Attachment::Lost,
        }
    }
}

impl TrackedGpu {
    /// Its account rested and goes on from now: what came before the rest is settled, the rest is skipped.
    fn resume_account(&mut self, policy: &Arc<Policy>, counters: &MeterCounters, batch: &mut LedgerBatch) {
        while self.close_windows(Utc(u64::MAX), policy, counters, batch) {}
        self.account = Account::begin(batch.now);
        if self.location.lost {
            self.account.mark_lost();
        }
        batch.resumed.push(Resumed { gpu: Arc::clone(&self.id.uuid), at: batch.now });
    }
}

impl Meter {
    /// The driver's library was opened: it counts anew. What it counted before stays where it was until it
    /// has told of all.
    pub(super) fn library_opened(&mut self, anew: bool, module: Option<u64>) {
        self.module = module;
        self.grants.library_opened();
        for gpu in self.gpus.values_mut() {
            gpu.location.counted = false;
            gpu.starts_anew = true;
            if anew || gpu.health.is_under_another(module) {
                gpu.account.forget_energy();
                gpu.health.renew();
            }
        }
    }

    /// The driver counts a GPU. Whatever sat in its place before and is not counted is replaced.
    pub(super) fn register_gpu(&mut self, id: &GpuId, bus: &str, batch: &mut LedgerBatch) {
        let at = batch.now;
        let bus = address(bus).unwrap_or_default();
        for gpu in self.gpus.values_mut() {
            let same_place = !bus.is_empty() && gpu.location.bus == bus && gpu.id.uuid != id.uuid;
            if same_place && !gpu.location.counted {
                gpu.location.replaced = true;
                gpu.account.mark_lost();
            }
        }
        if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
            gpu.starts_anew = true;
            gpu.location.mark_counted(bus);
            if gpu.location.attachment.rests() {
                gpu.resume_account(&self.policy, &self.counters, batch);
            } else if !gpu.location.lost {
                gpu.account.mark_found(at);
            }
            if gpu.id != *id {
                (gpu.id, gpu.labels) = (id.clone(), GpuLabels::of(id));
                batch.registrations.push(GpuRegistration { gpu: id.clone(), model: "".into(), at });
            }
        } else {
            batch.registrations.push(GpuRegistration { gpu: id.clone(), model: "".into(), at });
            let mut gpu = TrackedGpu::new(id.clone(), Account::begin(at), at, self.policy.level);
            gpu.location.mark_counted(Arc::clone(&bus));
            let (gpu_uuid, attachment) = (Arc::clone(&id.uuid), Attachment::Present);
            batch.expected.push(Expected { gpu: gpu_uuid, bus, attachment, since: at });
            self.gpus.insert(Arc::clone(&id.uuid), gpu);
        }
        self.assign_indices();
    }

    /// The driver has listed all its GPUs: those that are not among them are uncounted.
    pub(super) fn mark_uncounted_gpus(&mut self) {
        self.grants.set_all_listed();
        for gpu in self.gpus.values_mut().filter(|gpu| !gpu.location.counted) {
            gpu.location.uncounted = true;
            gpu.account.mark_lost();
        }
    }

    /// A sampler reports that its GPU is lost.
    pub(super) fn mark_lost(&mut self, id: &GpuId) {
        if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
            gpu.location.lost = true;
            // It may come back reset, and its counters may have passed by then what they had reached.
            gpu.starts_anew = true;
            gpu.account.mark_lost();
        }
    }

    /// The operator does not expect a GPU any more; one that is there is expected all the same.
    pub(super) fn forget_gpu(&mut self, uuid: &str, at: Utc) {
        if let Some(gpu) = self.gpus.get_mut(uuid).filter(|gpu| !gpu.location.is_there()) {
            gpu.location.forgotten = true;
            gpu.account.mark_lost();
            gpu.xids.forget(at);
        }
    }

    /// Says of every GPU where it is, and tells the ledger where that has changed.
    pub(super) fn locate(&mut self, pci: Option<&Pci>, batch: &mut LedgerBatch) {
        for (uuid, gpu) in &mut self.gpus {
            let place = &mut gpu.location;
            let attachment = place.locate(pci);
            if attachment == place.attachment {
                continue;
            }
            if attachment == Attachment::Present {
                tracing::info!(%uuid, was = place.attachment.name(), "a GPU is back");
            } else {
                tracing::warn!(%uuid, bus = %place.bus, attachment = attachment.name(), "a GPU is not there");
            }
            if !(place.attachment.rests() && attachment.rests()) {
                place.since = batch.now;
            }
            place.attachment = attachment;
            batch.expected.push(Expected {
                gpu: Arc::clone(uuid),
                bus: Arc::clone(&place.bus),
                attachment,
                since: place.since,
            });
        }
    }

    /// Says which GPU has which index in the current driver session. One that the driver has not told of yet keeps its
    /// last index until another has it or the driver has told of all.
    pub(super) fn assign_indices(&mut self) {
        let mut taken = BTreeSet::new();
        for counted in [true, false] {
            for gpu in self.gpus.values_mut().filter(|gpu| gpu.location.counted == counted) {
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
