//! The pulse, in five steps: identify, integrate, settle, judge, seal.
//!
//! In go the frames that have come, the published identities, what the ledger has acknowledged; out come a
//! sealed snapshot and a batch for the ledger. It blocks on nothing and knows no socket and no driver.

mod account;
mod accounts;
mod budget;
mod idle;
mod integrate;
mod numbers;
mod seal;
mod xids;

pub use numbers::{Counters, Services};
pub use seal::unsupported;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::{INTEGRALS, Level};
use crate::holders::{Identities, Selector, Standing};
use crate::ledger::{Acknowledged, Batch, Closed, Open, Recovered, Sight, Timeline};
use crate::model::snapshot::{PriceEntry, Roster, Snapshot};
use crate::model::{Absence, Frame, GpuId, Holder, HolderId, Nanoseconds, Reading, Stamp, Utc, XidEvent};
use crate::nvml::InFlight;

use account::Account;
use accounts::Accounts;
use budget::Budget;
use xids::Xids;

/// What the operator decided, as far as the pulse needs it; read once per pulse.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How much is exported.
    pub level: Level,
    /// The interval of each tier, by [`crate::model::frame::Tier`] order.
    pub intervals: [Nanoseconds; 3],
    /// Standing holdings.
    pub standing: Vec<Standing>,
    /// Whether presence holds on GPUs without standing holdings.
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
    /// The price in force at that time.
    fn price(&self, at: Utc) -> Option<&PriceEntry> {
        self.prices.iter().rev().find(|(from, _)| *from <= at).and_then(|(_, price)| price.as_ref())
    }
}

/// News from a lane.
#[derive(Debug)]
pub enum News {
    /// A frame.
    Frame(Box<Frame>),
    /// The driver counts a GPU, which has said nothing yet.
    Found(GpuId),
    /// The driver has told of all that it counts: a GPU with an account that is not among them is gone.
    Counted,
    /// The driver says that the GPU is gone.
    Lost(GpuId),
}

/// What has come since the last pulse.
#[derive(Debug, Default)]
pub struct Inputs {
    /// From the lanes, in order of time for each GPU.
    pub news: Vec<News>,
    /// From the event set.
    pub xids: Vec<XidEvent>,
    /// Who the processes are.
    pub identities: Arc<Identities>,
    /// The driver calls that lanes are in, by UUID.
    pub in_flight: BTreeMap<Arc<str>, InFlight>,
    /// From the ledger thread.
    pub acknowledged: Vec<Acknowledged>,
    /// What the other threads count.
    pub services: Services,
}

/// What a pulse yields.
#[derive(Debug)]
pub struct Pulse {
    /// For pages, pushes and queries.
    pub snapshot: Arc<Snapshot>,
    /// For the ledger thread.
    pub batch: Batch,
}

/// A GPU as the meter follows it.
struct Gpu {
    id: GpuId,
    account: Account,
    xids: Xids,
    frame: Option<Arc<Frame>>,
    /// Nanoseconds integrated of every ratio that has a counter.
    integrals: Vec<Reading>,
    busy: Reading,
    /// Whether the driver has counted it in this life of the agent.
    found: bool,
    lost: bool,
}

/// Follows all GPUs from tick to tick.
pub struct Meter {
    policy: Arc<Policy>,
    timeline: Timeline,
    started: Stamp,
    ledger: Option<Utc>,
    gpus: BTreeMap<Arc<str>, Gpu>,
    accounts: Accounts,
    /// Everybody who was ever met, with facts.
    holders: BTreeMap<HolderId, Holder>,
    /// Whom this process has introduced to the ledger.
    introduced: BTreeSet<HolderId>,
    counters: Counters,
    budget: Budget,
    roster: Arc<Roster>,
    sequence: u64,
}

impl Meter {
    /// A meter that goes on where the ledger stands; without a ledger the account lives and dies with it.
    pub fn new(policy: Arc<Policy>, started: Stamp, recovered: Option<Recovered>) -> Self {
        let timeline =
            recovered.as_ref().map_or_else(|| Timeline::starting(started), |recovered| recovered.timeline);
        let begun = timeline.at(started.boottime);
        let mut meter = Self {
            policy,
            timeline,
            started,
            ledger: recovered.as_ref().map(|recovered| recovered.created),
            gpus: BTreeMap::new(),
            accounts: Accounts::default(),
            holders: BTreeMap::new(),
            introduced: BTreeSet::new(),
            counters: Counters::default(),
            budget: Budget::default(),
            roster: Arc::default(),
            sequence: 0,
        };
        if let Some(recovered) = recovered {
            meter.recover(recovered, begun);
        }
        meter
    }

    fn recover(&mut self, recovered: Recovered, begun: Utc) {
        self.accounts.recover(&recovered, begun);
        self.holders.extend(recovered.holders.into_iter().map(|holder| (holder.id.clone(), holder)));
        for (uuid, known) in recovered.gpus {
            let gpu = Gpu::new(known.gpu.clone(), Account::recover(known, begun));
            self.gpus.insert(uuid, gpu);
        }
    }

