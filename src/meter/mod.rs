//! The tick, in five steps: identify, integrate, settle, judge, publish.
//!
//! In go the frames that have come, the published identities, what the ledger has acknowledged; out come a
//! published snapshot and a batch for the ledger. It blocks on nothing and knows no socket and no driver.

mod account;
mod accounts;
mod answers;
mod budget;
mod folded;
mod grants;
mod idle;
mod integrate;
mod judge;
mod late;
mod location;
mod named;
mod numbers;
mod processes;
mod publish;
mod registered;
mod shown;
mod since;
mod sources;
mod xids;

pub use answers::{answers, unsupported};
pub use judge::NoticeCount;
pub use numbers::{MeterCounters, Services};
pub use sources::source_told_from;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::catalogue::{INTEGRALS, InstanceValue, Level};
use crate::holders::{Allocation, Granting, Identities, SessionGpu, StandingGrant};
use crate::host::Pci;
use crate::ledger::{
    AccountTimeline, Acknowledged, Anchor, ClosedWindow, GpuRegistration, LedgerBatch, OpenSpans, Recovered,
};
use crate::model::frame::Tier;
use crate::model::snapshot::{InstanceCounters, PriceEntry, Roster, Snapshot};
use crate::model::{Absence, Attachment, Frame, GpuId, Nanoseconds, Reading, Stamp, Unframed, Utc, XidCount};
use crate::nvml::InFlight;

use account::{Account, EarlierGrant, Gap, TimedFrame};
use accounts::Accounts;
use budget::{BudgetHistory, OwnSeries, SeriesPerEntry};
use grants::GrantMatches;
use integrate::GR_ENGINE;
use judge::{GpuHealthTracker, Unplaced};
use location::GpuLocation;
use named::NamedRows;
use numbers::SeriesOrder;
use registered::RegisteredHolders;
use shown::Shown;
use since::CounterTotal;
use xids::Xids;

/// What the operator decided, as far as the tick needs it; read once per tick.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How much is exported.
    pub level: Level,
    /// The interval of each tier, by [`crate::model::frame::Tier`] order.
    pub intervals: [Nanoseconds; 3],
    /// StandingGrant holdings.
    pub standing: Vec<StandingGrant>,
    /// What schedulers allocated on this node, as last told by [`Inputs::allocations`].
    pub allocations: Arc<[Allocation]>,
    /// Whether presence holds on GPUs without other holdings.
    pub presence: bool,
    /// How long a new series of the account stays at 0.
    pub birth_delay: Nanoseconds,
    /// The most processes of each GPU that get series.
    pub processes: usize,
    /// The most series of a snapshot.
    pub series: usize,
    /// The prices, each in force from a time on, in order of time; none ends all money there.
    pub prices: Vec<(Utc, Option<PriceEntry>)>,
}

impl Policy {
    /// What grants holdings.
    fn granting(&self) -> Granting<'_> {
        let Self { allocations, standing, presence, .. } = self;
        Granting { allocations, standing, presence: *presence }
    }

    /// The price in force at that time.
    fn price(&self, at: Utc) -> Option<&PriceEntry> {
        self.prices.iter().rev().find(|(from, _)| *from <= at).and_then(|(_, price)| price.as_ref())
    }

    /// Whether prices are configured and none is in force at that time; none without prices, or once they have been
    /// removed.
    fn price_missing(&self, at: Utc) -> Option<bool> {
        self.prices.last()?.1.as_ref()?;
        Some(self.price(at).is_none())
    }
}

/// A message from a sampler or from the search for GPUs.
#[derive(Debug)]
pub enum SamplerNews {
    /// A frame.
    Frame(Box<Frame>),
    /// What a tick cost that brought no frame, or one too late.
    Unframed(Unframed),
    /// The driver's library was opened; all that it counts is found again.
    Opened {
        /// Whether the driver was loaded anew, so that its counters began anew.
        anew: bool,
        /// Which loading of the driver's module it is, where that can be told.
        module: Option<u64>,
    },
    /// The driver counts a GPU, which has said nothing yet.
    Found {
        /// Which, with the driver's index.
        gpu: GpuId,
        /// Its PCI bus id as the driver writes it; "" where it does not tell.
        bus: Arc<str>,
    },
    /// The driver has told of all that it counts: a GPU with an account that is not among them is gone.
    Counted,
    /// The driver says that the GPU is lost.
    Lost(GpuId),
    /// The operator does not expect the GPU of that UUID any more.
    Forget(Arc<str>),
}

