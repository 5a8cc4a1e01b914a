//! Processes on GPUs: their number, and at level full the use of each.

use super::{Family, GpuRows, Level, ProcessValue, Rows, labelled};
use crate::model::Unit;

pub(super) const ROWS: &[Family] = &[
    Family::gauge("gpu_processes", Unit::None, "Processes that have a context on the GPU, those on its MIG instances included, as the driver last \
               listed them.", Rows::Gpu(GpuRows::Processes)).level(Level::Lean),
    Family::gauge("gpu_process_memory_bytes", Unit::Bytes, "Device memory that the process holds.", Rows::Process(&[labelled(&[], ProcessValue::Memory)])).labels(&["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant"]),
    Family::gauge("gpu_process_utilization_ratio", Unit::Ratio, "Share of time in which the engine worked for the process, over the driver's samples of it since the last \
               look: sm a kernel of it, memory its reads and writes of device memory. Without a sample there is no \
               series; pid=\"other\" is the sum of the processes without a series of their own, at most 1.", Rows::Process(&[
            labelled(&[("engine", "sm")], ProcessValue::Sm),
            labelled(&[("engine", "memory")], ProcessValue::MemoryActivity),
            labelled(&[("engine", "encoder")], ProcessValue::Encoder),
            labelled(&[("engine", "decoder")], ProcessValue::Decoder),
        ])).labels(&["gpu", "uuid", "gpu_instance", "pid", "process", "workload", "tenant", "engine"]),
];
