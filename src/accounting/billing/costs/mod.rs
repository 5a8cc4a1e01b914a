//! The costs of a period on a page: sums by any grouping, by day and by hour of week, beside the period before.
//!
//! A source, the ledger of a node or the cache of a fleet, feeds sums into a [`CostDraft`] together with what tells them
//! apart. Money and rounding are those of the bill, so that a page and `gpumeter bill` print the same.

mod calendar;
mod command;
mod draft;
mod finish;
mod key;
mod projection;
mod report;
mod request;
mod row;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests;

pub use calendar::{CostPeriod, LocalHour, WEEK, local_hours};
pub use draft::{CostDraft, CostTenants, HourSums};
pub use key::{CostKey, CostSums, CostWorkload};
pub use report::{CostDay, CostFacts, CostHour, CostNotice, CostReport, CostSource, CostStatement};
pub use request::{CostRanges, CostRequest};
pub use row::{BudgetUse, CostAmounts, CostRow, ShownAmounts};
