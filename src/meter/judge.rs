//! Step 4: what was heard and read of each GPU goes before its judge.
//!
//! Here readings become signs, by the places that the health room names; a sign whose family this catalogue
//! does not have is simply not known. The account hears of it when the hardware takes the GPU from its holder.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::account::ENERGY;
use super::{Meter, Policy, TrackedGpu};
use crate::catalogue::{PointId, device_points, xid};
use crate::health::{HealthInput, HealthInputs, INPUT_SOURCES, Judge, Reachability, ReceivedEvents};
use crate::ledger::{LedgerBatch, StickyFaults, XidSums};
use crate::model::frame::Tier;
use crate::model::{
    Absence, GpuName, Microjoules, Nanoseconds, Notice, PciAddress, Stamp, StickyFault, Utc, Verdict,
    XidCount, XidSource,
};

/// A notice of the driver on a GPU, and how often it came.
#[derive(Clone, Debug)]
pub struct NoticeCount {
    /// UUID of the GPU.
    pub uuid: Arc<str>,
    /// What the driver told.
    pub notice: Notice,
    /// How often.
    pub count: u64,
}

/// What the judge of one GPU is told, and what it says.
#[derive(Default)]
pub(super) struct GpuHealthTracker {
    judge: Judge,
    heard: ReceivedEvents,
    pub(super) verdict: Arc<Verdict>,
    life: u64,
    /// Whether the driver said that the GPU is gone, and no frame came since.
    gone: bool,
    /// Where the driver's energy counter stood: when it goes back, the GPU was reset or the driver loaded anew.
    energy: Option<i64>,
    /// When the hardware failed, until a reset or the driver's word that nothing is needed.
    failed: Option<Stamp>,
    /// What the agent's last life leaves to be settled.
    earlier: Earlier,
    /// What the ledger was last told: latched reasons, and since when the hardware has failed.
    kept: (Vec<StickyFault>, Option<Utc>),
}

/// By what it is seen that the GPU was reset between two lives of the agent.
#[derive(Default)]
struct Earlier {
    /// Which loading of the driver's module it was.
    module: Option<u64>,
    /// Where the energy counter stood, until it is seen at or above it.
    energy: Option<i64>,
    /// How many readings in a row, each another one, were below: one of them may be garbage.
    below: u32,
}

/// So many readings of the energy counter must agree that it has gone back while no agent looked.
const AGREE: u32 = 3;

/// XIDs of GPUs of which it is not known yet where they sit wait for it; more than these, or for longer, are given up.
const MOST_WAITING: usize = 256;
const PATIENCE: Nanoseconds = Nanoseconds::from_seconds(600);

/// After a fault the driver takes a moment to decide what is needed; before, its word is an old one.
const DECIDES: Nanoseconds = Nanoseconds::from_seconds(5);

/// The points that tell a sign, with their tier.
type SignPoints = Vec<(PointId, Tier)>;

/// XIDs told by a place at which no GPU is known.
#[derive(Default)]
pub(super) struct Unplaced {
    told: Vec<XidCount>,
    /// How many were given up, by who told of them.
    given_up: BTreeMap<&'static str, u64>,
}

impl Unplaced {
    /// Keeps an XID until its GPU is known, or gives it up.
    fn keep(&mut self, told: XidCount, now: Stamp) {
        if self.told.len() < MOST_WAITING && now.since(told.last) < PATIENCE {
            self.told.push(told);
            return;
        }
        let collector = match told.source {
            XidSource::Events => "events",
            XidSource::KernelLog => "kernel_log",
        };
        let count = self.given_up.entry(collector).or_default();
        *count = count.saturating_add(told.count);
    }

    /// How many were given up, by the part of the agent that told of them.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.given_up.iter().map(|(collector, count)| (*collector, *count))
    }
}

/// Every sign with its points.
static PLACES: LazyLock<Vec<(HealthInput, SignPoints)>> = LazyLock::new(|| {
    INPUT_SOURCES
        .iter()
        .map(|place| {
            let points = device_points().enumerate().filter(|(_, (family, point))| {
                family.name == place.family && place.label.is_none_or(|label| point.labels.contains(&label))
            });
            (place.input, points.map(|(number, (family, _))| (number, family.tier)).collect())
        })
        .collect()
});

impl Meter {
    /// Counts XIDs and takes in notices.
    pub(super) fn listen(&mut self, now: Stamp, xids: Vec<XidCount>, notices: Vec<NoticeCount>) {
        let told = std::mem::take(&mut self.unplaced.told).into_iter().chain(xids);
        let here = self.gpus.values().filter(|gpu| !gpu.location.is_elsewhere());
        let places: BTreeMap<PciAddress, Arc<str>> =
            here.filter_map(|gpu| Some((gpu.place()?, Arc::clone(&gpu.id.uuid)))).collect();
        for told in told {
            let uuid = match &told.gpu {
                GpuName::Uuid(uuid) => Some(uuid),
                GpuName::Pci(place) => places.get(place),
            };
            match uuid.and_then(|uuid| self.gpus.get_mut(uuid)) {
                Some(gpu) => gpu.hear(&told),
                None => self.unplaced.keep(told, now),
            }
        }
        for told in notices {
            if let Some(gpu) = self.gpus.get_mut(&told.uuid) {
                let count = gpu.health.heard.notices.entry(told.notice).or_default();
                *count = count.saturating_add(told.count);
            }
        }
    }

