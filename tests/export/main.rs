//! The encoders, each against what it must print.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

mod fixture;
mod golden;
mod levels;
mod otlp;
mod parse;
mod properties;
mod record;
