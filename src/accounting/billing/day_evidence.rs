//! The evidence of a day, for exports.

use serde::{Deserialize, Serialize};

use super::day::DayRevision;
use super::json;
use crate::model::{GpuId, HolderId, Run, Series, Shape, Utc};

/// What of a day of one ledger is no account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayEvidence {
    pub header: EvidenceHeader,
    pub shapes: Vec<DayShape>,
    /// The runs that are known to have ended on the day.
    pub runs: Vec<DayRun>,
}

/// Of which day and account the evidence is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceHeader {
    pub ledger: String,
    pub cluster: Option<String>,
    pub node: String,
    #[serde(with = "json::time")]
    pub day: Utc,
    /// That of the account from which the evidence was made: it belongs to no other.
    pub revision: DayRevision,
}

/// Where and whose evidence is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvidenceOwner {
    pub gpu: GpuId,
    pub gpu_instance: Option<u32>,
    /// At the end of the day.
    pub tenant: String,
    pub holder: HolderId,
}

/// One series of a holder on a slot over the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayShape {
    pub owner: EvidenceOwner,
    pub series: Series,
    pub shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayRun {
    pub owner: EvidenceOwner,
    /// That all runs of a recurring workload have.
    pub name: String,
    pub run: Run,
}
