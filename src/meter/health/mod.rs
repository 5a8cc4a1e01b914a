//! What is wrong with a GPU, and what to do: a table of rules, and a judge that applies it.
//!
//! In: [`HealthInputs`] (readings, each known or absent), XIDs and notices. Out: a [`crate::model::Verdict`] with its
//! reasons, what clears each, and since when each holds. A hardware fault stays until the GPU was reset.
//! [`kernel_line`] parses XID lines of the kernel's log. Pure: it knows no driver, clock or file, and repairs nothing.

mod inputs;
mod judge;
pub mod kernel_line;
mod rules;

pub use inputs::{HealthInput, HealthInputs, INPUT_SOURCES, Reachability};
pub use judge::{Judge, ReceivedEvents};
pub use rules::{ClearedBy, HealthCondition, RULES, Rule};
