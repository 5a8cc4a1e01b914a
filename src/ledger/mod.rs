//! The durable account: what was settled, committed once and for good, in one SQLite file.
//!
//! In: batches of raw spans and settled windows, one transaction each. Out: what is acknowledged as
//! committed, the state to go on from after a restart, and bills. One [`Ledger`] owns a file and writes it
//! (the ledger thread); any number of [`Reader`]s bill from it; [`Queue`] stands between the pulse and the
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
mod cut;
mod error;
mod expected;
mod latch;
mod lock;
mod merge;
mod migration;
mod node;
mod owner;
mod place;
mod queue;
mod reader;
mod recover;
mod salvage;
mod schema;
mod settle;
mod state;
mod statement;
mod timeline;
mod write;
mod xids;

pub use batch::{Acknowledged, Batch, Closed, Open, Resumed, Sight, SlotTotal};
pub use bill::{Bill, GpuTotal, Interval, Line, Reconciliation};
pub use book::{Book, Price, Tariff};
pub use error::{Cause, Error};
pub use expected::{Expected, Listed, forget};
pub use latch::Latched;
pub use lock::unowned;
pub use migration::{Restored, restore};
pub use node::NodeIdentity;
pub use owner::{Ledger, Opening};
pub use queue::{Pressure, Queue};
pub use reader::Reader;
pub use recover::{Recovered, RecoveredGpu};
pub use salvage::Salvage;
pub use state::{Cost, Counter, CounterKey, TenantKey};
pub use statement::{Statement, StatementGpu, StatementLine, StatementPrice, StatementProof};
pub use timeline::{Anchor, Basis, Boot, Timeline};
pub use xids::{XidSum, XidSums};

use crate::model::Nanoseconds;

/// Rows cover whole minutes of account time; prices change and bills cut on that grid.
pub const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);
