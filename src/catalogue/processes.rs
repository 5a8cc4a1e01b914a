//! Processes on GPUs, at level full.

use super::{Family, Kind, Level, ProcessValue, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_process_memory_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Device memory that the process holds.",
        labels: &["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant"],
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Process(ProcessValue::Memory),
    },
    Family {
        name: "gpu_process_utilization_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window in which a kernel of the process ran.",
        labels: &["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant"],
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Process(ProcessValue::SmUtilization),
    },
];
