//! Points, the series that a plan reads per GPU, and the sources from which it can read them.

use super::Counter;

pub type LabelPair = (&'static str, &'static str);

/// One series per GPU, read by its plan.
#[derive(Debug)]
pub struct Point {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [LabelPair],
    /// Best first; a board's plan takes the first that the board supports.
    pub sources: &'static [Source],
}

pub(super) const fn point(labels: &'static [LabelPair], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}

/// A field of the GPU in the family's unit.
pub(super) const fn field(id: u32) -> Source {
    Source::Field { id, scope: 0, times: 1 }
}

/// The value at `place` in the answer of an NVML function, in the family's unit.
pub(super) const fn named(function: &'static str, place: usize) -> Source {
    call(CallValue::of(function, place))
}

/// A value of a call in the family's unit.
pub(super) const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

/// Where a device reading comes from. Ids are the driver's, as plain data; `times` is the factor that brings
/// the driver's unit to the family's integer unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A value of the batched field call; scope 0 is the GPU.
    Field { id: u32, scope: u32, times: i64 },
    /// A field that has [another id](RENUMBERED) since a certain driver.
    Renumbered { before: u32, since: u32, times: i64 },
    /// 1 when the field has this value, else 0.
    Is { id: u32, value: i64 },
    /// A field whose 0 means unknown; scope 0 is the GPU, [`ALL_LINKS`] the driver's sum over its NVLinks.
    NotZero { id: u32, scope: u32, times: i64 },
    /// A field that counts in 64 bits and may wrap; one of 32 bits could wrap unnoticed between two ticks and is refused.
    Count { id: u32, times: i64 },
    /// A field of one NVLink; refused where the GPU has no such link.
    Link { id: u32, link: u32, times: i64 },
    /// A field of every NVLink that the GPU has, summed by the agent.
    Links { id: u32, times: i64 },
    /// A sum over NVLinks that the driver keeps itself; from NVLink generation
    /// [`FIRST_GENERATION_WITHOUT_LINKS_TOTAL`] on it stays 0.
    LinksTotal { id: u32, times: i64 },
    /// A value of a call of its own.
    Call { value: CallValue, times: i64 },
    /// The distance to a thermal limit in degrees: the answer of the margin call less this signed field.
    Margin { limit: u32 },
    /// 1 when `bit` of the clock event reasons is set and none of the more specific bits in `unless` is; else 0. All bits
    /// as `bit` are the mask itself.
    Reason { bit: u64, unless: u64 },
    /// A GPM metric between the last two samples.
    Gpm { id: u32, times: i64 },
    /// GPM's counters of every NVLink that the GPU has, summed by the agent; `first` is that of link 0.
    GpmLinks { first: u32, times: i64 },
    /// GPM's counter of what the next source reads as a rate; both are read, and the counter is preferred while it is
    /// plausible.
    GpmCounter(Counter),
}

pub const ALL_LINKS: u32 = u32::MAX;

/// NVML's number of the first NVLink generation, Hopper's, for which drivers answer 0 to [`Source::LinksTotal`]
/// (DataDog/datadog-agent#55966).
pub const FIRST_GENERATION_WITHOUT_LINKS_TOTAL: u32 = 6;

/// The most NVLinks that a GPU has (header of driver 590).
pub const MOST_LINKS: u32 = 36;

/// The driver that moved the fields of [`Source::Renumbered`]: 580.82 (NVML's "Known Issues").
pub const RENUMBERED: (u32, u32) = (580, 82);

/// A value of a direct driver call, in the driver's unit; several may come from one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallValue {
    /// The NVML function, by its newest name.
    pub function: &'static str,
    /// NVML's numbers that it is given: a clock, a threshold, a fan, or an error's kind, counter and place.
    pub arguments: [u32; 3],
    pub place: usize,
}

impl CallValue {
    pub const fn of(function: &'static str, place: usize) -> Self {
        Self { function, arguments: [0; 3], place }
    }

    pub const fn of_number(function: &'static str, number: u32) -> Self {
        Self { function, arguments: [number, 0, 0], place: 0 }
    }
}

/// The driver's utilization, of the GPU and of its memory.
pub const UTILIZATION: &str = "nvmlDeviceGetUtilizationRates";

/// Memory in total, used, free, and reserved where the function's second version exists.
pub const MEMORY: &str = "nvmlDeviceGetMemoryInfo_v2";

pub const LINK_STATE: &str = "nvmlDeviceGetNvLinkState";

pub const MEMORY_ERRORS: &str = "nvmlDeviceGetMemoryErrorCounter";

/// SRAM errors, corrected and uncorrected, since the driver was loaded and over the board's life, and whether these
/// exceed the vendor's threshold.
pub const SRAM_ERRORS: &str = "nvmlDeviceGetSramEccErrorStatus";

pub const THRESHOLD: &str = "nvmlDeviceGetTemperatureThreshold";

pub const FAN: &str = "nvmlDeviceGetFanSpeed_v2";
