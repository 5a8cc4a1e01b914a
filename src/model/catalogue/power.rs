//! Power, energy and heat.

use super::GpuRows::Read;
use super::Rows::Gpu;
use super::aliases::{HW_GPU, dcgm, otel};
use super::family::ADA;
use super::source::{FAN, THRESHOLD, field, named, point};
use super::{CallValue, Family, Level, Point, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

/// The driver's millijoules to microjoules, and its degrees to thousandths.
const THOUSAND: i64 = 1_000;

pub(super) const ROWS: &[Family] = &[
    Family::gauge(
        "gpu_power_watts",
        Unit::Watts,
        "Power draw averaged by the driver over 1 s (on boards before Ampere and on GA100: at \
         that moment).",
        Gpu(Read(&[point(&[], &[field(185), named("nvmlDeviceGetPowerUsage", 0)])])),
    )
    .level(Level::Lean)
    .read_for_account()
    .source_from(Level::Standard)
    .aliases(&[dcgm("DCGM_FI_DEV_POWER_USAGE"), otel("hw.power", &[HW_GPU])]),
    Family::gauge(
        "gpu_power_instant_watts",
        Unit::Watts,
        "Power draw at that moment.",
        Gpu(Read(&[point(&[], &[field(186)])])),
    )
    .level(Level::Standard)
    .unsupported("this board tells one power only: gpu_power_watts")
    .aliases(&[dcgm("DCGM_FI_DEV_POWER_USAGE_INSTANT")]),
    scoped(
        "gpu_memory_power_watts",
        Level::Full,
        Tier::Medium,
        "Power draw of the GPU's memory averaged by the driver over 1 s: a part of \
         gpu_power_watts.",
        &[point(&[], &[of(185, MEMORY)])],
    ),
    scoped(
        "gpu_memory_power_instant_watts",
        Level::Full,
        Tier::Fast,
        "Power draw of the GPU's memory at that moment: a part of gpu_power_instant_watts.",
        &[point(&[], &[of(186, MEMORY)])],
    ),
    scoped(
        "gpu_module_power_watts",
        Level::Full,
        Tier::Medium,
        "Power draw of the module that the GPU shares with its Grace CPU, averaged by the driver \
         over 1 s; each GPU reports the whole module's value; do not sum.",
        &[point(&[], &[of(185, MODULE)])],
    )
    .unsupported(NO_GRACE),
    scoped(
        "gpu_module_power_instant_watts",
        Level::Full,
        Tier::Fast,
        "Power draw of the module that the GPU shares with its Grace CPU at that moment; each \
         GPU reports the whole module's value; do not sum.",
        &[point(&[], &[of(186, MODULE)])],
    )
    .unsupported(NO_GRACE),
    scoped(
        "gpu_module_power_limit_watts",
        Level::Full,
        Tier::Slow,
        "Power limits of the module that the GPU shares with its Grace CPU: enforced is the \
         lowest limit that applies, requested is what was set, default, min and max are the \
         module's.",
        &[
            point(&[("limit", "enforced")], &[of(190, MODULE)]),
            point(&[("limit", "requested")], &[of(192, MODULE)]),
            point(&[("limit", "default")], &[of(189, MODULE)]),
            point(&[("limit", "min")], &[of(187, MODULE)]),
            point(&[("limit", "max")], &[of(188, MODULE)]),
        ],
    )
    .labels(LIMIT)
    .unsupported(NO_GRACE),
    Family::gauge(
        "gpu_power_limit_watts",
        Unit::Watts,
        "Power limits: enforced is the lowest limit that applies, requested is what was set, \
         default, min and max are the board's.",
        Gpu(Read(&[
            point(&[("limit", "enforced")], &[field(190), named("nvmlDeviceGetEnforcedPowerLimit", 0)]),
            point(&[("limit", "requested")], &[field(192), named("nvmlDeviceGetPowerManagementLimit", 0)]),
            point(
                &[("limit", "default")],
                &[field(189), named("nvmlDeviceGetPowerManagementDefaultLimit", 0)],
            ),
            point(
                &[("limit", "min")],
                &[field(187), named("nvmlDeviceGetPowerManagementLimitConstraints", 0)],
            ),
            point(
                &[("limit", "max")],
                &[field(188), named("nvmlDeviceGetPowerManagementLimitConstraints", 1)],
            ),
        ])),
    )
    .labels(LIMIT)
    .level(Level::Standard)
    .tier(Tier::Medium)
    .aliases(&[
        dcgm("DCGM_FI_DEV_ENFORCED_POWER_LIMIT").when(&[("limit", "enforced")]),
        dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT").when(&[("limit", "requested")]),
        dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF").when(&[("limit", "default")]),
        dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN").when(&[("limit", "min")]),
        dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX").when(&[("limit", "max")]),
    ]),
    Family::counter(
        "gpu_energy_joules_total",
        Unit::Joules,
        "Energy used since the driver was loaded, from the driver's own counter.",
        Gpu(Read(&[point(
            &[],
            &[
                Source::Field { id: 83, scope: 0, times: THOUSAND },
                Source::Call {
                    value: CallValue::of("nvmlDeviceGetTotalEnergyConsumption", 0),
                    times: THOUSAND,
                },
            ],
        )])),
    )
    .level(Level::Lean)
    .read_for_account()
    .unsupported("boards before Volta count no energy, and the account then has none")
    .aliases(&[dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").times(1_000), otel("hw.energy", &[HW_GPU])]),
    Family::gauge(
        "gpu_temperature_celsius",
        Unit::Celsius,
        "Temperature of the GPU core and, on boards with a sensor there, of its memory.",
        Gpu(Read(&[
            point(
                &[("sensor", "gpu")],
                &[
                    degrees(CallValue::of("nvmlDeviceGetTemperatureV", 0)),
                    degrees(CallValue::of("nvmlDeviceGetTemperature", 0)),
                ],
            ),
            point(&[("sensor", "memory")], &[Source::Field { id: 82, scope: 0, times: THOUSAND }]),
        ])),
    )
    .labels(&["gpu", "uuid", "sensor"])
    .level(Level::Lean)
    .tier(Tier::Medium)
    .aliases(&[
        dcgm("DCGM_FI_DEV_MEMORY_TEMP").when(&[("sensor", "memory")]),
        dcgm("DCGM_FI_DEV_GPU_TEMP").when(&[("sensor", "gpu")]),
        otel("hw.temperature", &[("hw.sensor_location", "=sensor")]),
    ]),
    Family::gauge(
        "gpu_temperature_limit_celsius",
        Unit::Celsius,
        "Temperatures at which a limit acts, on boards that report them; boards that report only \
         the distance to a limit have gpu_temperature_margin_celsius.",
        Gpu(Read(&[
            point(&[("limit", "shutdown")], &[degrees(CallValue::of_number(THRESHOLD, 0))]),
            point(&[("limit", "slowdown")], &[degrees(CallValue::of_number(THRESHOLD, 1))]),
            point(&[("limit", "memory_max_operating")], &[degrees(CallValue::of_number(THRESHOLD, 2))]),
            point(&[("limit", "gpu_max_operating")], &[degrees(CallValue::of_number(THRESHOLD, 3))]),
        ])),
    )
    .labels(LIMIT)
    .level(Level::Standard)
    .tier(Tier::Slow)
    .unsupported("boards that know distances to their limits have gpu_temperature_margin_celsius instead")
    .aliases(&[
        dcgm("DCGM_FI_DEV_SLOWDOWN_TEMP").when(&[("limit", "slowdown")]),
        dcgm("DCGM_FI_DEV_SHUTDOWN_TEMP").when(&[("limit", "shutdown")]),
        otel("hw.temperature.limit", &[("hw.limit_type", "=limit")]),
    ]),
    // Of the core only: no call or field reports the distance of the memory to its limit (195), and the limit alone is
    // a constant of the board.
    Family::gauge(
        "gpu_temperature_margin_celsius",
        Unit::Celsius,
        "Distance of the core temperature to a limit; 0 or less means that the limit acts.",
        Gpu(Read(&[
            point(&[("limit", "shutdown")], &[Source::Margin { limit: 193 }]),
            point(&[("limit", "slowdown")], &[Source::Margin { limit: 194 }]),
            point(&[("limit", "gpu_max_operating")], &[Source::Margin { limit: 196 }]),
        ])),
    )
    .labels(LIMIT)
    .level(Level::Standard)
    .tier(Tier::Medium)
    .since(ADA)
    .unsupported(
        "boards that know their limits as temperatures have gpu_temperature_limit_celsius \
         instead",
    ),
    Family::gauge(
        "gpu_fan_speed_ratio",
        Unit::Ratio,
        "Requested fan speed, as a share of the highest; absent on boards without a fan.",
        Gpu(Read(&[
            point(&[("fan", "0")], &[fan(0)]),
            point(&[("fan", "1")], &[fan(1)]),
            point(&[("fan", "2")], &[fan(2)]),
            point(&[("fan", "3")], &[fan(3)]),
        ])),
    )
    .labels(&["gpu", "uuid", "fan"])
    .level(Level::Standard)
    .tier(Tier::Medium)
    .unsupported("this board has no fan of its own")
    .aliases(&[
        dcgm("DCGM_FI_DEV_FAN_SPEED").when(&[("fan", "0")]).times(100),
        otel("hw.fan.speed_ratio", &[("hw.name", "=fan")]),
    ]),
];

const LIMIT: &[&str] = &["gpu", "uuid", "limit"];

/// The scopes of power beside the GPU's own: the module of GPU and CPU, and the GPU's memory.
const MODULE: u32 = 1;
const MEMORY: u32 = 2;

/// Milliwatts of a scope.
const fn of(id: u32, scope: u32) -> Source {
    Source::Field { id, scope, times: 1 }
}

const fn scoped(
    name: &'static str,
    level: Level,
    tier: Tier,
    help: &'static str,
    points: &'static [Point],
) -> Family {
    let rows = Gpu(Read(points));
    Family::gauge(name, Unit::Watts, help, rows).level(level).tier(tier)
}

const fn degrees(value: CallValue) -> Source {
    Source::Call { value, times: THOUSAND }
}

/// Percent of a fan.
const fn fan(number: u32) -> Source {
    Source::Call { value: CallValue::of_number(FAN, number), times: 10_000_000 }
}

pub(super) const NO_GRACE: &str = "this board has no Grace CPU beside it, or its driver does not tell";
