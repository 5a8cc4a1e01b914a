//! What the board did, or asks for, to repair itself: remapped rows, retired pages, the recovery action.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const GPU: &[&str] = &["gpu", "uuid"];
const CAUSE: &[&str] = &["gpu", "uuid", "cause"];

pub(super) const ROWS: &[Family] = &[
    slow(
        "gpu_remapped_rows",
        CAUSE,
        Level::Standard,
        "Memory rows replaced by spare rows, by the kind of error that caused it; a state of the board, whose spare rows are limited, and therefore a gauge, although it never decreases.",
        &[
            point(&[("cause", "correctable")], &[field(142), call(CallValue::RemappedCorrectable)]),
            point(&[("cause", "uncorrectable")], &[field(143), call(CallValue::RemappedUncorrectable)]),
        ],
    ),
    slow(
        "gpu_row_remap_pending",
        GPU,
        Level::Lean,
        "1 while a memory row waits for the next reset to be replaced, else 0.",
        &[point(&[], &[field(144), call(CallValue::RemapPending)])],
    ),
    slow(
        "gpu_row_remap_failure",
        GPU,
        Level::Lean,
        "1 when a memory row could not be replaced, so that the board must be replaced, else 0.",
        &[point(&[], &[field(145), call(CallValue::RemapFailure)])],
    ),
    slow(
        "gpu_row_remap_banks",
        &["gpu", "uuid", "availability"],
        Level::Full,
        "Number of memory banks, by how many of their spare rows are left.",
        &[
            point(&[("availability", "max")], &[call(CallValue::BanksMax)]),
            point(&[("availability", "high")], &[call(CallValue::BanksHigh)]),
            point(&[("availability", "partial")], &[call(CallValue::BanksPartial)]),
            point(&[("availability", "low")], &[call(CallValue::BanksLow)]),
            point(&[("availability", "none")], &[call(CallValue::BanksNone)]),
        ],
    ),
    slow(
        "gpu_retired_pages",
        CAUSE,
        Level::Standard,
        "Retired memory pages, on boards before Ampere; a state of the board and therefore a gauge, although it never decreases; correctable: after several single-bit errors, uncorrectable: after a double-bit error.",
        &[
            point(&[("cause", "correctable")], &[field(29)]),
            point(&[("cause", "uncorrectable")], &[field(30)]),
        ],
    ),
    slow(
        "gpu_retired_pages_pending",
        GPU,
        Level::Lean,
        "1 while a memory page waits for the next restart to be retired, else 0; on boards before Ampere.",
        &[point(&[], &[field(31), call(CallValue::RetiredPending)])],
    ),
    Family {
        name: "gpu_recovery_action",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; the action that the driver asks for before the GPU is used again.",
        labels: &["gpu", "uuid", "action"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::State(&[
            point(&[("action", "none")], &[action(0)]),
            point(&[("action", "reset_gpu")], &[action(1)]),
            point(&[("action", "reboot_node")], &[action(2)]),
            point(&[("action", "drain_p2p")], &[action(3)]),
            point(&[("action", "drain_and_reset_gpu")], &[action(4)]),
        ]),
    },
];

/// One of the driver's recovery actions, by its number.
const fn action(value: i64) -> Source {
    Source::Is { id: 230, value }
}

const fn field(id: u32) -> Source {
    Source::Field { id, scope: 0, times: 1 }
}

const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

const fn point(labels: &'static [(&'static str, &'static str)], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}

const fn slow(
    name: &'static str,
    labels: &'static [&'static str],
    level: Level,
    help: &'static str,
    points: &'static [Point],
) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: Unit::None,
        help,
        labels,
        level,
        tier: Tier::Slow,
        rows: Rows::Device(points),
    }
}
