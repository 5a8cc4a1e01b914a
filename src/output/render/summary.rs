//! The body of `/api/v1/summary`: what people want to know of a node at a glance, for the live page and `gpumeter top`.
//!
//! The fields below are those of the JSON. Shares are between 0 and 1, memory in bytes, power in watts, temperatures in
//! degrees Celsius, money in decimal text, times in RFC 3339; what is not known is null. A time that equals
//! `watched_since` means "since before": the agent did not look earlier. A reader who may not see all tenants gets
//! `partial: true`, its own tenants and workloads, and the values of the GPUs that it holds alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::health::ReportedVerdict;
use crate::model::WorkloadClass;

/// A node at a glance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// When the snapshot was published.
    pub at: Option<String>,
    /// Counts the snapshots of this agent.
    pub sequence: u64,
    /// Since when the agent watches the GPUs.
    pub watched_since: Option<String>,
    pub version: String,
    /// Whether parts that this reader may not see are left out.
    pub partial: bool,
    /// Whether the processes of this snapshot are known; the first request of a while makes the next snapshots have them.
    pub processes_listed: bool,
    pub node: SummaryNode,
    pub gpus: Vec<SummaryGpu>,
    /// The tenants and remainders that hold or use a GPU, did so in the last minutes, or have a budget, the largest first.
    pub tenants: Vec<SummaryTenant>,
    /// Account time in seconds that the tenants' `used`, `idle` and `held_recently` are means over.
    pub recent_seconds: f64,
    /// The workloads that hold or use a GPU.
    pub workloads: Vec<SummaryWorkload>,
    /// What needs attention, the worst first.
    pub problems: Vec<SummaryProblem>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryProblem {
    /// `failed`, `degraded`, or `cost` for money that is spent for nothing or beyond the budget.
    pub level: String,
    /// UUID of the GPU; null for the node or a tenant.
    pub gpu: Option<String>,
    /// The tenant that is over its budget.
    pub tenant: Option<String>,
    /// What, in a few words.
    pub title: String,
    pub text: String,
    pub since: Option<String>,
    /// What to do, for people.
    pub advice: String,
    /// The command that does it, where there is one.
    pub command: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryNode {
    pub name: String,
    /// The cluster to which it belongs; empty where none is configured.
    pub cluster: String,
    /// Whether the driver is simulated, so that every number is made up.
    pub simulated: bool,
    /// While the driver is released on request: until when, and who asked.
    pub quiesced: Option<String>,
    /// `ok`, `none` without an account, or `wrong` while its sums disagree or it is not durable.
    pub account: String,
    /// Why the account is not ok.
    pub account_reason: Option<String>,
    /// How many GPUs are healthy.
    pub ok: usize,
    /// GPUs that workloads hold, as a sum of shares.
    pub held: f64,
    /// The sum of the GPUs' activity.
    pub used: Option<f64>,
    /// How GPUs are held that no grant names, in a sentence.
    pub how_held: String,
    /// What to set for another rule.
    pub how_held_advice: String,
    /// GPU-seconds used in the last hour; null for a reader of a part of the account.
    pub used_last_hour: Option<f64>,
    /// GPU-seconds of these that workloads used on GPUs that nobody held, and for which their terms charge nobody.
    pub unheld_last_hour: Option<f64>,
    /// SXIDs of the node's NVSwitches that were seen within the last day.
    #[serde(default)]
    pub sxids: Vec<SummarySxid>,
    /// Power of all GPUs, and the sum of their limits.
    pub power: Option<f64>,
    /// The sum of the GPUs' power limits.
    pub power_limit: Option<f64>,
    /// Currency of all money here; null without a price.
    pub currency: Option<String>,
    /// Price of all GPUs per hour.
    pub per_hour: Option<String>,
    /// Price of what is held per hour.
    pub held_per_hour: Option<String>,
}

/// SXIDs of one code of one NVSwitch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummarySxid {
    /// PCI address of the switch.
    pub pci_bus_id: String,
    pub sxid: u32,
    /// Whether the switch has stopped until it is reset with its GPUs.
    pub fatal: bool,
    /// How often since the agent's start.
    pub count: u64,
    pub last: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryGpu {
    /// The driver's index.
    pub gpu: u32,
    pub uuid: String,
    pub model: String,
    pub pci_bus_id: String,
    pub driver_version: String,
    /// `up`, `silent` while it does not answer in time, or why it is absent (`lost`, `gone`, `guest`, `replaced`).
    pub status: String,
    /// The driver call that has not returned, with its duration in seconds.
    pub call: Option<(String, u64)>,
    pub read_at: Option<String>,
    /// Whether its values are left out because this reader does not hold it alone.
    pub withheld: bool,
    pub health: ReportedVerdict,
    /// What to do about it, for people; empty where nothing is to be done.
    pub advice: String,
    /// The command that does it, where there is one.
    pub command: Option<String>,
    /// What limits it now, in words.
    pub limit: String,
    /// `throttled`, `busy`, `waiting`, `idle` or `unknown`.
    pub limit_kind: String,
    #[serde(flatten)]
    pub readings: GpuReadings,
    /// Since when it is idle.
    pub idle_since: Option<String>,
    /// For how many seconds it has been idle.
    pub idle_seconds: Option<u64>,
    /// Since when memory is in use although nobody holds it and no process is listed.
    #[serde(default)]
    pub memory_left_since: Option<String>,
    /// How it is divided by MIG; null without MIG.
    pub mig: Option<SummaryMig>,
    /// Who holds a share of it.
    pub holders: Vec<SummaryHolder>,
    /// Workloads whose claims on it do not fit together, so that each holds a part of what it claims; those that this reader
    /// may see.
    pub conflicts: Vec<String>,
    /// Those of them who use nothing of it for longer than their class allows.
    #[serde(default)]
    pub unused: Vec<SummaryUnused>,
    /// Who has processes on it.
    pub users: Vec<SummaryUser>,
    pub per_hour: Option<String>,
    pub price_class: Option<String>,
    /// XIDs that were seen: code, how often (`null` for a reader with a part of the account), and when last.
    pub xids: Vec<(u32, Option<u64>, Option<String>)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GpuReadings {
    /// Share of time busy, as the account counts it.
    pub activity: Option<f64>,
    /// Share of time in which multiprocessors had work.
    pub sm_active: Option<f64>,
    /// Share of time in which the tensor cores worked.
    pub tensor_active: Option<f64>,
    /// Share of time in which memory was read or written.
    pub dram_active: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    pub power: Option<f64>,
    pub power_limit: Option<f64>,
    pub temperature: Option<f64>,
    pub memory_temperature: Option<f64>,
    /// Temperature of the core at which the GPU slows down, where the board tells it or the distance to it.
    pub temperature_limit: Option<f64>,
    /// Clock of the multiprocessors in hertz.
    pub sm_clock: Option<u64>,
    /// Reasons that hold the clocks down now.
    pub throttled_by: Vec<String>,
    /// Memory errors since the driver was loaded that ECC corrected.
    pub ecc_corrected: Option<u64>,
    /// Memory errors since the driver was loaded that ECC could not correct.
    pub ecc_uncorrected: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryMig {
    /// Memory slices of the whole GPU.
    pub slices: u64,
    /// Slices that a profile could still use.
    pub free: u64,
    /// Free slices that no profile can use.
    pub stranded: u64,
    /// The GPU instances, by first slice.
    pub instances: Vec<SummaryInstance>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryInstance {
    pub gpu_instance: String,
    pub profile: String,
    /// Its first memory slice, where the driver tells it.
    pub start: Option<u64>,
    /// How many memory slices it has.
    pub slices: u64,
    /// Share of time busy.
    pub activity: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
}

/// A share of a GPU that a workload holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryHolder {
    pub workload: String,
    /// The workload's name for people.
    pub title: String,
    pub tenant: String,
    /// GPU instance; empty for a whole GPU.
    pub gpu_instance: String,
    /// Share of the GPU or GPU instance.
    pub share: f64,
    /// Who granted it: `standing`, `kubernetes`, `slurm` or `presence`.
    pub source: String,
    pub since: Option<String>,
}

/// A workload that uses nothing of what it holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryUnused {
    pub workload: String,
    /// The workload's name for people.
    pub title: String,
    pub tenant: String,
    /// GPU instance; empty for a whole GPU.
    pub gpu_instance: String,
    /// `held_without_process`, or `open_session` of an interactive workload whose process does nothing.
    pub kind: String,
    pub since: String,
    /// For how many seconds.
    pub seconds: u64,
}

/// A workload with processes on a GPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryUser {
    /// Workload id; empty if unknown.
    pub workload: String,
    /// The workload's name for people; empty if unknown.
    pub title: String,
    /// Its tenant; empty if unknown.
    pub tenant: String,
    /// GPU instance; empty for a whole GPU.
    pub gpu_instance: String,
    pub processes: usize,
    pub memory: Option<u64>,
    /// Share of time in which their kernels ran.
    pub sm: Option<f64>,
}

/// A tenant, or a remainder such as `__unallocated__`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryTenant {
    pub tenant: String,
    pub remainder: bool,
    /// GPUs that it holds now, as a sum of shares.
    pub held: f64,
    /// GPUs that it held in the last minutes, by the account.
    pub held_recently: Option<f64>,
    /// GPUs that it kept busy in the last minutes, by the account.
    pub used: Option<f64>,
    /// GPUs that it held and nobody used in the last minutes, by the account.
    pub idle: Option<f64>,
    /// Price of what it holds now per hour.
    pub per_hour: Option<String>,
    /// What it may cost in a month, if it has a budget.
    pub budget: Option<String>,
    /// What of its budget is spent in this month.
    pub spent: Option<String>,
    /// Whether that is more than the budget.
    pub over_budget: bool,
    /// Indices of the GPUs that it holds or uses.
    pub gpus: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryWorkload {
    pub workload: String,
    pub title: String,
    pub kind: String,
    pub tenant: String,
    /// What it is for, such as `batch` or `service`, else `unknown`.
    #[serde(default)]
    pub class: WorkloadClass,
    /// What is known of it, by label of `gpu_workload_info`.
    pub labels: BTreeMap<String, String>,
    /// GPUs that it holds, as a sum of shares.
    pub held: f64,
    /// Since when it holds one.
    pub since: Option<String>,
    /// Indices of the GPUs that it holds or uses.
    pub gpus: BTreeSet<u32>,
    /// How many processes it has on GPUs.
    pub processes: usize,
    pub memory: Option<u64>,
    /// The sum over its GPUs of the share of time in which its kernels ran.
    pub sm: Option<f64>,
    /// Price of what it holds now per hour.
    pub per_hour: Option<String>,
}

/// The body of `/api/v1/processes`: the largest processes by memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessList {
    /// When the snapshot was published.
    pub at: Option<String>,
    /// As in [`Summary::processes_listed`].
    pub processes_listed: bool,
    pub total: usize,
    /// At most 50 of them.
    pub processes: Vec<SummaryProcess>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SummaryProcess {
    pub gpu: u32,
    /// GPU instance; empty for a whole GPU.
    pub gpu_instance: String,
    pub pid: String,
    /// Its name in the kernel; empty if unknown.
    pub name: String,
    /// Workload id; empty if unknown.
    pub workload: String,
    /// The workload's name for people; empty if unknown.
    pub title: String,
    /// Its tenant; empty if unknown.
    pub tenant: String,
    pub memory: Option<u64>,
    /// Share of time in which its kernels ran.
    pub sm: Option<f64>,
    /// Share of time in which the encoder worked for it.
    pub encoder: Option<f64>,
    /// Share of time in which the decoder worked for it.
    pub decoder: Option<f64>,
}

/// The body of `/api/v1/history`: the last ten minutes of each GPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HistoryReport {
    /// When the newest point was last added to.
    pub at: Option<String>,
    /// Seconds from one point to the next.
    pub step_seconds: f64,
    pub gpus: Vec<ReportedHistory>,
}

/// The last ten minutes of a GPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedHistory {
    pub uuid: String,
    /// By series (`activity`, `memory`, `power`, `temperature`): the points, oldest first.
    #[serde(flatten)]
    pub series: BTreeMap<String, ReportedSeries>,
}

/// A series of points, oldest first; null where there was no value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedSeries {
    /// Mean of the ticks in each point.
    pub mean: Vec<Option<f32>>,
    /// Maximum of the ticks in each point.
    pub max: Vec<Option<f32>>,
}
