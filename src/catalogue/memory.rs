//! Device memory: total = used + free + reserved; and the window through which the host reaches it.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    bytes(
        "gpu_memory_total_bytes",
        Level::Lean,
        "Physical device memory; total = used + free + reserved.",
        TOTAL,
    ),
    bytes(
        "gpu_memory_used_bytes",
        Level::Lean,
        "Device memory allocated by clients, without what the driver reserves (drivers before 510 include the reserved memory here and do not report it).",
        USED,
    ),
    bytes("gpu_memory_free_bytes", Level::Standard, "Device memory that can still be allocated.", FREE),
    bytes(
        "gpu_memory_reserved_bytes",
        Level::Standard,
        "Device memory that driver and firmware reserve.",
        RESERVED,
    ),
    bytes(
        "gpu_bar1_total_bytes",
        Level::Full,
        "Size of the PCIe window (BAR1) through which the host and other devices reach the GPU's memory.",
        BAR1_TOTAL,
    ),
    bytes("gpu_bar1_used_bytes", Level::Full, "Part of the PCIe window (BAR1) that is mapped.", BAR1_USED),
];

const TOTAL: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryTotal, times: 1 }])];
const USED: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryUsed, times: 1 }])];
const FREE: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryFree, times: 1 }])];
const RESERVED: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryReserved, times: 1 }])];
const BAR1_TOTAL: &[Point] = &[value(&[Source::Call { value: CallValue::Bar1Total, times: 1 }])];
const BAR1_USED: &[Point] = &[value(&[Source::Call { value: CallValue::Bar1Used, times: 1 }])];

const fn value(sources: &'static [Source]) -> Point {
    Point { labels: &[], sources }
}

const fn bytes(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help,
        labels: &["gpu", "uuid"],
        level,
        tier: Tier::Medium,
        rows: Rows::Device(points),
    }
}
