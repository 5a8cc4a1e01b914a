//! What is wrong with a GPU, and what to do: a table of rules, and a judge that applies it.
//!
//! In go [`HealthInputs`] (readings by what they tell, each known or not), XIDs and notices; out comes a
//! [`crate::model::Verdict`] with its reasons, what clears each, and since when it holds. A hardware verdict
//! stays until the GPU was reset. [`kernel_line`] reads what the driver writes into the kernel's log.
//! Pure: it knows no driver, no clock and no file, and does nothing about what it finds.

mod inputs;
mod judge;
pub mod kernel_line;
mod rules;

pub use inputs::{HealthInput, HealthInputs, INPUT_SOURCES, Reachability};
pub use judge::{Judge, ReceivedEvents};
pub use rules::{ClearedBy, Condition, RULES, Rule};
