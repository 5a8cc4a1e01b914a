//! Step 4 of a tick: XIDs, notices and readings of each GPU become a health verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use super::account::ENERGY;
use super::{Meter, Policy, TrackedGpu};
use crate::accounting::batches::{LedgerBatch, OpenIncidents, SeenXids, StickyFaults, XidSums};
use crate::meter::health::{HealthInput, HealthInputs, INPUT_SOURCES, Judge, Reachability, ReceivedEvents};
use crate::model::catalogue::{PointId, points_of, xid};
use crate::model::frame::Tier;
use crate::model::{
    Absence, GpuName, HealthState, Microjoules, Nanoseconds, Notice, PciAddress, Reason, Stamp, StickyFault,
    Utc, Verdict, XidCount, XidSource,
};

#[derive(Clone, Debug)]
pub struct NoticeCount {
    pub uuid: Arc<str>,
    pub notice: Notice,
    pub count: u64,
}

#[derive(Default)]
pub(super) struct GpuHealthTracker {
    judge: Judge,
    received: ReceivedEvents,
    pub(super) verdict: Arc<Verdict>,
    reset_count: u64,
    /// Whether the GPU was lost since its last frame.
    gone: bool,
    /// The last value of the driver's energy counter: it goes back if the GPU is reset or the driver loaded again.
    energy: Option<i64>,
    /// When the hardware failed, until a reset, or until the driver reports that no action is needed.
    failed: Option<Stamp>,
    last_run: LastRun,
    /// The most NVLinks that were up at once since the driver was loaded.
    pub(super) most_links_up: u32,
    stored: StoredFaults,
    /// The rules that the ledger was told last; none before the first.
    pub(super) incidents: Option<BTreeSet<Arc<str>>>,
}

#[derive(Clone, Default, PartialEq)]
struct StoredFaults {
    faults: Vec<StickyFault>,
    failed: Option<Utc>,
    most_links_up: u32,
}

/// What was known of the GPU when the agent last ran, to detect a reset since then.
#[derive(Default)]
struct LastRun {
    /// Identifies the loading of the driver's module.
    module: Option<u64>,
    /// The energy counter, until a reading is at or above it.
    energy: Option<i64>,
    /// How many successive, differing readings were below it.
    below: u32,
}

/// So many readings must be below the energy counter of the last run to prove a reset, since one may be garbage.
const PROOF_READINGS: u32 = 3;

/// The most XIDs that wait until the PCI address of their GPU is known, and for how long.
const MOST_UNPLACED: usize = 256;
const UNPLACED_TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(600);

/// The driver updates its recovery action some time after a fault; an earlier one is out of date.
const RECOVERY_DELAY: Nanoseconds = Nanoseconds::from_seconds(5);

/// XIDs of PCI addresses at which no GPU is known.
#[derive(Default)]
pub(super) struct UnplacedXids {
    waiting: Vec<XidCount>,
    /// How many were given up, by collector.
    given_up: BTreeMap<&'static str, u64>,
}

impl UnplacedXids {
    fn add(&mut self, xid: XidCount, now: Stamp) {
        if self.waiting.len() < MOST_UNPLACED && now.since(xid.last) < UNPLACED_TIMEOUT {
            self.waiting.push(xid);
            return;
        }
        let collector = match xid.source {
            XidSource::Events => "events",
            XidSource::KernelLog => "kernel_log",
        };
        let count = self.given_up.entry(collector).or_default();
        *count = count.saturating_add(xid.count);
    }

    pub(super) fn given_up(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.given_up.iter().map(|(collector, count)| (*collector, *count))
    }
}

type InputPoints = Vec<(PointId, Tier)>;

/// Every health input with its points; none where the catalogue lacks the family.
static INPUTS: LazyLock<Vec<(HealthInput, InputPoints)>> = LazyLock::new(|| {
    INPUT_SOURCES
        .iter()
        .map(|source| (source.input, points_of(source.family, source.labels).collect()))
        .collect()
});

