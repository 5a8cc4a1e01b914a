//! The tick, in five steps:
//!
//! 1. identify (`identify.rs`): the processes of each frame become [`identify::PresentBySlot`], holders by slot;
//! 2. integrate: each frame adds a span to its GPU's [`account::Account`] and to the agent's totals (`integrate.rs`);
//! 3. settle (`settle.rs`): windows that are over become rows for the ledger, in [`account::ClosedWindows`];
//! 4. judge (`judge.rs`): XIDs, notices and readings become a verdict, by [`judge::GpuHealthTracker`];
//! 5. publish (`publish.rs`): [`publish::Publisher`] builds the snapshot.
//!
//! `Meter::add_frame` takes the first two steps for each frame: `Account::add_frame` identifies the processes and adds
//! the span; `TrackedGpu::integrate` then adds the frame to the totals.
//!
//! In: the frames that have arrived, published identities, acknowledgements of the ledger. Out: a snapshot, and a batch for
//! the ledger. It waits for nothing.
//! Does not know: clocks, threads, configuration, who prints the snapshot.
//!
//! - [`attribution`]: pure: settles a window's integrals into account rows.
//! - [`health`]: pure: readings and XIDs to a verdict, by a table of rules.

pub mod attribution;
pub mod health;

mod account;
mod budget;
mod committed;
mod conflicts;
mod counter_total;
mod dcgm;
mod grants;
mod identify;
mod integrate;
mod judge;
mod last_hour;
mod left_memory;
mod links;
mod location;
mod numbers;
mod publish;
mod published_accounts;
mod published_month;
mod recovery;
mod roster;
mod settle;
mod support;
mod sxids;
mod unified_memory;
mod unused;
mod versions;
mod xids;

pub use judge::NoticeCount;
pub use links::expect_links;
pub use numbers::Services;
pub use support::{family_support, source_level, unsupported};
pub use unified_memory::set_unified_memory;
use unified_memory::total_memory;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounting::batches::{AccountTimeline, Acknowledged, GpuRegistration, LedgerBatch, Recovered};
use crate::accounting::billing::{RateSchedule, charges_unheld};
use crate::accounting::tenants::{RuleSchedule, TenantNames, TenantRules, tenant};
use crate::holders::host::{HostMemory, Pci};
use crate::holders::{Allocation, Granting, Identities, SessionGpu};
use crate::model::catalogue::{INTEGRALS, InstanceValue, Level};
use crate::model::frame::Tier;
use crate::model::snapshot::{InstanceCounters, Snapshot};
use crate::model::{
    Absence, CallInFlight, Frame, GpuId, HolderId, HowHeld, Nanoseconds, Reading, Stamp, StandingGrant,
    SxidCount, Unframed, Utc, XidCount,
};

use account::{Account, TimedFrame};
use committed::CommittedAccounts;
use conflicts::Conflicts;
use counter_total::CounterTotal;
use dcgm::DcgmHistory;
use grants::GrantMatches;
use integrate::GR_ENGINE;
use judge::{GpuHealthTracker, UnplacedXids};
use last_hour::LastHour;
use left_memory::LeftMemory;
use location::GpuLocation;
use numbers::MeterCounters;
use publish::Publisher;
use sxids::Sxids;
use unused::UnusedHoldings;
use versions::HolderVersions;
use xids::Xids;

/// The settings that hold now, as far as a tick needs them; read once per tick.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How much is exported.
    pub level: Level,
    /// Whether the page with dcgm-exporter's names is configured.
    pub dcgm: bool,
    /// Whether workloads have counters below level full too.
    pub workload_counters: bool,
    /// The interval of each tier, by [`Tier`] order.
    pub intervals: [Nanoseconds; 3],
    pub standing: Vec<StandingGrant>,
    /// Allocations of schedulers on this node, as last received in [`Inputs::allocations`].
    pub allocations: Arc<[Allocation]>,
    /// Whether presence holds on GPUs without other holdings, and why.
    pub how_held: HowHeld,
    /// How long a new series of the account stays at 0.
    pub birth_delay: Nanoseconds,
    /// The most processes of each GPU that get series.
    pub processes: usize,
    /// The most series of a snapshot.
    pub series: usize,
    /// The configured rates as a new ledger would record them; those that the ledger has recorded replace them.
    pub rates: Arc<RateSchedule>,
    /// The configured tenant rules, in the same way.
    pub tenant_rules: Arc<RuleSchedule>,
}

