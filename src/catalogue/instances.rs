//! MIG instances: their own families, so that no sum doubles.
//!
//! The driver tells memory and activity per GPU instance, so its compute instances have no series of their own.

use super::{Family, InstanceValue, Kind, Level, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

const INSTANCE: &[&str] = &["gpu", "uuid", "gpu_instance"];

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_mig_memory_total_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Memory of the GPU instance, which its compute instances share.",
        labels: INSTANCE,
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Instance(InstanceValue::MemoryTotal),
    },
    Family {
        name: "gpu_mig_memory_used_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Memory used in the GPU instance by all its compute instances.",
        labels: INSTANCE,
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Instance(InstanceValue::MemoryUsed),
    },
    Family {
        name: "gpu_mig_gr_engine_active_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of time in which the GPU instance's graphics or compute engine was active (GPM).",
        labels: INSTANCE,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Instance(InstanceValue::GrEngineActive),
    },
];
