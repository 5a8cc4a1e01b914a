//! Settles the spans of one window of one GPU into account rows: who held, who used, what was idle, and its energy.
//!
//! Its input is spans (the integrals of ticks), the carries and the weights of the window before. The parts of its rows sum
//! to the window. All arithmetic is in integers, so that every law of the account holds exactly. Holders are resolved
//! before; tenants and prices come later.

// The account must sum to the nanosecond, and floats would round.
#![deny(clippy::float_arithmetic)]

mod apportion;
mod carries;
mod check;
mod claims;
mod energy;
mod error;
mod evidence;
mod fallback;
mod gpu;
mod parts;
mod settle;
mod window;

pub use claims::{conflicts, granted_shares};
pub use error::SettleError;
pub use settle::settle;
pub use window::{WINDOW, split, window_end};

/// Name of the single slot of a GPU without MIG; a MIG instance is named by its id.
const SLOT: &str = "gpu";

/// Tree node of the split of a GPU among its slots, and the slot of energy of time that belongs to no slot.
const ROOT: &str = "root";