impl Policy {
    fn granting(&self) -> Granting<'_> {
        let Self { allocations, standing, how_held, .. } = self;
        Granting { allocations, standing, presence: how_held.is_by_presence() }
    }
}

#[derive(Debug)]
pub enum SamplerNews {
    Frame(Box<Frame>),
    /// The cost of a tick without a frame.
    Unframed(Unframed),
    /// The driver's library was opened; its GPUs are listed again.
    Opened {
        /// Whether the driver was loaded again, so that its counters began at 0.
        anew: bool,
        /// Identifies the loading of the driver's module; none where it is not known.
        module: Option<u64>,
    },
    Found {
        gpu: GpuId,
        /// Its PCI bus id as the driver writes it; "" if unknown.
        bus: Arc<str>,
    },
    /// The driver has listed all its GPUs; one with an account that is not among them is gone.
    Counted,
    Lost(GpuId),
    /// The operator removed the GPU of that UUID from the inventory.
    Forget(Arc<str>),
}

/// What has arrived since the last tick.
#[derive(Debug, Default)]
pub struct Inputs {
    /// From the samplers, in order of time for each GPU.
    pub news: Vec<SamplerNews>,
    /// From the event set and the kernel's log.
    pub xids: Vec<XidCount>,
    /// From the kernel's log.
    pub sxids: Vec<SxidCount>,
    /// From the event set.
    pub notices: Vec<NoticeCount>,
    pub identities: Arc<Identities>,
    pub allocations: Arc<[Allocation]>,
    /// Those that ended within the last minute.
    pub ended: Arc<Vec<Allocation>>,
    /// The driver calls that have not returned, by UUID.
    pub in_flight: BTreeMap<Arc<str>, CallInFlight>,
    /// From the ledger thread.
    pub acknowledged: Vec<Acknowledged>,
    /// The ledger, if it was opened only after the agent had started.
    pub opened_late: Option<Box<Recovered>>,
    /// Whether the ledger is not opened yet because the wall clock cannot be trusted since the boot.
    pub awaits_clock: bool,
    /// The GPUs on the PCI bus; none where it cannot be read.
    pub pci: Option<Arc<Pci>>,
    /// The host's memory, which some GPUs share; none where it cannot be read.
    pub host_memory: Option<HostMemory>,
    /// Whether the snapshot is to have processes at every level, since somebody looks at the live page.
    pub wants_processes: bool,
    pub services: Services,
}

#[derive(Debug)]
pub struct TickOutput {
    pub snapshot: Arc<Snapshot>,
    pub batch: LedgerBatch,
}

