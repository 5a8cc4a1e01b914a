//! Repairs by the board, done or pending: remapped rows, retired pages, the recovery action.

use super::GpuRows::{Read, State};
use super::Rows::Gpu;
use super::aliases::dcgm;
use super::source::{field, named, point};
use super::{Family, Level, Point, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const GPU: &[&str] = &["gpu", "uuid"];
const CAUSE: &[&str] = &["gpu", "uuid", "cause"];

pub(super) const ROWS: &[Family] = &[
    slow(
        "gpu_remapped_rows",
        CAUSE,
        Level::Standard,
        "Memory rows replaced by spare rows, by the kind of error that caused it; a state of the \
         board, whose spare rows are limited, and therefore a gauge, although it never \
         decreases.",
        &[
            point(&[("cause", "correctable")], &[field(142), named("nvmlDeviceGetRemappedRows", 0)]),
            point(&[("cause", "uncorrectable")], &[field(143), named("nvmlDeviceGetRemappedRows", 1)]),
        ],
    )
    // An H100 has 2,560 banks with 8 spare rows each; a board that retires pages has 64 at most.
    .most(1_000_000)
    .unsupported(ROWS_ARE_NOT_REMAPPED)
    .aliases(&[
        dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS").when(&[("cause", "uncorrectable")]),
        dcgm("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS").when(&[("cause", "correctable")]),
    ]),
    slow(
        "gpu_row_remap_pending",
        GPU,
        Level::Lean,
        "1 while a memory row waits for the next reset to be replaced, else 0.",
        &[point(&[], &[field(144), named("nvmlDeviceGetRemappedRows", 2)])],
    )
    .judged()
    .most(1)
    .unsupported(ROWS_ARE_NOT_REMAPPED)
    .aliases(&[dcgm("DCGM_FI_DEV_ROW_REMAP_PENDING")]),
    slow(
        "gpu_row_remap_failure",
        GPU,
        Level::Lean,
        "1 when a memory row could not be replaced, so that the board must be replaced, else 0.",
        &[point(&[], &[field(145), named("nvmlDeviceGetRemappedRows", 3)])],
    )
    .judged()
    .most(1)
    .unsupported(ROWS_ARE_NOT_REMAPPED)
    .aliases(&[dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE")]),
    slow(
        "gpu_row_remap_banks",
        &["gpu", "uuid", "availability"],
        Level::Full,
        "Number of memory banks, by how many of their spare rows are left.",
        &[
            point(&[("availability", "max")], &[named("nvmlDeviceGetRowRemapperHistogram", 0)]),
            point(&[("availability", "high")], &[named("nvmlDeviceGetRowRemapperHistogram", 1)]),
            point(&[("availability", "partial")], &[named("nvmlDeviceGetRowRemapperHistogram", 2)]),
            point(&[("availability", "low")], &[named("nvmlDeviceGetRowRemapperHistogram", 3)]),
            point(&[("availability", "none")], &[named("nvmlDeviceGetRowRemapperHistogram", 4)]),
        ],
    )
    .most(1_000_000)
    .unsupported(ROWS_ARE_NOT_REMAPPED),
    slow(
        "gpu_retired_pages",
        CAUSE,
        Level::Standard,
        "Retired memory pages, on boards before Ampere; a state of the board and therefore a \
         gauge, although it never decreases; correctable: after several single-bit errors, \
         uncorrectable: after a double-bit error.",
        &[
            point(&[("cause", "correctable")], &[field(29)]),
            point(&[("cause", "uncorrectable")], &[field(30)]),
        ],
    )
    .most(1_000_000)
    .unsupported(PAGES_ARE_NOT_RETIRED)
    .aliases(&[
        dcgm("DCGM_FI_DEV_RETIRED_SBE").when(&[("cause", "correctable")]),
        dcgm("DCGM_FI_DEV_RETIRED_DBE").when(&[("cause", "uncorrectable")]),
    ]),
    slow(
        "gpu_retired_pages_pending",
        GPU,
        Level::Lean,
        "1 while a memory page waits for the next restart to be retired, else 0; on boards \
         before Ampere.",
        &[point(&[], &[field(31), named("nvmlDeviceGetRetiredPagesPendingStatus", 0)])],
    )
    .judged()
    .most(1)
    .unsupported(PAGES_ARE_NOT_RETIRED)
    .aliases(&[dcgm("DCGM_FI_DEV_RETIRED_PENDING")]),
    Family::gauge(
        "gpu_recovery_action",
        Unit::None,
        "Always 1; the action that the driver asks for before the GPU is used again.",
        Gpu(State(&[
            point(&[("action", "none")], &[action(0)]),
            point(&[("action", "reset_gpu")], &[action(1)]),
            point(&[("action", "reboot_node")], &[action(2)]),
            point(&[("action", "drain_p2p")], &[action(3)]),
            point(&[("action", "drain_and_reset_gpu")], &[action(4)]),
        ])),
    )
    .labels(&["gpu", "uuid", "action"])
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .unsupported("drivers from 565 on tell it, of most boards"),
];

const fn action(value: i64) -> Source {
    Source::Is { id: 230, value }
}

const fn slow(
    name: &'static str,
    labels: &'static [&'static str],
    level: Level,
    help: &'static str,
    points: &'static [Point],
) -> Family {
    Family::gauge(name, Unit::None, help, Gpu(Read(points))).labels(labels).level(level).tier(Tier::Slow)
}

const ROWS_ARE_NOT_REMAPPED: &str = "boards before Ampere retire pages instead: gpu_retired_pages; without ECC memory there \
         is neither";
const PAGES_ARE_NOT_RETIRED: &str = "boards since Ampere replace rows instead: gpu_remapped_rows; without ECC memory there \
         is neither";
