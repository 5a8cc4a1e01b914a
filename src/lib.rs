//! gpumeter: every GPU-second, joule and cent of a node's GPUs, accounted for exactly once.

pub mod app;
pub mod attribution;
pub mod catalogue;
pub mod cli;
pub mod clock;
pub mod config;
pub mod docker;
pub mod export;
pub mod health;
pub mod holders;
pub mod host;
pub mod kubelet;
pub mod ledger;
pub mod meter;
pub mod model;
pub mod nvml;
pub mod push;
pub mod record;
pub mod serve;
pub mod tenants;
