//! The raw integrals of one tick of one GPU, and what settling a window of them yields.
//!
//! A GPU's time on the account is a contiguous sequence of spans: each ends where the next begins, and a gap in the
//! observation is a span of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Amounts, Bytes, Evidence, Fraction, Grade, HolderId, Holding, HoldingSource, Method, Microjoules,
    Nanoseconds, Series, TickShares, Utc, WHOLE_SHARE, named,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Holdings and activity are known.
    Measured,
    /// Holdings are known, activity is not.
    Unmeasured,
    Unavailable,
    #[default]
    Unobserved,
}

named! {
    /// The meter of activity; a change begins a new segment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ActivitySource {
        /// GPM's graphics engine activity, over the whole span.
        Gpm = "gpm",
        /// The driver's ring of utilization samples, which covers the whole span in whole percents.
        Samples = "samples",
        /// NVML utilization, a sample of a window shorter than the span.
        Utilization = "utilization",
        #[default]
        None = "none",
    }
    /// The name in statements, in the ledger and in `gpumeter_source_info`.
    fn name
}

/// What one holder's processes did on the slot during a span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Engine utilization x time, in percent-microseconds or any other unit that is the same for all
    /// holders of the span; absent where no sample names the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Resident memory in bytes; absent where the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// The raw integrals of one tick of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Where it begins; the end of the span before.
    pub from: Utc,
    pub to: Utc,
    pub state: SlotState,
    pub source: ActivitySource,
    pub method: Method,
    /// The holdings, ordered by holder.
    pub holdings: Arc<[Holding]>,
    /// Which users each holding covers besides its own holder: user to the holding's holder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub covered_by: BTreeMap<HolderId, HolderId>,
    /// Time busy within the span, in nanoseconds; 0 unless measured.
    pub busy: u64,
    /// What GPM reported of the tick.
    #[serde(default, skip_serializing_if = "TickShares::is_empty")]
    pub shares: TickShares,
    pub present: BTreeMap<HolderId, Presence>,
    /// Whether the driver never lists processes, so that use counts as the holders'.
    #[serde(default)]
    pub blind: bool,
    /// Difference of the driver's energy counter; absent where it cannot be formed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Microjoules>,
    /// Idle power x time: the most of the energy that can be idle energy.
    #[serde(default)]
    pub idle_energy: Microjoules,
    /// The MIG instances of a GPU that has any: holdings, users and busy time are then in their spans, and empty in this
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<Box<MigSpan>>,
}

impl Span {
    pub fn empty(from: Utc, to: Utc, state: SlotState) -> Self {
        Self { from, to, state, ..Self::default() }
    }

    pub const fn length(&self) -> Nanoseconds {
        self.to.since(self.from)
    }

    /// The share of time busy in the tick of which it is a part, in ten-thousandths.
    pub fn busy_share(&self) -> u16 {
        busy_share(self.shares, self.busy, self.length())
    }
}

/// The share of the whole tick where it is a part of one, else its own, rounded down.
fn busy_share(shares: TickShares, busy: u64, length: Nanoseconds) -> u16 {
    let own = || u128::from(busy) * u128::from(WHOLE_SHARE) / u128::from(length.0.max(1));
    shares.of(Series::Busy).unwrap_or_else(|| u16::try_from(own()).unwrap_or(WHOLE_SHARE).min(WHOLE_SHARE))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSpan {
    pub layout: Arc<MigLayout>,
    /// The slots of the layout, by GPU instance id.
    pub slots: BTreeMap<Arc<str>, InstanceSpan>,
}

/// How a MIG GPU is divided among its instances; constant between two changes of
/// the MIG layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigLayout {
    /// Memory slices of the whole GPU.
    pub total: u64,
    /// The slots, by GPU instance id.
    pub slots: BTreeMap<Arc<str>, MigSlot>,
    /// Slices that a profile could still use.
    pub unallocated: u64,
    /// Free slices that no profile can use; none where the driver does not report possible placements, and all free
    /// slices count as unallocated.
    pub stranded: Option<u64>,
}

impl MigLayout {
    /// Whether both divide a GPU alike. First slices are compared if both have them: drivers report placements to administrators
    /// only.
    pub fn is_divided_like(&self, other: &Self) -> bool {
        let has_starts = self.slots.values().chain(other.slots.values()).all(|slot| slot.start.is_some());
        let compared = |layout: &Self| {
            let mut layout = layout.clone();
            layout.slots.values_mut().for_each(|slot| slot.start = slot.start.filter(|_| has_starts));
            layout
        };
        compared(self) == compared(other)
    }