struct TrackedGpu {
    id: GpuId,
    /// The GPU as grants select it; its index is none if the current driver session does not list it at that index.
    in_session: SessionGpu,
    labels: GpuLabels,
    account: Account,
    unused: UnusedHoldings,
    left_memory: LeftMemory,
    xids: Xids,
    health: GpuHealthTracker,
    frame: Option<Arc<Frame>>,
    /// The agent's own totals, by the catalogue's integral number, each in its family's unit.
    integrals: Vec<Reading>,
    /// For each integral: the last value of the driver counter by which it grows under this plan, if it has one.
    last_counts: Vec<Option<u64>>,
    /// For each integral: the state of its GPM counter, if it has one.
    totals: Vec<CounterTotal>,
    /// The agent's totals of every GPU instance that was ever seen, by its id.
    instances: BTreeMap<u32, InstanceCounters>,
    /// GPM's counters of the GPU instances under this plan, by id.
    instance_totals: BTreeMap<u32, [CounterTotal; InstanceValue::ALL.len()]>,
    /// Busy time since the agent's start.
    busy: Reading,
    unsupported: Vec<(&'static str, Absence)>,
    location: GpuLocation,
    /// Whether totals must not grow at its next frame, since it has another sampler or was lost.
    starts_anew: bool,
    /// Kept while the page with dcgm-exporter's names is configured.
    dcgm: DcgmHistory,
}

struct GpuLabels {
    index: Arc<str>,
    collector: Arc<str>,
}

impl GpuLabels {
    fn of(id: &GpuId) -> Self {
        Self { index: id.index.to_string().into(), collector: format!("gpu{}", id.index).into() }
    }
}

/// Follows all GPUs from tick to tick.
pub struct Meter {
    /// The operator's policy, without allocations.
    configured: Arc<Policy>,
    /// The same with allocations.
    policy: Arc<Policy>,
    timeline: AccountTimeline,
    /// Account time at which this process began to watch; the time of an earlier frame is moved to this.
    begun: Utc,
    started: Stamp,
    /// When the ledger was created; none without a ledger.
    ledger: Option<Utc>,
    gpus: BTreeMap<Arc<str>, TrackedGpu>,
    accounts: CommittedAccounts,
    /// Identifies the loading of the driver's module that is open.
    module: Option<u64>,
    versions: HolderVersions,
    /// The allocations as last received; none where they have to be applied again.
    received: Option<Arc<[Allocation]>>,
    ended: Arc<Vec<Allocation>>,
    /// Whether the holders of standing grants may have no version yet.
    has_new_grants: bool,
    tenant_names: TenantNames,
    unplaced: UnplacedXids,
    sxids: Sxids,
    grants: GrantMatches,
    conflicts: Conflicts,
    last_hour: LastHour,
    counters: MeterCounters,
    publisher: Publisher,
}

impl Meter {
    /// A meter that continues the account of the ledger; without a ledger the account ends with the process.
    pub fn new(policy: Arc<Policy>, started: Stamp, recovered: Option<Recovered>) -> Self {
        let timeline = recovered
            .as_ref()
            .map_or_else(|| AccountTimeline::starting(started), |recovered| recovered.timeline);
        let begun = timeline.at(started.boottime);
        let mut meter = Self {
            timeline,
            begun,
            started,
            ledger: recovered.as_ref().map(|recovered| recovered.created),
            gpus: BTreeMap::new(),
            accounts: CommittedAccounts::default(),
            module: None,
            versions: HolderVersions::default(),
            received: None,
            ended: Arc::default(),
            has_new_grants: true,
            tenant_names: TenantNames::default(),
            unplaced: UnplacedXids::default(),
            sxids: Sxids::default(),
            grants: GrantMatches::default(),
            conflicts: Conflicts::default(),
            last_hour: LastHour::default(),
            counters: MeterCounters::default(),
            publisher: Publisher::default(),
            configured: Arc::clone(&policy),
            policy,
        };
        if let Some(recovered) = recovered {
            meter.recover(recovered, begun);
        }
        meter
    }

    pub const fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    /// The recorded rates; without a ledger, those of the configuration.
    fn rates(&self) -> &Arc<RateSchedule> {
        self.accounts.rates.as_ref().unwrap_or(&self.policy.rates)
    }

    fn tenant_rules(&self, at: Utc) -> &Arc<TenantRules> {
        self.rule_schedule().rules(at)
    }

    /// The recorded tenant rules; without a ledger, those of the configuration.
    fn rule_schedule(&self) -> &Arc<RuleSchedule> {
        self.accounts.tenant_rules.as_ref().unwrap_or(&self.policy.tenant_rules)
    }

    /// Whether the terms of a holder's tenant charge for use while nobody held the GPU.
    fn charges_unheld(&self, holder: &HolderId, at: Utc) -> bool {
        let tenant = tenant(&self.versions.holder(holder), self.tenant_rules(at));
        charges_unheld(self.rates().terms_of(&tenant, at).map(|terms| &terms.entry))
    }

    pub const fn timeline(&self) -> AccountTimeline {
        self.timeline
    }

    /// Applies the operator's settings from the next tick on.
    pub fn apply_policy(&mut self, policy: Arc<Policy>) {
        if Arc::ptr_eq(&policy, &self.configured) {
            return;
        }
        self.configured = Arc::clone(&policy);
        let allocations = Arc::clone(&self.policy.allocations);
        let policy = Arc::new(Policy { allocations, ..(*policy).clone() });
        if !policy.dcgm {
            self.gpus.values_mut().for_each(|gpu| gpu.dcgm = DcgmHistory::default());
        }
        self.has_new_grants = true;
        self.publisher.accounts.invalidate();
        self.policy = policy;
    }

