//! The published snapshot of one tick: everything that a page, a push or a query may show.
//!
//! Labels are in the [`Roster`], which stays the same `Arc` while they do not change; values are in vectors parallel to
//! it. An encoder may therefore keep rendered labels as long as the roster is the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frame::{InstanceFrame, Tier};
use super::{
    Absence, Facts, Fraction, Frame, GpuId, GpuIdentity, GpuProcess, HolderKind, HoldingSource, HowHeld,
    InstanceIdentity, MigLayout, Money, Nanoseconds, Price, Reading, Stamp, SxidCount, UnattributedReason,
    Utc, Verdict, WorkloadClass, named,
};

#[derive(Debug)]
pub struct Snapshot {
    /// Counts the snapshots of this process.
    pub sequence: u64,
    pub at: Stamp,
    pub roster: Arc<Roster>,
    /// When the agent's own counters began.
    pub started: Utc,
    /// When the ledger's counters began; absent without a ledger.
    pub ledger_started: Option<Utc>,
    /// Parallel to [`Roster::gpus`].
    pub gpus: Vec<GpuState>,
    pub how_held: HowHeld,
    pub last_hour: HourlyUse,
    pub conflicts: Vec<HoldingConflict>,
    /// SXIDs of the node's NVSwitches since the agent's start.
    pub sxids: Vec<SxidCount>,
    /// Whether the processes are listed; below level full only while somebody looks at the live page.
    pub processes_listed: bool,
    /// Parallel to [`Roster::processes`].
    pub processes: Vec<ProcessState>,
    /// Parallel to [`Roster::accounts`].
    pub accounts: Arc<[AccountState]>,
    /// Parallel to [`Roster::workload_accounts`].
    pub workload_accounts: Arc<[AccountState]>,
    /// Parallel to [`Roster::gpus`]: time used by processes whose owner is not known, in closed and committed windows,
    /// in nanoseconds by [`UnattributedReason::ALL`]; absent where there was none.
    pub unattributed: Arc<[[Option<u64>; UnattributedReason::ALL.len()]]>,
    /// Parallel to [`Roster::holdings`]: the share in billionths.
    pub holdings: Vec<HoldingState>,
    /// Parallel to [`Roster::month_costs`], in nano-units of the currency.
    pub month_costs: Arc<[i128]>,
    /// Parallel to [`Roster::agent`].
    pub agent: Vec<AgentNumber>,
}

impl Snapshot {
    /// The first value of one of the agent's own families, unless it is a histogram.
    pub fn agent_integer(&self, family: &str) -> Option<i64> {
        let position = self.roster.agent.iter().position(|entry| entry.family == family)?;
        match self.agent.get(position)? {
            AgentNumber::Integer(number) => Some(*number),
            AgentNumber::Histogram(_) => None,
        }
    }
}

pub const CONFLICT_ADVICE: &str = "let one scheduler grant the GPU: take it out of Slurm's gres.conf, or out of the kubelet's device plugin";

/// Workloads whose claims on a GPU have one rank and do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingConflict {
    pub gpu: usize,
    pub workloads: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourlyUse {
    pub used: Nanoseconds,
    /// Of that, used by workloads on slots that nobody held, and charged to nobody.
    pub unheld: Nanoseconds,
}

