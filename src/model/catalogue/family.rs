//! What a row of the catalogue says: its name, help and labels, when it is read and exported, and what its series
//! belong to.

use super::points::find;
use super::{AccountValue, Alias, Counter, InstanceValue, Labelled, Point, ProcessValue, Source};
use crate::model::frame::Tier;
use crate::model::{Unit, named};

/// A family of series that share name, type, unit and help.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    /// Unit of the value; the name ends in it.
    pub unit: Unit,
    /// One sentence, with what a reader must know to use it.
    pub help: &'static str,
    /// The label names of its series, in the order of the page.
    pub labels: &'static [&'static str],
    /// The least level at which it is exported.
    pub level: Level,
    pub tier: Tier,
    pub rows: Rows,
    /// The largest plausible reading of a gauge without a unit; other gauges are bound by their unit.
    pub most: Option<i64>,
    /// Whether it is read at every level, because the account needs it.
    pub is_read_for_account: bool,
    /// Whether a rule of health uses it, so that it is read at every level, and at half its cadence at the least.
    pub is_judged: bool,
    /// The CUDA compute capability of the first boards that have it; absent where every board may.
    since: Option<(u32, u32)>,
    /// Why some boards do not support it, and where to look instead.
    pub unsupported: Option<&'static str>,
    /// The least level at which `gpumeter_source_info` names its source; absent where it never does.
    pub source_level: Option<Level>,
    /// Closed sets of label values that hold in this family only.
    pub values: &'static [LabelValues],
    pub aliases: &'static [Alias],
}

/// A label and all values that it can have in one family.
pub type LabelValues = (&'static str, &'static [&'static str]);

/// Builds a row. The defaults are the labels `gpu` and `uuid`, level full, and a reading in every tick.
impl Family {
    pub(super) const fn gauge(name: &'static str, unit: Unit, help: &'static str, rows: Rows) -> Self {
        Self::new(Kind::Gauge, name, unit, help, rows)
    }

    pub(super) const fn counter(name: &'static str, unit: Unit, help: &'static str, rows: Rows) -> Self {
        Self::new(Kind::Counter, name, unit, help, rows)
    }

    pub(super) const fn new(
        kind: Kind,
        name: &'static str,
        unit: Unit,
        help: &'static str,
        rows: Rows,
    ) -> Self {
        let source_level = match rows {
            Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_))
            | Rows::Instance(InstanceRows::Integrals(_)) => Some(Level::Full),
            _ => None,
        };
        Self {
            name,
            kind,
            unit,
            help,
            labels: &["gpu", "uuid"],
            level: Level::Full,
            tier: Tier::Fast,
            rows,
            most: None,
            is_read_for_account: false,
            is_judged: false,
            since: None,
            unsupported: None,
            source_level,
            values: &[],
            aliases: &[],
        }
    }

    pub(super) const fn labels(mut self, labels: &'static [&'static str]) -> Self {
        self.labels = labels;
        self
    }

    pub(super) const fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    pub(super) const fn tier(mut self, tier: Tier) -> Self {
        self.tier = tier;
        self
    }

    pub(super) const fn most(mut self, most: i64) -> Self {
        self.most = Some(most);
        self
    }

    pub(super) const fn read_for_account(mut self) -> Self {
        self.is_read_for_account = true;
        self
    }

    pub(super) const fn judged(mut self) -> Self {
        self.is_judged = true;
        self
    }

    pub(super) const fn since(mut self, capability: (u32, u32)) -> Self {
        self.since = Some(capability);
        self
    }

    pub(super) const fn unsupported(mut self, reason: &'static str) -> Self {
        self.unsupported = Some(reason);
        self
    }

    pub(super) const fn source_from(mut self, level: Level) -> Self {
        self.source_level = Some(level);
        self
    }

    pub(super) const fn values(mut self, values: &'static [LabelValues]) -> Self {
        self.values = values;
        self
    }

    pub(super) const fn aliases(mut self, aliases: &'static [Alias]) -> Self {
        self.aliases = aliases;
        self
    }
}

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        Gauge = "gauge",
        /// Only grows under one start time.
        Counter = "counter",
        Histogram = "histogram",
    }
    /// The word of the `# TYPE` line.
    fn name
}

impl Family {
    pub fn is_read_at(&self, level: Level) -> bool {
        self.level <= level || self.is_read_for_account || self.is_judged
    }

    /// Whether it is a counter of the driver, which must not fall. Rates and counts that may wrap are read for
    /// counters, too, but it is the agent that keeps those.
    pub fn is_driver_counter(&self) -> bool {
        self.kind == Kind::Counter && matches!(self.rows, Rows::Gpu(GpuRows::Read(_)))
    }

