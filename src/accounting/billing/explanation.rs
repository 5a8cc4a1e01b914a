//! Why the lines of a bill are what they are: the minutes, records, rates and rules behind their sums.
//!
//! Others than the holders of these lines have no name here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bill::{Bill, BillLine};
use super::draft::LineKey;
use super::json::{self, GpuIdJson};
use super::schedule::Recorded;
use crate::model::{
    ActivitySource, Bytes, GpuId, Grade, HolderId, HoldingSource, Method, Microjoules, Nanoseconds, Parts,
    Use, Utc, WorkloadClass,
};

/// What a ledger, or the files of several, know of some lines of a bill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Period, node, currency, and the rates and terms of the lines; it has no lines and no GPUs.
    pub bill: Bill,
    /// The lines in the order of the bill.
    pub lines: Vec<ExplainedLine>,
    /// What each workload of the lines, and the job or pod that it is part of, did on each GPU.
    pub usage: Vec<WorkloadUsage>,
    pub gpus: Vec<GpuRecord>,
    /// Steps of the wall clock, which moved no account time.
    pub clock_steps: Vec<ClockStep>,
    pub boots: Vec<NodeBoot>,
    /// Before this time only sums of quarter hours are kept, so times are theirs; none where all minutes are kept.
    #[serde(default, with = "json::optional_time")]
    pub quarter_hours_until: Option<Utc>,
    /// Up to where the account of each node goes; empty in one that was read from JSON.
    #[serde(skip)]
    pub settled: BTreeMap<String, Utc>,
}

impl Explanation {
    /// The explanation of a bill over exports, of which these are all lines that were asked for.
    pub fn of_bill(mut bill: Bill) -> Self {
        let reasons = bill.fleet.as_mut().map(|fleet| std::mem::take(&mut fleet.reasons));
        let FleetReasons { lines: mut explained, usage, gpus, settled } = reasons.unwrap_or_default();
        let rates = bill.rates.clone();
        let lines = bill.take_lines().into_iter().map(|mut line| {
            let key = LineKey::take(&mut line);
            let known = explained.remove(&key);
            key.restore(&mut line);
            match known {
                Some(known) => ExplainedLine { line, ..known },
                None => ExplainedLine::new(line, Vec::new()),
            }
        });
        let lines = lines.collect();
        (bill.partial, bill.rates) = (false, rates);
        Self { lines, usage, gpus, settled, quarter_hours_until: Some(bill.to), bill, ..Self::default() }
    }
}

/// What files say of the lines of a bill over them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReasons {
    /// By the keys of the lines of the bill.
    pub lines: BTreeMap<LineKey, ExplainedLine>,
    pub usage: Vec<WorkloadUsage>,
    pub gpus: Vec<GpuRecord>,
    /// Up to where the account of each node is exported.
    pub settled: BTreeMap<String, Utc>,
}

/// A line with what it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedLine {
    #[serde(flatten)]
    pub line: BillLine,
    /// When this version of the holder was first stored; none for what only bills have.
    #[serde(with = "json::optional_time")]
    pub first_seen: Option<Utc>,
    /// When this run of the workload began, as its scheduler told.
    #[serde(with = "json::optional_time")]
    pub started: Option<Utc>,
    /// Its minutes.
    pub spans: Vec<LineSpan>,
    /// Why it is on the bill of its tenant.
    pub tenancies: Vec<Tenancy>,
    /// Over exports, where the reasons are that the files lack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<MissingReasons>,
}

impl ExplainedLine {
    /// A line with its minutes, and nothing else that is known of it.
    pub const fn new(line: BillLine, spans: Vec<LineSpan>) -> Self {
        Self { line, first_seen: None, started: None, spans, tenancies: Vec::new(), elsewhere: Vec::new() }
    }

    /// Adds a time after the others, to the last one where the same decided then.
    pub fn add_tenancy(&mut self, next: Tenancy) {
        match self.tenancies.last_mut() {
            Some(last) if last.is_as(&next) => last.to = next.to,
            _ => self.tenancies.push(next),
        }
    }

