//! Settles a window of one GPU's raw integrals into rows: who held, who used, what lay idle and what it drew.
//!
//! In go contiguous spans (raw integrals of ticks), the carries and the weights of the window before. Out
//! come rows whose parts sum to the window, and the next carries. Pure integers, from the tick to the row, so
//! that every law of the account holds exactly; the text it follows is the account's model, section 3. It
//! knows no clock, file, driver, tenant or price list; which holder is who was decided before.

// The account must sum to the nanosecond; a float would round where nobody looks.
#![deny(clippy::float_arithmetic)]

mod apportion;
mod carries;
mod check;
mod claims;
mod energy;
mod error;
mod fallback;
mod gpu;
mod held;
mod money;
mod parts;
mod quota;
mod rows;
mod segment;
mod settle;
mod shares;
mod used;
mod window;

pub use claims::granted_shares;
pub use error::SettleError;
pub use gpu::{GpuEnergy, GpuSegment, GpuSettlement, SlotEnergy, SlotSettlement, UserShare, settle_gpu};
pub use money::{ChargedTimes, HeldParts, charged_times, money, split_money};
pub use settle::settle;
pub use window::{WINDOW, split, window_end};

/// The one slot of a GPU without MIG, and the root of its tree nodes; a MIG instance brings its own name.
const SLOT: &str = "gpu";

/// The tree node of the split of a GPU among its slots, and the place of energy of time without a slot.
const ROOT: &str = "root";
