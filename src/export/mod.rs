//! Encoders: a sealed snapshot to Prometheus text 0.0.4, OpenMetrics 1.0, OTLP protobuf and JSON.
//!
//! In goes a [`crate::model::snapshot::Snapshot`], out come bytes; everything here is pure. All formats are
//! sinks of one [`walk`], so they cannot differ in which series there are, in what order, with which labels.
//! What is rendered of labels and heads is kept for as long as the roster stays the same `Arc`, so that a
//! warm render copies it, writes the number, and allocates nothing.
//! It knows no socket, no clock and no driver, and not why a value is absent.

mod decimal;
mod escape;
mod float;
mod health;
mod json;
mod layout;
mod openmetrics;
mod otlp;
mod page;
mod pieces;
mod press;
mod render;
mod sealed;
mod text;
mod variant;
mod walk;

pub use health::{Release, health};
pub use json::{json, json_of};
pub use otlp::{OtlpEncoder, native_name, native_unit};
pub use page::Page;
pub use press::Press;
pub use sealed::{Latest, Sealed};
pub use variant::Variant;
pub use walk::{Labels, Sample, Sink, Value, walk};
