//! The raw integrals of one tick of one GPU, and what settling a window of them yields.
//!
//! A GPU's time on the account is a contiguous sequence of spans: each ends where the next begins, and a
//! gap in what was seen is a span that says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Grade, HolderId, Holding, Method, Microjoules, Nanoseconds, Parts, Use, Utc};

/// What could be known of the slot during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Holdings and activity are known.
    Measured,
    /// Holdings are known, activity is not.
    Unmeasured,
    /// The slot is lost or broken.
    Unavailable,
    /// Nobody looked.
    Unobserved,
}

/// By which meter activity was known; a change cuts the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivitySource {
    /// GPM's graphics engine activity, over the whole span.
    Gpm,
    /// The driver's ring of utilization samples, which covers the whole span in whole percents.
    Samples,
    /// NVML utilization, a sample of a window shorter than the span.
    Utilization,
    /// None: activity is unknown.
    None,
}

impl ActivitySource {
    /// The name in statements, in the ledger and in `gpumeter_source_info`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpm => "gpm",
            Self::Samples => "samples",
            Self::Utilization => "utilization",
            Self::None => "none",
        }
    }
}

/// What one holder's processes did on the slot during a span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Engine utilization x time, in percent-microseconds or any other unit that is the same for all
    /// holders of the span; absent where no sample names the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Resident memory in bytes; absent where the driver cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// The raw integrals of one tick of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Where it begins; the end of the span before.
    pub from: Utc,
    /// Where it ends.
    pub to: Utc,
    /// What could be known.
    pub state: SlotState,
    /// By which meter.
    pub source: ActivitySource,
    /// Observed, or bridged over a gap of the agent.
    pub method: Method,
    /// Who holds what, ordered by holder.
    pub holdings: Arc<[Holding]>,
    /// Which users each holding covers besides its own holder: user to the holding's holder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub covered_by: BTreeMap<HolderId, HolderId>,
    /// Time busy within the span, in nanoseconds; 0 unless measured.
    pub busy: u64,
    /// The holders that have processes on the GPU.
    pub present: BTreeMap<HolderId, Presence>,
    /// Whether processes cannot be seen by construction, so that holders stand for them.
    #[serde(default)]
    pub blind: bool,
    /// Difference of the driver's energy counter; absent where it cannot be formed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Microjoules>,
    /// Idle power x time, the most that can be floor.
    #[serde(default)]
    pub idle_energy: Microjoules,
}

impl Span {
    /// Its length.
    pub const fn length(&self) -> Nanoseconds {
        self.to.since(self.from)
    }
}

/// What the account of one window says of one holder on one GPU; remainders have rows too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Whose row.
    pub holder: HolderId,
    /// The parts of what was held; for `__unallocated__`, `lent` is what was drawn from it.
    pub parts: Parts,
    /// What was used.
    pub used: Use,
    /// The share of the idle floor.
    pub energy_static: Microjoules,
    /// The share of the rest.
    pub energy_dynamic: Microjoules,
    /// Resident memory x time, in byte-seconds, rounded down.
    pub memory_byte_seconds: u64,
    /// The worst grade of what was used.
    pub grade: Grade,
    /// The part of what was used whose split was measured, in nanoseconds.
    pub measured: u64,
    /// Bridged if any of it was.
    pub method: Method,
    /// The meter of the activity.
    pub source: ActivitySource,
}

impl Row {
    /// A holder's row that says nothing yet: all zero, by no meter.
    pub fn empty(holder: HolderId) -> Self {
        Self {
            holder,
            parts: Parts::default(),
            used: Use::default(),
            energy_static: Microjoules(0),
            energy_dynamic: Microjoules(0),
            memory_byte_seconds: 0,
            grade: Grade::Measured,
            measured: 0,
            method: Method::Observed,
            source: ActivitySource::None,
        }
    }
}

/// What every holder of a node of the splitting tree is still owed, in units of 2^-32 nanoseconds;
/// tree node (`gpu/held`, `gpu/used`, …) to holder to carry. Zero carries are left out.
pub type Carry = BTreeMap<String, BTreeMap<HolderId, i64>>;

/// One settled window of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// Where the window begins: on the grid of 15 s, or where the GPU's account begins.
    pub from: Utc,
    /// Where it ends.
    pub to: Utc,
    /// Rows ordered by holder; the sum of their held parts is `to - from`.
    pub rows: Vec<Row>,
    /// The carries after the window.
    pub carry: Carry,
    /// The weights of the window, for the next one's ladder.
    pub weights: BTreeMap<HolderId, u64>,
    /// Conflicts and other remarks, each with the holder it names.
    pub flags: Vec<String>,
}
