//! What a row of the catalogue is: a family of series, when it is read and shown, and what kind of values it has.

use super::source::{LabelPair, Point, Source};
use super::values::{AccountPoint, HoldingValue, IdentityValue, InstancePoint, ProcessPoint, XidValue};
use super::{Alias, Counter};
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
    /// The most that a reading can be, for a gauge that has no unit; the others are bound by their unit.
    pub most: Option<i64>,
    /// Whether it is read at every level, because the account goes by it.
    pub is_read_for_account: bool,
    /// The CUDA compute capability of the first boards that have it; none where every board may.
    since: Option<(u32, u32)>,
    /// Why a board that answers "not supported" does not have it, and where to look instead.
    pub unsupported: Option<&'static str>,
    /// From which level on `gpumeter_source_info` says by what it is read; none where it never does.
    pub source_level: Option<Level>,
    /// Closed sets of label values that hold in this family only.
    pub values: &'static [LabelValues],
    /// What others call it.
    pub aliases: &'static [Alias],
}

/// A label and all values that it can have in one family.
pub type LabelValues = (&'static str, &'static [&'static str]);

/// What a row says of itself beyond name, unit, help and rows. Unless it says so, it is labelled by its GPU alone,
/// exported at level full and read in every tick.
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
            Rows::Integral(_) | Rows::Flow(_) | Rows::InstanceIntegral(_) => Some(Level::Full),
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

    pub(super) const fn since(mut self, capability: (u32, u32)) -> Self {
        self.since = Some(capability);
        self
    }

    pub(super) const fn unsupported(mut self, reason: &'static str) -> Self {
        self.unsupported = Some(reason);
        self
    }

    pub(super) const fn source_told_from(mut self, level: Level) -> Self {
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
        self.level <= level || self.is_read_for_account
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
        self.since
    }
}

/// CUDA compute capabilities of generations of boards. Hopper's are the first with GPM and with a fabric of NVLinks.
pub(super) const HOPPER: (u32, u32) = (9, 0);
pub(super) const ADA: (u32, u32) = (8, 9);
pub(super) const AMPERE: (u32, u32) = (8, 0);

/// How much is exported; each level includes the ones before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every alert needs: at most 40 series per GPU.
    Lean,
    /// What every dashboard panel needs: at most 100 series per GPU.
    #[default]
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
    /// The ledger's where there is one, else this process's.
    LedgerOrAgent,
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
    /// One value per workload and GPU, from closed and committed windows.
    WorkloadAccount(&'static [AccountPoint]),
    /// One value per GPU, from closed and committed windows.
    Slot,
    /// One value per GPU and reason why the owner of a process is not known, from closed and committed windows.
    Unattributed,
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
            Self::Account(_) | Self::WorkloadAccount(_) | Self::Slot | Self::Unattributed => Origin::Ledger,
            Self::Xid(_) => Origin::LedgerOrAgent,
            Self::Integral(_)
            | Self::Flow(_)
            | Self::InstanceIntegral(_)
            | Self::Identity(_)
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

/// A counter that the agent integrates from a ratio.
#[derive(Debug)]
pub struct Integral {
    /// Values of the family's labels beyond `gpu` and `uuid`.
    pub labels: &'static [LabelPair],
    /// The family of the ratio; its point with the same label values is integrated.
    pub of: &'static str,
    /// What counts the same time, and is preferred where a board has it.
    pub counter: Option<Counter>,
}

impl Integral {
    /// One that only its ratio tells.
    pub(super) const fn of(labels: &'static [LabelPair], of: &'static str) -> Self {
        Self { labels, of, counter: None }
    }

    /// One that a counter tells, too.
    pub(super) const fn counted(labels: &'static [LabelPair], of: &'static str, counter: Counter) -> Self {
        Self { labels, of, counter: Some(counter) }
    }
}
