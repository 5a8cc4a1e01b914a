//! Power, energy and heat.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const GPU: &[&str] = &["gpu", "uuid"];

/// The driver's millijoules to microjoules, and its degrees to thousandths.
const THOUSAND: i64 = 1_000;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_power_watts",
        kind: Kind::Gauge,
        unit: Unit::Watts,
        help: "Power draw averaged by the driver over 1 s (on boards before Ampere and on GA100: at that moment).",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[
                Source::Field { id: 185, scope: 0, times: 1 },
                Source::Call { value: CallValue::PowerUsage, times: 1 },
            ],
        }]),
    },
    Family {
        name: "gpu_power_instant_watts",
        kind: Kind::Gauge,
        unit: Unit::Watts,
        help: "Power draw at that moment.",
        labels: GPU,
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[Source::Field { id: 186, scope: 0, times: 1 }],
        }]),
    },
    Family {
        name: "gpu_power_limit_watts",
        kind: Kind::Gauge,
        unit: Unit::Watts,
        help: "Power limits; enforced is the least of all that apply.",
        labels: &["gpu", "uuid", "limit"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[Point {
            labels: &[("limit", "enforced")],
            sources: &[Source::Call { value: CallValue::PowerLimitEnforced, times: 1 }],
        }]),
    },
    Family {
        name: "gpu_energy_joules_total",
        kind: Kind::Counter,
        unit: Unit::Joules,
        help: "Energy since the driver was loaded, by the driver's own counter.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[
                Source::Field { id: 83, scope: 0, times: THOUSAND },
                Source::Call { value: CallValue::Energy, times: THOUSAND },
            ],
        }]),
    },
    Family {
        name: "gpu_temperature_celsius",
        kind: Kind::Gauge,
        unit: Unit::Celsius,
        help: "Temperature of the GPU core and, on boards with a sensor there, of its memory.",
        labels: &["gpu", "uuid", "sensor"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point {
                labels: &[("sensor", "gpu")],
                sources: &[Source::Call { value: CallValue::Temperature, times: THOUSAND }],
            },
            Point {
                labels: &[("sensor", "memory")],
                sources: &[Source::Field { id: 82, scope: 0, times: THOUSAND }],
            },
        ]),
    },
    Family {
        name: "gpu_temperature_margin_celsius",
        kind: Kind::Gauge,
        unit: Unit::Celsius,
        help: "Distance of the core temperature to a limit; 0 or less means that the limit acts.",
        labels: &["gpu", "uuid", "limit"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point { labels: &[("limit", "shutdown")], sources: &[Source::Margin { limit: 193 }] },
            Point { labels: &[("limit", "slowdown")], sources: &[Source::Margin { limit: 194 }] },
            Point { labels: &[("limit", "gpu_max_operating")], sources: &[Source::Margin { limit: 196 }] },
        ]),
    },
];
