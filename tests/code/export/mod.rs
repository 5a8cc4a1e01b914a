//! The encoders, each against what it must print.

mod allocations;
pub(crate) mod fixture;
mod levels;
mod otlp;
mod parse;
mod properties;
mod record;
