//! Clocks, and what holds them down.

use super::GpuRows::Read;
use super::Rows::Gpu;
use super::aliases::dcgm;
use super::source::{field, named, point};
use super::{CallValue, Family, KnownPoint, Level, Point, Source, known_point};
use crate::model::Unit;
use crate::model::frame::Tier;

const MEGAHERTZ: i64 = 1_000_000;

/// NVML's numbers of the clocks.
const GRAPHICS: u32 = 0;
const SM: u32 = 1;
const MEMORY: u32 = 2;
const VIDEO: u32 = 3;

pub(super) const ROWS: &[Family] = &[
    clocks(
        "gpu_clock_hertz",
        Level::Standard,
        Tier::Medium,
        "Current clock.",
        &[
            point(&[("clock", "sm")], &[now(SM)]),
            point(&[("clock", "memory")], &[now(MEMORY)]),
            point(&[("clock", "graphics")], &[now(GRAPHICS)]),
            point(&[("clock", "video")], &[now(VIDEO)]),
        ],
    )
    .aliases(&[
        dcgm("DCGM_FI_DEV_SM_CLOCK").when(&[("clock", "sm")]).over(1_000_000),
        dcgm("DCGM_FI_DEV_MEM_CLOCK").when(&[("clock", "memory")]).over(1_000_000),
        dcgm("DCGM_FI_DEV_VIDEO_CLOCK").when(&[("clock", "video")]).over(1_000_000),
    ]),
    clocks(
        "gpu_clock_max_hertz",
        Level::Full,
        Tier::Slow,
        "Highest clock that the board allows.",
        &[
            point(&[("clock", "sm")], &[most(SM)]),
            point(&[("clock", "memory")], &[most(MEMORY)]),
            point(&[("clock", "graphics")], &[most(GRAPHICS)]),
            point(&[("clock", "video")], &[most(VIDEO)]),
        ],
    )
    .aliases(&[
        dcgm("DCGM_FI_DEV_MAX_SM_CLOCK").when(&[("clock", "sm")]).over(1_000_000),
        dcgm("DCGM_FI_DEV_MAX_MEM_CLOCK").when(&[("clock", "memory")]).over(1_000_000),
        dcgm("DCGM_FI_DEV_MAX_VIDEO_CLOCK").when(&[("clock", "video")]).over(1_000_000),
    ]),
    Family::gauge(
        "gpu_performance_state",
        Unit::None,
        "Performance state: 0 is the fastest, 15 the slowest; boards with HBM stay at 0 even \
         when idle.",
        Gpu(Read(&[point(&[], &[named("nvmlDeviceGetPerformanceState", 0)])])),
    )
    .level(Level::Standard)
    .tier(Tier::Medium)
    // NVML numbers the states 0 to 15; 32 means unknown.
    .most(15)
    .aliases(&[dcgm("DCGM_FI_DEV_PSTATE")]),
    Family::gauge(
        "gpu_throttle_active",
        Unit::None,
        "1 while this reason holds the clocks down, else 0; an idle GPU and clock settings do \
         not count as throttling. hw_other_slowdown is a slowdown by the hardware that is neither \
         thermal nor a power brake: too much power drawn at once, on some boards a change of \
         clocks.",
        Gpu(Read(&[
            point(&[("reason", "sw_power_cap")], &[reason(0x4)]),
            point(&[("reason", "hw_other_slowdown")], &[Source::Reason { bit: 0x8, unless: 0x40 | 0x80 }]),
            point(&[("reason", "sync_boost")], &[reason(0x10)]),
            point(&[("reason", "sw_thermal_slowdown")], &[reason(0x20)]),
            point(&[("reason", "hw_thermal_slowdown")], &[reason(0x40)]),
            point(&[("reason", "hw_power_brake")], &[reason(0x80)]),
        ])),
    )
    .labels(&["gpu", "uuid", "reason"])
    .level(Level::Lean)
    .tier(Tier::Medium)
    .judged()
    .most(1),
    Family::gauge(
        "gpu_clock_event_reasons",
        Unit::None,
        "Reasons for the current clocks as NVML's bit mask, an idle GPU and clock settings among \
         them; gpu_throttle_active has those that hold the clocks down, one by one.",
        Gpu(Read(&[point(&[], &[reason(u64::MAX)])])),
    )
    .tier(Tier::Medium)
    // NVML has 9 reasons.
    .most(0x1ff)
    .aliases(&[
        dcgm("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
        // Its name before DCGM 4.
        dcgm("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
    ]),
    Family::counter(
        "gpu_throttle_seconds_total",
        Unit::Seconds,
        "Time in which this reason held the clocks down, since the driver was loaded, by the \
         driver's own counters; drivers before 575 count the hardware's thermal slowdown with the \
         software's.",
        Gpu(Read(&[
            point(&[("reason", "sw_power_cap")], &[field(74)]),
            point(&[("reason", "sync_boost")], &[field(76)]),
            point(&[("reason", "board_limit")], &[field(77)]),
            point(&[("reason", "reliability")], &[field(79)]),
            point(
                &[("reason", "sw_thermal_slowdown")],
                &[Source::Renumbered { before: 251, since: 269, times: 1 }, field(75)],
            ),
            point(
                &[("reason", "hw_thermal_slowdown")],
                &[Source::Renumbered { before: 252, since: 270, times: 1 }],
            ),
            point(
                &[("reason", "hw_power_brake")],
                &[Source::Renumbered { before: 253, since: 271, times: 1 }],
            ),
        ])),
    )
    .labels(&["gpu", "uuid", "reason"])
    .level(Level::Standard)
    .tier(Tier::Medium)
    .aliases(&[
        dcgm("DCGM_FI_DEV_POWER_VIOLATION").when(&[("reason", "sw_power_cap")]).times(1_000_000_000),
        dcgm("DCGM_FI_DEV_THERMAL_VIOLATION").when(&[("reason", "sw_thermal_slowdown")]).times(1_000_000_000),
        dcgm("DCGM_FI_DEV_SYNC_BOOST_VIOLATION").when(&[("reason", "sync_boost")]).times(1_000_000_000),
        dcgm("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION").when(&[("reason", "board_limit")]).times(1_000_000_000),
        dcgm("DCGM_FI_DEV_RELIABILITY_VIOLATION").when(&[("reason", "reliability")]).times(1_000_000_000),
    ]),
];

const THROTTLE: &str = "gpu_throttle_active";

#[derive(Debug)]
pub struct ThrottleReason {
    pub name: &'static str,
    pub words: &'static str,
    /// Its point, which is 1 while it holds the clocks down.
    pub point: KnownPoint,
}

/// All of them, the most urgent first.
pub const THROTTLE_REASONS: [ThrottleReason; 6] = [
    throttle("hw_thermal_slowdown", "heat: the hardware slows it down"),
    throttle("hw_power_brake", "power brake: the server asks for less power"),
    throttle("sw_thermal_slowdown", "heat: the driver slows it down"),
    throttle("hw_other_slowdown", "hardware slowdown: too much power at once"),
    throttle(POWER_CAP, "power limit"),
    throttle("sync_boost", "sync boost: another GPU of its group is slower"),
];

/// The reason by which a busy board normally is throttled.
pub const POWER_CAP: &str = "sw_power_cap";

const fn throttle(name: &'static str, words: &'static str) -> ThrottleReason {
    ThrottleReason { name, words, point: known_point(THROTTLE, Some(name)) }
}

/// A bit of the mask, or all of it.
const fn reason(bit: u64) -> Source {
    Source::Reason { bit, unless: 0 }
}

const fn now(clock: u32) -> Source {
    Source::Call { value: CallValue::of_number("nvmlDeviceGetClockInfo", clock), times: MEGAHERTZ }
}

const fn most(clock: u32) -> Source {
    Source::Call { value: CallValue::of_number("nvmlDeviceGetMaxClockInfo", clock), times: MEGAHERTZ }
}

const fn clocks(
    name: &'static str,
    level: Level,
    tier: Tier,
    help: &'static str,
    points: &'static [Point],
) -> Family {
    Family::gauge(name, Unit::Hertz, help, Gpu(Read(points)))
        .labels(&["gpu", "uuid", "clock"])
        .level(level)
        .tier(tier)
}
