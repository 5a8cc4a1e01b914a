//! The encoders and their expected output.

mod allocations;
mod dcgm;
pub(crate) mod fixture;
mod levels;
mod otlp;
mod parse;
mod properties;
mod record;
mod summary;