    /// From the next pulse on, what the operator decided is this.
    pub fn obey(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
    }

    /// The agent's own counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// One pulse.
    pub fn tick(&mut self, now: Stamp, inputs: Inputs) -> Pulse {
        let at = self.timeline.at(now.boottime);
        let mut batch = Batch { now: at, ..Batch::default() };
        for acknowledged in &inputs.acknowledged {
            self.accounts.acknowledge(acknowledged, at);
        }
        for news in inputs.news {
            self.hear(news, &inputs.identities, &mut batch);
        }
        for event in &inputs.xids {
            if let Some(gpu) = self.gpus.get_mut(&event.uuid) {
                gpu.xids.hear(event);
            }
        }
        self.settle(at, &inputs.identities, &mut batch);
        let snapshot = self.seal(now, &inputs.identities, &inputs.in_flight, &inputs.services);
        Pulse { snapshot, batch }
    }

    /// Steps 1 and 2: who was there, and what the tick adds to the GPU's own time.
    fn hear(&mut self, news: News, identities: &Identities, batch: &mut Batch) {
        match news {
            News::Found(id) => {
                let at = batch.now;
                if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
                    gpu.found = true;
                    gpu.lost = false;
                    gpu.account.find();
                } else {
                    let id = GpuId { index: self.free_index(id.index), uuid: id.uuid };
                    batch.sights.push(Sight { gpu: id.clone(), model: "".into(), at });
                    let gpu = Gpu { found: true, ..Gpu::new(id.clone(), Account::begin(at)) };
                    self.gpus.insert(id.uuid, gpu);
                }
            }
            News::Counted => {
                for gpu in self.gpus.values_mut().filter(|gpu| !gpu.found) {
                    gpu.lost = true;
                    gpu.account.lose();
                }
            }
            News::Lost(id) => {
                if let Some(gpu) = self.gpus.get_mut(&id.uuid) {
                    gpu.lost = true;
                    gpu.account.lose();
                }
            }
            News::Frame(frame) => {
                let frame: Arc<Frame> = Arc::from(frame);
                self.counters.observe(&frame);
                let at = self.timeline.at(frame.begun.boottime);
                let Some(gpu) = self.gpus.get_mut(&frame.gpu.uuid) else { return };
                if gpu.frame.is_none() {
                    let model = Arc::clone(&frame.identity.model);
                    batch.sights.push(Sight { gpu: gpu.id.clone(), model, at: batch.now });
                }
                gpu.lost = false;
                gpu.integrate(&frame);
                gpu.account.advance((&gpu.id, at), &frame, identities, &self.policy);
                gpu.frame = Some(frame);
            }
        }
    }

    /// An index for a GPU that is new here: the driver's, unless a GPU that is gone still has it.
    fn free_index(&self, wanted: u32) -> u32 {
        let taken: BTreeSet<u32> = self.gpus.values().map(|gpu| gpu.id.index).collect();
        if !taken.contains(&wanted) {
            return wanted;
        }
        (0..).find(|index| !taken.contains(index)).unwrap_or(wanted)
    }

    /// Step 3: windows that closed.
    fn settle(&mut self, at: Utc, identities: &Identities, batch: &mut Batch) {
        for (uuid, gpu) in &mut self.gpus {
            gpu.account.identify(identities, &gpu.id, &self.policy);
            let closed = gpu.account.settle(at, &gpu.id, &self.policy);
            self.counters.unsettled.inc_by(closed.failed);
            batch.closed.extend(closed.windows.into_iter().map(|settlement| Closed {
                gpu: Arc::clone(uuid),
                settlement,
                coarse: false,
            }));
            let (spans, energy_counter) = gpu.account.unsent();
            if !spans.is_empty() || energy_counter.is_some() {
                batch.open.push(Open { gpu: Arc::clone(uuid), spans, energy_counter });
            }
        }
        self.introduce(identities, batch);
    }

    /// Holders that the ledger has not met in this process, with their facts.
    fn introduce(&mut self, identities: &Identities, batch: &mut Batch) {
        let seen = identities.iter().map(|(_, known)| (*known.holder).clone());
        // A grant knows less of its holder than a process of his: it never replaces what is known.
        let standing = self.policy.standing.iter().map(granted);
        let unknown = standing.filter(|holder| !self.holders.contains_key(&holder.id));
        for holder in seen.chain(unknown.collect::<Vec<_>>()) {
            if self.introduced.insert(holder.id.clone()) {
                self.holders.insert(holder.id.clone(), holder.clone());
                batch.holders.push(holder);
            }
        }
    }
}

/// The holder of a standing grant, as far as the grant tells.
fn granted(standing: &Standing) -> Holder {
    match &standing.selector {
        Selector::User(name) => Holder::user(name, None),
        Selector::Unit(name) => Holder::unit(name, None, None),
    }
}

impl Gpu {
    fn new(id: GpuId, account: Account) -> Self {
        Self {
            id,
            account,
            xids: Xids::default(),
            frame: None,
            integrals: vec![Err(Absence::NotYet); INTEGRALS],
            busy: Err(Absence::NotYet),
            found: false,
            lost: false,
        }
    }
}
