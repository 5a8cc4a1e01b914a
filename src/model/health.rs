//! Health verdicts: the state of a GPU, what to do about it, and why.
//!
//! Plain data; module `health` makes the verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Utc, named};

named! {
    /// The health of a GPU, in order of severity. `Unknown` is worse than `Degraded`, since the GPU may have failed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum HealthState {
        /// Nothing is known to be wrong.
        Ok = "ok",
        /// It works, but something should be done.
        Degraded = "degraded",
        /// It does not respond, or has not been read yet.
        #[default]
        Unknown = "unknown",
        /// It must not be used as it is.
        Failed = "failed",
    }
    fn name
}

named! {
    /// What to do about a GPU, in ascending order of severity.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Remedy {
        #[default]
        None = "none",
        RestartApp = "restart_app",
        UpdateSoftware = "update_software",
        ContactSupport = "contact_support",
        CheckAirflow = "check_airflow",
        CheckMechanicals = "check_mechanicals",
        /// Let running work end and place no more.
        Drain = "drain",
        /// Drain, then reset the GPU.
        ResetGpu = "reset_gpu",
        /// Drain, then reboot the node.
        RebootNode = "reboot_node",
        Replace = "replace",
    }
    fn name
}

impl Remedy {
    /// What to do, for people; empty where nothing is to be done.
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "",
            Self::RestartApp => "look at the application that failed, and restart it",
            Self::UpdateSoftware => "update driver or firmware",
            Self::ContactSupport => "collect a report before anything is reset, then ask the vendor",
            Self::CheckAirflow => "check fans, airflow and inlet temperature",
            Self::CheckMechanicals => "check power, cooling, cables and seating",
            Self::Drain => "let running work end and place no more",
            Self::ResetGpu => "drain the node, then reset the GPU",
            Self::RebootNode => "drain the node, then reboot it",
            Self::Replace => "have the board replaced",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub rule: &'static str,
    pub state: HealthState,
    pub remedy: Remedy,
    pub what: &'static str,
    /// What was observed, with numbers.
    pub evidence: Arc<str>,
    pub since: Utc,
    pub clears: &'static str,
}

/// A fault that only a reset of the GPU clears, as it is stored for the next run of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyFault {
    pub rule: Arc<str>,
    pub since: Utc,
    /// Number of driver notices; 0 where it comes from XIDs.
    pub count: u64,
    /// XIDs by code: how many, and the GPU instance of the last one that named one.
    pub xids: BTreeMap<u32, (u64, Option<u32>)>,
}

/// The health verdict of a GPU; unknown by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of its reasons.
    pub state: HealthState,
    pub remedy: Remedy,
    /// All reasons, the worst first.
    pub reasons: Vec<Reason>,
}

/// The rules of a health verdict by which work stops: of the GPU, or of its links to others. Work goes on beside the others.
pub const STOPS_WORK: [&str; 18] = [
    "lost",
    "recovery_reset",
    "recovery_reboot",
    "row_remap_failure",
    "sram_threshold",
    "nvlink_down",
    "fabric_failed",
    "fabric_in_progress",
    "fabric_timeout",
    "fabric_configuration",
    "xid_hardware",
    "xid_reboot",
    "xid_driver",
    "xid_link",
    "xid_mechanicals",
    "unavailable",
    "poison_fatal",
    "memory_retirement_failed",
];
