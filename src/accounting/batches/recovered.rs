//! The state of the account when a ledger was opened, with which the agent goes on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::batch::Expected;
use super::counters::{CounterKey, HolderCounter, TenantKey};
use super::faults::{StickyFaults, XidSums};
use super::timeline::{AccountTimeline, Boot};
use crate::accounting::billing::RateSchedule;
use crate::accounting::tenants::RuleSchedule;
use crate::model::{
    Carry, Evidence, Fraction, GpuId, Holder, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds,
    Span, Utc,
};

/// State of the account when the ledger was opened.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// When the ledger was created: the start time of its counters.
    pub created: Utc,
    /// Account time of the last commit, or of the creation before the first commit.
    pub last_commit: Utc,
    /// Copy of the file with its older schema, if it was upgraded.
    pub upgraded_from: Option<PathBuf>,
    pub timeline: AccountTimeline,
    /// This boot; nothing is bridged from an earlier one.
    pub boot: Boot,
    /// Whether its filesystem survives a restart of the container and of the node.
    pub durable: bool,
    pub gpus: BTreeMap<Arc<str>, RecoveredGpu>,
    pub inventory: Vec<Expected>,
    /// Whether a pod or job of a scheduler has ever held a GPU in it.
    pub has_scheduled: bool,
    /// What schedulers had granted at the end of the last stored spans, where these are of this boot.
    pub shares: Vec<RecoveredShare>,
    /// Sticky faults stored in this boot, by GPU.
    pub sticky_faults: Vec<StickyFaults>,
    pub xids: Vec<XidSums>,
    /// The last known user name of each uid, limited to the latest ones.
    pub users: Vec<(u32, Arc<str>)>,
    /// The versions of the holders that are in `gpus` or changed lately, and of units, each workload's in the order in which
    /// they began.
    pub holders: Vec<Holder>,
    /// Counters that changed lately.
    pub counters: BTreeMap<CounterKey, HolderCounter>,
    /// For each tenant with one of these, the sum of its other counters.
    pub unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    pub rates: Arc<RateSchedule>,
    pub tenant_rules: Arc<RuleSchedule>,
    /// GPU time settled - the sum of all held counters, in nanoseconds; must be 0.
    pub imbalance: i128,
}

/// A share of a slot that a scheduler had granted when the account was last written.
#[derive(Clone, Debug)]
pub struct RecoveredShare {
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    pub holder: Holder,
    pub fraction: Fraction,
    pub source: HoldingSource,
}

#[derive(Clone, Debug)]
pub struct RecoveredGpu {
    pub gpu: GpuId,
    pub model: Arc<str>,
    /// End of the account: the next window begins here.
    pub settled_until: Utc,
    pub slot: Nanoseconds,
    pub instances: BTreeMap<u32, Nanoseconds>,
    pub carry: Carry,
    pub weights: BTreeMap<HolderId, u64>,
    /// Raw spans from `settled_until` on, with unobserved spans in gaps.
    pub spans: Vec<Span>,
    /// Holdings at the end of the last stored span.
    pub holdings: Arc<[Holding]>,
    /// The driver's energy counter at that time, where it is known.
    pub energy_counter: Option<Microjoules>,
    /// The evidence up to `settled_until` that is not stored for good, with the runs that go on.
    pub evidence: Arc<Evidence>,
}
