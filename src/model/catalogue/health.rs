//! The health of a GPU, and its modes.

use super::GpuRows::{self, Read, State};
use super::Rows::Gpu;
use super::aliases::{HW_GPU, dcgm, otel};
use super::source::{named, point};
use super::{Family, Level};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    Family::gauge(
        "gpu_health",
        Unit::None,
        "Always 1; the GPU's state: ok, degraded, unknown or failed. /api/v1/health says why and \
         what to do.",
        Gpu(GpuRows::Health),
    )
    .labels(&["gpu", "uuid", "state"])
    .level(Level::Lean)
    .values(&[("state", &["ok", "degraded", "unknown", "failed"])])
    .aliases(&[otel("hw.status", &[HW_GPU, ("hw.state", "=state")])]),
    Family::gauge(
        "gpu_mode_enabled",
        Unit::None,
        "1 while that mode of the GPU is on, else 0; ecc_pending and mig_pending are in force after the next \
         reset. A mode that the GPU does not have is absent.",
        Gpu(Read(&[
            point(&[("feature", "persistence")], &[named("nvmlDeviceGetPersistenceMode", 0)]),
            point(&[("feature", "ecc")], &[named("nvmlDeviceGetEccMode", 0)]),
            point(&[("feature", "ecc_pending")], &[named("nvmlDeviceGetEccMode", 1)]),
            point(&[("feature", "mig")], &[named("nvmlDeviceGetMigMode", 0)]),
            point(&[("feature", "mig_pending")], &[named("nvmlDeviceGetMigMode", 1)]),
            point(&[("feature", "accounting")], &[named("nvmlDeviceGetAccountingMode", 0)]),
        ])),
    )
    .labels(&["gpu", "uuid", "feature"])
    .tier(Tier::Slow)
    .most(1)
    .aliases(&[
        dcgm("DCGM_FI_DEV_PERSISTENCE_MODE").when(&[("feature", "persistence")]),
        dcgm("DCGM_FI_DEV_MIG_MODE").when(&[("feature", "mig")]),
        dcgm("DCGM_FI_DEV_ECC_CURRENT").when(&[("feature", "ecc")]),
        dcgm("DCGM_FI_DEV_ECC_PENDING").when(&[("feature", "ecc_pending")]),
    ]),
    Family::gauge(
        "gpu_compute_mode",
        Unit::None,
        "Always 1; which processes may use the GPU: default any, exclusive_process one at a time, \
         exclusive_thread one thread at a time, prohibited none.",
        Gpu(State(&[
            point(&[("state", "default")], &[named("nvmlDeviceGetComputeMode", 0)]),
            point(&[("state", "exclusive_thread")], &[named("nvmlDeviceGetComputeMode", 1)]),
            point(&[("state", "prohibited")], &[named("nvmlDeviceGetComputeMode", 2)]),
            point(&[("state", "exclusive_process")], &[named("nvmlDeviceGetComputeMode", 3)]),
        ])),
    )
    .labels(&["gpu", "uuid", "state"])
    .tier(Tier::Slow),
];
