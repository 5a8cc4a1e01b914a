//! What a row of the catalogue is: a family of series, its points, and where each value comes from.

use super::Counter;
use crate::model::Unit;
use crate::model::frame::Tier;

/// A family of series that share name, type, unit and help.
#[derive(Debug)]
pub struct Family {
    /// Full metric name, as on the page.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Unit of the value; the name ends in it.
    pub unit: Unit,
    /// One sentence, with what a reader must know to use it.
    pub help: &'static str,
    /// The label names of its series, in the order of the page.
    pub labels: &'static [&'static str],
    /// The least level at which it is exported.
    pub level: Level,
    /// How often it is read.
    pub tier: Tier,
    /// Where its values come from.
    pub rows: Rows,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May go up and down.
    Gauge,
    /// Only grows under one start time.
    Counter,
    /// Observations in buckets.
    Histogram,
}

impl Kind {
    /// The word of the `# TYPE` line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

impl Family {
    /// Whether a plan reads it when that level is exported: what the account goes by is read at every level.
    pub fn is_read_at(&self, level: Level) -> bool {
        self.level <= level || ACCOUNT_READS.contains(&self.name)
    }

    /// Whether it is a counter that the driver keeps. What the agent counts itself, from a rate or from a count
    /// that may wrap, is read as something that may fall.
    pub fn is_driver_counter(&self) -> bool {
        self.kind == Kind::Counter && matches!(self.rows, Rows::Device(_))
    }

    /// Whether its series are of MIG instances.
    pub const fn is_of_instances(&self) -> bool {
        matches!(
            self.rows,
            Rows::Instance(_) | Rows::InstanceIntegral(_) | Rows::Identity(IdentityValue::MigInfo)
        )
    }

    /// Whether nothing but GPM can tell it.
    pub fn needs_gpm(&self) -> bool {
        let is_gpm = |source: &Source| matches!(source, Source::Gpm { .. } | Source::Since(_));
        match &self.rows {
            Rows::Integral(integrals) => {
                integrals.iter().all(|integral| super::family(integral.of).is_some_and(Self::needs_gpm))
            }
            Rows::Instance(points) => points.iter().all(|point| point.value.is_ratio()),
            Rows::InstanceIntegral(_) => true,
            rows => {
                let mut sources = rows.points().iter().flat_map(|point| point.sources).peekable();
                sources.peek().is_some() && sources.all(is_gpm)
            }
        }
    }

    /// The CUDA compute capability of the first boards that have it; none where every board may.
    pub fn first_capability(&self) -> Option<(u32, u32)> {
        if self.needs_gpm() {
            return Some(HOPPER);
        }
        let known = FIRST.iter().find(|(families, _)| families.contains(&self.name));
        known.map(|(_, capability)| *capability)
    }
}

/// The boards with GPM and with a fabric of NVLinks.
const HOPPER: (u32, u32) = (9, 0);

/// Families that came with a generation of boards, and its compute capability.
const FIRST: [(&[&str], (u32, u32)); 3] = [
    (&["gpu_fabric_info", "gpu_fabric_state"], HOPPER),
    // Ada: boards before know the temperatures of their limits.
    (&["gpu_temperature_margin_celsius"], (8, 9)),
    // Ampere.
    (&["gpu_ecc_sram_threshold_exceeded"], (8, 0)),
];

/// What the account goes by, whatever is exported.
pub(super) const ACCOUNT_READS: &[&str] = &[
    "gpu_utilization_ratio",
    "gpu_engine_utilization_ratio",
    "gpu_gr_engine_active_ratio",
    "gpu_energy_joules_total",
    "gpu_power_watts",
];

/// How much is exported; each level includes the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every alert needs: at most 40 series per GPU.
    Lean,
    /// What every dashboard panel needs: at most 100 series per GPU.
    Standard,
    /// Everything, series per process included.
    Full,
}

impl Level {
    /// All levels, leanest first.
    pub const ALL: [Self; 3] = [Self::Lean, Self::Standard, Self::Full];

    /// The word in configuration and documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }
}

