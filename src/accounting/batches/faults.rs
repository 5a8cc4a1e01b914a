//! The XID errors and the sticky faults of a GPU, which survive a restart of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::{Microjoules, Nanoseconds, StickyFault, Utc};

/// The sticky faults of one GPU, the values that show a reset, and how many NVLinks were up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyFaults {
    #[serde(skip)]
    pub gpu: Arc<str>,
    /// The sticky reasons of its verdict; empty when a reset has ended them.
    pub faults: Vec<StickyFault>,
    /// Wall clock since which its time is unavailable because its hardware failed.
    pub failed: Option<Utc>,
    /// Identifies one loading of the driver's kernel module; none where it is unknown.
    pub module: Option<u64>,
    /// The driver's energy counter, which a reset sets back; none where the board has none.
    pub energy_counter: Option<Microjoules>,
    /// The most NVLinks that were up at once since the driver was loaded; 0 before the first.
    pub most_links_up: u32,
}

/// The faults that one GPU has at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenIncidents {
    pub gpu: Arc<str>,
    /// Account time.
    pub at: Utc,
    /// The rules of its verdict.
    pub kinds: BTreeSet<Arc<str>>,
}

/// XID errors of one code of a GPU, none longer after the one before than [`LONGEST_PAUSE`].
///
/// [`LONGEST_PAUSE`]: crate::model::LONGEST_PAUSE
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenXids {
    pub gpu: Arc<str>,
    pub code: u32,
    /// When the first was seen, in account time.
    pub from: Utc,
    /// When the last was seen.
    pub to: Utc,
}

/// XID errors of one GPU since the ledger was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XidSums {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// When counting restarted because the GPU was forgotten; none if it never was.
    pub since: Option<Utc>,
    /// Counts by recommended action, of all errors even if there were too many codes to store.
    pub actions: BTreeMap<Arc<str>, u64>,
    pub codes: BTreeMap<u32, XidSum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidSum {
    pub count: u64,
    /// Wall clock of the last error.
    pub last: Utc,
    /// Errors reported by the driver's events in the current burst.
    pub events: u64,
    /// Errors reported by the kernel log in the current burst.
    pub lines: u64,
    /// Time since boot at which a source last reported the code.
    pub last_reported: Nanoseconds,
    /// The GPU instance of the last error, on a GPU with MIG where a source names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
}

impl StickyFaults {
    /// Whether there is a fault, or a number of links.
    pub const fn has_any(&self) -> bool {
        !self.faults.is_empty() || self.failed.is_some() || self.most_links_up > 0
    }
}

impl XidSums {
    /// A key that grows with every counted error and when the GPU is forgotten, to find the newer of two states.
    pub fn version(&self) -> (Option<Utc>, u64) {
        (self.since, self.actions.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
    }
}
