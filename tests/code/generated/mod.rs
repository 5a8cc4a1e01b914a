//! Generated files: each is the output of a function of the library, and compared with it here.
//!
//! `UPDATE=1 cargo test generated` writes them; `docs/names.txt` is only ever added to.

mod alerts;
mod autoscaling;
pub(crate) mod check;
mod config;
mod dashboards;
mod events;
mod exports;
mod kubernetes;
mod metrics;
mod names;
mod pages;
