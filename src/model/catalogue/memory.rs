//! Device memory (total = used + free + reserved), and the window through which the host reaches it.

use super::GpuRows::Read;
use super::Rows::Gpu;
use super::aliases::{HW_GPU, dcgm, otel};
use super::source::{MEMORY, named, point};
use super::{Family, Level, Point};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    bytes(
        "gpu_memory_total_bytes",
        Level::Lean,
        "Physical device memory; total = used + free + reserved. Of a GPU that shares the host's \
         memory, all of that.",
        &[point(&[], &[named(MEMORY, 0)])],
    )
    .source_from(Level::Full)
    .aliases(&[dcgm("DCGM_FI_DEV_FB_TOTAL").over(1 << 20), otel("hw.gpu.memory.limit", &[HW_GPU])]),
    bytes(
        "gpu_memory_used_bytes",
        Level::Lean,
        "Device memory allocated by clients, without what the driver reserves (drivers before \
         510 include the reserved memory here and do not report it). Of a GPU that shares the \
         host's memory, the sum over its processes.",
        &[point(&[], &[named(MEMORY, 1)])],
    )
    .source_from(Level::Full)
    .aliases(&[dcgm("DCGM_FI_DEV_FB_USED").over(1 << 20), otel("hw.gpu.memory.usage", &[HW_GPU])]),
    bytes(
        "gpu_memory_free_bytes",
        Level::Standard,
        "Device memory that can still be allocated; of a GPU that shares the host's memory, what \
         the host still has.",
        &[point(&[], &[named(MEMORY, 2)])],
    )
    .source_from(Level::Full)
    .aliases(&[dcgm("DCGM_FI_DEV_FB_FREE").over(1 << 20)]),
    bytes(
        "gpu_memory_reserved_bytes",
        Level::Standard,
        "Device memory that driver and firmware reserve; of a GPU that shares the host's memory, \
         what programs outside of the GPU hold.",
        &[point(&[], &[named(MEMORY, 3)])],
    )
    .source_from(Level::Full)
    .aliases(&[dcgm("DCGM_FI_DEV_FB_RESERVED").over(1 << 20)]),
    bytes(
        "gpu_bar1_total_bytes",
        Level::Full,
        "Size of the PCIe window (BAR1) through which the host and other devices reach the GPU's \
         memory.",
        &[point(&[], &[named("nvmlDeviceGetBAR1MemoryInfo", 0)])],
    )
    .unsupported(NO_WINDOW)
    .aliases(&[dcgm("DCGM_FI_DEV_BAR1_TOTAL").over(1 << 20)]),
    bytes(
        "gpu_bar1_used_bytes",
        Level::Full,
        "Part of the PCIe window (BAR1) that is mapped.",
        &[point(&[], &[named("nvmlDeviceGetBAR1MemoryInfo", 1)])],
    )
    .unsupported(NO_WINDOW)
    .aliases(&[dcgm("DCGM_FI_DEV_BAR1_USED").over(1 << 20)]),
];

const fn bytes(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family::gauge(name, Unit::Bytes, help, Gpu(Read(points))).level(level).tier(Tier::Medium)
}

const NO_WINDOW: &str = "a GPU that shares the host's memory needs no window to it";
