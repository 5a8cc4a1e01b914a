//! The durable account: what was settled, committed once and for good, in one SQLite file.
//!
//! In: batches of raw spans and settled windows, one transaction each. Out: what is acknowledged as
//! committed, the state to go on from after a restart, and bills. One [`Ledger`] owns a file and writes it
//! (the ledger thread); any number of [`Reader`]s bill from it; [`Queue`] stands between the tick loop and the
//! ledger thread. The tables are documented in `schema/`.
//!
//! It knows no driver, no HTTP and no clock (times come in), starts no thread, and splits nothing but
//! money: how a window is settled is the business of `attribution`.

mod access;
mod amounts;
mod batch;
mod bill;
mod billing;
mod book;
mod column;
mod commit;
mod counters;
mod error;
mod expected;
mod filesystem;
mod lock;
mod merge;
mod migration;
mod minutes;
mod node;
mod owner;
mod partial_commit;
mod queue;
mod reader;
mod recover;
mod schema;
mod settle;
mod state;
mod statement;
mod sticky_faults;
mod timeline;
mod write;
mod xids;

pub use batch::{Acknowledged, ClosedWindow, GpuRegistration, LedgerBatch, OpenSpans, Resumed, SlotTotal};
pub use bill::{BillLine, GpuTotal, Interval, LedgerBill, Reconciliation};
pub use book::{Price, PriceBook, Tariff};
pub use error::{Cause, Error};
pub use expected::{Expected, InventoryRow, forget};
pub use lock::check_unowned;
pub use migration::{Restored, restore};
pub use node::NodeIdentity;
pub use owner::{Ledger, Opening};
pub use partial_commit::PartialCommit;
pub use queue::{LedgerQueue, Pressure};
pub use reader::Reader;
pub use recover::{Recovered, RecoveredGpu};
pub use state::{AccruedCost, CounterKey, HolderCounter, TenantKey};
pub use statement::{Statement, StatementGpu, StatementLine, StatementPrice, StatementProof};
pub use sticky_faults::StickyFaults;
pub use timeline::{AccountTimeline, Anchor, Basis, Boot};
pub use xids::{XidSum, XidSums};

use crate::model::Nanoseconds;

/// Rows cover whole minutes of account time; prices change and bills cut on that grid.
pub const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);
