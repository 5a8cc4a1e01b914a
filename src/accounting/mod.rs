//! The account: whose GPU time is it, what does it cost, where is it kept.
//!
//! Comes in: settled rows, prices, rules and terms. Goes out: bills, jobs, statements, FOCUS, day files.
//! Does not know: the driver, processes, the network. Money and time are integers; no float occurs in the ledger.
//!
//! - [`tenants`]: maps a holder's facts to a tenant.
//! - [`billing`]: pure: rates, exact money, bills, statements, FOCUS.
//! - [`advice`]: pure: what tenants may change to spend less.
//! - [`planning`]: pure: whether workloads would have fitted together, and when GPUs are wanted.
//! - [`batches`]: what `meter` and `ledger` exchange: batches, counters, time axis.
//! - [`ledger`]: the account in SQLite: prices, bills, retention, migrations.
//! - [`day_files`]: Parquet files of closed days, and bills over many ledgers.

pub mod advice;
pub mod batches;
pub mod billing;
pub mod day_files;
pub mod ledger;
pub mod planning;
pub mod tenants;
