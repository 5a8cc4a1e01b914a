//! The durable account: settled windows, counters, prices and bills in one SQLite file.
//!
//! One [`Ledger`] owns the file and writes it, in one transaction per batch, on the ledger thread. Any number of
//! [`Reader`]s make bills from it. [`LedgerQueue`] stands between the tick loop, which never waits, and the ledger thread.
//! The tables are documented in `schema.sql`. Times are passed in, and settling is the job of `attribution`.

mod advice;
mod amounts;
mod billing;
mod close;
mod column;
mod commit;
mod compact;
mod costs;
mod counters;
mod day;
mod error;
mod evidence;
mod expected;
mod explain;
mod files;
mod history;
mod identity;
mod incidents;
mod merge;
mod migration;
mod minutes;
mod month;
mod node;
mod owner;
mod partial_commit;
mod planning;
mod queue;
mod reader;
mod recover;
mod retention;
mod rolled;
mod schema;
mod snapshot;
mod state;
mod statements;
mod sticky_faults;
mod timeline;
mod write;
mod xids;

pub use close::{ClosedBill, close_period};
pub use compact::compact;
pub use error::{Cause, Error};
pub use expected::{InventoryRow, forget};
pub use files::{check_not_emptied, check_unowned};
pub use migration::restore;
pub use owner::{Ledger, Opening};
pub use partial_commit::PartialCommit;
pub use queue::{LedgerQueue, Pressure};
pub use reader::Reader;
pub use retention::Retention;
pub use snapshot::snapshot;
pub use statements::{
    ClosedPeriod, PendingOrder, RecordProblem, RecordedDocument, RecordedDocuments, StatementOrder,
    record_statement,
};

use crate::model::MINUTE;
