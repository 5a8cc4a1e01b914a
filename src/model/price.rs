//! The price of a GPU-hour, and the labels of costs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Labels of a cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tariff {
    /// ISO 4217 code, or the operator's name for the unit.
    pub currency: Arc<str>,
    /// The price class: `on_demand`, `spot` or `committed`.
    pub class: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Price {
    pub tariff: Tariff,
    /// Nano-units of the currency per GPU-hour, at least 0; 63 bits allow 9.2e9 units.
    pub nano_per_gpu_hour: i64,
}