impl Meter {
    pub(super) fn receive_events(
        &mut self,
        now: Stamp,
        xids: Vec<XidCount>,
        notices: &[NoticeCount],
        batch: &mut LedgerBatch,
    ) {
        let all = std::mem::take(&mut self.unplaced.waiting).into_iter().chain(xids);
        let here = self.gpus.values().filter(|gpu| !gpu.location.is_elsewhere());
        let by_address: BTreeMap<PciAddress, Arc<str>> =
            here.filter_map(|gpu| Some((gpu.pci_address()?, Arc::clone(&gpu.id.uuid)))).collect();
        for xid in all {
            let uuid = match &xid.gpu {
                GpuName::Uuid(uuid) => Some(uuid),
                GpuName::Pci(address) => by_address.get(address),
            };
            match uuid.and_then(|uuid| self.gpus.get_mut(uuid)) {
                Some(gpu) => {
                    let (uuid, at) = (Arc::clone(&gpu.id.uuid), self.timeline.at(xid.last.boottime));
                    let seen = SeenXids { gpu: uuid, code: xid.xid, from: at, to: at };
                    batch.seen_xids.extend(gpu.receive_xid(&xid).then_some(seen));
                }
                None => self.unplaced.add(xid, now),
            }
        }
        for notice in notices {
            if let Some(gpu) = self.gpus.get_mut(&notice.uuid) {
                let count = gpu.health.received.notices.entry(notice.notice).or_default();
                *count = count.saturating_add(notice.count);
            }
        }
    }

    /// Judges every GPU; sticky faults and incidents go to the ledger if they have changed.
    pub(super) fn judge(&mut self, now: Stamp, batch: &mut LedgerBatch) {
        for gpu in self.gpus.values_mut() {
            let before = Arc::clone(&gpu.health.verdict);
            gpu.judge(now, &self.policy);
            let is_first = gpu.health.incidents.is_none();
            // Until a GPU is read first, what an earlier run of the agent found still holds.
            let is_known = gpu.frame.is_some() || gpu.location.is_missing() || gpu.location.is_elsewhere();
            if is_known && (is_first || !Arc::ptr_eq(&before, &gpu.health.verdict)) {
                batch.incidents.extend(gpu.health.take_incidents(&gpu.id.uuid, batch.now));
            }
            let failed = gpu.health.failed.map(|failed| failed.utc);
            // An XID or a reset may have changed `failed` before the judge was called.
            let same = Arc::ptr_eq(&before, &gpu.health.verdict)
                && failed == gpu.health.stored.failed
                && gpu.health.most_links_up == gpu.health.stored.most_links_up;
            if !same && gpu.health.update_stored() {
                batch.sticky_faults.push(gpu.health.sticky_faults(&gpu.id.uuid, self.module));
            }
        }
    }

    /// Publishes XID counts that the ledger has, and sends it new ones. They are on disk before they are published, since
    /// under the ledger's start time no counter may go back after a power loss.
    pub(super) fn count_xids(&mut self, now: Stamp, batch: &mut LedgerBatch) {
        let has_ledger = self.has_ledger();
        for gpu in self.gpus.values_mut() {
            if let Some(sums) = gpu.xids.publish(now.boottime, has_ledger) {
                batch.xids.push(sums);
                batch.sync = true;
            }
        }
    }

    pub(super) fn recover_xids(&mut self, stored: Vec<XidSums>) {
        for stored in stored {
            if let Some(gpu) = self.gpus.get_mut(&stored.gpu).filter(|gpu| !gpu.location.seen) {
                gpu.xids.recover(&stored);
            }
        }
        for gpu in self.gpus.values_mut().filter(|gpu| gpu.location.seen) {
            gpu.xids.start_at(self.begun);
        }
    }

    pub(super) fn recover_sticky_faults(&mut self, stored: Vec<StickyFaults>) {
        for stored in stored {
            if let Some(gpu) = self.gpus.get_mut(&stored.gpu) {
                gpu.health.recover(stored, self.started);
            }
        }
    }
}

impl TrackedGpu {
    /// Its PCI address in its frames, else that of the search or the inventory, so that XIDs of a GPU that hangs before
    /// its first frame are counted.
    fn pci_address(&self) -> Option<PciAddress> {
        let read = self.frame.as_ref().and_then(|frame| PciAddress::parse(&frame.identity.pci_bus_id));
        read.or_else(|| PciAddress::parse(&self.location.bus))
    }

    /// Counts an XID; returns whether the other source had not reported it, and its code is one of those that are kept.
    fn receive_xid(&mut self, xid: &XidCount) -> bool {
        // Without MIG some drivers send instance 0, which there is not.
        let is_divided = self.frame.as_ref().is_some_and(|frame| frame.identity.mig);
        let gpu_instance = xid.gpu_instance.filter(|_| is_divided);
        let xid = &XidCount { gpu_instance, ..xid.clone() };
        let new = self.xids.count_reported(xid);
        if new == 0 {
            return false;
        }
        let (count, gpu_instance) = self.health.received.xids.entry(xid.xid).or_default();
        *count = count.saturating_add(new);
        *gpu_instance = xid.gpu_instance.or(*gpu_instance);
        if xid::fails_slot(xid.xid) {
            self.health.failed = Some(xid.last);
        }
        self.xids.has_code(xid.xid)
    }