    /// Judges every GPU, and tells the ledger where something else is latched than was.
    pub(super) fn judge(&mut self, now: Stamp, batch: &mut LedgerBatch) {
        for gpu in self.gpus.values_mut() {
            let before = Arc::clone(&gpu.health.verdict);
            gpu.judge(now, &self.policy);
            let failed = gpu.health.failed.map(|failed| failed.utc);
            // Since it was told, not since the last look: an XID or a reset was heard of before the judge was asked.
            let same = Arc::ptr_eq(&before, &gpu.health.verdict) && failed == gpu.health.kept.1;
            if !same && gpu.health.keep() {
                batch.sticky_faults.push(gpu.health.latched(&gpu.id.uuid, self.module));
            }
        }
    }

    /// Shows the counts of XIDs that may be shown, and tells the ledger of new ones. They are on disk before they are
    /// shown: under the ledger's start time no counter may go back after a power loss.
    pub(super) fn count_xids(&mut self, now: Stamp, batch: &mut LedgerBatch) {
        let has_ledger = self.has_ledger();
        for gpu in self.gpus.values_mut() {
            if let Some(sums) = gpu.xids.publish(now.boottime, has_ledger) {
                batch.xids.push(sums);
                batch.sync = true;
            }
        }
    }

    /// XIDs that were counted before the agent's start.
    pub(super) fn recover_xids(&mut self, stored: Vec<XidSums>) {
        for stored in stored {
            if let Some(gpu) = self.gpus.get_mut(&stored.gpu).filter(|gpu| !gpu.location.was_seen()) {
                gpu.xids.recover(&stored);
            }
        }
        for gpu in self.gpus.values_mut().filter(|gpu| gpu.location.was_seen()) {
            gpu.xids.start_at(self.begun);
        }
    }

    /// What was latched when the agent's last life ended.
    pub(super) fn recover_sticky_faults(&mut self, latched: Vec<StickyFaults>) {
        for latched in latched {
            if let Some(gpu) = self.gpus.get_mut(&latched.gpu) {
                gpu.health.recover(latched, self.started);
            }
        }
    }
}

impl TrackedGpu {
    /// Where it sits, as it says itself, or else as it was found or stands in the inventory: a GPU that hangs before
    /// its first frame is spoken of by its place all the same.
    fn place(&self) -> Option<PciAddress> {
        let told = self.frame.as_ref().and_then(|frame| PciAddress::parse(&frame.identity.pci_bus_id));
        told.or_else(|| PciAddress::parse(self.location.bus()))
    }

    fn hear(&mut self, told: &XidCount) {
        let new = self.xids.count_reported(told);
        if new == 0 {
            return;
        }
        let heard = self.health.heard.xids.entry(told.xid).or_default();
        heard.0 = heard.0.saturating_add(new);
        heard.1 = told.gpu_instance.or(heard.1);
        if xid::fails_slot(told.xid) {
            self.health.failed = Some(told.last);
        }
    }

    fn judge(&mut self, now: Stamp, policy: &Policy) {
        let signs = self.signs(now, policy);
        let heard = std::mem::take(&mut self.health.heard);
        self.health.verdict = self.health.judge.judge(now, &signs, &heard);
        let content = signs.driver_requests_nothing() == Some(true);
        let slow = self.frame.as_ref().and_then(|frame| frame.tiers[Tier::Slow as usize]);
        self.health.failed = self
            .health
            .failed
            .filter(|failed| !(content && slow.is_some_and(|read| read.since(*failed) >= DECIDES)));
        self.account.set_failed(self.health.has_failed());
    }

    /// What is known now. A new life of the GPU ends what only a reset ends.
    fn signs(&mut self, now: Stamp, policy: &Policy) -> HealthInputs {
        let fresh = self.fresh(now, policy);
        let presence = match &self.frame {
            // Where it is now, somebody else looks after it.
            _ if self.location.is_elsewhere() => Reachability::Unread,
            _ if self.location.is_missing() => Reachability::Lost,
            None => Reachability::Unread,
            Some(_) if fresh[Tier::Fast as usize] => Reachability::Reachable,
            Some(_) => Reachability::Unresponsive,
        };
        if self.location.is_elsewhere() {
            // Whoever has it there resets it, or cuts its power.
            self.health.was_gone();
        }
        self.health.follow(presence, self.frame.as_ref().map(|frame| energy(&frame.readings)));
        let mut signs = HealthInputs::new(presence, self.health.life);
        let Some(frame) = self.frame.as_deref().filter(|_| presence == Reachability::Reachable) else {
            return signs;
        };
        for (sign, points) in PLACES.iter() {
            let values = points.iter().filter(|(_, tier)| fresh[*tier as usize]);
            let values = values.filter_map(|(point, _)| frame.readings.get(*point).copied()?.ok());
            signs.set(
                *sign,
                values.fold(None, |sum: Option<i64>, value| Some(sum.unwrap_or(0).saturating_add(value))),
            );
        }
        signs
    }