    pub fn slot_id(&self, gpu_instance: &str) -> SlotId {
        let profile = self.slots.get(gpu_instance).map(|slot| MigProfile {
            name: Arc::clone(&slot.profile),
            size: slot.size,
            total: self.total,
        });
        SlotId { gpu_instance: gpu_instance.parse().ok(), profile }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfile {
    /// Its name, e.g. `1g.10gb`.
    pub name: Arc<str>,
    /// Memory slices of the instance.
    pub size: u64,
    /// Memory slices of the whole GPU.
    pub total: u64,
}

/// The memory slices of a GPU whose instances have not been seen.
const SLICES: u64 = 8;

impl MigProfile {
    /// The memory that a profile's name says, as `1g.10gb`; none of another name.
    pub fn memory_by_name(name: &str) -> Option<Bytes> {
        let (compute, rest) = name.split_once("g.")?;
        let memory = rest.split_once("gb")?.0;
        compute.parse::<u8>().ok().filter(|slices| *slices > 0)?;
        let gigabytes: u64 = memory.parse::<u16>().ok()?.into();
        Some(Bytes(gigabytes * 1_000_000_000)).filter(|memory| memory.0 > 0)
    }

    /// A profile that has not been seen, by its name and the memory of the GPU, of which it has the nearest number of slices; none where
    /// that is more than the GPU has.
    pub fn by_name(name: &str, of: Bytes) -> Option<Self> {
        let memory = Self::memory_by_name(name)?;
        let size = (memory.0 * SLICES).checked_add(of.0 / 2)?.checked_div(of.0)?.max(1);
        (size <= SLICES).then(|| Self { name: name.into(), size, total: SLICES })
    }

    /// Its compute slices, of those of the GPU; none where its name does not say them, or GPUs with so many memory slices are not known.
    pub fn compute_slices(&self) -> Option<[u64; 2]> {
        let of = match self.total {
            4 | 12 => 4,
            8 => 7,
            _ => return None,
        };
        let own = self.name.split_once("g.")?.0.parse().ok();
        own.filter(|own| (1..=of).contains(own)).map(|own| [own, of])
    }
}

/// A slot of a GPU. Ids of GPU instances are used again, so the profile distinguishes instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// GPU instance id; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// The profile of the instance; none where there is no instance.
    pub profile: Option<MigProfile>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlot {
    /// The name of its profile.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub profile: Arc<str>,
    /// How many memory slices it has.
    pub size: u64,
    /// Its first memory slice, if the driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// The UUIDs of its compute instances, and which share of the instance each is.
    pub devices: BTreeMap<Arc<str>, Fraction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSpan {
    pub state: SlotState,
    pub source: ActivitySource,
    /// Who holds what of it, ordered by holder.
    pub holdings: Arc<[Holding]>,
    /// Which users each holding covers besides its own holder: user to the holding's holder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub covered_by: BTreeMap<HolderId, HolderId>,
    /// Time busy within the span, in nanoseconds of the GPU's time; 0 unless measured.
    pub busy: u64,
    /// What GPM reported of the tick.
    #[serde(default, skip_serializing_if = "TickShares::is_empty")]
    pub shares: TickShares,
    pub present: BTreeMap<HolderId, Presence>,
    /// Whether the driver never lists processes, so that use counts as the holders'.
    #[serde(default)]
    pub blind: bool,
}

impl InstanceSpan {
    /// A span of its own over the time of the GPU's span.
    pub fn during(&self, gpu: &Span) -> Span {
        Span {
            source: self.source,
            method: gpu.method,
            holdings: Arc::clone(&self.holdings),
            covered_by: self.covered_by.clone(),
            busy: self.busy,
            shares: self.shares,
            present: self.present.clone(),
            blind: self.blind,
            ..Span::empty(gpu.from, gpu.to, self.state)
        }
    }

    /// The share of time busy in the tick of which it is a part, in ten-thousandths; `length` is the span's.
    pub fn busy_share(&self, length: Nanoseconds) -> u16 {
        busy_share(self.shares, self.busy, length)
    }
}

/// The account of one holder on one slot in one window; remainders have rows too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub slot: SlotId,
    pub holder: HolderId,
    pub amounts: Amounts,
    /// The worst grade of what was used.
    pub grade: Grade,
    /// Bridged if any of it was.
    pub method: Method,
    pub source: ActivitySource,
    /// By whom its last holding in the window was granted; none where it held nothing.
    pub granted_by: Option<HoldingSource>,
}

impl Row {
    pub fn empty(holder: HolderId) -> Self {
        Self {
            slot: SlotId::default(),
            holder,
            amounts: Amounts::default(),
            grade: Grade::Measured,
            method: Method::Observed,
            source: ActivitySource::None,
            granted_by: None,
        }
    }

    /// Adds a row of the next window.
    pub fn add(&mut self, other: &Self) {
        self.amounts.add(&other.amounts);
        self.grade = self.grade.max(other.grade);
        self.method = self.method.max(other.method);
        self.source = self.source.max(other.source);
        self.granted_by = other.granted_by.or(self.granted_by);
    }
}

/// Rounding remainders per holder, in units of 2^-32 nanoseconds, by node of the splitting tree (`gpu/held`,
/// `gpu/used`, …). Zero remainders are left out.
pub type Carry = BTreeMap<String, BTreeMap<HolderId, i64>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Where the window begins: on the grid of 15 s, or where the GPU's account begins.
    pub from: Utc,
    pub to: Utc,
    /// Rows ordered by slot and holder; the sum of their held parts is `to - from`.
    pub rows: Vec<Row>,
    /// The carries after the window.
    pub carry: Carry,
    /// The weights of the window, a fallback for splitting the next one.
    pub weights: BTreeMap<HolderId, u64>,
    /// Conflicts and other remarks, each with the holder it names.
    pub flags: Vec<String>,
    /// How holders used the GPU in the window.
    pub evidence: Evidence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_whose_first_slices_are_not_known_is_the_same_layout() {
        let layout = |start, size| {
            let slot = MigSlot { size, start, ..MigSlot::default() };
            MigLayout { total: 8, slots: [("2".into(), slot)].into(), unallocated: 8 - size, stranded: None }
        };
        assert!(layout(None, 4).is_divided_like(&layout(Some(4), 4)));
        assert!(layout(Some(4), 4).is_divided_like(&layout(Some(4), 4)));
        assert!(!layout(Some(0), 4).is_divided_like(&layout(Some(4), 4)));
        assert!(!layout(None, 2).is_divided_like(&layout(Some(4), 4)));
    }
}