    fn judge(&mut self, now: Stamp, policy: &Policy) {
        let inputs = self.health_inputs(now, policy);
        let received = std::mem::take(&mut self.health.received);
        self.health.verdict = self.health.judge.judge(now, &inputs, &received);
        let slow = self.frame.as_ref().and_then(|frame| frame.tiers[Tier::Slow as usize]);
        let is_over = |failed: Stamp| {
            inputs.driver_requests_nothing() == Some(true)
                && slow.is_some_and(|read| read.since(failed) >= RECOVERY_DELAY)
        };
        self.health.failed = self.health.failed.filter(|failed| !is_over(*failed));
        self.account.failed = self.health.has_failed();
    }

    /// The health inputs of the last frame, and whether the GPU was reset.
    fn health_inputs(&mut self, now: Stamp, policy: &Policy) -> HealthInputs {
        let fresh = self.fresh(now, policy);
        let presence = match &self.frame {
            // A guest uses it, or it was replaced or forgotten, so its health is not judged here.
            _ if self.location.is_elsewhere() => Reachability::Unread,
            _ if self.location.is_missing() => Reachability::Lost,
            None => Reachability::Unread,
            Some(_) if fresh[Tier::Fast as usize] => Reachability::Reachable,
            Some(_) => Reachability::Unresponsive,
        };
        if self.location.is_elsewhere() {
            // A GPU that was used elsewhere counts as reset when it returns.
            self.health.mark_gone();
        }
        let energy = self.frame.as_ref().and_then(|frame| frame.readings.get(ENERGY).copied()?.ok());
        self.health.detect_reset(presence, energy);
        let mut inputs = HealthInputs::new(presence, self.health.reset_count);
        let Some(frame) = self.frame.as_deref().filter(|_| presence == Reachability::Reachable) else {
            return inputs;
        };
        for (input, points) in INPUTS.iter() {
            let reading = |(point, tier): &(PointId, Tier)| match fresh[*tier as usize] {
                true => frame.readings.get(*point).copied().unwrap_or(Err(Absence::NotYet)),
                false => Err(Absence::Stale),
            };
            inputs.set(*input, points.iter().map(reading));
        }
        inputs
    }

    /// Whether each tier of the last frame is young enough to be published. If the fast tier is too old, no tier
    /// is published; otherwise slower values would appear beside `gpu_up` 0.
    pub(super) fn fresh(&self, now: Stamp, policy: &Policy) -> [bool; 3] {
        let young = Tier::ALL.map(|tier| {
            let Some(frame) = self.frame.as_ref().filter(|_| !self.location.is_missing()) else {
                return false;
            };
            let interval = policy.intervals[tier as usize].0 * u64::from(frame.stretch.of(tier));
            frame.tiers[tier as usize].is_some_and(|read| now.since(read).0 <= 2 * interval)
        });
        young.map(|tier| tier && young[Tier::Fast as usize])
    }
}

impl GpuHealthTracker {
    /// Restores the sticky faults of the last run; they stay until a reset since then is detected. The ledger's account
    /// may have a later value of the energy counter.
    fn recover(&mut self, stored: StickyFaults, started: Stamp) {
        self.judge.restore(&stored.faults);
        self.failed = stored.failed.map(|utc| Stamp { utc, ..started });
        self.last_run.module = stored.module;
        self.set_energy_counter(stored.energy_counter);
        self.most_links_up = self.most_links_up.max(stored.most_links_up);
        let StickyFaults { faults, failed, most_links_up, .. } = stored;
        self.stored = StoredFaults { faults, failed, most_links_up };
    }

    /// Sets the energy counter of the last run; the highest value counts.
    pub(super) fn set_energy_counter(&mut self, counter: Option<Microjoules>) {
        let counter = counter.and_then(|counter| i64::try_from(counter.0).ok());
        self.last_run.energy = self.last_run.energy.max(counter);
    }

    /// The GPU was lost or used elsewhere: when it responds again, it was reset.
    pub(super) fn mark_gone(&mut self) {
        self.gone = true;
    }

    pub(super) fn forget(&mut self) {
        *self = Self { stored: std::mem::take(&mut self.stored), ..Self::default() };
    }

