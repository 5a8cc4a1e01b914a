//! Device memory: total = used + free + reserved.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    bytes("gpu_memory_total_bytes", "Physical device memory; total = used + free + reserved.", TOTAL),
    bytes(
        "gpu_memory_used_bytes",
        "Device memory allocated by clients, without what the driver reserves.",
        USED,
    ),
    bytes("gpu_memory_free_bytes", "Device memory that can still be allocated.", FREE),
    bytes(
        "gpu_memory_reserved_bytes",
        "Device memory that driver and firmware keep for themselves.",
        RESERVED,
    ),
];

const TOTAL: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryTotal, times: 1 }])];
const USED: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryUsed, times: 1 }])];
const FREE: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryFree, times: 1 }])];
const RESERVED: &[Point] = &[value(&[Source::Call { value: CallValue::MemoryReserved, times: 1 }])];

const fn value(sources: &'static [Source]) -> Point {
    Point { labels: &[], sources }
}

const fn bytes(name: &'static str, help: &'static str, points: &'static [Point]) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help,
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(points),
    }
}
