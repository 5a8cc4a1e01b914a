//! Pure: a bill as rows of the "Cost and Usage" dataset of FOCUS 1.3.
//!
//! A row is what a holder is charged for time, or for energy, on one slot, on one local day and under one rate. Unit price ×
//! quantity is the cost exactly, and the rows sum to the exact total of the bill, in each column of costs.

mod columns;
mod decimal;
mod rows;

pub use columns::{COLUMNS, FOCUS_VERSION, FocusColumn, FocusType, FocusValue};
pub use rows::{FocusError, FocusRow, RowKind, focus_rows};
