//! The description of a past in a scenario's file: what ran when on which GPUs, what went wrong, and what was recorded.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::boards::{self, PastBoard};
use super::times::{DayHours, MOST_DAYS, PastTime, TimeOfDay, Weekdays};
use crate::model::catalogue::xid;

/// The most GPUs of a node.
const MOST_GPUS: u32 = 1_000;

/// The most runs of a node; each has a holder in the ledger.
const MOST_RUNS: u64 = 100_000;

/// The past of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryDescription {
    #[serde(default, rename = "note")]
    _note: Value,
    /// Prices and tenants of earlier times, in order; those of the configuration hold before the first.
    #[serde(default)]
    pub(super) settings: Vec<PastSettings>,
    /// The scenario's own node, and the further ones, which are repeated as often as is asked for.
    pub(super) nodes: Vec<PastNode>,
}

/// What was put in force at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastSettings {
    #[serde(default, rename = "note")]
    _note: Value,
    pub(super) recorded: PastTime,
    /// As in the configuration, which holds where this is left out; `from` may be a time of the history.
    pub(super) prices: Option<Value>,
    pub(super) tenants: Option<Value>,
}

/// The past of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastNode {
    #[serde(default, rename = "note")]
    _note: Value,
    /// The configuration of a further node; that of the scenario's own is the demo's.
    #[serde(default)]
    pub(super) config: Option<Value>,
    /// The GPUs of a further node; those of the scenario's own are the scenario's.
    #[serde(default)]
    pub(super) gpus: Vec<PastGpus>,
    /// When the node came and went.
    pub(super) from: Option<PastTime>,
    pub(super) to: Option<PastTime>,
    /// Times without an agent.
    #[serde(default)]
    pub(super) gaps: Vec<PastSpan>,
    /// Times in which the node was off.
    #[serde(default)]
    pub(super) off: Vec<PastSpan>,
    #[serde(default)]
    pub(super) failures: Vec<PastFailure>,
    /// GPUs of other nodes that this node accounted for too; they are numbered after its own.
    #[serde(default)]
    pub(super) claimed: Vec<ClaimedGpu>,
    #[serde(default)]
    pub(super) workloads: Vec<PastWorkload>,
}

/// GPUs of one board.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastGpus {
    pub(super) profile: String,
    pub(super) count: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastSpan {
    pub(super) from: PastTime,
    pub(super) to: PastTime,
}

/// A GPU whose hardware had failed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastFailure {
    pub(super) gpu: u32,
    pub(super) from: PastTime,
    pub(super) to: PastTime,
    /// The XID that reported it.
    #[serde(default = "off_the_bus")]
    pub(super) xid: u32,
}

/// XID 79: the GPU has fallen off the bus.
const fn off_the_bus() -> u32 {
    79
}

/// A GPU that the ledgers of two nodes have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimedGpu {
    /// Place of the other node in the list, from 0 on.
    pub(super) node: usize,
    pub(super) gpu: u32,
    pub(super) from: PastTime,
    pub(super) to: PastTime,
}

/// What ran again and again, or all the time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastWorkload {
    #[serde(default, rename = "note")]
    _note: Value,
    pub(super) holder: PastHolder,
    pub(super) gpus: Vec<u32>,
    /// How many of its parts it was granted of each GPU, as 2 and 4 for two replicas of four; without it the whole.
    #[serde(default)]
    pub(super) share: Option<[u32; 2]>,
    /// Whether each GPU has a pod of its own.
    #[serde(default)]
    pub(super) replicas: bool,
    pub(super) from: Option<PastTime>,
    pub(super) to: Option<PastTime>,
    /// When it began again; without it, it ran once from begin to end.
    #[serde(default)]
    pub(super) runs: Option<PastRuns>,
    /// Memory on each GPU; 0 means that there was no process.
    pub(super) memory_gib: u64,
    /// By how many percent the memory varied while it was busy.
    #[serde(default)]
    pub(super) memory_jitter: u64,
    /// Percent of the multiprocessors, the tensor pipes, the FP64 pipe and the memory bandwidth that were in use while it was
    /// busy.
    #[serde(default = "sixty")]
    pub(super) sm: u64,
    #[serde(default)]
    pub(super) tensor: u64,
    #[serde(default)]
    pub(super) fp64: u64,
    #[serde(default)]
    pub(super) dram: u64,
    /// What it did: the first that applies at a time. Where none does, it was idle.
    #[serde(default)]
    pub(super) activity: Vec<PastActivity>,
}

