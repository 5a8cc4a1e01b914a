//! How busy a GPU is: the driver's utilization, GPM, and the integrals that the agent keeps of them.

use super::{CallValue, Family, IdentityValue, Integral, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const GPU: &[&str] = &["gpu", "uuid"];

/// Percent to billionths.
const PERCENT: i64 = 10_000_000;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_utilization_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window (1/6 s to 1 s) in which a kernel ran.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[Source::Call { value: CallValue::UtilizationGpu, times: PERCENT }],
        }]),
    },
    Family {
        name: "gpu_memory_activity_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window in which device memory was read or written.",
        labels: GPU,
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[Source::Call { value: CallValue::UtilizationMemory, times: PERCENT }],
        }]),
    },
    Family {
        name: "gpu_engine_utilization_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window in which the video engine worked.",
        labels: &["gpu", "uuid", "engine"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Device(&[
            Point {
                labels: &[("engine", "encoder")],
                sources: &[Source::Call { value: CallValue::UtilizationEncoder, times: PERCENT }],
            },
            Point {
                labels: &[("engine", "decoder")],
                sources: &[Source::Call { value: CallValue::UtilizationDecoder, times: PERCENT }],
            },
        ]),
    },
    Family {
        name: "gpu_busy_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "Time busy as the account sees it: the busiest engine of each tick, integrated since the agent's start.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Identity(IdentityValue::Busy),
    },
    gpm_ratio(
        "gpu_gr_engine_active_ratio",
        Level::Lean,
        "Share of time in which the graphics or compute engine was active (GPM).",
        GR,
    ),
    integral(
        "gpu_gr_engine_active_seconds_total",
        Level::Standard,
        "Time in which the graphics or compute engine was active (GPM), integrated since the agent's start.",
        &[Integral { labels: &[], of: "gpu_gr_engine_active_ratio" }],
    ),
    gpm_ratio(
        "gpu_sm_active_ratio",
        Level::Standard,
        "Share of time and multiprocessors in which at least one warp was assigned (GPM).",
        SM,
    ),
    integral(
        "gpu_sm_active_seconds_total",
        Level::Standard,
        "Time in which multiprocessors had a warp assigned, averaged over them (GPM), integrated since the agent's start.",
        &[Integral { labels: &[], of: "gpu_sm_active_ratio" }],
    ),
    gpm_ratio(
        "gpu_tensor_active_ratio",
        Level::Standard,
        "Share of time in which any tensor pipe was active (GPM).",
        TENSOR,
    ),
    integral(
        "gpu_tensor_active_seconds_total",
        Level::Standard,
        "Time in which any tensor pipe was active (GPM), integrated since the agent's start.",
        &[Integral { labels: &[], of: "gpu_tensor_active_ratio" }],
    ),
    gpm_ratio(
        "gpu_dram_active_ratio",
        Level::Standard,
        "Share of the device memory bandwidth that was used (GPM).",
        DRAM,
    ),
    integral(
        "gpu_dram_active_seconds_total",
        Level::Standard,
        "Time in which device memory was busy, weighted by the bandwidth used (GPM), integrated since the agent's start.",
        &[Integral { labels: &[], of: "gpu_dram_active_ratio" }],
    ),
];

const GR: &[Point] = &[Point { labels: &[], sources: &[Source::Gpm { id: 1, times: PERCENT }] }];
const SM: &[Point] = &[Point { labels: &[], sources: &[Source::Gpm { id: 2, times: PERCENT }] }];
const TENSOR: &[Point] = &[Point { labels: &[], sources: &[Source::Gpm { id: 5, times: PERCENT }] }];
const DRAM: &[Point] = &[Point { labels: &[], sources: &[Source::Gpm { id: 10, times: PERCENT }] }];

const fn gpm_ratio(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help,
        labels: GPU,
        level,
        tier: Tier::Fast,
        rows: Rows::Device(points),
    }
}

const fn integral(
    name: &'static str,
    level: Level,
    help: &'static str,
    integrals: &'static [Integral],
) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help,
        labels: GPU,
        level,
        tier: Tier::Fast,
        rows: Rows::Integral(integrals),
    }
}
