//! What is judged of a GPU: a state, what to do about it, and why.
//!
//! Plain nouns. How a verdict comes about is known in the health room; here are only its words.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Utc;

/// How a GPU is, in order of concern: of one that cannot be seen nobody knows that it is not failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthState {
    /// Nothing is known to be wrong.
    Ok,
    /// It works, but something should be done.
    Degraded,
    /// It does not answer, or has not been read yet.
    #[default]
    Unknown,
    /// It must not be used as it is.
    Failed,
}

impl HealthState {
    /// All states, in order of concern.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Degraded, Self::Unknown, Self::Failed];

    /// The value of the `state` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
        }
    }
}

/// What to do about a GPU, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Nothing.
    #[default]
    None,
    /// Look at the application that failed, and restart it.
    RestartApp,
    /// Update driver or firmware.
    UpdateSoftware,
    /// Ask the vendor.
    ContactSupport,
    /// Check power, cooling, cables and seating.
    CheckMechanicals,
    /// Let running work end and place no more.
    Drain,
    /// Drain, then reset the GPU.
    ResetGpu,
    /// Drain, then reboot the node.
    RebootNode,
    /// Have the board replaced.
    Replace,
}

impl Remedy {
    /// The word in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RestartApp => "restart_app",
            Self::UpdateSoftware => "update_software",
            Self::ContactSupport => "contact_support",
            Self::CheckMechanicals => "check_mechanicals",
            Self::Drain => "drain",
            Self::ResetGpu => "reset_gpu",
            Self::RebootNode => "reboot_node",
            Self::Replace => "replace",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The rule that says so.
    pub rule: &'static str,
    /// What it makes of the GPU.
    pub state: HealthState,
    /// What it asks for.
    pub remedy: Remedy,
    /// What is wrong.
    pub what: &'static str,
    /// What was seen, with numbers.
    pub evidence: Arc<str>,
    /// Since when.
    pub since: Utc,
    /// What ends it.
    pub clears: &'static str,
}

/// A reason that only a reset of the GPU ends, as far as another life of the agent needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StickyFault {
    /// The rule that says so.
    pub rule: Arc<str>,
    /// Since when.
    pub since: Utc,
    /// How often the driver gave notice of it; 0 where it comes from XIDs.
    pub count: u64,
    /// XIDs by code: how many, and the GPU instance of the last one that named one.
    pub xids: BTreeMap<u32, (u64, Option<u32>)>,
}

/// What is judged of a GPU; by default that nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of its reasons.
    pub state: HealthState,
    /// What the worst of its reasons asks for.
    pub remedy: Remedy,
    /// All reasons, the worst first.
    pub reasons: Vec<Reason>,
}