    pub fn tick(&mut self, now: Stamp, mut inputs: Inputs) -> TickOutput {
        let mut batch = LedgerBatch { now: self.timeline.at(now.boottime), ..LedgerBatch::default() };
        if let Some(recovered) = inputs.opened_late.take() {
            self.open_late(*recovered, now, &mut batch);
        }
        for acknowledged in &inputs.acknowledged {
            self.acknowledge(acknowledged, batch.now);
        }
        self.identify_holders(&mut inputs, now, &mut batch);
        for mut news in std::mem::take(&mut inputs.news) {
            if let SamplerNews::Frame(frame) = &mut news {
                set_unified_memory(frame, inputs.host_memory);
            }
            self.apply_news(news, &inputs.identities, &mut batch);
        }
        self.locate(inputs.pci.as_deref(), &mut batch);
        self.assign_indices();
        self.match_grants();
        self.find_conflicts();
        self.receive_events(now, std::mem::take(&mut inputs.xids), &inputs.notices, &mut batch);
        self.sxids.add(&inputs.sxids);
        self.settle(&inputs.identities, &mut batch);
        self.judge(now, &mut batch);
        self.count_xids(now, &mut batch);
        let mut last_hour = std::mem::take(&mut self.last_hour);
        last_hour.add(batch.now, &batch.closed, |holder, at| self.charges_unheld(holder, at));
        self.last_hour = last_hour;
        let snapshot = self.publish(now, &inputs);
        TickOutput { snapshot, batch }
    }

    fn acknowledge(&mut self, acknowledged: &Acknowledged, at: Utc) {
        self.accounts.acknowledge(acknowledged, at);
        for stored in &acknowledged.xids {
            if let Some(gpu) = self.gpus.get_mut(&stored.gpu) {
                gpu.xids.acknowledge(stored);
            }
        }
        if !acknowledged.counters.is_empty() {
            self.publisher.accounts.invalidate();
        }
    }

    fn identify_holders(&mut self, inputs: &mut Inputs, now: Stamp, batch: &mut LedgerBatch) {
        let rules = Arc::clone(self.tenant_rules(batch.now));
        let schedule = Arc::clone(self.rule_schedule());
        self.versions.set_tenant_rules(&schedule);
        let (identities, are_new) = self.versions.identify(&inputs.identities, batch.now);
        inputs.identities = identities;
        let have_changed = self.apply_allocations(inputs, now) || are_new;
        if std::mem::take(&mut self.has_new_grants) || have_changed || self.versions.has_unsent() {
            let mut standing = self.policy.standing.clone();
            if self.versions.set_grantees(&mut standing, batch.now) {
                self.policy = Arc::new(Policy { standing, ..(*self.policy).clone() });
            }
        }
        if have_changed {
            let present = inputs.identities.holders().map(|holder| &holder.id);
            let allocated = self.policy.allocations.iter().map(|one| &one.holder.id);
            self.versions.note_seen(present.chain(allocated), batch.now);
            self.versions.forget_old(batch.now);
        }
        batch.holders = self.versions.take_unsent();
        for sentence in batch.holders.iter().filter_map(|holder| self.tenant_names.add(holder, &rules)) {
            tracing::warn!("{sentence}");
        }
    }

    /// Applies the current allocations; open spans get the new ones that began before them, and lose those that ended
    /// before them. Whether they have changed.
    fn apply_allocations(&mut self, inputs: &Inputs, now: Stamp) -> bool {
        let Inputs { allocations: received, ended, .. } = inputs;
        let are_known =
            self.received.as_ref().is_some_and(|known| Arc::ptr_eq(known, received) || known == received);
        if are_known && (Arc::ptr_eq(&self.ended, ended) || self.ended == *ended) {
            return false;
        }
        self.received = Some(Arc::clone(received));
        let ended_before = std::mem::replace(&mut self.ended, Arc::clone(ended));
        let at = self.timeline.at(now.boottime);
        self.versions.note_seen(self.policy.allocations.iter().map(|one| &one.holder.id), at);
        let (allocations, current) = (self.versions.allocations(received, at), &self.policy.allocations);
        let account_time = |time: Utc| Some(Utc(at.0.saturating_sub(now.utc.0.checked_sub(time.0)?)));
        let is_new = |one: &&Allocation| {
            !current.iter().any(|known| known.is_same_grant(one) && known.since <= one.since)
        };
        let begun = allocations
            .iter()
            .filter(is_new)
            .filter_map(|one| Some(Allocation { since: Some(account_time(one.since?)?), ..one.clone() }));
        let mut late: Vec<Allocation> = begun.collect();
        let newly_ended = ended.iter().filter(|one| !ended_before.contains(one)).cloned();
        for one in &*self.versions.allocations(&newly_ended.collect::<Vec<_>>(), at) {
            // The clock may have been set back since.
            let until = one.until.and_then(account_time).unwrap_or(at);
            let since = one.since.and_then(account_time).unwrap_or(until);
            late.push(Allocation { since: Some(since), until: Some(until), ..one.clone() });
        }
        if !late.is_empty() {
            self.gpus.values_mut().for_each(|gpu| gpu.account.apply_late_grants(&late));
        }
        self.policy = Arc::new(Policy { allocations, ..(*self.policy).clone() });
        self.publisher.accounts.invalidate();
        true
    }