    pub(super) fn is_another_module(&self, module: Option<u64>) -> bool {
        self.last_run.module.zip(module).is_some_and(|(before, now)| before != now)
    }

    /// Updates the faults to be stored; returns whether they changed.
    fn update_stored(&mut self) -> bool {
        let failed = self.failed.map(|failed| failed.utc);
        let now =
            StoredFaults { faults: self.judge.sticky_faults(), failed, most_links_up: self.most_links_up };
        let before = std::mem::replace(&mut self.stored, now);
        before != self.stored
    }

    /// The reasons of the verdict, if they are others than those that the ledger was told last.
    fn take_incidents(&mut self, gpu: &Arc<str>, at: Utc) -> Option<OpenIncidents> {
        let kinds: BTreeSet<Arc<str>> =
            self.verdict.reasons.iter().map(|reason| reason.rule.into()).collect();
        let has_changed = self.incidents.as_ref() != Some(&kinds);
        self.incidents = Some(kinds.clone());
        has_changed.then(|| OpenIncidents { gpu: Arc::clone(gpu), at, kinds })
    }

    fn sticky_faults(&self, gpu: &Arc<str>, module: Option<u64>) -> StickyFaults {
        let StoredFaults { faults, failed, most_links_up } = self.stored.clone();
        let counter = self.energy.max(self.last_run.energy).and_then(|counter| u64::try_from(counter).ok());
        let energy_counter = counter.map(Microjoules);
        StickyFaults { gpu: Arc::clone(gpu), faults, failed, module, energy_counter, most_links_up }
    }

    /// The remarks of a window that ends at `to`: the verdict's reasons from before that time.
    pub(super) fn remarks(&self, to: Utc) -> impl Iterator<Item = String> {
        let reasons = self.verdict.reasons.iter().filter(move |reason| reason.since < to);
        let known =
            reasons.filter(|reason| matches!(reason.state, HealthState::Degraded | HealthState::Failed));
        known.map(|Reason { state, remedy, what, .. }| {
            format!("gpu: health {} ({}): {what}", state.name(), remedy.name())
        })
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The driver was loaded again, which resets the GPU: its counters began at 0.
    pub(super) fn record_reload(&mut self) {
        self.reset_count += 1;
        (self.energy, self.failed, self.last_run) = (None, None, LastRun::default());
        self.most_links_up = 0;
    }

    /// Detects a reset of the GPU since the last call: it returned after it was gone, or its energy counter went back.
    fn detect_reset(&mut self, presence: Reachability, energy: Option<i64>) {
        let returned = self.gone && presence == Reachability::Reachable;
        self.gone = presence == Reachability::Lost || (self.gone && !returned);
        let went_back = energy.zip(self.energy).is_some_and(|(now, before)| now < before);
        let new = energy.filter(|_| energy != self.energy);
        self.energy = energy.or(self.energy);
        if returned || went_back || new.is_some_and(|now| self.last_run.proves_reset(now)) {
            self.reset_count += 1;
            (self.failed, self.last_run) = (None, LastRun::default());
        }
    }
}

impl LastRun {
    fn proves_reset(&mut self, now: i64) -> bool {
        let Some(before) = self.energy else { return false };
        if now < before {
            self.below += 1;
        } else {
            self.energy = None;
        }
        self.below >= PROOF_READINGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_of_a_family_in_the_catalogue_has_points() {
        for (input, points) in INPUTS.iter() {
            let family = INPUT_SOURCES[*input as usize].family;
            let known = crate::model::catalogue::family(family).is_some();
            assert_eq!(!points.is_empty(), known, "{input:?}: {family} has no point with that label");
        }
        assert!(INPUTS.iter().filter(|(_, points)| !points.is_empty()).count() >= 4);
    }

    #[test]
    fn a_gpu_that_returns_or_whose_energy_counter_goes_back_was_reset() {
        let mut health = GpuHealthTracker::default();
        let resets: Vec<u64> = [
            (Reachability::Reachable, Some(100)),
            (Reachability::Reachable, None),
            (Reachability::Reachable, Some(101)),
            (Reachability::Unresponsive, Some(101)),
            (Reachability::Reachable, Some(102)),
            (Reachability::Lost, Some(102)),
            (Reachability::Unread, Some(102)),
            (Reachability::Reachable, Some(103)),
            (Reachability::Reachable, Some(2)),
        ]
        .into_iter()
        .map(|(presence, energy)| {
            health.detect_reset(presence, energy);
            health.reset_count
        })
        .collect();
        assert_eq!(resets, [0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
