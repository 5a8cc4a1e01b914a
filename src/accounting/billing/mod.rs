//! What GPU time costs: rates, the time and the GPUs for which each is in force, exact money, and the bill.
//!
//! Nothing here reads a file, a clock or a configuration. The configuration makes a [`PriceBook`], the ledger records it in
//! a [`RateSchedule`], and page and bills ask the schedule.

mod account_change;
mod bill;
mod book_json;
pub mod chain;
mod charge;
pub mod costs;
mod day;
mod day_evidence;
mod draft;
pub mod excerpt;
mod explanation;
pub mod focus;
mod grouping;
mod history;
mod job_comparison;
mod job_id;
mod job_report;
mod job_summary;
mod job_usage;
mod json;
mod line_filter;
mod local_time;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
pub(crate) mod made;
mod money;
mod month;
mod pricing;
mod rate;
mod request;
mod sacct;
mod schedule;
pub mod statement;
mod terms;
mod whole;

pub use account_change::{AccountChange, account_change};
pub use bill::{
    Bill, BillGpu, BillLine, BillRate, BillTerms, ClaimConflict, ConflictingLedger, Fleet, GpuConflict,
    Interval, LineRates, Reconciliation, SeveralCurrencies, mark_measured_energy, only_bill,
};
pub use book_json::LONGEST_BOOK;
pub use charge::{Charge, ChargedSlot, charges};
pub use day::{
    DayAccount, DayGpu, DayHeader, DayIncident, DayReasons, DayRevision, DayRow, DayTenancy, ExportedFile,
};
pub use day_evidence::{DayEvidence, DayRun, DayShape, EvidenceHeader, EvidenceOwner};
pub use draft::{BillDraft, FileNumbers, LineKey};
pub use explanation::{
    ClockStep, ExplainedLine, Explanation, FleetReasons, GpuEvent, GpuEventKind, GpuIncident, GpuRecord,
    LineSpan, MissingReasons, NodeBoot, Remark, RulesVersion, Tenancy, TenantBasis, WorkloadUsage, XidRecord,
};
pub use grouping::{
    BillGrouping, BillProperty, GroupKey, GroupValue, LineView, NONE, PropertyFilters, SharedNames,
};
pub use history::{GpuMinute, HistoryDraft, MinuteRow};
pub use job_comparison::{ComparedJob, JobComparison, compare_jobs};
pub use job_id::JobId;
pub use job_report::JobReport;
pub use job_summary::{
    ExplainedJob, JobGpu, JobNote, JobStep, JobSummary, SettledNode, explained_jobs, jobs,
};
pub use job_usage::JobUsage;
pub use json::{BillsJson, bills_from_json, print_money};
pub(crate) use json::{optional_money, optional_time, time};
pub use line_filter::LineFilter;
pub use local_time::{day_begin, days_between, local_date, local_time, readable_time, zone_name, zone_of};
pub use money::{ExactMoney, MoneyOverflow, SumOverflow, round_together};
pub use month::{DifferingBudgets, Month, StatedBudget, StatedBudgets, TenantBudget, list_first};
pub use pricing::{LineCharge, LinePrices, PricedSpan, SlotRates};
pub use rate::{EXAMPLE, OtherCurrency, PriceBook, PricedSlot, Rate, RateKind, RateSelector};
pub use request::{BillRequest, LineDetail};
pub use sacct::{SacctJob, parse_sacct};
pub use schedule::{Dated, RateSchedule, Recorded, RecordedAt, Schedule};
pub use terms::{Basis, Terms, WHOLE_RATE, charges_unheld};
pub use whole::{ExplainedWhole, InsideRow, InsideWhole, PricedPart, REMAINDERS, WholeRequest, WholeSums};