/// What has come since the last tick.
#[derive(Debug, Default)]
pub struct Inputs {
    /// From the samplers, in order of time for each GPU.
    pub news: Vec<SamplerNews>,
    /// From the event set and the kernel's log.
    pub xids: Vec<XidCount>,
    /// From the event set.
    pub notices: Vec<NoticeCount>,
    /// Who the processes are.
    pub identities: Arc<Identities>,
    /// What schedulers allocated on this node.
    pub allocations: Arc<[Allocation]>,
    /// The driver calls that samplers are in, by UUID.
    pub in_flight: BTreeMap<Arc<str>, InFlight>,
    /// From the ledger thread.
    pub acknowledged: Vec<Acknowledged>,
    /// The ledger, where it could only be opened after the agent had started.
    pub opened_late: Option<Box<Recovered>>,
    /// Whether the kernel says that the wall clock is synchronised.
    pub synchronised: bool,
    /// The GPUs that the PCI bus shows, where it can be seen.
    pub pci: Option<Arc<Pci>>,
    /// What the other threads count.
    pub services: Services,
}

/// What a tick returns.
#[derive(Debug)]
pub struct TickOutput {
    /// For pages, pushes and queries.
    pub snapshot: Arc<Snapshot>,
    /// For the ledger thread.
    pub batch: LedgerBatch,
}

/// A GPU as the meter follows it.
struct TrackedGpu {
    id: GpuId,
    /// As grants select it: its index only while it has that index in the current driver session.
    in_session: SessionGpu,
    labels: GpuLabels,
    account: Account,
    xids: Xids,
    health: GpuHealthTracker,
    frame: Option<Arc<Frame>>,
    /// What the agent counts itself, by the catalogue's integral number, each in its family's unit.
    integrals: Vec<Reading>,
    /// The counts that some of these grow by, as last read under this plan.
    counts: Vec<Option<u64>>,
    /// What is known of GPM's counters that some of these grow by.
    since: Vec<CounterTotal>,
    /// The integrals of every GPU instance that was ever seen, by its id.
    instances: BTreeMap<u32, InstanceCounters>,
    /// GPM's counters of those that are there under this plan.
    instances_since: BTreeMap<u32, [CounterTotal; InstanceValue::ALL.len()]>,
    busy: Reading,
    /// Families that it cannot answer, and why.
    unsupported: Vec<(&'static str, Absence)>,
    /// How many series it has, by the same readings.
    series: OwnSeries,
    location: GpuLocation,
    /// Whether its next frame goes on from nothing: its sampler is another one, or the GPU was lost.
    starts_anew: bool,
}

/// What a GPU's own series are told apart by, as text.
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
    /// As the operator decided, without what schedulers allocated.
    configured: Arc<Policy>,
    policy: Arc<Policy>,
    timeline: AccountTimeline,
    /// Account time at which this process began to watch; an earlier frame counts from then on.
    begun: Utc,
    started: Stamp,
    ledger: Option<Utc>,
    gpus: BTreeMap<Arc<str>, TrackedGpu>,
    accounts: Accounts,
    /// Which loading of the driver's module was opened.
    module: Option<u64>,
    registered: RegisteredHolders,
    unplaced: Unplaced,
    grants: GrantMatches,
    counters: MeterCounters,
    budget: BudgetHistory,
    costs: SeriesPerEntry,
    named: NamedRows,
    order: SeriesOrder,
    /// Absent where something of it has changed.
    shown: Option<Shown>,
    roster: Arc<Roster>,
    sequence: u64,
}

