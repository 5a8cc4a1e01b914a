//! Exports of the account: a Parquet file per ledger and day, and bills over a directory of them.
//!
//! The ledger makes the rows of a day ([`crate::accounting::billing::DayAccount`]), which are lines of a bill of one quarter hour each,
//! tenants and money included. So a bill over a directory is their sum. Any engine that reads Parquet can make the same sums.

mod advice;
mod cache;
mod columns;
mod control;
mod day_bytes;
mod day_file;
mod day_walk;
mod directory;
mod error;
mod evidence_file;
mod expected;
mod fleet;
mod lines;
mod money_check;
mod pages;
mod parquet_column;
mod planning;
mod quarters;
mod reasons;
mod shared_gpus;
mod tree;
mod writer;

pub use advice::{make_advice, make_advice_for_readers};
pub use cache::{CacheError, CostCache, CostCacheReader, LookScope, Looked, cache_name};
pub use day_bytes::write_day;
pub use day_file::DayFile;
pub use directory::{DayPath, ExportDirectory, write_file};
pub use error::{ExportError, FileProblem};
pub use evidence_file::{read_evidence, write_evidence};
pub use expected::{ExpectedNode, read_expected};
pub use fleet::{ExportSource, make_bills, make_bills_unless};
pub use parquet_column::{ParquetCell, write_parquet};
pub use planning::{make_demand, make_fit};
pub use writer::write_days;
