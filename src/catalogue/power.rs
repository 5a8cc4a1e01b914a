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
    scoped(
        "gpu_memory_power_watts",
        (Level::Full, Tier::Medium),
        "Power draw of the GPU's memory averaged by the driver over 1 s: a part of gpu_power_watts.",
        &[alone(&[of(185, MEMORY)])],
    ),
    scoped(
        "gpu_memory_power_instant_watts",
        (Level::Full, Tier::Fast),
        "Power draw of the GPU's memory at that moment: a part of gpu_power_instant_watts.",
        &[alone(&[of(186, MEMORY)])],
    ),
    scoped(
        "gpu_module_power_watts",
        (Level::Full, Tier::Medium),
        "Power draw of the module that the GPU shares with its Grace CPU, averaged by the driver over 1 s; each GPU reports the whole module's value; do not sum.",
        &[alone(&[of(185, MODULE)])],
    ),
    scoped(
        "gpu_module_power_instant_watts",
        (Level::Full, Tier::Fast),
        "Power draw of the module that the GPU shares with its Grace CPU at that moment; each GPU reports the whole module's value; do not sum.",
        &[alone(&[of(186, MODULE)])],
    ),
    Family {
        labels: LIMIT,
        ..scoped(
            "gpu_module_power_limit_watts",
            (Level::Full, Tier::Slow),
            "Power limits of the module that the GPU shares with its Grace CPU: enforced is the lowest limit that applies, requested is what was set, default, min and max are the module's.",
            &[
                Point { labels: &[("limit", "enforced")], sources: &[of(190, MODULE)] },
                Point { labels: &[("limit", "requested")], sources: &[of(192, MODULE)] },
                Point { labels: &[("limit", "default")], sources: &[of(189, MODULE)] },
                Point { labels: &[("limit", "min")], sources: &[of(187, MODULE)] },
                Point { labels: &[("limit", "max")], sources: &[of(188, MODULE)] },
            ],
        )
    },
    Family {
        name: "gpu_power_limit_watts",
        kind: Kind::Gauge,
        unit: Unit::Watts,
        help: "Power limits: enforced is the lowest limit that applies, requested is what was set, default, min and max are the board's.",
        labels: LIMIT,
        level: Level::Standard,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point {
                labels: &[("limit", "enforced")],
                sources: &[watts(190), call(CallValue::PowerLimitEnforced)],
            },
            Point {
                labels: &[("limit", "requested")],
                sources: &[watts(192), call(CallValue::PowerLimitRequested)],
            },
            Point {
                labels: &[("limit", "default")],
                sources: &[watts(189), call(CallValue::PowerLimitDefault)],
            },
            Point { labels: &[("limit", "min")], sources: &[watts(187), call(CallValue::PowerLimitMin)] },
            Point { labels: &[("limit", "max")], sources: &[watts(188), call(CallValue::PowerLimitMax)] },
        ]),
    },
    Family {
        name: "gpu_energy_joules_total",
        kind: Kind::Counter,
        unit: Unit::Joules,
        help: "Energy used since the driver was loaded, from the driver's own counter.",
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
                sources: &[degrees(CallValue::TemperatureVersioned), degrees(CallValue::Temperature)],
            },
            Point {
                labels: &[("sensor", "memory")],
                sources: &[Source::Field { id: 82, scope: 0, times: THOUSAND }],
            },
        ]),
    },
    Family {
        name: "gpu_temperature_limit_celsius",
        kind: Kind::Gauge,
        unit: Unit::Celsius,
        help: "Temperatures at which a limit acts, on boards that report them; boards that report only the distance to a limit have gpu_temperature_margin_celsius.",
        labels: LIMIT,
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Device(&[
            Point { labels: &[("limit", "shutdown")], sources: &[degrees(CallValue::Threshold(0))] },
            Point { labels: &[("limit", "slowdown")], sources: &[degrees(CallValue::Threshold(1))] },
            Point {
                labels: &[("limit", "memory_max_operating")],
                sources: &[degrees(CallValue::Threshold(2))],
            },
            Point { labels: &[("limit", "gpu_max_operating")], sources: &[degrees(CallValue::Threshold(3))] },
        ]),
    },
    // Not of the memory: the margin call speaks of the core, and no call or field tells how far the memory is from
    // its limit (195), which without that distance is a constant of the board.
    Family {
        name: "gpu_temperature_margin_celsius",
        kind: Kind::Gauge,
        unit: Unit::Celsius,
        help: "Distance of the core temperature to a limit; 0 or less means that the limit acts.",
        labels: LIMIT,
        level: Level::Standard,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point { labels: &[("limit", "shutdown")], sources: &[Source::Margin { limit: 193 }] },
            Point { labels: &[("limit", "slowdown")], sources: &[Source::Margin { limit: 194 }] },
            Point { labels: &[("limit", "gpu_max_operating")], sources: &[Source::Margin { limit: 196 }] },
        ]),
    },
    Family {
        name: "gpu_fan_speed_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Requested fan speed, as a share of the highest; absent on boards without a fan.",
        labels: &["gpu", "uuid", "fan"],
        level: Level::Standard,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            Point { labels: &[("fan", "0")], sources: &[fan(0)] },
            Point { labels: &[("fan", "1")], sources: &[fan(1)] },
            Point { labels: &[("fan", "2")], sources: &[fan(2)] },
            Point { labels: &[("fan", "3")], sources: &[fan(3)] },
        ]),
    },
];

const LIMIT: &[&str] = &["gpu", "uuid", "limit"];

/// The scopes of power beside the GPU's own: its module, GPU and CPU, and its memory.
const MODULE: u32 = 1;
const MEMORY: u32 = 2;

/// Milliwatts of a scope.
const fn of(id: u32, scope: u32) -> Source {
    Source::Field { id, scope, times: 1 }
}

const fn alone(sources: &'static [Source]) -> Point {
    Point { labels: &[], sources }
}

const fn scoped(
    name: &'static str,
    (level, tier): (Level, Tier),
    help: &'static str,
    points: &'static [Point],
) -> Family {
    let rows = Rows::Device(points);
    Family { name, kind: Kind::Gauge, unit: Unit::Watts, help, labels: GPU, level, tier, rows }
}

/// Milliwatts of a batched field.
const fn watts(id: u32) -> Source {
    Source::Field { id, scope: 0, times: 1 }
}

/// Milliwatts of a call.
const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

const fn degrees(value: CallValue) -> Source {
    Source::Call { value, times: THOUSAND }
}

/// Percent of a fan.
const fn fan(number: u32) -> Source {
    Source::Call { value: CallValue::Fan(number), times: 10_000_000 }
}
