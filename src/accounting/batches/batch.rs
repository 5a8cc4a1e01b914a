//! What the ledger thread commits in one transaction, and what may then be published.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::counters::{CounterKey, HolderCounter, TenantKey};
use super::faults::{OpenIncidents, SeenXids, StickyFaults, XidSums};
use super::month::MonthCosts;
use crate::accounting::billing::RateSchedule;
use crate::accounting::tenants::RuleSchedule;
use crate::model::{Attachment, Bytes, GpuId, Holder, Microjoules, Nanoseconds, Settlement, Span, Utc};

/// The contents of one transaction. Times are account time ([`super::AccountTimeline::at`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerBatch {
    /// Now; new counters are born at this time.
    pub now: Utc,
    /// GPUs that this agent process found; one that the ledger has keeps its account.
    pub registrations: Vec<GpuRegistration>,
    pub expected: Vec<Expected>,
    pub sticky_faults: Vec<StickyFaults>,
    /// The open incidents of the GPUs on which one began or ended, in order of time.
    pub incidents: Vec<OpenIncidents>,
    /// In order of time.
    pub seen_xids: Vec<SeenXids>,
    pub xids: Vec<XidSums>,
    /// Versions of holders that are new, or of which more is known. A holder that occurs only in a row has the facts in its
    /// id.
    pub holders: Vec<Holder>,
    /// Raw spans that are not stored yet.
    pub open: Vec<OpenSpans>,
    /// Settled windows, in order of time for each GPU.
    pub closed: Vec<ClosedWindow>,
    /// GPUs whose suspended account continues, in order of time.
    pub resumed: Vec<Resumed>,
    /// Whether it must survive a power loss, not only a kill. Batches that close a window always do, and so does at least
    /// one batch in ten seconds.
    pub sync: bool,
}

/// A GPU that was found. Its account begins then unless it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuRegistration {
    pub gpu: GpuId,
    /// Product name; empty where it is not known yet.
    pub model: Arc<str>,
    /// Its memory, or that of the host where it shares it; none where it is not known yet.
    pub memory: Option<Bytes>,
    pub at: Utc,
}

impl GpuRegistration {
    /// Updates index, product name and memory from a later registration of the same GPU; the account begins at the first.
    pub fn update(&mut self, later: Self) {
        self.gpu = later.gpu;
        if !later.model.is_empty() {
            self.model = later.model;
        }
        self.memory = later.memory.or(self.memory);
    }
}

/// Attachment of a GPU from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub gpu: Arc<str>,
    /// Its present or last PCI address; empty where it is unknown.
    pub bus: Arc<str>,
    pub attachment: Attachment,
    /// Begin of that attachment in account time; of a suspended account, the begin of the suspension.
    pub since: Utc,
}

/// The end of a suspension of a GPU's account, during which another GPU had its place or nobody expected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    pub gpu: Arc<str>,
    /// When its time counts again; nothing continues from before.
    pub at: Utc,
}

/// New raw spans of one GPU.
///
/// They must not overlap the account or stored spans. Spans that end where the account ends or before are ignored; one
/// that begins where a stored one does replaces it. A span that straddles the end of a window closed in the same batch is
/// passed as its rest, which begins at that end: the ledger drops the stored original. Gaps are allowed; a restart before
/// their window closes makes them unobserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSpans {
    pub gpu: Arc<str>,
    pub spans: Vec<Span>,
    /// The driver's energy counter at the end of the last span ever passed, where it is known; it is stored even without
    /// spans.
    pub energy_counter: Option<Microjoules>,
}

/// A settled window of one GPU, of any length. Time between the end of the GPU's account and its begin is settled as
/// `__unobserved__`. A window that was settled before is skipped, and one of which a part was settled is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedWindow {
    pub gpu: Arc<str>,
    pub settlement: Settlement,
    /// Whether windows of several minutes were merged, so that its minutes are shares of a longer time.
    pub coarse: bool,
}

/// What a commit has changed: the only account that may be published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    pub slots: BTreeMap<Arc<str>, SlotTotal>,
    pub counters: BTreeMap<CounterKey, HolderCounter>,
    /// The sum of each tenant's unloaded counters, where it changed.
    pub unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// Counters that were unloaded; they are in `unloaded_sums` if their tenant has others in memory.
    pub unloaded: Vec<CounterKey>,
    pub rates: Arc<RateSchedule>,
    pub tenant_rules: Arc<RuleSchedule>,
    /// What tenants are charged in the month so far; none where that is not known.
    pub month: Option<Arc<MonthCosts>>,
    pub xids: Vec<XidSums>,
    /// Whether the commit survives a power loss.
    pub synced: bool,
    /// GPU time that was settled as `__unobserved__` because windows were missing.
    pub unobserved: Nanoseconds,
    /// Size of the ledger on disk in bytes, its write-ahead log included, after the last commit that survives a power loss.
    pub bytes: u64,
    /// GPU time settled since the ledger was created - the sum of all held counters, in nanoseconds; must be 0.
    pub imbalance: i128,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotTotal {
    pub settled_until: Utc,
    /// GPU time settled since its begin; equals the sum of its holders' held counters.
    pub slot: Nanoseconds,
    pub instances: BTreeMap<u32, Nanoseconds>,
}