impl Meter {
    /// A meter that goes on where the ledger stands; without a ledger the account lives and dies with it.
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
            accounts: Accounts::default(),
            module: None,
            registered: RegisteredHolders::default(),
            unplaced: Unplaced::default(),
            grants: GrantMatches::default(),
            counters: MeterCounters::default(),
            budget: BudgetHistory::default(),
            costs: SeriesPerEntry::at(policy.level),
            named: NamedRows::default(),
            order: SeriesOrder::default(),
            shown: None,
            roster: Arc::default(),
            sequence: 0,
            configured: Arc::clone(&policy),
            policy,
        };
        if let Some(recovered) = recovered {
            meter.recover(recovered, begun);
        }
        meter
    }

    /// Whether there is a ledger that the account goes into.
    pub const fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    /// The account's time axis.
    pub const fn timeline(&self) -> AccountTimeline {
        self.timeline
    }

    /// Fixes the account's time in this boot, once the wall clock may be taken.
    fn fix_time(&mut self, now: Stamp, synchronised: bool) -> Option<Anchor> {
        let anchor = self.timeline.anchor(now, synchronised)?;
        self.timeline = AccountTimeline::fixed_by(&anchor);
        self.ledger = self.ledger.map(|created| anchor.moved(created));
        self.begun = anchor.moved(self.begun);
        self.accounts.apply_anchor(&anchor);
        for gpu in self.gpus.values_mut() {
            gpu.account.apply_anchor(&anchor);
            gpu.location.since = anchor.moved(gpu.location.since);
            gpu.xids.apply_anchor(&anchor);
        }
        self.shown = None;
        tracing::info!(
            synchronised,
            ahead_seconds = self.timeline.lead(now) / 1_000_000_000,
            "the account's time in this boot is fixed by the wall clock"
        );
        Some(anchor)
    }

    fn recover(&mut self, recovered: Recovered, begun: Utc) {
        self.accounts.recover(&recovered, begun);
        for gpu in self.gpus.values_mut() {
            gpu.account = Account::begin(begun);
        }
        for (uuid, known) in recovered.gpus {
            let counter = known.energy_counter;
            let id = known.gpu.clone();
            let account = Account::recover(known, begun, recovered.boot);
            let gpu = match self.gpus.entry(uuid) {
                Entry::Vacant(vacant) => {
                    vacant.insert(TrackedGpu::new(id, account, begun, self.policy.level))
                }
                Entry::Occupied(occupied) => {
                    let gpu = occupied.into_mut();
                    gpu.account = account;
                    gpu
                }
            };
            gpu.health.stood_at(counter);
        }
        self.recover_sticky_faults(recovered.sticky_faults);
        self.recover_xids(recovered.xids);
        for expected in recovered.inventory {
            if let Some(gpu) = self.gpus.get_mut(&expected.gpu).filter(|gpu| !gpu.location.was_seen()) {
                match expected.attachment {
                    Attachment::Present => {}
                    Attachment::Lost | Attachment::Gone => gpu.health.was_gone(),
                    Attachment::Guest | Attachment::Replaced | Attachment::Forgotten => gpu.health.forget(),
                }
                gpu.account.set_failed(gpu.health.has_failed());
                if expected.attachment != Attachment::Present {
                    gpu.account.mark_lost();
                }
                gpu.location.recover(expected);
            }
        }
    }

    /// Applies the operator's settings from the next tick on.
    pub fn apply_policy(&mut self, policy: Arc<Policy>) {
        if Arc::ptr_eq(&policy, &self.configured) {
            return;
        }
        self.configured = Arc::clone(&policy);
        let allocations = Arc::clone(&self.policy.allocations);
        let policy = Arc::new(Policy { allocations, ..(*policy).clone() });
        self.costs = SeriesPerEntry::at(policy.level);
        if policy.level != self.policy.level {
            for gpu in self.gpus.values_mut() {
                let readings = gpu.frame.as_ref().map_or(&[] as &[Reading], |frame| &frame.readings);
                gpu.series = OwnSeries::of(readings, policy.level);
            }
        }
        self.registered.grants_changed();
        self.shown = None;
        self.policy = policy;
    }

    /// The agent's own counters.
    pub fn counters(&self) -> &MeterCounters {
        &self.counters
    }

    /// One tick.
    pub fn tick(&mut self, now: Stamp, inputs: Inputs) -> TickOutput {
        let anchor = self.fix_time(now, inputs.synchronised);
        let mut batch = LedgerBatch { now: self.timeline.at(now.boottime), anchor, ..LedgerBatch::default() };
        if let Some(recovered) = inputs.opened_late {
            self.open_late(*recovered, now, &mut batch);
        }
        let at = batch.now;
        for acknowledged in &inputs.acknowledged {
            self.accounts.acknowledge(acknowledged, at);
            for stored in &acknowledged.xids {
                if let Some(gpu) = self.gpus.get_mut(&stored.gpu) {
                    gpu.xids.acknowledge(stored);
                }
            }
            if !acknowledged.counters.is_empty() {
                self.shown = None;
            }
        }
        self.apply_allocations(inputs.allocations, now);
        for news in inputs.news {
            self.apply_news(news, &inputs.identities, &mut batch);
        }
        self.locate(inputs.pci.as_deref(), &mut batch);
        self.assign_indices();
        self.match_grants();
        self.listen(now, inputs.xids, inputs.notices);
        self.settle(at, &inputs.identities, &mut batch);
        self.log_gap();
        self.judge(now, &mut batch);
        self.count_xids(now, &mut batch);
        let snapshot = self.build_snapshot(now, &inputs.identities, &inputs.in_flight, &inputs.services);
        TickOutput { snapshot, batch }
    }

    /// Takes what schedulers allocated from now on; what is new and was granted earlier counts in the open windows, too.
    fn apply_allocations(&mut self, allocations: Arc<[Allocation]>, now: Stamp) {
        let current = &self.policy.allocations;
        if !Arc::ptr_eq(&allocations, current) && *allocations != **current {
            let at = self.timeline.at(now.boottime);
            let earlier = allocations.iter().filter_map(|allocation| {
                let age = now.utc.0.checked_sub(allocation.since?.0)?;
                let is_known =
                    |known: &Allocation| known.is_same_grant(allocation) && known.since <= allocation.since;
                let is_new = !current.iter().any(is_known);
                let allocation = allocation.clone();
                is_new.then(|| EarlierGrant { allocation, from: Utc(at.0.saturating_sub(age)) })
            });
            let earlier: Vec<EarlierGrant> = earlier.collect();
            for gpu in self.gpus.values_mut().filter(|_| !earlier.is_empty()) {
                gpu.account.backfill(&earlier);
            }
            self.policy = Arc::new(Policy { allocations, ..(*self.policy).clone() });
            self.shown = None;
            self.registered.grants_changed();
        }
    }

    /// Steps 1 and 2: who was there, and what the tick adds to the GPU's own time.
    fn apply_news(&mut self, news: SamplerNews, identities: &Identities, batch: &mut LedgerBatch) {
        match news {
            SamplerNews::Opened { anew, module } => self.library_opened(anew, module),
            SamplerNews::Found { gpu, bus } => self.register_gpu(&gpu, &bus, batch),
            SamplerNews::Counted => self.mark_uncounted_gpus(),
            SamplerNews::Lost(id) => self.mark_lost(&id),
            SamplerNews::Forget(uuid) => self.forget_gpu(&uuid, batch.now),
            SamplerNews::Unframed(Unframed { calls, rejected }) => self.counters.observe(&calls, &rejected),
            SamplerNews::Frame(frame) => {
                let frame: Arc<Frame> = Arc::from(frame);
                self.counters.observe(&frame.calls, &frame.rejected);
                let at = self.timeline.at(frame.begun.boottime).max(self.begun);
                let uuid = &frame.gpu.uuid;
                if self.gpus.get(uuid).is_some_and(|gpu| gpu.location.attachment.rests()) {
                    // It was forgotten while its sampler hung, and the search does not report it again.
                    self.register_gpu(&frame.gpu, &frame.identity.pci_bus_id, batch);
                }
                let Some(gpu) = self.gpus.get_mut(uuid) else { return };
                if gpu.frame.is_none() {
                    let model = Arc::clone(&frame.identity.model);
                    batch.registrations.push(GpuRegistration { gpu: gpu.id.clone(), model, at: batch.now });
                }
                gpu.location.mark_read();
                gpu.update_support(&frame, self.policy.level);
                let medium = self.policy.intervals[Tier::Medium as usize];
                for rejection in gpu.integrate(&frame, medium) {
                    self.counters.reject(rejection, 1);
                }
                let timed = TimedFrame { gpu: &gpu.in_session, at, frame: &frame };
                let busy = gpu.account.advance(timed, identities, &self.policy);
                gpu.integrate_busy(&frame, busy);
                gpu.frame = Some(frame);
            }
        }
    }

    /// Step 3: windows that closed.
    fn settle(&mut self, at: Utc, identities: &Arc<Identities>, batch: &mut LedgerBatch) {
        for (uuid, gpu) in &mut self.gpus {
            if gpu.location.rests_since().is_some_and(|since| gpu.account.settled() >= since) {
                continue;
            }
            gpu.account.identify(identities, &self.policy);
            if !self.timeline.is_provisional() {
                gpu.close_windows(at, &self.policy, &self.counters, batch);
            }
            let (spans, energy_counter) = gpu.account.unsent();
            if !spans.is_empty() || energy_counter.is_some() {
                batch.open.push(OpenSpans { gpu: Arc::clone(uuid), spans, energy_counter });
            }
        }
        self.registered.register_holders(identities, self.policy.granting(), batch);
    }

    /// Logs how the time was booked in which no agent looked; not before it is known when the boot was.
    fn log_gap(&mut self) {
        if self.timeline.is_provisional() {
            return;
        }
        let (mut gpus, mut longest, mut sum) = (0, Nanoseconds(0), Gap::default());
        for gpu in self.gpus.values_mut() {
            let gap = gpu.account.take_gap();
            let whole = gap.bridged + gap.unobserved + gap.unavailable;
            if whole.0 == 0 {
                continue;
            }
            gpus += 1;
            longest = longest.max(whole);
            sum.bridged += gap.bridged;
            sum.unobserved += gap.unobserved;
            sum.unavailable += gap.unavailable;
        }
        if gpus > 0 {
            tracing::info!(
                gpus,
                seconds = %in_seconds(longest),
                bridged_gpu_seconds = %in_seconds(sum.bridged),
                unobserved_gpu_seconds = %in_seconds(sum.unobserved),
                unavailable_gpu_seconds = %in_seconds(sum.unavailable),
                "the time without an agent is booked"
            );
        }
    }
}

