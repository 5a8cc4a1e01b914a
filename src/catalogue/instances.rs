//! MIG instances: their own families, so that no sum doubles.
//!
//! The driver tells memory and activity per GPU instance, so its compute instances have no series of their own. What
//! goes over PCIe and NVLink it tells of the whole GPU alone.

use super::ecc::NO_ECC;
use super::{Family, InstancePoint, InstanceValue, LabelPair, Level, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

const INSTANCE: &[&str] = &["gpu", "uuid", "gpu_instance"];
const PIPE: &[&str] = &["gpu", "uuid", "gpu_instance", "pipe"];

pub(super) const ROWS: &[Family] = &[
    bytes(
        "gpu_mig_memory_total_bytes",
        Level::Lean,
        "Memory of the GPU instance, which its compute instances share.",
        &[of(InstanceValue::MemoryTotal)],
    ),
    bytes(
        "gpu_mig_memory_used_bytes",
        Level::Lean,
        "Memory used in the GPU instance by all its compute instances.",
        &[of(InstanceValue::MemoryUsed)],
    ),
    bytes(
        "gpu_mig_memory_free_bytes",
        Level::Standard,
        "Memory of the GPU instance that can still be allocated.",
        &[of(InstanceValue::MemoryFree)],
    ),
    ratio(
        "gpu_mig_gr_engine_active_ratio",
        Level::Lean,
        "Share of time in which the GPU instance's graphics or compute engine was active (GPM).",
        &[of(InstanceValue::GrEngineActive)],
    ),
    seconds(
        "gpu_mig_gr_engine_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's graphics or compute engine was active (GPM), \
         integrated since the agent's start.",
        &[of(InstanceValue::GrEngineActive)],
    ),
    ratio(
        "gpu_mig_sm_active_ratio",
        Level::Standard,
        "Share of time and of the GPU instance's multiprocessors in which at least one warp was \
         assigned (GPM).",
        &[of(InstanceValue::SmActive)],
    ),
    seconds(
        "gpu_mig_sm_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's multiprocessors had a warp assigned, averaged over \
         them (GPM), integrated since the agent's start.",
        &[of(InstanceValue::SmActive)],
    )
    .source_told_from(Level::Standard),
    ratio(
        "gpu_mig_sm_occupancy_ratio",
        Level::Full,
        "Warps resident on the GPU instance's multiprocessors, averaged over time, as a share of \
         the most that fit (GPM).",
        &[of(InstanceValue::SmOccupancy)],
    ),
    seconds(
        "gpu_mig_sm_occupancy_seconds_total",
        Level::Full,
        "Integral of gpu_mig_sm_occupancy_ratio over time (GPM) since the agent's start: a \
         weighted sum, not a duration; a second at half occupancy counts half a second, and its \
         rate is the mean occupancy.",
        &[of(InstanceValue::SmOccupancy)],
    ),
    ratio(
        "gpu_mig_tensor_active_ratio",
        Level::Standard,
        "Share of time in which any tensor pipe of the GPU instance was active (GPM).",
        &[of(InstanceValue::TensorActive)],
    ),
    seconds(
        "gpu_mig_tensor_active_seconds_total",
        Level::Standard,
        "Time in which any tensor pipe of the GPU instance was active (GPM), integrated since \
         the agent's start.",
        &[of(InstanceValue::TensorActive)],
    )
    .source_told_from(Level::Standard),
    ratio(
        "gpu_mig_dram_active_ratio",
        Level::Standard,
        "Share of the GPU instance's memory bandwidth that was used (GPM).",
        &[of(InstanceValue::DramActive)],
    ),
    seconds(
        "gpu_mig_dram_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's memory was busy, weighted by the bandwidth used (GPM), \
         integrated since the agent's start.",
        &[of(InstanceValue::DramActive)],
    ),
    ratio(
        "gpu_mig_pipe_active_ratio",
        Level::Full,
        "Share of time in which the pipe of the GPU instance was active (GPM); tensor pipes by \
         instruction: dfma and dmma double precision, hmma half, imma integer.",
        PIPES,
    )
    .labels(PIPE),
    seconds(
        "gpu_mig_pipe_active_seconds_total",
        Level::Full,
        "Time in which the pipe of the GPU instance was active (GPM), integrated since the \
         agent's start.",
        PIPES,
    )
    .labels(PIPE)
    .source_told_from(Level::Standard),
    Family::counter(
        "gpu_mig_ecc_errors_total",
        Unit::None,
        "Memory errors of the GPU instance since the driver was loaded; for an instance the \
         driver reports only uncorrected errors in SRAM.",
        Rows::Instance(&[InstancePoint {
            labels: &[("type", "uncorrected"), ("location", "sram")],
            value: InstanceValue::SramUncorrected,
        }]),
    )
    .labels(&["gpu", "uuid", "gpu_instance", "type", "location"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .unsupported(NO_ECC),
];

const PIPES: &[InstancePoint] = &[
    pipe(&[("pipe", "integer")], InstanceValue::Integer),
    pipe(&[("pipe", "fp16")], InstanceValue::Fp16),
    pipe(&[("pipe", "fp32")], InstanceValue::Fp32),
    pipe(&[("pipe", "fp64")], InstanceValue::Fp64),
    pipe(&[("pipe", "tensor_dfma")], InstanceValue::TensorDfma),
    pipe(&[("pipe", "tensor_dmma")], InstanceValue::TensorDmma),
    pipe(&[("pipe", "tensor_hmma")], InstanceValue::TensorHmma),
    pipe(&[("pipe", "tensor_imma")], InstanceValue::TensorImma),
];

const fn pipe(labels: &'static [LabelPair], value: InstanceValue) -> InstancePoint {
    InstancePoint { labels, value }
}

const fn of(value: InstanceValue) -> InstancePoint {
    InstancePoint { labels: &[], value }
}

const fn bytes(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [InstancePoint],
) -> Family {
    Family::gauge(name, Unit::Bytes, help, Rows::Instance(points))
        .labels(INSTANCE)
        .level(level)
        .tier(Tier::Medium)
}

const fn ratio(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [InstancePoint],
) -> Family {
    Family::gauge(name, Unit::Ratio, help, Rows::Instance(points)).labels(INSTANCE).level(level)
}

const fn seconds(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [InstancePoint],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Rows::InstanceIntegral(points)).labels(INSTANCE).level(level)
}
