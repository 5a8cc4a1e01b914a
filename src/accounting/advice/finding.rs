//! Findings, with what was seen, by which rule, and what it would save.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::accounting::billing::{optional_money, time};
use crate::model::json::integer;
use crate::model::{Grade, HOUR, Money, Nanoseconds, Utc, WorkloadClass, named};

named! {
    /// What a finding is of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum FindingKind {
        HeldWithoutProcess = "held_without_process",
        UnusedGpus = "unused_gpus",
        IdleEnd = "idle_end",
        OpenSession = "open_session",
        SmallerInstance = "smaller_instance",
        HeldBesideFault = "held_beside_fault",
        ClocksHeld = "clocks_held",
        BusyButShallow = "busy_but_shallow",
        FreeNode = "free_node",
        Commitment = "commitment",
        SpareReplicas = "spare_replicas",
    }
    fn name
}

/// What one tenant may change, or what was taken from him. It names no other tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceFinding {
    /// Stays the same as long as the same is found of the same workload.
    pub id: String,
    pub kind: FindingKind,
    /// Empty where it concerns the organisation alone.
    pub tenant: String,
    /// The name that all runs of a recurring workload have, else its workload id; without a tenant a node or a
    /// model of GPUs.
    pub workload: String,
    /// In words, with what was counted.
    pub what: String,
    /// The first of them.
    pub gpus: Vec<FindingGpu>,
    pub gpu_count: usize,
    #[serde(with = "time")]
    pub first_seen: Utc,
    #[serde(with = "time")]
    pub last_seen: Utc,
    pub runs: usize,
    pub rule: String,
    pub class: WorkloadClass,
    /// The worst by which the use of these GPUs was divided among their users.
    pub grade: Grade,
    /// GPU time that nobody would have missed.
    #[serde(rename = "time_ns", with = "integer")]
    pub time: Nanoseconds,
    /// What that time cost its tenant under his terms; none where a part of it has no price.
    #[serde(with = "optional_money")]
    pub amount: Option<Money>,
    /// Whether the amount is one that the operator may give back, and not a saving.
    pub is_credit: bool,
    /// What it saves the organisation; only readers of everything see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<OrganisationSaving>,
    pub risk: String,
    pub how: String,
    /// What `advice.dismiss` takes to leave it out.
    pub dismiss: String,
    /// Only where it is explained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stretches: Vec<FindingStretch>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FindingGpu {
    pub node: String,
    pub gpu: u32,
    pub uuid: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
}

/// What the organisation stops paying: nothing unless a node or a commitment goes. Else only GPU time is there for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrganisationSaving {
    #[serde(with = "optional_money")]
    pub amount: Option<Money>,
    #[serde(rename = "returned_ns", with = "integer")]
    pub returned: Nanoseconds,
}

/// A finding that an operator does not want to see again until its evidence changes: until something else is found of the same
/// workload, which has another id, or twice as much of the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dismissal {
    id: String,
    /// Whole hours of GPU time that the finding spoke of, or how many GPUs.
    hours: u64,
}

impl Dismissal {
    pub(super) fn new(id: &str, extent: Nanoseconds) -> Self {
        Self { id: id.to_owned(), hours: extent.0 / HOUR.0 }
    }

    /// Reads it from the text that a finding has; none of another text.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, hours) = text.split_once(':')?;
        let hours = hours.strip_suffix('h')?.parse().ok()?;
        let is_id = id.len() > 3 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_id.then(|| Self { id: id.to_owned(), hours })
    }

    pub(super) fn is_of(&self, finding: &AdviceFinding) -> bool {
        let now = Self::parse(&finding.dismiss);
        now.is_some_and(|now| now.id == self.id && now.hours < self.hours.max(1).saturating_mul(2))
    }
}

impl std::fmt::Display for Dismissal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}h", self.id, self.hours)
    }
}

/// A part of the time of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingStretch {
    /// The workload id.
    pub workload: String,
    #[serde(flatten)]
    pub gpu: FindingGpu,
    #[serde(with = "time")]
    pub from: Utc,
    #[serde(with = "time")]
    pub to: Utc,
    #[serde(rename = "time_ns", with = "integer")]
    pub time: Nanoseconds,
    /// What a GPU-hour of it costs; none without a price.
    #[serde(with = "optional_money")]
    pub rate: Option<Money>,
    #[serde(with = "optional_money")]
    pub amount: Option<Money>,
}
