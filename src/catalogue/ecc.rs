//! Errors that the board's ECC saw; absent where ECC is off, since then nobody counts.

use super::{CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const LABELS: &[&str] = &["gpu", "uuid", "type", "location"];

/// NVML's numbers: kinds, counters, places.
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const SINCE_LOAD: u32 = 0;
const LIFETIME: u32 = 1;
const DRAM: u32 = 2;
const SRAM: u32 = 7;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_ecc_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "Memory errors that ECC corrected or could not correct, since the driver was loaded.",
        labels: LABELS,
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Device(&[
            point(&[("type", "corrected"), ("location", "dram")], &[counter(CORRECTED, SINCE_LOAD, DRAM)]),
            point(
                &[("type", "corrected"), ("location", "sram")],
                &[call(CallValue::SramCorrected), counter(CORRECTED, SINCE_LOAD, SRAM)],
            ),
            point(
                &[("type", "uncorrected"), ("location", "dram")],
                &[counter(UNCORRECTED, SINCE_LOAD, DRAM)],
            ),
            point(
                &[("type", "uncorrected"), ("location", "sram")],
                &[call(CallValue::SramUncorrected), counter(UNCORRECTED, SINCE_LOAD, SRAM)],
            ),
        ]),
    },
    Family {
        name: "gpu_ecc_lifetime_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "Memory errors that ECC corrected or could not correct, over the board's life.",
        labels: LABELS,
        level: Level::Full,
        tier: Tier::Slow,
        rows: Rows::Device(&[
            point(&[("type", "corrected"), ("location", "dram")], &[counter(CORRECTED, LIFETIME, DRAM)]),
            point(
                &[("type", "corrected"), ("location", "sram")],
                &[call(CallValue::SramCorrectedLifetime), counter(CORRECTED, LIFETIME, SRAM)],
            ),
            point(&[("type", "uncorrected"), ("location", "dram")], &[counter(UNCORRECTED, LIFETIME, DRAM)]),
            point(
                &[("type", "uncorrected"), ("location", "sram")],
                &[call(CallValue::SramUncorrectedLifetime), counter(UNCORRECTED, LIFETIME, SRAM)],
            ),
        ]),
    },
    Family {
        name: "gpu_ecc_sram_threshold_exceeded",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "1 when the board has had more uncorrected SRAM errors over its life than its vendor allows, else 0.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Device(&[point(&[], &[call(CallValue::SramThresholdExceeded)])]),
    },
];

const fn counter(kind: u32, counter: u32, location: u32) -> Source {
    call(CallValue::EccCounter { kind, counter, location })
}

const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

const fn point(labels: &'static [(&'static str, &'static str)], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}
