//! Device memory: total = used + free + reserved; and the window through which the host reaches it.

use super::aliases::{dcgm, otel};
use super::source::{call, named, point};
use super::{CallValue, Family, Level, Point, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    bytes(
        "gpu_memory_total_bytes",
        Level::Lean,
        "Physical device memory; total = used + free + reserved.",
        TOTAL,
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_TOTAL").over(1 << 20), otel("hw.gpu.memory.limit", &[]).up_down()]),
    bytes(
        "gpu_memory_used_bytes",
        Level::Lean,
        "Device memory allocated by clients, without what the driver reserves (drivers before \
         510 include the reserved memory here and do not report it).",
        USED,
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_USED").over(1 << 20), otel("hw.gpu.memory.usage", &[]).up_down()]),
    bytes("gpu_memory_free_bytes", Level::Standard, "Device memory that can still be allocated.", FREE)
        .aliases(&[dcgm("DCGM_FI_DEV_FB_FREE").over(1 << 20)]),
    bytes(
        "gpu_memory_reserved_bytes",
        Level::Standard,
        "Device memory that driver and firmware reserve.",
        RESERVED,
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_RESERVED").over(1 << 20)]),
    bytes(
        "gpu_bar1_total_bytes",
        Level::Full,
        "Size of the PCIe window (BAR1) through which the host and other devices reach the GPU's \
         memory.",
        BAR1_TOTAL,
    )
    .aliases(&[dcgm("DCGM_FI_DEV_BAR1_TOTAL").over(1 << 20)]),
    bytes("gpu_bar1_used_bytes", Level::Full, "Part of the PCIe window (BAR1) that is mapped.", BAR1_USED)
        .aliases(&[dcgm("DCGM_FI_DEV_BAR1_USED").over(1 << 20)]),
];

const TOTAL: &[Point] = &[point(&[], &[call(CallValue::MemoryTotal)])];
const USED: &[Point] = &[point(&[], &[call(CallValue::MemoryUsed)])];
const FREE: &[Point] = &[point(&[], &[call(CallValue::MemoryFree)])];
const RESERVED: &[Point] = &[point(&[], &[call(CallValue::MemoryReserved)])];
const BAR1_TOTAL: &[Point] = &[point(&[], &[named("nvmlDeviceGetBAR1MemoryInfo", 0)])];
const BAR1_USED: &[Point] = &[point(&[], &[named("nvmlDeviceGetBAR1MemoryInfo", 1)])];

const fn bytes(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family::gauge(name, Unit::Bytes, help, Rows::Device(points))
        .level(level)
        .tier(Tier::Medium)
        .unsupported(NO_MEMORY)
}

const NO_MEMORY: &str = "a GPU that shares the host's memory has none of its own; see the host's";
