//! Memory errors that ECC found; absent where ECC is off.

use super::GpuRows::Read;
use super::Rows::Gpu;
use super::aliases::{HW_GPU, dcgm, otel};
use super::family::AMPERE;
use super::source::{MEMORY_ERRORS, SRAM_ERRORS, call, named, point};
use super::{CallValue, Family, Level, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const LABELS: &[&str] = &["gpu", "uuid", "type", "location"];

/// NVML's numbers of kinds of errors, counters and locations.
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const SINCE_LOAD: u32 = 0;
const LIFETIME: u32 = 1;
const DRAM: u32 = 2;
const SRAM: u32 = 7;

pub(super) const ROWS: &[Family] = &[
    Family::counter(
        "gpu_ecc_errors_total",
        Unit::None,
        "Memory errors that ECC corrected or could not correct, since the driver was loaded.",
        Gpu(Read(&[
            point(&[("type", "corrected"), ("location", "dram")], &[counter(CORRECTED, SINCE_LOAD, DRAM)]),
            point(
                &[("type", "corrected"), ("location", "sram")],
                &[named(SRAM_ERRORS, 0), counter(CORRECTED, SINCE_LOAD, SRAM)],
            ),
            point(
                &[("type", "uncorrected"), ("location", "dram")],
                &[counter(UNCORRECTED, SINCE_LOAD, DRAM)],
            ),
            point(
                &[("type", "uncorrected"), ("location", "sram")],
                &[named(SRAM_ERRORS, 1), counter(UNCORRECTED, SINCE_LOAD, SRAM)],
            ),
        ])),
    )
    .labels(LABELS)
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .unsupported(NO_ECC)
    .aliases(&[
        dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL").when(&[("type", "corrected")]),
        dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL").when(&[("type", "uncorrected")]),
        otel("hw.errors", &[HW_GPU, ("error.type", "=type")]),
    ]),
    Family::counter(
        "gpu_ecc_lifetime_errors_total",
        Unit::None,
        "Memory errors that ECC corrected or could not correct, over the board's life.",
        Gpu(Read(&[
            point(&[("type", "corrected"), ("location", "dram")], &[counter(CORRECTED, LIFETIME, DRAM)]),
            point(
                &[("type", "corrected"), ("location", "sram")],
                &[named(SRAM_ERRORS, 2), counter(CORRECTED, LIFETIME, SRAM)],
            ),
            point(&[("type", "uncorrected"), ("location", "dram")], &[counter(UNCORRECTED, LIFETIME, DRAM)]),
            point(
                &[("type", "uncorrected"), ("location", "sram")],
                &[named(SRAM_ERRORS, 3), counter(UNCORRECTED, LIFETIME, SRAM)],
            ),
        ])),
    )
    .labels(LABELS)
    .tier(Tier::Slow)
    .unsupported(NO_ECC)
    .aliases(&[
        dcgm("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL").when(&[("type", "corrected")]),
        dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL").when(&[("type", "uncorrected")]),
    ]),
    Family::gauge(
        "gpu_ecc_sram_threshold_exceeded",
        Unit::None,
        "1 when the board has had more uncorrected SRAM errors over its life than its vendor \
         allows, else 0.",
        Gpu(Read(&[point(&[], &[named(SRAM_ERRORS, 4)])])),
    )
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .most(1)
    .since(AMPERE)
    .unsupported("boards before Ampere have no such threshold, and without ECC there is none"),
];

const fn counter(kind: u32, counter: u32, location: u32) -> Source {
    call(CallValue { function: MEMORY_ERRORS, arguments: [kind, counter, location], place: 0 })
}

pub(super) const NO_ECC: &str = "this board has no ECC, or it is off: nvidia-smi -e 1 and a reset switch it on where \
         there is one";
