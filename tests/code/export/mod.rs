//! The encoders and their expected output.

mod allocations;
pub(crate) mod fixture;
mod levels;
mod otlp;
mod parse;
mod properties;
mod record;
