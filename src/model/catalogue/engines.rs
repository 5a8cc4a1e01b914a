//! GPM's metrics beside those of the multiprocessors: video engines, context switches, caches.
//!
//! No family has GPM's rates of NVLink (60 to 97, 212 to 247), whose bytes are counted instead; single C2C links (104 to
//! 159); cache misses (161, 163, 165), which are 1 less the hits; cycles and requests of context switches (170 to 173),
//! whose ratio is here; and context switches of the engines 1 to 7 (175 to 209), which only MIG instances use. Ids above
//! 332 are of later headers.

use super::GpuRows::{Integrals, Read};
use super::Rows::Gpu;
use super::aliases::dcgm;
use super::power::NO_GRACE;
use super::source::point;
use super::{Family, Point, Source};
use crate::model::Unit;

/// Percent to billionths.
const PERCENT: i64 = 10_000_000;

pub(super) const ROWS: &[Family] = &[
    ratio(
        "gpu_video_engine_active_ratio",
        &["gpu", "uuid", "engine", "number"],
        "Share of time in which this video engine worked (GPM); gpu_engine_utilization_ratio is \
         the driver's mean over all engines of a kind.",
        // As many of a kind as the header has.
        &[
            point(&[("engine", "encoder"), ("number", "0")], &[percent(166)]),
            point(&[("engine", "encoder"), ("number", "1")], &[percent(167)]),
            point(&[("engine", "encoder"), ("number", "2")], &[percent(168)]),
            point(&[("engine", "encoder"), ("number", "3")], &[percent(169)]),
            point(&[("engine", "decoder"), ("number", "0")], &[percent(30)]),
            point(&[("engine", "decoder"), ("number", "1")], &[percent(31)]),
            point(&[("engine", "decoder"), ("number", "2")], &[percent(32)]),
            point(&[("engine", "decoder"), ("number", "3")], &[percent(33)]),
            point(&[("engine", "decoder"), ("number", "4")], &[percent(34)]),
            point(&[("engine", "decoder"), ("number", "5")], &[percent(35)]),
            point(&[("engine", "decoder"), ("number", "6")], &[percent(36)]),
            point(&[("engine", "decoder"), ("number", "7")], &[percent(37)]),
            point(&[("engine", "jpeg"), ("number", "0")], &[percent(40)]),
            point(&[("engine", "jpeg"), ("number", "1")], &[percent(41)]),
            point(&[("engine", "jpeg"), ("number", "2")], &[percent(42)]),
            point(&[("engine", "jpeg"), ("number", "3")], &[percent(43)]),
            point(&[("engine", "jpeg"), ("number", "4")], &[percent(44)]),
            point(&[("engine", "jpeg"), ("number", "5")], &[percent(45)]),
            point(&[("engine", "jpeg"), ("number", "6")], &[percent(46)]),
            point(&[("engine", "jpeg"), ("number", "7")], &[percent(47)]),
            point(&[("engine", "ofa"), ("number", "0")], &[percent(50)]),
            point(&[("engine", "ofa"), ("number", "1")], &[percent(51)]),
        ],
    )
    .aliases(&[
        dcgm("DCGM_FI_PROF_NVDEC0_ACTIVE").when(&[("engine", "decoder"), ("number", "0")]),
        dcgm("DCGM_FI_PROF_NVDEC1_ACTIVE").when(&[("engine", "decoder"), ("number", "1")]),
        dcgm("DCGM_FI_PROF_NVDEC2_ACTIVE").when(&[("engine", "decoder"), ("number", "2")]),
        dcgm("DCGM_FI_PROF_NVDEC3_ACTIVE").when(&[("engine", "decoder"), ("number", "3")]),
        dcgm("DCGM_FI_PROF_NVDEC4_ACTIVE").when(&[("engine", "decoder"), ("number", "4")]),
        dcgm("DCGM_FI_PROF_NVDEC5_ACTIVE").when(&[("engine", "decoder"), ("number", "5")]),
        dcgm("DCGM_FI_PROF_NVDEC6_ACTIVE").when(&[("engine", "decoder"), ("number", "6")]),
        dcgm("DCGM_FI_PROF_NVDEC7_ACTIVE").when(&[("engine", "decoder"), ("number", "7")]),
        dcgm("DCGM_FI_PROF_NVJPG0_ACTIVE").when(&[("engine", "jpeg"), ("number", "0")]),
        dcgm("DCGM_FI_PROF_NVJPG1_ACTIVE").when(&[("engine", "jpeg"), ("number", "1")]),
        dcgm("DCGM_FI_PROF_NVJPG2_ACTIVE").when(&[("engine", "jpeg"), ("number", "2")]),
        dcgm("DCGM_FI_PROF_NVJPG3_ACTIVE").when(&[("engine", "jpeg"), ("number", "3")]),
        dcgm("DCGM_FI_PROF_NVJPG4_ACTIVE").when(&[("engine", "jpeg"), ("number", "4")]),
        dcgm("DCGM_FI_PROF_NVJPG5_ACTIVE").when(&[("engine", "jpeg"), ("number", "5")]),
        dcgm("DCGM_FI_PROF_NVJPG6_ACTIVE").when(&[("engine", "jpeg"), ("number", "6")]),
        dcgm("DCGM_FI_PROF_NVJPG7_ACTIVE").when(&[("engine", "jpeg"), ("number", "7")]),
        dcgm("DCGM_FI_PROF_NVOFA0_ACTIVE").when(&[("engine", "ofa"), ("number", "0")]),
        dcgm("DCGM_FI_PROF_NVOFA1_ACTIVE").when(&[("engine", "ofa"), ("number", "1")]),
    ]),
    seconds(
        "gpu_video_engine_active_seconds_total",
        &["gpu", "uuid", "engine", "number"],
        "Time in which this video engine worked (GPM), integrated since the agent's start.",
        "gpu_video_engine_active_ratio",
    ),
    ratio(
        "gpu_context_switch_active_ratio",
        &["gpu", "uuid"],
        "Share of time that the graphics and compute engine spent on switching between contexts \
         (GPM): what time-slicing costs.",
        &[point(&[], &[percent(174)])],
    ),
    seconds(
        "gpu_context_switch_active_seconds_total",
        &["gpu", "uuid"],
        "Time that the graphics and compute engine spent on switching between contexts (GPM), \
         integrated since the agent's start.",
        "gpu_context_switch_active_ratio",
    ),
    ratio(
        "gpu_cache_hit_ratio",
        &["gpu", "uuid", "memory"],
        "Share of the GPU's requests to that memory that a cache answered (GPM, boards with a \
         Grace CPU).",
        &[
            point(&[("memory", "host")], &[percent(160)]),
            point(&[("memory", "peer")], &[percent(162)]),
            point(&[("memory", "device")], &[percent(164)]),
        ],
    )
    .values(&[("memory", &["host", "peer", "device"])])
    .unsupported(NO_GRACE)
    .aliases(&[
        dcgm("DCGM_FI_PROF_HOSTMEM_CACHE_HIT").when(&[("memory", "host")]).times(100),
        dcgm("DCGM_FI_PROF_PEERMEM_CACHE_HIT").when(&[("memory", "peer")]).times(100),
    ]),
];

const fn percent(id: u32) -> Source {
    Source::Gpm { id, times: PERCENT }
}

const fn ratio(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    points: &'static [Point],
) -> Family {
    Family::gauge(name, Unit::Ratio, help, Gpu(Read(points))).labels(labels)
}

const fn seconds(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    of: &'static str,
) -> Family {
    Family::counter(name, Unit::Seconds, help, Gpu(Integrals { of, counters: &[] })).labels(labels)
}