const fn sixty() -> u64 {
    60
}

/// Who ran. A pod or job was granted its GPUs; a unit or user held them by a standing grant or by presence.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PastHolder {
    Pod {
        namespace: String,
        name: String,
        #[serde(default)]
        owner_kind: String,
        #[serde(default)]
        owner: String,
    },
    Job {
        cluster: String,
        account: String,
        user: String,
        #[serde(default)]
        partition: String,
        #[serde(default)]
        qos: String,
        /// Number of the first job; the next ones have the next numbers.
        first: u64,
        /// Number of the array whose tasks they are, from 1 on.
        #[serde(default)]
        array: Option<u64>,
    },
    Unit {
        unit: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        uid: Option<u32>,
    },
    User {
        user: String,
        uid: u32,
    },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastRuns {
    pub(super) days: Weekdays,
    pub(super) at: TimeOfDay,
    pub(super) minutes: u64,
    /// By how many minutes at most it began later and took longer.
    #[serde(default)]
    pub(super) jitter_minutes: u64,
}

/// What a workload did at certain times; all conditions that are given must hold.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PastActivity {
    #[serde(default)]
    pub(super) days: Option<Weekdays>,
    #[serde(default)]
    pub(super) hours: Option<DayHours>,
    /// From so many minutes after the begin of a run on.
    #[serde(default)]
    pub(super) after_minutes: Option<u64>,
    /// In the last so many minutes of a run.
    #[serde(default)]
    pub(super) last_minutes: Option<u64>,
    /// For some minutes in each of so many, at a time of its own for each run.
    #[serde(default)]
    pub(super) every_minutes: Option<u64>,
    #[serde(default)]
    pub(super) for_minutes: Option<u64>,
    /// On the first so many of its GPUs.
    #[serde(default)]
    pub(super) first_gpus: Option<usize>,
    /// Percent of the time in which it was busy, and by how many that varied.
    pub(super) busy: u64,
    #[serde(default)]
    pub(super) jitter: u64,
    /// Memory instead of the workload's.
    #[serde(default)]
    pub(super) memory_gib: Option<u64>,
}

