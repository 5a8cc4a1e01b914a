//! Clocks, and what holds them down.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const MEGAHERTZ: i64 = 1_000_000;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_clock_hertz",
        kind: Kind::Gauge,
        unit: Unit::Hertz,
        help: "Current clock.",
        labels: &["gpu", "uuid", "clock"],
        level: Level::Standard,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point {
                labels: &[("clock", "sm")],
                sources: &[Source::Call { value: CallValue::ClockSm, times: MEGAHERTZ }],
            },
            Point {
                labels: &[("clock", "memory")],
                sources: &[Source::Call { value: CallValue::ClockMemory, times: MEGAHERTZ }],
            },
        ]),
    },
    Family {
        name: "gpu_throttle_active",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "1 while this reason holds the clocks down, else 0; idle and clock settings are no throttle.",
        labels: &["gpu", "uuid", "reason"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            reason(&[("reason", "sw_power_cap")], &[Source::Reason { bit: 0x4 }]),
            reason(&[("reason", "hw_slowdown")], &[Source::Reason { bit: 0x8 }]),
            reason(&[("reason", "sync_boost")], &[Source::Reason { bit: 0x10 }]),
            reason(&[("reason", "sw_thermal_slowdown")], &[Source::Reason { bit: 0x20 }]),
            reason(&[("reason", "hw_thermal_slowdown")], &[Source::Reason { bit: 0x40 }]),
            reason(&[("reason", "hw_power_brake")], &[Source::Reason { bit: 0x80 }]),
        ]),
    },
];

const fn reason(labels: &'static [(&'static str, &'static str)], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}
