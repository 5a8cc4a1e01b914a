//! MIG instances. Their families are their own, so that no sum counts a GPU twice.
//!
//! The driver reports memory and activity per GPU instance, so compute instances have no series. It reports traffic over
//! PCIe and NVLink of the whole GPU only.

use super::InstanceValue::{
    DramActive, Fp16, Fp32, Fp64, GrEngineActive, Integer, MemoryFree, MemoryTotal, MemoryUsed, SmActive,
    SmOccupancy, SramUncorrected, TensorActive, TensorDfma, TensorDmma, TensorHmma, TensorImma,
};
use super::aliases::{PIPE_ALIASES, dcgm};
use super::ecc::NO_ECC;
use super::{Family, InstanceRows, InstanceValue, Labelled, Level, Rows, labelled};
use crate::model::Unit;
use crate::model::frame::Tier;

const INSTANCE: &[&str] = &["gpu", "uuid", "gpu_instance"];
const PIPE: &[&str] = &["gpu", "uuid", "gpu_instance", "pipe"];

pub(super) const ROWS: &[Family] = &[
    bytes(
        "gpu_mig_memory_total_bytes",
        Level::Lean,
        "Memory of the GPU instance, which its compute instances share.",
        &[of(MemoryTotal)],
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_TOTAL").over(1 << 20)]),
    bytes(
        "gpu_mig_memory_used_bytes",
        Level::Lean,
        "Memory used in the GPU instance by all its compute instances.",
        &[of(MemoryUsed)],
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_USED").over(1 << 20)]),
    bytes(
        "gpu_mig_memory_free_bytes",
        Level::Standard,
        "Memory of the GPU instance that can still be allocated.",
        &[of(MemoryFree)],
    )
    .aliases(&[dcgm("DCGM_FI_DEV_FB_FREE").over(1 << 20)]),
    ratio(
        "gpu_mig_gr_engine_active_ratio",
        Level::Lean,
        "Share of time in which the GPU instance's graphics or compute engine was active (GPM).",
        &[of(GrEngineActive)],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE")]),
    seconds(
        "gpu_mig_gr_engine_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's graphics or compute engine was active (GPM), \
         integrated since the agent's start.",
        &[of(GrEngineActive)],
    ),
    ratio(
        "gpu_mig_sm_active_ratio",
        Level::Standard,
        "Share of time and of the GPU instance's multiprocessors in which at least one warp was \
         assigned (GPM).",
        &[of(SmActive)],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_SM_ACTIVE")]),
    seconds(
        "gpu_mig_sm_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's multiprocessors had a warp assigned, averaged over \
         them (GPM), integrated since the agent's start.",
        &[of(SmActive)],
    )
    .source_from(Level::Standard),
    ratio(
        "gpu_mig_sm_occupancy_ratio",
        Level::Full,
        "Warps resident on the GPU instance's multiprocessors, averaged over time, as a share of \
         the most that fit (GPM).",
        &[of(SmOccupancy)],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_SM_OCCUPANCY")]),
    seconds(
        "gpu_mig_sm_occupancy_seconds_total",
        Level::Full,
        "Integral of gpu_mig_sm_occupancy_ratio over time (GPM) since the agent's start: a \
         weighted sum, not a duration; a second at half occupancy counts half a second, and its \
         rate is the mean occupancy.",
        &[of(SmOccupancy)],
    ),
    ratio(
        "gpu_mig_tensor_active_ratio",
        Level::Standard,
        "Share of time in which any tensor pipe of the GPU instance was active (GPM).",
        &[of(TensorActive)],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")]),
    seconds(
        "gpu_mig_tensor_active_seconds_total",
        Level::Standard,
        "Time in which any tensor pipe of the GPU instance was active (GPM), integrated since \
         the agent's start.",
        &[of(TensorActive)],
    )
    .source_from(Level::Standard),
    ratio(
        "gpu_mig_dram_active_ratio",
        Level::Standard,
        "Share of the GPU instance's memory bandwidth that was used (GPM).",
        &[of(DramActive)],
    )
    .aliases(&[dcgm("DCGM_FI_PROF_DRAM_ACTIVE")]),
    seconds(
        "gpu_mig_dram_active_seconds_total",
        Level::Standard,
        "Time in which the GPU instance's memory was busy, weighted by the bandwidth used (GPM), \
         integrated since the agent's start.",
        &[of(DramActive)],
    ),
    ratio(
        "gpu_mig_pipe_active_ratio",
        Level::Full,
        "Share of time in which the pipe of the GPU instance was active (GPM); tensor pipes by \
         instruction: dfma and dmma double precision, hmma half, imma integer.",
        PIPES,
    )
    .labels(PIPE)
    .aliases(PIPE_ALIASES),
    seconds(
        "gpu_mig_pipe_active_seconds_total",
        Level::Full,
        "Time in which the pipe of the GPU instance was active (GPM), integrated since the \
         agent's start.",
        PIPES,
    )
    .labels(PIPE)
    .source_from(Level::Standard),
    Family::counter(
        "gpu_mig_ecc_errors_total",
        Unit::None,
        "Memory errors of the GPU instance since the driver was loaded; for an instance the \
         driver reports only uncorrected errors in SRAM.",
        Rows::Instance(InstanceRows::Read(&[labelled(
            &[("type", "uncorrected"), ("location", "sram")],
            SramUncorrected,
        )])),
    )
    .labels(&["gpu", "uuid", "gpu_instance", "type", "location"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .unsupported(NO_ECC),
];

const PIPES: &[Labelled<InstanceValue>] = &[
    labelled(&[("pipe", "integer")], Integer),
    labelled(&[("pipe", "fp16")], Fp16),
    labelled(&[("pipe", "fp32")], Fp32),
    labelled(&[("pipe", "fp64")], Fp64),
    labelled(&[("pipe", "tensor_dfma")], TensorDfma),
    labelled(&[("pipe", "tensor_dmma")], TensorDmma),
    labelled(&[("pipe", "tensor_hmma")], TensorHmma),
    labelled(&[("pipe", "tensor_imma")], TensorImma),
];

const fn of(value: InstanceValue) -> Labelled<InstanceValue> {
    labelled(&[], value)
}

const fn bytes(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [Labelled<InstanceValue>],
) -> Family {
    Family::gauge(name, Unit::Bytes, help, Rows::Instance(InstanceRows::Read(points)))
        .labels(INSTANCE)
        .level(level)
        .tier(Tier::Medium)
}

const fn ratio(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [Labelled<InstanceValue>],
) -> Family {
    Family::gauge(name, Unit::Ratio, help, Rows::Instance(InstanceRows::Read(points)))
        .labels(INSTANCE)
        .level(level)
}

const fn seconds(
    name: &'static str,
    level: Level,
    help: &'static str,
    points: &'static [Labelled<InstanceValue>],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Rows::Instance(InstanceRows::Integrals(points)))
        .labels(INSTANCE)
        .level(level)
}