impl HistoryDescription {
    /// Reads the value of the key `history`.
    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        let description: Self = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { "history".to_owned() } else { format!("history.{path}") };
            format!("{path}: {}", error.into_inner())
        })?;
        if description.nodes.is_empty() {
            return Err("history.nodes: is empty; describe the scenario's own node".to_owned());
        }
        Ok(description)
    }

    /// The boards of each node, where the first has `own`; a node is checked against its boards.
    ///
    /// # Errors
    /// The first mistake, with its key.
    pub(super) fn boards(&self, own: &[PastGpus]) -> Result<Vec<Vec<&'static PastBoard>>, String> {
        let mut boards = Vec::with_capacity(self.nodes.len());
        for (place, node) in self.nodes.iter().enumerate() {
            let at = format!("history.nodes[{place}]");
            let given = match place {
                0 if !node.gpus.is_empty() => {
                    return Err(format!("{at}.gpus: the first node has the scenario's GPUs; remove the key"));
                }
                0 if node.config.is_some() => {
                    return Err(format!(
                        "{at}.config: the first node has the demo's configuration; remove the key"
                    ));
                }
                0 => own,
                _ if node.gpus.is_empty() => {
                    return Err(format!(
                        "{at}.gpus: is missing; give a list, as [{{\"profile\": \"h100\", \"count\": 8}}]"
                    ));
                }
                _ => &node.gpus,
            };
            if given.iter().fold(0, |sum: u32, gpus| sum.saturating_add(gpus.count)) > MOST_GPUS {
                return Err(format!("{at}.gpus: a node has at most {MOST_GPUS} GPUs"));
            }
            let mut list = Vec::new();
            for PastGpus { profile, count } in given {
                let board = boards::find(profile).map_err(|problem| format!("{at}.gpus: {problem}"))?;
                list.extend((0..*count).map(|_| board));
            }
            boards.push(list);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            node.check(&boards, place).map_err(|problem| format!("history.nodes[{place}].{problem}"))?;
        }
        Ok(boards)
    }

    /// Checks that no node has too many runs in a history of so many days.
    pub(super) fn check_runs(&self, days: u64) -> Result<(), String> {
        for (place, node) in self.nodes.iter().enumerate() {
            let mut sum: u64 = 0;
            for (number, workload) in node.workloads.iter().enumerate() {
                sum = sum.saturating_add(workload.most_runs(days));
                if sum > MOST_RUNS {
                    return Err(format!(
                        "history.nodes[{place}].workloads[{number}]: up to here the node may have {sum} runs in {days} days; \
                         describe at most {MOST_RUNS}, or write fewer days"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl PastNode {
    /// Checks that each span of the node ends after its begin.
    fn check_times(&self) -> Result<(), String> {
        let in_list = |key: &str, number: usize| format!("{key}[{number}].");
        check_order("", self.from, self.to)?;
        for (key, spans) in [("gaps", &self.gaps), ("off", &self.off)] {
            for (number, span) in spans.iter().enumerate() {
                check_order(&in_list(key, number), Some(span.from), Some(span.to))?;
            }
        }
        for (number, failure) in self.failures.iter().enumerate() {
            check_order(&in_list("failures", number), Some(failure.from), Some(failure.to))?;
        }
        for (number, claimed) in self.claimed.iter().enumerate() {
            check_order(&in_list("claimed", number), Some(claimed.from), Some(claimed.to))?;
        }
        for (number, workload) in self.workloads.iter().enumerate() {
            check_order(&in_list("workloads", number), workload.from, workload.to)?;
        }
        Ok(())
    }

    fn check(&self, boards: &[Vec<&'static PastBoard>], place: usize) -> Result<(), String> {
        self.check_times()?;
        let mut own = boards[place].clone();
        for (number, claimed) in self.claimed.iter().enumerate() {
            let of_other = boards.get(claimed.node).filter(|_| claimed.node != place);
            let board = of_other.and_then(|boards| boards.get(claimed.gpu as usize)).ok_or_else(|| {
                format!(
                    "claimed[{number}]: node {} has no GPU {}, or is this node",
                    claimed.node, claimed.gpu
                )
            })?;
            own.push(board);
            let is_same = |other: &&ClaimedGpu| (other.node, other.gpu) == (claimed.node, claimed.gpu);
            if self.claimed.iter().filter(is_same).count() > 1 {
                return Err(format!("claimed[{number}]: the GPU is claimed twice; claim it once"));
            }
        }
        let missing = |gpu: u32| format!("GPU {gpu} does not exist; the node has {}", own.len());
        for (number, failure) in self.failures.iter().enumerate() {
            own.get(failure.gpu as usize)
                .ok_or_else(|| format!("failures[{number}].gpu: {}", missing(failure.gpu)))?;
            if !xid::fails_slot(failure.xid) {
                let text = xid::find(failure.xid).text;
                return Err(format!(
                    "failures[{number}].xid: {} ({text}) does not make a GPU unavailable; give one that does, as 79",
                    failure.xid
                ));
            }
        }
        for (number, workload) in self.workloads.iter().enumerate() {
            let least = workload.gpus.iter().map(|gpu| own.get(*gpu as usize).ok_or_else(|| missing(*gpu)));
            let least =
                least.map(|board| board.map(|board| board.memory_gib)).collect::<Result<Vec<u64>, _>>();
            let least = least.map_err(|problem| format!("workloads[{number}].gpus: {problem}"))?;
            let least = least.into_iter().min().unwrap_or(0);
            workload.check(least).map_err(|problem| format!("workloads[{number}].{problem}"))?;
        }
        Ok(())
    }
}

impl PastWorkload {
    /// How many runs it has at most within so many days.
    fn most_runs(&self, days: u64) -> u64 {
        let parts = if self.replicas { self.gpus.len() as u64 } else { 1 };
        // Long ones may have begun before the first day.
        let times = self.runs.map_or(1, |runs| {
            let longest = runs.minutes + 2 * runs.jitter_minutes;
            (days + 2 + longest / (24 * 60)).min(MOST_DAYS + 1)
        });
        parts * times
    }

    /// Checks it for GPUs of which the smallest has so much memory.
    fn check(&self, memory_gib: u64) -> Result<(), String> {
        if self.gpus.is_empty() || self.gpus.iter().collect::<BTreeSet<_>>().len() < self.gpus.len() {
            return Err("gpus: give at least one GPU, each once".to_owned());
        }
        if self.share.is_some_and(|[part, whole]| part == 0 || part > whole) {
            return Err("share: give two numbers, as [1, 4]; the first is at least 1 and at most the second"
                .to_owned());
        }
        let is_granted = matches!(self.holder, PastHolder::Pod { .. } | PastHolder::Job { .. });
        if self.share.is_some() && !is_granted {
            return Err(
                "share: a unit or user holds what attribution.standing grants; remove the key".to_owned()
            );
        }
        if self.replicas && !matches!(self.holder, PastHolder::Pod { .. }) {
            return Err("replicas: only a pod has replicas; remove the key".to_owned());
        }
        self.holder.check()?;
        if let Some(PastRuns { minutes, jitter_minutes, .. }) = self.runs {
            if minutes == 0 {
                return Err("runs.minutes: is 0; give at least 1".to_owned());
            }
            check_minutes("runs.minutes", minutes)?;
            check_minutes("runs.jitter_minutes", jitter_minutes)?;
        }
        check_memory("memory_gib", self.memory_gib, memory_gib)?;
        let percents = [
            ("memory_jitter", self.memory_jitter),
            ("sm", self.sm),
            ("tensor", self.tensor),
            ("fp64", self.fp64),
            ("dram", self.dram),
        ];
        for (key, percent) in percents {
            check_percent(key, percent)?;
        }
        for (number, activity) in self.activity.iter().enumerate() {
            activity
                .check(self.memory_gib, memory_gib)
                .map_err(|problem| format!("activity[{number}].{problem}"))?;
        }
        Ok(())
    }
}

impl PastActivity {
    fn check(&self, usual_gib: u64, memory_gib: u64) -> Result<(), String> {
        check_percent("busy", self.busy)?;
        check_percent("jitter", self.jitter)?;
        let own = self.memory_gib.unwrap_or(usual_gib);
        check_memory("memory_gib", own, memory_gib)?;
        if own == 0 && self.busy + self.jitter > 0 {
            return Err("busy: nothing is busy without a process (memory_gib: 0); give 0".to_owned());
        }
        let PastActivity { after_minutes, last_minutes, every_minutes, .. } = *self;
        let given = [("after", after_minutes), ("last", last_minutes), ("every", every_minutes)];
        for (key, minutes) in given {
            check_minutes(&format!("{key}_minutes"), minutes.unwrap_or(0))?;
        }
        match (self.every_minutes, self.for_minutes) {
            (None, None) => Ok(()),
            (Some(every), Some(length)) if 0 < length && length < every => Ok(()),
            _ => Err("every_minutes: goes with for_minutes, which is shorter; give both, or none".to_owned()),
        }
    }
}

impl PastHolder {
    fn check(&self) -> Result<(), String> {
        let (kind, names): (&str, &[(&str, &str)]) = match self {
            Self::Pod { namespace, name, .. } => ("pod", &[("namespace", namespace), ("name", name)]),
            Self::Job { cluster, account, user, .. } => {
                ("job", &[("cluster", cluster), ("account", account), ("user", user)])
            }
            Self::Unit { unit, .. } => ("unit", &[("unit", unit)]),
            Self::User { user, .. } => ("user", &[("user", user)]),
        };
        let wrong = names.iter().find(|(_, text)| text.is_empty() || text.contains(|c: char| c.is_control()));
        match wrong {
            Some((key, text)) => {
                Err(format!("holder.{kind}.{key}: {text:?} is no name; give printable characters"))
            }
            None => Ok(()),
        }
    }
}

/// Checks that a span ends after its begin; `at` is its key, with the dot.
fn check_order(at: &str, from: Option<PastTime>, to: Option<PastTime>) -> Result<(), String> {
    if from.zip(to).is_none_or(|(from, to)| from.is_before(to)) {
        return Ok(());
    }
    Err(format!("{at}to: is not after `from`; give a later time"))
}

/// No longer than a history.
fn check_minutes(key: &str, minutes: u64) -> Result<(), String> {
    let most = MOST_DAYS * 24 * 60;
    if minutes <= most { Ok(()) } else { Err(format!("{key}: {minutes} is too long; give at most {most}")) }
}

fn check_percent(key: &str, percent: u64) -> Result<(), String> {
    if percent <= 100 { Ok(()) } else { Err(format!("{key}: {percent} is no percentage; give 0 to 100")) }
}

fn check_memory(key: &str, gib: u64, most: u64) -> Result<(), String> {
    if gib <= most {
        Ok(())
    } else {
        Err(format!("{key}: {gib} GiB are more than the {most} GiB of the GPU"))
    }
}
