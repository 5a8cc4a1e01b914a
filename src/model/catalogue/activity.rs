//! How busy a GPU is: the driver's utilization, GPM's ratios, and their integrals.

use super::GpuRows::{self, Integrals, Read};
use super::Rows::Gpu;
use super::aliases::{HW_GPU, PIPE_ALIASES, dcgm, otel};
use super::source::{UTILIZATION, point};
use super::{CallValue, Counter, Family, Level, Point, Source};
use crate::model::Unit;

/// Percent to billionths.
const PERCENT: i64 = 10_000_000;

pub(super) const ROWS: &[Family] = &[
    Family::gauge(
        "gpu_utilization_ratio",
        Unit::Ratio,
        "Share of the driver's last sample window (1/6 s to 1 s) in which a kernel ran; on \
         boards with GPM, over the last sampling.medium interval; the limit \
         sampling.driver_share never lengthens that interval.",
        Gpu(Read(&[point(&[], &[percent(UTILIZATION, 0)])])),
    )
    .level(Level::Lean)
    .read_for_account()
    .aliases(&[
        dcgm("DCGM_FI_DEV_GPU_UTIL").times(100),
        otel("hw.gpu.utilization", &[HW_GPU, ("hw.gpu.task", "general")]),
    ]),
    Family::gauge(
        "gpu_memory_activity_ratio",
        Unit::Ratio,
        "Share of the driver's last sample window in which device memory was read or written; \
         where GPM or the driver's ring of samples reports activity, over the last sampling.medium \
         interval; the limit sampling.driver_share never lengthens that interval.",
        Gpu(Read(&[point(&[], &[percent(UTILIZATION, 1)])])),
    )
    .level(Level::Standard)
    .aliases(&[dcgm("DCGM_FI_DEV_MEM_COPY_UTIL").times(100)]),
    integral(
        "gpu_memory_activity_seconds_total",
        Level::Full,
        "Time in which device memory was read or written, estimated from the driver's sample \
         windows (each counts for at most one medium interval) and integrated since the agent's \
         start.",
        "gpu_memory_activity_ratio",
        &[],
    ),
    Family::gauge(
        "gpu_engine_utilization_ratio",
        Unit::Ratio,
        "Share of the driver's last sample window in which the engine worked.",
        Gpu(Read(&[
            point(&[("engine", "encoder")], &[percent("nvmlDeviceGetEncoderUtilization", 0)]),
            point(&[("engine", "decoder")], &[percent("nvmlDeviceGetDecoderUtilization", 0)]),
            point(&[("engine", "jpeg")], &[percent("nvmlDeviceGetJpgUtilization", 0)]),
            point(&[("engine", "ofa")], &[percent("nvmlDeviceGetOfaUtilization", 0)]),
        ])),
    )
    .labels(ENGINE)
    .level(Level::Standard)
    .read_for_account()
    .aliases(&[
        dcgm("DCGM_FI_DEV_ENC_UTIL").when(&[("engine", "encoder")]).times(100),
        dcgm("DCGM_FI_DEV_DEC_UTIL").when(&[("engine", "decoder")]).times(100),
        otel("hw.gpu.utilization", &[HW_GPU, ("hw.gpu.task", "encoder")]).when(&[("engine", "encoder")]),
        otel("hw.gpu.utilization", &[HW_GPU, ("hw.gpu.task", "decoder")]).when(&[("engine", "decoder")]),
    ]),
    Family::counter(
        "gpu_engine_busy_seconds_total",
        Unit::Seconds,
        "Time in which the engine worked, estimated from the driver's sample windows and \
         integrated since the agent's start.",
        Gpu(Integrals { of: "gpu_engine_utilization_ratio", counters: &[] }),
    )
    .labels(ENGINE),
    Family::counter(
        "gpu_busy_seconds_total",
        Unit::Seconds,
        "Time the GPU was busy, as bills count it: the busiest engine of each tick, integrated \
         since the agent's start.",
        Gpu(GpuRows::Busy),
    )
    .level(Level::Lean)
    .source_from(Level::Standard)
    .unsupported("no meter of this board tells when it works"),
    gpm_ratio(
        "gpu_gr_engine_active_ratio",
        Level::Standard,
        "Share of time in which the graphics or compute engine was active (GPM).",
        &[point(&[], &[gpm(1)])],
    )
    .read_for_account()
    .aliases(&[dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE")]),
    integral(
        "gpu_gr_engine_active_seconds_total",
        Level::Standard,
        "Time in which the graphics or compute engine was active (GPM), integrated since the \
         agent's start.",
        "gpu_gr_engine_active_ratio",
        &[],
    ),
    gpm_ratio(
        "gpu_sm_active_ratio",
        Level::Standard,
        "Share of time and multiprocessors in which at least one warp was assigned (GPM).",
        &[point(&[], &[gpm(2)])],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_SM_ACTIVE")]),
    integral(
        "gpu_sm_active_seconds_total",
        Level::Standard,
        "Time in which multiprocessors had a warp assigned, averaged over them (GPM), integrated \
         since the agent's start.",
        "gpu_sm_active_ratio",
        &[Counter::SmActive],
    ),
    gpm_ratio(
        "gpu_sm_occupancy_ratio",
        Level::Full,
        "Warps resident on multiprocessors, averaged over time, as a share of the most that fit \
         (GPM).",
        &[point(&[], &[gpm(3)])],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_SM_OCCUPANCY")]),
    integral(
        "gpu_sm_occupancy_seconds_total",
        Level::Full,
        "Integral of gpu_sm_occupancy_ratio over time (GPM) since the agent's start: a weighted \
         sum, not a duration; a second at half occupancy counts half a second, and its rate is \
         the mean occupancy.",
        "gpu_sm_occupancy_ratio",
        &[],
    ),
    gpm_ratio(
        "gpu_tensor_active_ratio",
        Level::Standard,
        "Share of time in which any tensor pipe was active (GPM).",
        &[point(&[], &[gpm(5)])],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")]),
    integral(
        "gpu_tensor_active_seconds_total",
        Level::Standard,
        "Time in which any tensor pipe was active (GPM), integrated since the agent's start.",
        "gpu_tensor_active_ratio",
        &[Counter::Tensor],
    ),
    gpm_ratio(
        "gpu_dram_active_ratio",
        Level::Standard,
        "Share of the device memory bandwidth that was used (GPM).",
        &[point(&[], &[gpm(10)])],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_DRAM_ACTIVE")]),
    integral(
        "gpu_dram_active_seconds_total",
        Level::Standard,
        "Time in which device memory was busy, weighted by the bandwidth used (GPM), integrated \
         since the agent's start.",
        "gpu_dram_active_ratio",
        &[],
    ),
    Family::gauge(
        "gpu_pipe_active_ratio",
        Unit::Ratio,
        "Share of time in which the pipe was active (GPM); tensor pipes by instruction: dfma and \
         dmma double precision, hmma half, imma integer.",
        Gpu(Read(&[
            point(&[("pipe", "integer")], &[gpm(4)]),
            point(&[("pipe", "fp16")], &[gpm(13)]),
            point(&[("pipe", "fp32")], &[gpm(12)]),
            point(&[("pipe", "fp64")], &[gpm(11)]),
            point(&[("pipe", "tensor_dfma")], &[gpm(6)]),
            point(&[("pipe", "tensor_dmma")], &[gpm(8)]),
            point(&[("pipe", "tensor_hmma")], &[gpm(7)]),
            point(&[("pipe", "tensor_imma")], &[gpm(9)]),
        ])),
    )
    .labels(PIPE)
    .aliases(PIPE_ALIASES),
    Family::counter(
        "gpu_pipe_active_seconds_total",
        Unit::Seconds,
        "Time in which the pipe was active (GPM), integrated since the agent's start.",
        Gpu(Integrals {
            of: "gpu_pipe_active_ratio",
            counters: &[
                Counter::Integer,
                Counter::Fp16,
                Counter::Fp32,
                Counter::Fp64,
                Counter::TensorDfma,
                Counter::TensorDmma,
                Counter::TensorHmma,
                Counter::TensorImma,
            ],
        }),
    )
    .labels(PIPE),
];

const ENGINE: &[&str] = &["gpu", "uuid", "engine"];
const PIPE: &[&str] = &["gpu", "uuid", "pipe"];

const fn gpm(id: u32) -> Source {
    Source::Gpm { id, times: PERCENT }
}

const fn percent(function: &'static str, place: usize) -> Source {
    Source::Call { value: CallValue::of(function, place), times: PERCENT }
}

const fn gpm_ratio(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family::gauge(name, Unit::Ratio, help, Gpu(Read(points))).level(level)
}

const fn integral(
    name: &'static str,
    level: Level,
    help: &'static str,
    of: &'static str,
    counters: &'static [Counter],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Gpu(Integrals { of, counters })).level(level)
}
