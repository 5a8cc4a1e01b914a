//! The report of costs, as `GET /api/v1/costs` has it: exact integers as text, and beside them what a page shows.

use std::collections::BTreeSet;

use serde::Serialize;

use super::row::{BudgetUse, CostRow};

/// What a source knows of itself and of the period, beside its sums.
#[derive(Clone, Debug, Default)]
pub struct CostFacts {
    pub source: CostSource,
    /// None where no price was in force in the period.
    pub currency: Option<String>,
    /// Whether the period before and the last weeks have prices in no other currency.
    pub compares_money: bool,
    pub notices: Vec<CostNotice>,
    pub statement: Option<CostStatement>,
    /// The options of `gpumeter bill` that name the source, such as `--exports DIR`; empty of a running agent.
    pub options: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct CostSource {
    /// `node` or `fleet`.
    pub kind: &'static str,
    pub node: Option<String>,
    pub nodes: u64,
    pub clusters: Vec<String>,
    pub simulated: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct CostNotice {
    pub kind: &'static str,
    pub text: String,
}

/// The statement of a closed month, and what the same lines make now.
#[derive(Clone, Debug, Serialize)]
pub struct CostStatement {
    pub number: u64,
    pub amount: String,
    pub now: String,
    pub difference: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct CostReport {
    pub(super) schema: u32,
    pub source: CostSource,
    pub(super) period: ReportPeriod,
    pub(super) request: AskedCosts,
    pub(super) command: String,
    /// The one that writes the whole period as FOCUS, whatever the grouping and the filters.
    pub(super) focus_command: String,
    pub currency: Option<String>,
    pub partial: bool,
    pub notices: Vec<CostNotice>,
    pub total: CostRow,
    pub(super) before: Option<ComparedPeriod>,
    pub(super) shares: CostShares,
    pub budget: Option<BudgetUse>,
    pub(super) projection: Option<ProjectedCosts>,
    pub statement: Option<CostStatement>,
    pub(super) groups: Vec<String>,
    /// What lines can be grouped by: all words, and the attributes of the report's tenants. Labels are not listed.
    pub(super) properties: Vec<String>,
    pub rows: Vec<CostRow>,
    pub rest: Option<CostRow>,
    pub days: Vec<CostDay>,
    pub hours: Option<Vec<CostHour>>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ReportPeriod {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) asked_to: Option<String>,
    pub(super) time_zone: String,
    pub(super) open: bool,
    pub(super) hours: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AskedCosts {
    pub(super) period: String,
    pub(super) group: String,
    pub(super) filters: Vec<AskedFilter>,
    pub(super) spread: BTreeSet<String>,
    pub(super) top: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AskedFilter {
    pub(super) property: String,
    pub(super) values: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ComparedPeriod {
    pub(super) period: ReportPeriod,
    pub(super) total: CostRow,
}

/// Shares between 0 and 1; none of nothing, and of what a reader of some tenants may not know.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CostShares {
    /// Of the time that tenants held.
    pub(super) idle: Option<f64>,
    /// Of all GPU time.
    pub(super) unallocated: Option<f64>,
    pub(super) unavailable: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ProjectedCosts {
    pub(super) amount: String,
    pub(super) lowest: String,
    pub(super) highest: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct CostDay {
    pub day: String,
    pub rows: Vec<DayRow>,
}

/// Of the rows that cost most, and of all others, which have no name.
#[derive(Clone, Debug, Serialize)]
pub struct DayRow {
    pub name: Option<String>,
    pub held: String,
    pub idle: String,
    pub amount: Option<String>,
}

/// GPUs on average.
#[derive(Clone, Debug, Serialize)]
pub struct CostHour {
    /// From 1, Monday.
    pub weekday: usize,
    pub hour: usize,
    pub held: f64,
    pub used: f64,
    pub idle: f64,
}