/// Whose counter it is, which decides its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The driver's: it restarts when the driver is loaded anew, at a time that the driver does not tell.
    Driver,
    /// This process's: it starts at 0 with the agent.
    Agent,
    /// The ledger's: it survives the agent.
    Ledger,
}

/// Where the values of a family come from.
#[derive(Debug)]
pub enum Rows {
    /// Read from each GPU by its plan.
    Device(&'static [Point]),
    /// Points of which one is 1 and the others 0, read from each GPU by its plan; only the 1 is shown.
    State(&'static [Point]),
    /// Integrated by the agent, per tick, from a ratio that is read, or taken from a counter of the same time.
    Integral(&'static [Integral]),
    /// Kept by the agent, per tick, from GPM's counter ([`Source::Since`]), from a rate per second
    /// ([`Source::Gpm`]) or from a count that may wrap ([`Source::Count`]).
    Flow(&'static [Point]),
    /// What is known of each GPU beside its readings.
    Identity(IdentityValue),
    /// XIDs of each GPU.
    Xid(XidValue),
    /// Read from each MIG instance.
    Instance(&'static [InstancePoint]),
    /// Integrated by the agent, per tick, from ratios of a MIG instance, or taken from counters of the same time.
    InstanceIntegral(&'static [InstancePoint]),
    /// One value per process and GPU.
    Process(&'static [ProcessPoint]),
    /// One value per tenant and GPU, from closed and committed windows.
    Account(&'static [AccountPoint]),
    /// One value per GPU, from closed and committed windows.
    Slot,
    /// Who holds what at the moment.
    Holding(HoldingValue),
    /// The agent's own state and counters.
    Agent,
}

impl Rows {
    /// Whose counters these are.
    pub const fn origin(&self) -> Origin {
        match self {
            Self::Device(_) | Self::State(_) | Self::Instance(_) => Origin::Driver,
            Self::Account(_) | Self::Slot => Origin::Ledger,
            Self::Integral(_)
            | Self::Flow(_)
            | Self::InstanceIntegral(_)
            | Self::Identity(_)
            | Self::Xid(_)
            | Self::Process(_)
            | Self::Holding(_)
            | Self::Agent => Origin::Agent,
        }
    }

    /// The points that a plan reads for it.
    pub const fn points(&self) -> &'static [Point] {
        match self {
            Self::Device(points) | Self::Flow(points) | Self::State(points) => points,
            _ => &[],
        }
    }
}

/// One series per GPU, read by its plan.
#[derive(Debug)]
pub struct Point {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [(&'static str, &'static str)],
    /// Where to ask, best first; a board's plan takes the first that it answers.
    pub sources: &'static [Source],
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
    Bar1Total,
    Bar1Used,
    PowerUsage,
    PowerLimitEnforced,
    PowerLimitRequested,
    PowerLimitDefault,
    PowerLimitMin,
    PowerLimitMax,
    Energy,
    TemperatureVersioned,
    Temperature,
    Threshold(u32),
    Fan(u32),
    Clock(u32),
    ClockMax(u32),
    PerformanceState,
    PcieReplays,
    PcieGeneration,
    PcieGenerationMax,
    PcieWidth,
    PcieWidthMax,
    NvLinksUp,
    EccCounter { kind: u32, counter: u32, location: u32 },
    SramCorrected,
    SramUncorrected,
    SramCorrectedLifetime,
    SramUncorrectedLifetime,
    SramThresholdExceeded,
    RemappedCorrectable,
    RemappedUncorrectable,
    RemapPending,
    RemapFailure,
    BanksMax,
    BanksHigh,
    BanksPartial,
    BanksLow,
    BanksNone,
    RetiredPending,
    FabricNotStarted,
    FabricInProgress,
    FabricCompleted,
    FabricFailed,
}

/// A counter that the agent integrates from a ratio.
#[derive(Debug)]
pub struct Integral {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [(&'static str, &'static str)],
    /// The family of the ratio; its point with the same label values is integrated.
    pub of: &'static str,
    /// What counts the same time, and is preferred where a board has it.
    pub counter: Option<Counter>,
}

impl Integral {
    /// One that only its ratio tells.
    pub(super) const fn of(labels: &'static [(&'static str, &'static str)], of: &'static str) -> Self {
        Self { labels, of, counter: None }
    }

    /// One that a counter tells, too.
    pub(super) const fn counted(
        labels: &'static [(&'static str, &'static str)],
        of: &'static str,
        counter: Counter,
    ) -> Self {
        Self { labels, of, counter: Some(counter) }
    }
}

/// What is known of a GPU beside its readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum IdentityValue {
    Info,
    PlatformInfo,
    FabricInfo,
    Present,
    Absence,
    Up,
    Unsupported,
    MigInfo,
    Busy,
    Health,
}

/// What is known of a GPU's XIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum XidValue {
    Errors,
    ActionErrors,
    LastTimestamp,
    Info,
}

/// One series per MIG instance.
#[derive(Debug)]
pub struct InstancePoint {
    /// Values of the family's labels beyond `gpu`, `uuid` and `gpu_instance`.
    pub labels: &'static [(&'static str, &'static str)],
    /// Which reading.
    pub value: InstanceValue,
}

/// A reading of a MIG instance; the order is that of [`crate::model::InstanceFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum InstanceValue {
    MemoryTotal,
    MemoryUsed,
    MemoryFree,
    GrEngineActive,
    SmActive,
    SmOccupancy,
    TensorActive,
    DramActive,
    Integer,
    Fp16,
    Fp32,
    Fp64,
    TensorDfma,
    TensorDmma,
    TensorHmma,
    TensorImma,
    SramUncorrected,
}

impl InstanceValue {
    /// All values, in their order.
    pub const ALL: [Self; 17] = [
        Self::MemoryTotal,
        Self::MemoryUsed,
        Self::MemoryFree,
        Self::GrEngineActive,
        Self::SmActive,
        Self::SmOccupancy,
        Self::TensorActive,
        Self::DramActive,
        Self::Integer,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::TensorDfma,
        Self::TensorDmma,
        Self::TensorHmma,
        Self::TensorImma,
        Self::SramUncorrected,
    ];

    /// Whether it is a share of time, which can be integrated.
    pub const fn is_ratio(self) -> bool {
        !matches!(self, Self::MemoryTotal | Self::MemoryUsed | Self::MemoryFree | Self::SramUncorrected)
    }
}

/// One series per process on a GPU.
#[derive(Debug)]
pub struct ProcessPoint {
    /// Values of the family's labels beyond those that tell the process.
    pub labels: &'static [(&'static str, &'static str)],
    /// Which value.
    pub value: ProcessValue,
}

/// How many labels tell a process: gpu, uuid, gpu_instance, pid, process, workload, tenant.
pub const PROCESS_LABELS: usize = 7;

/// A value of a process on a GPU; the order is that of [`crate::model::snapshot::ProcessState::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum ProcessValue {
    Memory,
    Sm,
    MemoryActivity,
    Encoder,
    Decoder,
}

/// One series per tenant and GPU.
#[derive(Debug)]
pub struct AccountPoint {
    /// Values of the family's labels beyond `tenant`, `gpu` and `uuid`.
    pub labels: &'static [(&'static str, &'static str)],
    /// Which value of the account.
    pub value: AccountValue,
}

/// A value of the account of a tenant on a GPU; the order is that of
/// [`crate::model::snapshot::AccountState::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum AccountValue {
    Held,
    Used,
    Idle,
    Lent,
    BeyondShare,
    OutsideHolding,
    Unmeasured,
    Unavailable,
    EnergyStatic,
    EnergyDynamic,
    HeldCost,
    UsedCost,
}

impl AccountValue {
    /// All values, in their order.
    pub const ALL: [Self; 12] = [
        Self::Held,
        Self::Used,
        Self::Idle,
        Self::Lent,
        Self::BeyondShare,
        Self::OutsideHolding,
        Self::Unmeasured,
        Self::Unavailable,
        Self::EnergyStatic,
        Self::EnergyDynamic,
        Self::HeldCost,
        Self::UsedCost,
    ];
}

/// What is known of the holdings of the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum HoldingValue {
    Ratio,
    WorkloadInfo,
    CostPerHour,
}
