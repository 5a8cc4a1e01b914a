//! Where a reading comes from: the points that a plan reads, and whom it asks, best first.

use super::Counter;

/// A label name and one of its values.
pub type LabelPair = (&'static str, &'static str);

/// One series per GPU, read by its plan.
#[derive(Debug)]
pub struct Point {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [LabelPair],
    /// Where to ask, best first; a board's plan takes the first that it answers.
    pub sources: &'static [Source],
}

pub(super) const fn point(labels: &'static [LabelPair], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}

/// A field of the GPU in the family's unit.
pub(super) const fn field(id: u32) -> Source {
    Source::Field { id, scope: 0, times: 1 }
}

/// A value of a call in the family's unit.
pub(super) const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

/// The value at that place in the answer of an NVML function, in the family's unit.
pub(super) const fn named(function: &'static str, place: usize) -> Source {
    call(value_of(function, place))
}

/// The value at that place in the answer of an NVML function.
pub(super) const fn value_of(function: &'static str, place: usize) -> CallValue {
    CallValue::Named { function, place }
}

/// Where a device reading comes from. Ids are the driver's, as plain data; `times` is the factor that brings
/// the driver's unit to the family's integer unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variant's sentence names its fields")]
pub enum Source {
    /// A value of the batched field call; scope 0 is the GPU, [`ALL_LINKS`] sums its NVLinks.
    Field { id: u32, scope: u32, times: i64 },
    /// A field that has [another id](RENUMBERED) since a certain driver.
    Renumbered { before: u32, since: u32, times: i64 },
    /// 1 when the field has this value, else 0.
    Is { id: u32, value: i64 },
    /// A field whose 0 means that the board does not know.
    NotZero { id: u32, times: i64 },
    /// A field that counts in 64 bits and may wrap; one of 32 bits wraps unseen between two ticks and is refused.
    Count { id: u32, times: i64 },
    /// A field of one NVLink; refused where the GPU has no such link.
    Link { id: u32, link: u32, times: i64 },
    /// A field of every NVLink that the GPU has, summed by the agent.
    Links { id: u32, times: i64 },
    /// A sum over NVLinks that the driver keeps itself; from [`UNCOUNTED`] on it stays 0 whatever happens.
    LinksTotal { id: u32, times: i64 },
    /// A value of a call of its own.
    Call { value: CallValue, times: i64 },
    /// The distance to a thermal limit: the margin call less this signed field, in degrees.
    Margin { limit: u32 },
    /// 1 when this bit of the clock event reasons is set and none of the others is, which would explain it, else 0.
    Reason { bit: u64, unless: u64 },
    /// A GPM metric between the last two samples.
    Gpm { id: u32, times: i64 },
    /// GPM's counters of every NVLink that the GPU has, from that of link 0 on, summed by the agent.
    GpmLinks { first: u32, times: i64 },
    /// GPM's own counter, of which the next source is the rate: read beside it, and preferred where it can be
    /// believed.
    Since(Counter),
}

/// The scope that sums all NVLink links.
pub const ALL_LINKS: u32 = u32::MAX;

/// NVML's number of the NVLink generation, Hopper's, from which on drivers do not keep the sums of
/// [`Source::LinksTotal`], and answer 0 (DataDog/datadog-agent#55966).
pub const UNCOUNTED: u32 = 6;

/// The most NVLinks that a GPU has (header of driver 590).
pub const MOST_LINKS: u32 = 36;

/// The driver that moved the fields of [`Source::Renumbered`]: 580.82 (NVML's "Known Issues").
pub const RENUMBERED: (u32, u32) = (580, 82);

/// A value of a direct driver call; several may come from one call. Numbers are NVML's own: of a clock, a
/// threshold, a fan, an error's kind, counter and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each name says the value; units are the driver's, the row's factor converts")]
pub enum CallValue {
    /// A value of the answer of the NVML function of that name, by its place there.
    Named {
        function: &'static str,
        place: usize,
    },
    UtilizationGpu,
    UtilizationMemory,
    UtilizationEncoder,
    UtilizationDecoder,
    UtilizationJpeg,
    UtilizationOfa,
    MemoryTotal,
    MemoryUsed,
    MemoryFree,
    MemoryReserved,
    Threshold(u32),
    Fan(u32),
    Clock(u32),
    ClockMax(u32),
    NvLinksUp,
    EccCounter {
        kind: u32,
        counter: u32,
        location: u32,
    },
    SramCorrected,
    SramUncorrected,
    SramCorrectedLifetime,
    SramUncorrectedLifetime,
    SramThresholdExceeded,
}
