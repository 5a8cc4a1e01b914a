//! What the ledger thread commits at once, and what it may then publish.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::expected::Expected;
use super::state::{CounterKey, HolderCounter, TenantKey};
use super::sticky_faults::StickyFaults;
use super::timeline::Anchor;
use super::xids::XidSums;
use crate::model::{GpuId, Holder, Microjoules, Nanoseconds, Settlement, Span, Utc};

/// Everything of one transaction. Times are account time ([`super::Timeline::at`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerBatch {
    /// Now; names the birth of counters.
    pub now: Utc,
    /// Fixes the account's time in this boot: what was offered before was on the provisional axis.
    pub anchor: Option<Anchor>,
    /// GPUs seen for the first time by this agent process; one that the ledger knows keeps its account.
    pub registrations: Vec<GpuRegistration>,
    /// GPUs that are elsewhere than they were.
    pub expected: Vec<Expected>,
    /// The sticky faults of the GPUs on which they have changed.
    pub sticky_faults: Vec<StickyFaults>,
    /// GPUs of which XID errors were reported, with all their sums.
    pub xids: Vec<XidSums>,
    /// Holders that are new or whose facts changed. A holder that occurs only in a row is stored without facts.
    pub holders: Vec<Holder>,
    /// Holders of standing grants and allocations; a holder that the ledger knows keeps its stored facts.
    pub grantees: Vec<Holder>,
    /// Raw spans that are not stored yet.
    pub open: Vec<OpenSpans>,
    /// Settled windows, in order of time for each GPU.
    pub closed: Vec<ClosedWindow>,
    /// GPUs whose account rested and goes on, in order of time.
    pub resumed: Vec<Resumed>,
    /// Whether it must survive a power loss, not only a kill. So do batches that close a window, and at
    /// least one in ten seconds.
    pub sync: bool,
}

/// A GPU that was found or read for the first time; its account begins then unless it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuRegistration {
    /// Which GPU.
    pub gpu: GpuId,
    /// Product name; empty where it is not known yet.
    pub model: Arc<str>,
    /// When.
    pub at: Utc,
}

impl GpuRegistration {
    /// Takes index and product name from a later registration of the same GPU; the account begins at the first.
    pub(super) fn update(&mut self, later: Self) {
        self.gpu = later.gpu;
        if !later.model.is_empty() {
            self.model = later.model;
        }
    }
}

/// The end of a time that is in no account of a GPU: another one sat in its place, or nobody expected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// From when on its time counts again; nothing goes on from before.
    pub at: Utc,
}

/// New raw spans of one GPU.
///
/// They must not overlap the account or stored spans. Spans that end where the account ends or before are
/// ignored; one that begins where a stored one does replaces it. A span that straddles the end of a window
/// closed in the same batch is passed as its remainder, which begins at that end: the ledger drops the stored
/// original. A hole is no reason to refuse, since windows decide; a restart before they close finds it
/// unobserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSpans {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// The spans, in order.
    pub spans: Vec<Span>,
    /// The driver's energy counter at the end of the last span that was ever passed, where it is known; it
    /// is stored without spans, too.
    pub energy_counter: Option<Microjoules>,
}

/// A settled window of one GPU, of any length. It begins where the GPU's account ends or resumes; another
/// hole before it is settled as `__unobserved__`, one that is settled already is skipped, and one that is so in
/// part is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedWindow {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// The window.
    pub settlement: Settlement,
    /// Whether several windows were added together, so that its minutes are shares of a longer span.
    pub coarse: bool,
}

/// What is committed: the only account that may be published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The GPUs that the batch settled, by UUID.
    pub slots: BTreeMap<Arc<str>, SlotTotal>,
    /// The counters that the batch changed, with their new values.
    pub counters: BTreeMap<CounterKey, HolderCounter>,
    /// The sum of a tenant's counters that are not in memory, where it changed.
    pub unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// Counters that leave memory; they are in the sums of their tenants, where these have others left.
    pub unloaded: Vec<CounterKey>,
    /// The sums of XID errors that the batch stored.
    pub xids: Vec<XidSums>,
    /// Whether the commit survives a power loss.
    pub synced: bool,
    /// GPU time that the batch settled as `__unobserved__`, because the windows before its own never came.
    pub unobserved: Nanoseconds,
    /// Bytes of the ledger on disk, its write-ahead log included, after the last commit that survives a power loss.
    pub bytes: u64,
    /// GPU time settled since the ledger was created - the sum of all held counters; must be 0.
    pub imbalance: i128,
}

/// Where the account of a GPU stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotTotal {
    /// Its end.
    pub settled_until: Utc,
    /// GPU time settled since it began; equals the sum of its holders' held counters.
    pub slot: Nanoseconds,
    /// That of each of its GPU instances, by id.
    pub instances: BTreeMap<u32, Nanoseconds>,
}