/// Who and what has series; equal rosters are one `Arc`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The GPUs ever seen, by index and UUID.
    pub gpus: Vec<GpuEntry>,
    /// The processes on GPUs, by GPU and pid; empty where [`Snapshot::processes_listed`] is false.
    pub processes: Arc<[ProcessEntry]>,
    /// Tenants and remainders with an account, by tenant and GPU.
    pub accounts: Arc<[AccountEntry]>,
    /// Workloads with an account, by workload and GPU; empty below level full.
    pub workload_accounts: Arc<[AccountEntry]>,
    /// Current holdings, by GPU and holder.
    pub holdings: Arc<[HoldingEntry]>,
    /// Those who use nothing of what they hold for longer than it is right for them, by tenant, GPU and kind.
    pub unused: Arc<[UnusedEntry]>,
    /// Current workloads, by id.
    pub workloads: Arc<[WorkloadEntry]>,
    /// The price in force of each GPU, in the order of `gpus`; without one there is no money anywhere.
    pub prices: Arc<[Option<Price>]>,
    /// Tenants that are charged something in this month, or have a budget.
    pub month_costs: Arc<[MonthCostEntry]>,
    pub budgets: Arc<[BudgetEntry]>,
    /// The agent's own series, in the order of the catalogue's families.
    pub agent: Arc<[AgentEntry]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEntry {
    pub id: GpuId,
    pub index: Arc<str>,
    pub identity: Arc<GpuIdentity>,
    pub instances: Vec<InstanceEntry>,
    pub unsupported: Vec<(&'static str, Absence)>,
    /// XIDs that were seen, ascending, with the number as a label value.
    pub xids: Vec<(u32, Arc<str>)>,
    /// Why it is not there, while it is absent ([`super::Attachment::name`]).
    pub absence: Option<&'static str>,
    /// The meter of the account's activity, once known.
    pub activity_source: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEntry {
    pub identity: InstanceIdentity,
    pub gpu_instance: Arc<str>,
    pub compute_instance: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Position of its GPU in [`Roster::gpus`].
    pub gpu: usize,
    /// The GPU instance as a label value, "" on a GPU without MIG.
    pub gpu_instance: Arc<str>,
    pub pid: Arc<str>,
    /// Its name in the kernel, "" if unknown.
    pub process: Arc<str>,
    /// Workload id, "" if unknown.
    pub workload: Arc<str>,
    pub tenant: Arc<str>,
}

impl ProcessEntry {
    /// The `pid` of the row that stands for all processes of a GPU without rows of their own.
    pub const OTHERS: &str = "other";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountEntry {
    /// The tenant, a remainder, or the workload's id.
    pub owner: Arc<str>,
    /// Position of the GPU in [`Roster::gpus`].
    pub gpu: usize,
    /// GPU instance id; empty for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonthCostEntry {
    pub tenant: Arc<str>,
    /// The month, such as `2026-11`.
    pub month: Arc<str>,
    pub currency: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetEntry {
    pub tenant: Arc<str>,
    pub currency: Arc<str>,
    pub amount: Money,
}

/// The agent's totals of a GPU instance. Another instance that gets its id starts at 0.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceCounters {
    pub instance: InstanceIdentity,
    /// When they started; none unless another instance had the id before.
    pub since: Option<Utc>,
    /// Nanoseconds, by the order of the catalogue's instance values.
    pub values: Box<[Reading]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingEntry {
    /// Position of the GPU in [`Roster::gpus`].
    pub gpu: usize,
    /// GPU instance id; empty for a whole GPU.
    pub gpu_instance: Arc<str>,
    pub workload: Arc<str>,
    pub tenant: Arc<str>,
    pub source: HoldingSource,
    /// When it was granted, or else first seen; the agent's start where it was there from the first minute on.
    pub since: Utc,
}

named! {
    /// How a holding is not used, as advice calls it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum UnusedKind {
        HeldWithoutProcess = "held_without_process",
        /// An interactive workload has a process that does nothing.
        OpenSession = "open_session",
    }
    fn name
}

/// A workload that uses nothing of what it holds on a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedEntry {
    /// Position of the GPU in [`Roster::gpus`].
    pub gpu: usize,
    /// GPU instance id; empty for a whole GPU.
    pub gpu_instance: Arc<str>,
    pub workload: Arc<str>,
    pub tenant: Arc<str>,
    pub kind: UnusedKind,
    pub since: Utc,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadEntry {
    pub workload: Arc<str>,
    pub kind: HolderKind,
    pub tenant: Arc<str>,
    pub class: WorkloadClass,
    pub facts: Facts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentEntry {
    pub family: &'static str,
    /// Label names and values, in the family's order.
    pub labels: Vec<(&'static str, Arc<str>)>,
}

#[derive(Debug)]
pub struct GpuState {
    /// Whether the driver lists it.
    pub present: bool,
    /// The last frame, however old.
    pub frame: Option<Arc<Frame>>,
    /// Whether each tier of the frame is young enough to be published, by [`Tier`] order.
    pub fresh: [bool; 3],
    /// The agent's own totals, by the catalogue's integral number, each in its family's unit.
    pub integrals: Vec<Reading>,
    pub instances: BTreeMap<u32, InstanceCounters>,
    /// Time busy since the agent's start, in nanoseconds, as the account sees activity.
    pub busy: Reading,
    /// The share of time busy at the last frame, in billionths, as the account sees activity; on a MIG GPU the mean of its
    /// instances by size.
    pub activity: Reading,
    /// How the account divides it into MIG instances; none without MIG.
    pub layout: Option<Arc<MigLayout>>,
    /// Slot time in closed and committed windows, in nanoseconds, without that of GPU instances.
    pub slot: Reading,
    /// Slot time of each GPU instance that was ever in the account, by id.
    pub instance_slots: Arc<[(Arc<str>, i64)]>,
    pub in_flight: Option<(&'static str, Nanoseconds)>,
    /// Parallel to [`GpuEntry::xids`].
    pub xids: Vec<SeenXid>,
    /// XIDs by action, in the catalogue's order of actions.
    pub xid_actions: Vec<u64>,
    /// When counting XIDs began again because the GPU was forgotten; none where it never was.
    pub xids_since: Option<Utc>,
    pub health: Arc<Verdict>,
    /// Since when memory is in use although nobody holds it and no process is listed; none where that is not so, or not known.
    pub memory_left_since: Option<Utc>,
    /// What only the page with dcgm-exporter's names shows; absent where that page is not configured.
    pub dcgm: Option<DcgmState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenXid {
    pub count: u64,
    pub last: Utc,
    /// On which GPU instance last; none without MIG, or where no source named it.
    pub gpu_instance: Option<u32>,
}

pub const CLOCK_EVENT_COUNT: usize = 9;

/// What the page with dcgm-exporter's names shows of a GPU beside the catalogue's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcgmState {
    /// Rates per second of the catalogue's rated values, each in its family's unit.
    pub rates: Vec<Reading>,
    /// The XID that was seen last since the agent's start.
    pub last_xid: Option<u32>,
    /// Parallel to [`GpuEntry::xids`]: how often in the window.
    pub recent_xids: Vec<u64>,
    /// How often the clocks were read with each event reason in the window.
    pub recent_clock_events: [u64; CLOCK_EVENT_COUNT],
    /// The same since the agent's start.
    pub clock_events: [u64; CLOCK_EVENT_COUNT],
}

impl GpuState {
    /// Whether the GPU responds: its fast readings are young enough to be published.
    pub const fn is_up(&self) -> bool {
        self.fresh[Tier::Fast as usize]
    }

    /// The processes on it as last listed, unless the GPU does not answer.
    pub fn processes(&self) -> Option<&[GpuProcess]> {
        self.frame.as_deref().filter(|_| self.is_up())?.processes.as_deref().ok()
    }

    /// The reading of a device point, withheld when its tier is too old.
    pub fn reading(&self, point: usize, tier: Tier) -> Reading {
        let frame = self.frame.as_ref().ok_or(Absence::NotYet)?;
        if !self.fresh[tier as usize] {
            return Err(Absence::Stale);
        }
        frame.readings.get(point).copied().unwrap_or(Err(Absence::NotYet))
    }

    /// What was read of a GPU instance, by the driver's id of it, unless its tier is too old: the frame may have other instances
    /// than the roster.
    pub fn instance(&self, id: u32, tier: Tier) -> Option<&InstanceFrame> {
        let frame = self.frame.as_deref().filter(|_| self.fresh[tier as usize])?;
        frame.instances.iter().find(|instance| instance.identity.id.gpu_instance == id)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProcessState {
    /// Bytes, then shares of time by engine in billionths, by [`crate::model::catalogue::ProcessValue`] order.
    pub values: [Reading; 5],
}

/// The account of a tenant or workload on one GPU in closed and committed windows, by
/// [`crate::model::catalogue::AccountValue`] order; none for a value without a meaning for it.
#[derive(Clone, Debug, Default)]
pub struct AccountState {
    /// The values, each an integer of its family's unit.
    pub values: [Option<i128>; 12],
}

#[derive(Clone, Copy, Debug)]
pub struct HoldingState {
    /// The share granted, without those that are nested in it.
    pub fraction: Fraction,
}

#[derive(Clone, Debug)]
pub enum AgentNumber {
    /// An integer of the family's unit.
    Integer(i64),
    Histogram(Arc<Histogram>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending, without the infinite one.
    pub bounds: Vec<f64>,
    /// Observations at or below each bound, cumulative.
    pub cumulative: Vec<u64>,
    pub count: u64,
    /// Their sum in seconds.
    pub sum: f64,
}
