//! Processes on GPUs, at level full.

use super::{Family, Kind, Level, ProcessPoint, ProcessValue, Rows};
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
        rows: Rows::Process(&[ProcessPoint { labels: &[], value: ProcessValue::Memory }]),
    },
    Family {
        name: "gpu_process_utilization_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of time in which the engine worked for the process, over the driver's samples of it since the last \
               look: sm a kernel of it, memory its reads and writes of device memory. Without a sample there is no \
               series; pid=\"other\" is the sum of the processes without a series of their own, at most 1.",
        labels: &["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant", "engine"],
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Process(&[
            ProcessPoint { labels: &[("engine", "sm")], value: ProcessValue::Sm },
            ProcessPoint { labels: &[("engine", "memory")], value: ProcessValue::MemoryActivity },
            ProcessPoint { labels: &[("engine", "encoder")], value: ProcessValue::Encoder },
            ProcessPoint { labels: &[("engine", "decoder")], value: ProcessValue::Decoder },
        ]),
    },
];
