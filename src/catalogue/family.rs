//! What a row of the catalogue is: a family of series, its points, and where each value comes from.

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
    /// Integrated by the agent, per tick, from a ratio that is read.
    Integral(&'static [Integral]),
    /// What is known of each GPU beside its readings.
    Identity(IdentityValue),
    /// XIDs of each GPU.
    Xid(XidValue),
    /// One value per MIG instance.
    Instance(InstanceValue),
    /// One value per process and GPU.
    Process(ProcessValue),
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
            Self::Device(_) | Self::Instance(_) => Origin::Driver,
            Self::Account(_) | Self::Slot => Origin::Ledger,
            Self::Integral(_)
            | Self::Identity(_)
            | Self::Xid(_)
            | Self::Process(_)
            | Self::Holding(_)
            | Self::Agent => Origin::Agent,
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

/// Where a device reading comes from. Ids are the driver's, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A value of the batched field call, times a factor that brings it to the family's integer unit.
    Field {
        /// Field id.
        id: u32,
        /// Scope: 0 for the GPU, or a link, or [`ALL_LINKS`].
        scope: u32,
        /// Factor to the family's integer unit.
        times: i64,
    },
    /// A value of a call of its own.
    Call {
        /// Which value.
        value: CallValue,
        /// Factor to the family's integer unit.
        times: i64,
    },
    /// The distance to a thermal limit: the margin call less this signed field, in degrees.
    Margin {
        /// Field id of the limit's board constant.
        limit: u32,
    },
    /// 1 when this bit of the clock event reasons is set, else 0.
    Reason {
        /// The bit.
        bit: u64,
    },
    /// A GPM metric between the last two samples, times a factor (the driver answers in percent).
    Gpm {
        /// GPM metric id.
        id: u32,
        /// Factor to the family's integer unit.
        times: i64,
    },
}

/// The scope that sums all NVLink links.
pub const ALL_LINKS: u32 = u32::MAX;

/// A value of a direct driver call; several may come from one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each name says the value; units are the driver's, the row's factor converts")]
pub enum CallValue {
    UtilizationGpu,
    UtilizationMemory,
    UtilizationEncoder,
    UtilizationDecoder,
    MemoryTotal,
    MemoryUsed,
    MemoryFree,
    MemoryReserved,
    PowerUsage,
    PowerLimitEnforced,
    Energy,
    Temperature,
    ClockSm,
    ClockMemory,
    PcieReplays,
}

/// A counter that the agent integrates from a ratio.
#[derive(Debug)]
pub struct Integral {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [(&'static str, &'static str)],
    /// The family of the ratio; its point with the same label values is integrated.
    pub of: &'static str,
}

/// What is known of a GPU beside its readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum IdentityValue {
    Info,
    Present,
    Up,
    Unsupported,
    MigInfo,
    Busy,
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

/// A reading of a MIG instance; the order is that of [`crate::model::InstanceFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum InstanceValue {
    MemoryTotal,
    MemoryUsed,
    GrEngineActive,
}

impl InstanceValue {
    /// All values, in their order.
    pub const ALL: [Self; 3] = [Self::MemoryTotal, Self::MemoryUsed, Self::GrEngineActive];
}

/// A value of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum ProcessValue {
    Memory,
    SmUtilization,
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
