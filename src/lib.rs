//! gpumeter: every GPU-second, joule and cent of a node's GPUs, accounted for exactly once.

pub mod accounting;
pub mod agent;
pub mod cli;
pub mod config;
pub mod driver;
pub mod holders;
pub mod meter;
pub mod model;
pub mod output;
pub mod runtime;