    fn apply_news(&mut self, news: SamplerNews, identities: &Identities, batch: &mut LedgerBatch) {
        match news {
            SamplerNews::Opened { anew, module } => self.library_opened(anew, module),
            SamplerNews::Found { gpu, bus } => self.register_gpu(&gpu, &bus, batch),
            SamplerNews::Counted => self.mark_unlisted_gpus(),
            SamplerNews::Lost(id) => self.mark_lost(&id),
            SamplerNews::Forget(uuid) => self.forget_gpu(&uuid, batch.now),
            SamplerNews::Unframed(Unframed { calls, rejected }) => self.counters.observe(&calls, &rejected),
            SamplerNews::Frame(frame) => self.add_frame(frame, identities, batch),
        }
    }

    /// Steps 1 and 2 for one frame: identifies its processes and integrates it.
    fn add_frame(&mut self, mut frame: Box<Frame>, identities: &Identities, batch: &mut LedgerBatch) {
        self.counters.observe(&frame.calls, &frame.rejected);
        let at = self.timeline.at(frame.begun.boottime).max(self.begun);
        let uuid = &frame.gpu.uuid;
        if self.gpus.get(uuid).is_some_and(|gpu| gpu.location.attachment.is_account_paused()) {
            // It was forgotten while its sampler hung, and the search does not report it again.
            self.register_gpu(&frame.gpu, &frame.identity.pci_bus_id, batch);
        }
        let Some(gpu) = self.gpus.get_mut(uuid) else { return };
        let is_first = gpu.frame.is_none();
        gpu.location.mark_read();
        gpu.health.most_links_up = expect_links(&mut frame, gpu.health.most_links_up);
        let frame: Arc<Frame> = Arc::from(frame);
        gpu.update_support(&frame, self.policy.level);
        let timed = TimedFrame { gpu: &gpu.in_session, at, frame: &frame };
        gpu.unused.note_processes(at, &frame.processes);
        let busy = gpu.account.add_frame(timed, identities, &self.policy);
        gpu.left_memory.add(at, &frame, gpu.account.slots.count_holdings() > 0);
        for rejection in gpu.integrate(&frame, busy, self.policy.intervals[Tier::Medium as usize]) {
            self.counters.reject(rejection, 1);
        }
        gpu.frame = Some(frame);
        if is_first {
            batch.registrations.push(gpu.registration(batch.now));
        }
    }
}

impl TrackedGpu {
    /// As it is known by now.
    fn registration(&self, at: Utc) -> GpuRegistration {
        GpuRegistration {
            gpu: self.id.clone(),
            model: self.model().map(Arc::clone).unwrap_or_default(),
            memory: self.frame.as_deref().and_then(total_memory),
            at,
        }
    }

    fn new(id: GpuId, account: Account, at: Utc) -> Self {
        Self {
            xids: Xids::of(&id.uuid),
            labels: GpuLabels::of(&id),
            in_session: SessionGpu::from(&id),
            id,
            account,
            unused: UnusedHoldings::default(),
            left_memory: LeftMemory::default(),
            health: GpuHealthTracker::default(),
            frame: None,
            integrals: vec![Err(Absence::NotYet); INTEGRALS],
            last_counts: vec![None; INTEGRALS],
            totals: vec![CounterTotal::default(); INTEGRALS],
            instances: BTreeMap::new(),
            instance_totals: BTreeMap::new(),
            busy: Err(Absence::NotYet),
            unsupported: Vec::new(),
            location: GpuLocation::new(at),
            starts_anew: false,
            dcgm: DcgmHistory::default(),
        }
    }

    /// Finds the unsupported families again under another plan or after the slow tier was read. It hardly ever changes,
    /// and looking through all readings in every tick would be expensive.
    fn update_support(&mut self, frame: &Frame, level: Level) {
        let read = |frame: &Frame| (frame.generation, frame.tiers[Tier::Slow as usize]);
        // What GPM refuses is known with the first pair of samples.
        let has_pair = |frame: &Frame| frame.readings.get(GR_ENGINE).is_some_and(Result::is_ok);
        let is_new = |before: &Frame| read(before) != read(frame) || (has_pair(frame) && !has_pair(before));
        if self.frame.as_deref().is_none_or(is_new) {
            self.unsupported = unsupported(frame, level);
        }
    }
}
