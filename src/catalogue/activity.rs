//! How busy a GPU is: the driver's utilization, GPM, and the integrals that the agent keeps of them.

use super::{CallValue, Counter, Family, IdentityValue, Integral, Kind, Level, Point, Rows, Source};
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
        help: "Share of the driver's last sample window (1/6 s to 1 s) in which a kernel ran; on boards with GPM, of the medium interval that last ended; the governor never makes that interval longer.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point { labels: &[], sources: &[percent(CallValue::UtilizationGpu)] }]),
    },
    Family {
        name: "gpu_memory_activity_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window in which device memory was read or written; where GPM or the driver's ring of samples reports activity, of the medium interval that last ended; the governor never makes that interval longer.",
        labels: GPU,
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Device(&[Point { labels: &[], sources: &[percent(CallValue::UtilizationMemory)] }]),
    },
    integral(
        "gpu_memory_activity_seconds_total",
        Level::Full,
        "Time in which device memory was read or written, estimated from the driver's sample windows (each counts for at most one medium interval) and integrated since the agent's start.",
        &[Integral::of(&[], "gpu_memory_activity_ratio")],
    ),
    Family {
        name: "gpu_engine_utilization_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the driver's last sample window in which the engine worked.",
        labels: ENGINE,
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Device(&[
            point(&[("engine", "encoder")], &[percent(CallValue::UtilizationEncoder)]),
            point(&[("engine", "decoder")], &[percent(CallValue::UtilizationDecoder)]),
            point(&[("engine", "jpeg")], &[percent(CallValue::UtilizationJpeg)]),
            point(&[("engine", "ofa")], &[percent(CallValue::UtilizationOfa)]),
        ]),
    },
    Family {
        name: "gpu_engine_busy_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "Time in which the engine worked, estimated from the driver's sample windows and integrated since the agent's start.",
        labels: ENGINE,
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Integral(&[
            Integral::of(&[("engine", "encoder")], "gpu_engine_utilization_ratio"),
            Integral::of(&[("engine", "decoder")], "gpu_engine_utilization_ratio"),
            Integral::of(&[("engine", "jpeg")], "gpu_engine_utilization_ratio"),
            Integral::of(&[("engine", "ofa")], "gpu_engine_utilization_ratio"),
        ]),
    },
    Family {
        name: "gpu_busy_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "Time the GPU was busy, as bills count it: the busiest engine of each tick, integrated since the agent's start.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Identity(IdentityValue::Busy),
    },
    gpm_ratio(
        "gpu_gr_engine_active_ratio",
        Level::Standard,
        "Share of time in which the graphics or compute engine was active (GPM).",
        GR,
    ),
    integral(
        "gpu_gr_engine_active_seconds_total",
        Level::Standard,
        "Time in which the graphics or compute engine was active (GPM), integrated since the agent's start.",
        &[Integral::of(&[], "gpu_gr_engine_active_ratio")],
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
        &[Integral::counted(&[], "gpu_sm_active_ratio", Counter::SmActive)],
    ),
    gpm_ratio(
        "gpu_sm_occupancy_ratio",
        Level::Full,
        "Warps resident on multiprocessors, averaged over time, as a share of the most that fit (GPM).",
        OCCUPANCY,
    ),
    integral(
        "gpu_sm_occupancy_seconds_total",
        Level::Full,
        "Integral of gpu_sm_occupancy_ratio over time (GPM) since the agent's start: a weighted sum, not a duration; a second at half occupancy counts half a second, and its rate is the mean occupancy.",
        &[Integral::of(&[], "gpu_sm_occupancy_ratio")],
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
        &[Integral::counted(&[], "gpu_tensor_active_ratio", Counter::Tensor)],
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
        &[Integral::of(&[], "gpu_dram_active_ratio")],
    ),
    Family {
        name: "gpu_pipe_active_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of time in which the pipe was active (GPM); tensor pipes by instruction: dfma and dmma double precision, hmma half, imma integer.",
        labels: PIPE,
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Device(&[
            point(&[("pipe", "integer")], &[gpm(4)]),
            point(&[("pipe", "fp16")], &[gpm(13)]),
            point(&[("pipe", "fp32")], &[gpm(12)]),
            point(&[("pipe", "fp64")], &[gpm(11)]),
            point(&[("pipe", "tensor_dfma")], &[gpm(6)]),
            point(&[("pipe", "tensor_dmma")], &[gpm(8)]),
            point(&[("pipe", "tensor_hmma")], &[gpm(7)]),
            point(&[("pipe", "tensor_imma")], &[gpm(9)]),
        ]),
    },
    Family {
        name: "gpu_pipe_active_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "Time in which the pipe was active (GPM), integrated since the agent's start.",
        labels: PIPE,
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Integral(&[
            Integral::counted(&[("pipe", "integer")], "gpu_pipe_active_ratio", Counter::Integer),
            Integral::counted(&[("pipe", "fp16")], "gpu_pipe_active_ratio", Counter::Fp16),
            Integral::counted(&[("pipe", "fp32")], "gpu_pipe_active_ratio", Counter::Fp32),
            Integral::counted(&[("pipe", "fp64")], "gpu_pipe_active_ratio", Counter::Fp64),
            Integral::counted(&[("pipe", "tensor_dfma")], "gpu_pipe_active_ratio", Counter::TensorDfma),
            Integral::counted(&[("pipe", "tensor_dmma")], "gpu_pipe_active_ratio", Counter::TensorDmma),
            Integral::counted(&[("pipe", "tensor_hmma")], "gpu_pipe_active_ratio", Counter::TensorHmma),
            Integral::counted(&[("pipe", "tensor_imma")], "gpu_pipe_active_ratio", Counter::TensorImma),
        ]),
    },
];

const ENGINE: &[&str] = &["gpu", "uuid", "engine"];
const PIPE: &[&str] = &["gpu", "uuid", "pipe"];

const fn gpm(id: u32) -> Source {
    Source::Gpm { id, times: PERCENT }
}

const fn percent(value: CallValue) -> Source {
    Source::Call { value, times: PERCENT }
}

const fn point(labels: &'static [(&'static str, &'static str)], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}

const GR: &[Point] = &[Point { labels: &[], sources: &[gpm(1)] }];
const SM: &[Point] = &[Point { labels: &[], sources: &[gpm(2)] }];
const OCCUPANCY: &[Point] = &[Point { labels: &[], sources: &[gpm(3)] }];
const TENSOR: &[Point] = &[Point { labels: &[], sources: &[gpm(5)] }];
const DRAM: &[Point] = &[Point { labels: &[], sources: &[gpm(10)] }];

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