    /// Adds a time after the others whose reasons only that node has.
    pub fn add_missing(&mut self, node: &str, from: Utc, to: Utc) {
        match self.elsewhere.last_mut() {
            Some(last) if last.node == node => last.to = to,
            _ => self.elsewhere.push(MissingReasons { node: node.to_owned(), from, to }),
        }
    }

    /// Begin of its first minute and end of its last one between two times; none where it has none.
    pub fn time_between(&self, from: Utc, to: Utc) -> Option<[Utc; 2]> {
        let inside = || self.spans.iter().filter(|span| span.from < to && from < span.to);
        Some([inside().next()?.from.max(from), inside().next_back()?.to.min(to)])
    }
}

/// A time of a line of which some reasons are only in the ledger of a node: its files are of an earlier release, or of a
/// day with very many holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingReasons {
    pub node: String,
    #[serde(with = "json::time")]
    pub from: Utc,
    #[serde(with = "json::time")]
    pub to: Utc,
}

/// Consecutive minutes in which a line held the same share of its slot by the same grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineSpan {
    /// Begin of the first minute.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of the last minute.
    #[serde(with = "json::time")]
    pub to: Utc,
    #[serde(rename = "slot_ns", with = "json::integer")]
    pub slot: Nanoseconds,
    /// What others held of it, who are neither the line's workload nor parts of its job or pod.
    #[serde(rename = "held_by_others_ns", with = "json::integer")]
    pub others: Nanoseconds,
    pub held: Parts,
    pub used: Use,
    /// The part of what was used whose split was measured.
    #[serde(rename = "measured_ns", with = "json::integer")]
    pub measured: Nanoseconds,
    /// The worst grade of any minute.
    pub grade: Grade,
    /// How it is known who held.
    pub method: Method,
    /// Whether minutes are shares of merged windows.
    pub coarse: bool,
    pub sources: Vec<ActivitySource>,
    /// By whom what it held was granted, each once; empty where it held nothing, or the files do not say it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted_by: Vec<HoldingSource>,
}

/// A time in which one version of the tenant rules decided on the tenant. Between its minutes a line may have been away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenancy {
    /// Begin, at the earliest that of the line.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End, at the latest that of the line.
    #[serde(with = "json::time")]
    pub to: Utc,
    /// The version; none before the first.
    pub version: Option<RulesVersion>,
    pub basis: TenantBasis,
    /// What the holder is for.
    #[serde(default)]
    pub class: WorkloadClass,
    /// The place of the rule that says so in `advice.classes`, from 1; none for a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_rule: Option<usize>,
}

impl Tenancy {
    /// Whether another time has the same version, tenant rule and class.
    pub fn is_as(&self, other: &Self) -> bool {
        let Self { version, basis, class, class_rule, .. } = self;
        (version, basis, class, class_rule) == (&other.version, &other.basis, &other.class, &other.class_rule)
    }
}

/// A recorded version of the tenant rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesVersion {
    #[serde(with = "json::integer")]
    pub id: i64,
    /// When it is first in force.
    #[serde(with = "json::time")]
    pub begin: Utc,
    #[serde(with = "json::time")]
    pub recorded: Utc,
}

