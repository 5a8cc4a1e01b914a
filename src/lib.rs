//! gpumeter: every GPU-second, joule and cent of a node's GPUs, accounted for exactly once.

pub mod attribution;
pub mod catalogue;
pub mod export;
pub mod ledger;
pub mod model;
