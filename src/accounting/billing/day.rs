//! The account of a UTC day by quarter hours, as it leaves a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bill::{BillLine, BillRate, BillTerms};
use super::explanation::{GpuIncident, Tenancy};
use super::json::{self, GpuIdJson};
use super::month::TenantBudget;
use crate::model::{Bytes, GpuId, HolderId, NodeIdentity, TimeSum, Utc};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayHeader {
    pub ledger: String,
    /// The cluster of its node at the end of the day.
    pub cluster: Option<String>,
    /// The name of its node at the end of the day.
    pub node: String,
    #[serde(with = "json::time")]
    pub day: Utc,
    pub revision: DayRevision,
    pub simulated: bool,
    pub priced: bool,
    /// The currency of all money; none where no price was in force.
    pub currency: Option<String>,
    pub rates: Vec<BillRate>,
    pub terms: Vec<BillTerms>,
    /// Attributes of the tenants of the rows, at the end of the day.
    pub tenant_attributes: BTreeMap<String, BTreeMap<String, String>>,
    /// Monthly budgets of the tenants of the rows, at the end of the day.
    pub tenant_budgets: BTreeMap<String, TenantBudget>,
    pub gpus: Vec<DayGpu>,
    /// GPU time recorded for the GPUs - held time of all rows, in nanoseconds; 0 unless the ledger is wrong.
    #[serde(with = "json::integer")]
    pub imbalance: i128,
    /// Absent from files of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<DayReasons>,
}

/// Why the rows of a day are what they are, for explanations. What the rows themselves tell is not repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayReasons {
    pub tenancies: Vec<DayTenancy>,
    pub incidents: Vec<DayIncident>,
    /// How many holders have no tenancy here, since there are too many.
    #[serde(default, skip_serializing_if = "is_none")]
    pub holders_left_out: usize,
    /// How many of the last incidents are not here, since there are too many.
    #[serde(default, skip_serializing_if = "is_none")]
    pub incidents_left_out: usize,
}

/// What decided on the tenants of some holders, in a time of the day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayTenancy {
    #[serde(flatten)]
    pub tenancy: Tenancy,
    /// Versions of holders that have rows in that time.
    pub holders: Vec<HolderId>,
}

/// A fault of a GPU, as far as it was on the day and in its account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayIncident {
    pub uuid: Arc<str>,
    #[serde(flatten)]
    pub incident: GpuIncident,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_none(count: &usize) -> bool {
    *count == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayGpu {
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    pub model: String,
    /// Begin of its account, possibly before the day.
    #[serde(with = "json::time")]
    pub accounted_since: Utc,
    #[serde(with = "json::time")]
    pub settled_until: Utc,
    /// Its memory, or that of the host where it shares it; absent where it is unknown, and from files of earlier releases.
    #[serde(rename = "memory_bytes", default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

/// What a day was made from, so that equal revisions of a ledger have equal rows. A later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DayRevision {
    /// Up to where the account is closed; at most the end of the day.
    #[serde(with = "json::time")]
    pub settled_until: Utc,
    /// GPU time in it. That of a GPU that was away is settled later than that of the others.
    #[serde(rename = "slot_ns", with = "json::integer")]
    pub slot: TimeSum,
    /// When the last rate was recorded that concerns the day. Numbers are given again where a ledger is restored from a copy.
    #[serde(with = "json::time")]
    pub rate: Utc,
    #[serde(with = "json::time")]
    pub terms: Utc,
    /// When the last version of the tenant rules was recorded that concerns it.
    #[serde(with = "json::time")]
    pub rules: Utc,
    /// Time of its shapes and runs. Evidence of a GPU that has left is stored later than that of the others.
    #[serde(rename = "evidence_ns", default, with = "json::integer")]
    pub evidence: TimeSum,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedFile {
    pub path: String,
    /// Its digest, `sha256:` and hexadecimal digits.
    pub digest: String,
}

/// A line of a bill of one quarter hour, or of consecutive ones that differ only in amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayRow {
    pub from: Utc,
    pub to: Utc,
    pub node: Arc<NodeIdentity>,
    /// The rate of the whole GPU, which may differ from that of the line; none where there was none.
    pub gpu_rate: Option<i64>,
    /// The line; `exact` and `exact_energy` are its money.
    pub line: BillLine,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayAccount {
    pub header: DayHeader,
    /// The rows, in any order.
    pub rows: Vec<DayRow>,
}