/// In seconds, with one decimal.
fn in_seconds(time: Nanoseconds) -> String {
    format!("{}.{}", time.0 / 1_000_000_000, time.0 / 100_000_000 % 10)
}

impl TrackedGpu {
    /// Settles the windows that are over at that time, up to the moment from which the account rests; whether
    /// there were any.
    fn close_windows(
        &mut self,
        now: Utc,
        policy: &Arc<Policy>,
        counters: &MeterCounters,
        batch: &mut LedgerBatch,
    ) -> bool {
        let closed = self.account.settle(now, self.location.rests_since(), &self.in_session, policy);
        counters.unsettled.inc_by(closed.failed);
        let any = !closed.windows.is_empty();
        batch.closed.extend(closed.windows.into_iter().map(|settlement| ClosedWindow {
            gpu: Arc::clone(&self.id.uuid),
            settlement,
            coarse: false,
        }));
        any
    }

    /// Finds out anew what it cannot answer when its plan is another one or the slow tier was read: that hardly
    /// ever changes, and looking through all readings takes its time.
    fn update_support(&mut self, frame: &Frame, level: Level) {
        let known = |frame: &Frame| (frame.generation, frame.tiers[Tier::Slow as usize]);
        // What GPM refuses is told with the first pair of samples.
        let pairs = |frame: &Frame| frame.readings.get(GR_ENGINE).is_some_and(Result::is_ok);
        let is_new = |before: &Frame| known(before) != known(frame) || (pairs(frame) && !pairs(before));
        if self.frame.as_deref().is_none_or(is_new) {
            self.unsupported = unsupported(frame, level);
            self.series = OwnSeries::of(&frame.readings, level);
        }
    }

    fn new(id: GpuId, account: Account, at: Utc, level: Level) -> Self {
        Self {
            xids: Xids::of(&id.uuid),
            labels: GpuLabels::of(&id),
            in_session: SessionGpu::from(&id),
            id,
            account,
            health: GpuHealthTracker::default(),
            frame: None,
            integrals: vec![Err(Absence::NotYet); INTEGRALS],
            counts: vec![None; INTEGRALS],
            since: vec![CounterTotal::default(); INTEGRALS],
            instances: BTreeMap::new(),
            instances_since: BTreeMap::new(),
            busy: Err(Absence::NotYet),
            unsupported: Vec::new(),
            series: OwnSeries::of(&[], level),
            location: GpuLocation::new(at),
            starts_anew: false,
        }
    }
}
