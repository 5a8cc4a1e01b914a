//! What the tick loop and the ledger tell each other of the account: batches, acknowledgements, counters, the state after a
//! restart, and the account's time axis. There is no I/O here; `meter` needs no database, and `ledger` stores these types.

mod batch;
mod counters;
mod faults;
mod month;
mod recovered;
mod timeline;

pub use batch::{
    Acknowledged, ClosedWindow, Expected, GpuRegistration, LedgerBatch, OpenSpans, Resumed, SlotTotal,
};
pub use counters::{AccruedCost, CounterKey, HolderCounter, TenantKey};
pub use faults::{OpenIncidents, SeenXids, StickyFaults, XidSum, XidSums};
pub use month::MonthCosts;
pub use recovered::{Recovered, RecoveredGpu, RecoveredShare};
pub use timeline::{AccountTimeline, Boot};
