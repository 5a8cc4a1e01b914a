//! What GPM tells beside the multiprocessors: each video engine, context switches, caches of memory elsewhere.
//!
//! Of GPM's metrics these stand in no family: rates of NVLink (60 to 97, 212 to 247), since the links' bytes are
//! counted; single C2C links (104 to 159); misses of the caches (161, 163, 165), which are what hits leave; of context
//! switches the cycles and requests (170 to 173), whose ratio is here, and those of the engines 1 to 7 (175 to 209),
//! which only instances of a divided GPU have. Ids above 332 are of later headers.

use super::GpuRows::{Integrals, Read};
use super::Rows::Gpu;
use super::aliases::dcgm;
use super::power::NO_GRACE;
use super::source::point;
use super::{Family, Integral, LabelPair, Point, Source};
use crate::model::Unit;

/// Percent to billionths.
const PERCENT: i64 = 10_000_000;

/// Of a kind as many as the header knows: engine, number, GPM's id.
const VIDEO: [(&str, &str, u32); COUNT] = [
    ("encoder", "0", 166),
    ("encoder", "1", 167),
    ("encoder", "2", 168),
    ("encoder", "3", 169),
    ("decoder", "0", 30),
    ("decoder", "1", 31),
    ("decoder", "2", 32),
    ("decoder", "3", 33),
    ("decoder", "4", 34),
    ("decoder", "5", 35),
    ("decoder", "6", 36),
    ("decoder", "7", 37),
    ("jpeg", "0", 40),
    ("jpeg", "1", 41),
    ("jpeg", "2", 42),
    ("jpeg", "3", 43),
    ("jpeg", "4", 44),
    ("jpeg", "5", 45),
    ("jpeg", "6", 46),
    ("jpeg", "7", 47),
    ("ofa", "0", 50),
    ("ofa", "1", 51),
];

const COUNT: usize = 22;

static LABELS: [[LabelPair; 2]; COUNT] = {
    let mut labels = [[("", ""); 2]; COUNT];
    let mut place = 0;
    while place < COUNT {
        labels[place] = [("engine", VIDEO[place].0), ("number", VIDEO[place].1)];
        place += 1;
    }
    labels
};

static SOURCES: [[Source; 1]; COUNT] = {
    let mut sources = [[percent(0)]; COUNT];
    let mut place = 0;
    while place < COUNT {
        sources[place] = [percent(VIDEO[place].2)];
        place += 1;
    }
    sources
};

static POINTS: [Point; COUNT] = {
    let mut points = [const { point(&[], &[]) }; COUNT];
    let mut place = 0;
    while place < COUNT {
        points[place] = point(&LABELS[place], &SOURCES[place]);
        place += 1;
    }
    points
};

static INTEGRALS: [Integral; COUNT] = {
    let mut integrals = [const { Integral::of(&[], "") }; COUNT];
    let mut place = 0;
    while place < COUNT {
        integrals[place] = Integral::of(&LABELS[place], "gpu_video_engine_active_ratio");
        place += 1;
    }
    integrals
};

pub(super) const ROWS: &[Family] = &[
    ratio(
        "gpu_video_engine_active_ratio",
        &["gpu", "uuid", "engine", "number"],
        "Share of time in which this video engine worked (GPM); gpu_engine_utilization_ratio is \
         the driver's mean over all engines of a kind.",
        &POINTS,
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
        &INTEGRALS,
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
        &[Integral::of(&[], "gpu_context_switch_active_ratio")],
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
    integrals: &'static [Integral],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Gpu(Integrals(integrals))).labels(labels)
}
