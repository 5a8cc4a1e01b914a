//! What GPU time costs: rates, the time and the GPUs for which each is in force, exact money, and the bill.
//!
//! Nothing here reads a file, a clock or a configuration. The configuration makes a [`PriceBook`], the ledger records it in
//! a [`RateSchedule`], and page and bills ask the schedule.

mod bill;
mod charge;
mod json;
mod money;
mod month;
mod pricing;
mod rate;
mod schedule;
mod terms;

pub use bill::{Bill, BillGpu, BillLine, BillRate, BillTerms, Interval, LineRates, Reconciliation};
pub use charge::{Charge, ChargedSlot, charges};
pub use json::{print_money, print_time};
pub use money::{ExactMoney, MoneyOverflow, round_together};
pub use month::{Month, TenantBudget};
pub use pricing::{PricedSpan, SlotRates};
pub use rate::{EXAMPLE, PriceBook, PricedSlot, Rate, RateKind, RateSelector};
pub use schedule::{Dated, RateSchedule, Recorded, RecordedAt, Schedule};
pub use terms::{Basis, Terms, WHOLE_RATE};
