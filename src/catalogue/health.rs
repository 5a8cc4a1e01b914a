//! What is judged of a GPU.

use super::aliases::{HW_GPU, otel};
use super::{Family, IdentityValue, Level, Rows};
use crate::model::Unit;

pub(super) const ROWS: &[Family] = &[Family::gauge(
    "gpu_health",
    Unit::None,
    "Always 1; the GPU's state: ok, degraded, unknown or failed. /api/v1/health says why and \
         what to do.",
    Rows::Identity(IdentityValue::Health),
)
.labels(&["gpu", "uuid", "state"])
.level(Level::Lean)
.values(&[("state", &["ok", "degraded", "unknown", "failed"])])
.aliases(&[otel("hw.status", &[HW_GPU, ("hw.state", "=state")]).up_down()])];
