//! Processes on GPUs, at level full.

use super::{Family, ProcessPoint, ProcessValue, Rows};
use crate::model::Unit;

pub(super) const ROWS: &[Family] = &[
    Family::gauge("gpu_process_memory_bytes", Unit::Bytes, "Device memory that the process holds.", Rows::Process(&[ProcessPoint { labels: &[], value: ProcessValue::Memory }])).labels(&["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant"]),
    Family::gauge("gpu_process_utilization_ratio", Unit::Ratio, "Share of time in which the engine worked for the process, over the driver's samples of it since the last \
               look: sm a kernel of it, memory its reads and writes of device memory. Without a sample there is no \
               series; pid=\"other\" is the sum of the processes without a series of their own, at most 1.", Rows::Process(&[
            ProcessPoint { labels: &[("engine", "sm")], value: ProcessValue::Sm },
            ProcessPoint { labels: &[("engine", "memory")], value: ProcessValue::MemoryActivity },
            ProcessPoint { labels: &[("engine", "encoder")], value: ProcessValue::Encoder },
            ProcessPoint { labels: &[("engine", "decoder")], value: ProcessValue::Decoder },
        ])).labels(&["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant", "engine"]),
];