impl RulesVersion {
    pub const fn new<E>(recorded: &Recorded<E>) -> Self {
        Self { id: recorded.id, begin: recorded.begin, recorded: recorded.recorded }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantBasis {
    Rule {
        /// Its place in the list, from 1.
        number: usize,
        #[serde(rename = "match")]
        patterns: BTreeMap<String, String>,
        tenant: String,
    },
    /// No rule matches, and this label is the tenant of holders of this kind.
    Label(String),
    /// No rule matches, and nothing but the workload id is known.
    Workload,
    /// A reserved tenant, which no rule changes.
    Reserved,
}

/// What a workload did on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadUsage {
    pub workload: HolderId,
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    /// Begin of its first minute.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of its last minute.
    #[serde(with = "json::time")]
    pub to: Utc,
    /// Its most resident memory in a tick, in bytes; where several parts of it had some at once, at least their mean over a minute.
    #[serde(with = "json::integer")]
    pub memory_peak_bytes: u64,
    /// Used time in the minutes in which it was there throughout: between two others of its minutes.
    #[serde(rename = "busy_ns", with = "json::integer")]
    pub busy: Nanoseconds,
    /// Measured time of its slots in these minutes.
    #[serde(rename = "measured_slot_ns", with = "json::integer")]
    pub measured_slot: Nanoseconds,
    /// End of the last minute in which it used something; what follows is for reports of jobs, and not in JSON.
    #[serde(skip)]
    pub last_use: Option<Utc>,
    /// Held after that while activity was unknown, or while the GPU was lost or failed.
    #[serde(skip)]
    pub unknown_after_use: Nanoseconds,
    /// Energy of waiting after that.
    #[serde(skip)]
    pub waiting_after_use: Microjoules,
    /// Minutes in which nobody else held or used any of the GPU.
    #[serde(skip)]
    pub alone: Vec<[Utc; 2]>,
}

/// What is known of a GPU from the first to the last minute of the lines on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    pub model: String,
    /// Its memory; none where that is unknown, and in a record that was read from JSON.
    #[serde(skip)]
    pub memory: Option<Bytes>,
    pub events: Vec<GpuEvent>,
    pub remarks: Vec<Remark>,
    /// Faults, each as far as it was in this time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<GpuIncident>,
    /// XID errors of which the last one was in this time.
    pub xids: Vec<XidRecord>,
}

impl GpuRecord {
    /// Removes what is not of the lines that a reader of some tenants sees: XIDs are counted over all who held the GPU, and
    /// others may hold it too.
    pub fn hide_others(&mut self) {
        self.xids.clear();
        self.incidents.clear();
        self.remarks.retain(|remark| !remark.text.starts_with("health "));
    }
}

/// A fault of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuIncident {
    #[serde(with = "json::time")]
    pub from: Utc,
    #[serde(with = "json::time")]
    pub to: Utc,
    /// The rule of the health verdict that it was a reason of, or `xid`.
    pub kind: String,
    /// The code of an XID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
}

impl GpuIncident {
    /// As far as it is between two times; none where it is not.
    pub fn between(self, from: Utc, to: Utc) -> Option<Self> {
        let is_inside = self.from < to && (from < self.to || from <= self.from);
        is_inside.then(|| Self { from: self.from.max(from), to: self.to.min(to), ..self })
    }
}

/// Consecutive minutes with a fault or a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuEvent {
    /// Begin of the first minute.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of the last minute.
    #[serde(with = "json::time")]
    pub to: Utc,
    pub kind: GpuEventKind,
    /// GPU time of it in these minutes.
    #[serde(rename = "time_ns", with = "json::integer")]
    pub time: Nanoseconds,
}

/// A kind of fault or gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuEventKind {
    /// The GPU was lost or failed.
    Unavailable,
    Unobserved,
    /// It was held, and its activity could not be known.
    Unmeasured,
    /// The agent was away, and the holder was the same before and after.
    Bridged,
}

/// A remark of settlement in consecutive minutes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    /// Begin of the first minute.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of the last minute.
    #[serde(with = "json::time")]
    pub to: Utc,
    pub text: String,
}

/// XID errors of one code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidRecord {
    pub xid: u32,
    /// How many there were since counting began.
    #[serde(with = "json::integer")]
    pub count: u64,
    /// The wall clock of the last one.
    #[serde(with = "json::time")]
    pub last: Utc,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStep {
    #[serde(with = "json::time")]
    pub at: Utc,
    /// Wall clock less account time.
    #[serde(with = "json::integer")]
    pub step_ns: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBoot {
    /// When it was first seen.
    #[serde(with = "json::time")]
    pub at: Utc,
}
