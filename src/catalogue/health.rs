//! What is judged of a GPU.

use super::{Family, IdentityValue, Kind, Level, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[Family {
    name: "gpu_health",
    kind: Kind::Gauge,
    unit: Unit::None,
    help: "Always 1; the GPU's state: ok, degraded, unknown or failed. /api/v1/health says why and what to do.",
    labels: &["gpu", "uuid", "state"],
    level: Level::Lean,
    tier: Tier::Fast,
    rows: Rows::Identity(IdentityValue::Health),
}];