    /// Whether each tier of the last frame is young enough to be shown: none of a GPU that does not answer, or what
    /// is read once a minute, or less often after a call that took long, would look alive beside `gpu_up` 0.
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
    /// What was latched in the agent's last life still is, until it is seen that the GPU was reset since. The
    /// ledger's account may know a later energy counter.
    fn recover(&mut self, known: StickyFaults, started: Stamp) {
        self.judge.restore(&known.faults);
        self.failed = known.failed.map(|utc| Stamp { utc, ..started });
        self.earlier.module = known.module;
        self.stood_at(known.energy_counter);
        self.kept = (known.faults, known.failed);
    }

    /// Where the driver's energy counter stood when the agent last looked.
    pub(super) fn stood_at(&mut self, counter: Option<Microjoules>) {
        let counter = counter.and_then(|counter| i64::try_from(counter.0).ok());
        self.earlier.energy = self.earlier.energy.max(counter);
    }

    /// It was lost, or somebody else had it: when it answers, it was reset.
    pub(super) fn was_gone(&mut self) {
        self.gone = true;
    }

    /// Somebody else has had the GPU, who reset it.
    pub(super) fn forget(&mut self) {
        *self = Self { kept: std::mem::take(&mut self.kept), ..Self::default() };
    }

    /// Whether that loading of the driver's module is another one than in the agent's last life.
    pub(super) fn is_under_another(&self, module: Option<u64>) -> bool {
        self.earlier.module.zip(module).is_some_and(|(before, now)| before != now)
    }

    /// Takes note of what is latched; whether the ledger knows something else.
    fn keep(&mut self) -> bool {
        let now = (self.judge.sticky_faults(), self.failed.map(|failed| failed.utc));
        let new = now != self.kept;
        self.kept = now;
        new
    }

    fn latched(&self, gpu: &Arc<str>, module: Option<u64>) -> StickyFaults {
        let (faults, failed) = self.kept.clone();
        let counter = self.energy.max(self.earlier.energy).and_then(|counter| u64::try_from(counter).ok());
        let energy_counter = counter.map(Microjoules);
        StickyFaults { gpu: Arc::clone(gpu), faults, failed, module, energy_counter }
    }

    /// Whether the hardware has failed, and not been reset since.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The driver was loaded anew, which begins with a reset.
    pub(super) fn renew(&mut self) {
        self.life += 1;
        (self.energy, self.failed, self.earlier) = (None, None, Earlier::default());
    }

    /// Sees whether the GPU was reset since the last look.
    fn follow(&mut self, presence: Reachability, energy: Option<Option<i64>>) {
        let returned = self.gone && presence == Reachability::Reachable;
        self.gone = presence == Reachability::Lost || (self.gone && !returned);
        let energy = energy.flatten();
        let fell = energy.zip(self.energy).is_some_and(|(now, before)| now < before);
        let new = energy.filter(|_| energy != self.energy);
        self.energy = energy.or(self.energy);
        if returned || fell || new.is_some_and(|now| self.earlier.shows_reset(now)) {
            self.life += 1;
            (self.failed, self.earlier) = (None, Earlier::default());
        }
    }
}

impl Earlier {
    /// Holds a new reading of the energy counter against where it stood; whether it has gone back.
    fn shows_reset(&mut self, now: i64) -> bool {
        let Some(stood) = self.energy else { return false };
        if now < stood {
            self.below += 1;
        } else {
            self.energy = None;
        }
        self.below >= AGREE
    }
}

fn energy(readings: &[Result<i64, Absence>]) -> Option<i64> {
    readings.get(ENERGY).copied()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_families_that_this_catalogue_has_are_read() {
        for (sign, points) in PLACES.iter() {
            let family = INPUT_SOURCES[*sign as usize].family;
            let known = crate::catalogue::family(family).is_some();
            assert_eq!(!points.is_empty(), known, "{sign:?}: {family} has no point with that label");
        }
        assert!(PLACES.iter().filter(|(_, points)| !points.is_empty()).count() >= 4);
    }

    #[test]
    fn a_gpu_that_comes_back_or_counts_anew_has_a_new_life() {
        let mut bench = GpuHealthTracker::default();
        let lives: Vec<u64> = [
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
            bench.follow(presence, Some(energy));
            bench.life
        })
        .collect();
        assert_eq!(lives, [0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