    pub fn needs_gpm(&self) -> bool {
        let is_gpm = |source: &Source| matches!(source, Source::Gpm { .. } | Source::GpmCounter(_));
        match &self.rows {
            Rows::Gpu(GpuRows::Integrals { of, .. }) => super::family(of).is_some_and(Self::needs_gpm),
            Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
                points.iter().all(|point| point.value.is_ratio())
            }
            rows => {
                let mut sources = rows.points().iter().flat_map(|point| point.sources).peekable();
                sources.peek().is_some() && sources.all(is_gpm)
            }
        }
    }

    pub fn first_capability(&self) -> Option<(u32, u32)> {
        if self.needs_gpm() { Some(HOPPER) } else { self.since }
    }

    pub const fn origin(&self) -> Origin {
        match self.rows {
            Rows::Gpu(GpuRows::Read(_) | GpuRows::State(_)) | Rows::Instance(InstanceRows::Read(_)) => {
                Origin::Driver
            }
            Rows::Gpu(GpuRows::XidErrors | GpuRows::XidActionErrors) => Origin::LedgerOrAgent,
            Rows::Account(_) => Origin::Ledger,
            _ => Origin::Agent,
        }
    }
}

/// CUDA compute capabilities of generations of boards. Hopper is the first with GPM and with a fabric of NVLinks.
pub(super) const BLACKWELL: (u32, u32) = (10, 0);
pub(super) const HOPPER: (u32, u32) = (9, 0);
pub(super) const ADA: (u32, u32) = (8, 9);
pub(super) const AMPERE: (u32, u32) = (8, 0);

named! {
    /// How much is exported; each level includes the ones before.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Level {
        /// What every alert needs: at most 40 series per GPU.
        Lean = "lean",
        /// What every dashboard panel needs: at most 100 series per GPU.
        #[default]
        Standard = "standard",
        /// Everything, series per process included.
        Full = "full",
    }
    fn name
}

/// Who keeps a counter, which decides its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The driver: the counter restarts when the driver is loaded, at a time that the driver does not report.
    Driver,
    /// This process: the counter starts at 0 with the agent.
    Agent,
    /// The ledger: the counter survives the agent.
    Ledger,
    /// The ledger where there is one, else this process.
    LedgerOrAgent,
}

/// What the series of a family belong to; in it, where their values come from.
#[derive(Debug)]
pub enum Rows {
    /// GPUs; a label distinguishes their links, engines, fans or limits.
    Gpu(GpuRows),
    Instance(InstanceRows),
    Process(&'static [Labelled<ProcessValue>]),
    /// Tenants and workloads, and what the account says of a GPU.
    Account(AccountRows),
    /// The agent itself; its series are added by [`super::AgentFamily`].
    Agent,
}

#[derive(Debug)]
pub enum GpuRows {
    Read(&'static [Point]),
    /// Read by the GPU's plan: one point is 1, the others are 0, and only the 1 is exported.
    State(&'static [Point]),
    /// Summed by the agent from what the plan reads: GPM's counter ([`Source::Since`]), a rate per second
    /// ([`Source::Gpm`]) or a count that may wrap ([`Source::Count`]).
    Flow(&'static [Point]),
    /// Integrated by the agent over each point of the ratio family `of`, or taken from the counter of the same time
    /// where there is one; `counters` are parallel to those points, or none.
    Integrals {
        of: &'static str,
        counters: &'static [Counter],
    },
    Info,
    PlatformInfo,
    FabricInfo,
    Present,
    Absence,
    Up,
    Unsupported,
    Busy,
    Processes,
    Health,
    XidErrors,
    XidActionErrors,
    XidLastTimestamp,
    XidInfo,
}

#[derive(Debug)]
pub enum InstanceRows {
    Read(&'static [Labelled<InstanceValue>]),
    /// Integrated by the agent over ratios, or taken from counters of the same time.
    Integrals(&'static [Labelled<InstanceValue>]),
    Info,
}

/// Series of the account: its totals, from closed and committed windows, and what is held at the moment.
#[derive(Debug)]
pub enum AccountRows {
    Tenant(&'static [Labelled<AccountValue>]),
    Workload(&'static [Labelled<AccountValue>]),
    /// The time accounted for on each GPU.
    Slot,
    /// Time of each GPU by the reason why the owner of a process is not known.
    Unattributed,
    Holding,
    Unused,
    WorkloadInfo,
    CostPerHour,
    MonthCost,
    Budget,
}

impl Rows {
    pub const fn points(&self) -> &'static [Point] {
        match self {
            Self::Gpu(GpuRows::Read(points) | GpuRows::State(points) | GpuRows::Flow(points)) => points,
            _ => &[],
        }
    }

    /// The points whose integrals it is: those of the ratio, or its own flows.
    pub const fn integrated_points(&self) -> &'static [Point] {
        match self {
            Self::Gpu(GpuRows::Integrals { of, .. }) => find(of).rows.points(),
            Self::Gpu(GpuRows::Flow(points)) => points,
            _ => &[],
        }
    }
}
