//! PCIe and NVLink.

use super::GpuRows::{Flow, Read, State};
use super::Rows::Gpu;
use super::aliases::{Alias, HW_GPU, dcgm, otel};
use super::family::{BLACKWELL, HOPPER};
use super::power::NO_GRACE;
use super::source::{LINK_STATE, field, named, point};
use super::{ALL_LINKS, Counter, Family, LabelPair, Level, MOST_LINKS, Point, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const KIBIBYTE: i64 = 1_024;
const MEBIBYTE: i64 = 1 << 20;

const fn pcie(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family::gauge(name, Unit::None, help, Gpu(Read(points))).level(level).tier(Tier::Slow)
}

pub(super) const ROWS: &[Family] = &[
    pcie(
        "gpu_pcie_link_generation",
        Level::Standard,
        "Current PCIe generation of the link; boards lower it when idle to save power.",
        &[point(&[], &[named("nvmlDeviceGetCurrPcieLinkGeneration", 0)])],
    )
    // Generation 7 is the last that is specified, 32 lanes the widest link.
    .most(10)
    .aliases(&[dcgm("DCGM_FI_DEV_PCIE_LINK_GEN")]),
    pcie(
        "gpu_pcie_link_generation_max",
        Level::Standard,
        "Highest PCIe generation that GPU and system reach together.",
        &[point(&[], &[named("nvmlDeviceGetMaxPcieLinkGeneration", 0)])],
    )
    .most(10)
    .aliases(&[dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_GEN")]),
    pcie(
        "gpu_pcie_link_width",
        Level::Standard,
        "Current PCIe lanes of the link; fewer than the maximum means a badly seated board, a \
         bad riser or a bad slot.",
        &[point(&[], &[named("nvmlDeviceGetCurrPcieLinkWidth", 0)])],
    )
    .most(32)
    .aliases(&[dcgm("DCGM_FI_DEV_PCIE_LINK_WIDTH")]),
    pcie(
        "gpu_pcie_link_width_max",
        Level::Standard,
        "Most PCIe lanes that GPU and system reach together.",
        &[point(&[], &[named("nvmlDeviceGetMaxPcieLinkWidth", 0)])],
    )
    .most(32)
    .aliases(&[dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")]),
    Family::counter(
        "gpu_pcie_bytes_total",
        Unit::Bytes,
        "Bytes over PCIe as the GPU counts them, since the agent's start: from GPM's counter, \
         else from GPM's rate multiplied by time, else from the board's own counter \
         (gpumeter_source_info says which).",
        Gpu(Flow(&[
            point(
                TRANSMIT,
                &[
                    Source::GpmCounter(Counter::PcieTransmit),
                    mebibytes(20),
                    Source::Count { id: 197, times: 1 },
                ],
            ),
            point(
                RECEIVE,
                &[
                    Source::GpmCounter(Counter::PcieReceive),
                    mebibytes(21),
                    Source::Count { id: 198, times: 1 },
                ],
            ),
        ])),
    )
    .labels(&["gpu", "uuid", "direction"])
    .level(Level::Standard)
    .source_from(Level::Standard)
    .unsupported("of boards before Hopper only newer drivers count them, 580 for one")
    .aliases(&[
        dcgm("DCGM_FI_PROF_PCIE_TX_BYTES").when(&[("direction", "transmit")]).per_second(),
        dcgm("DCGM_FI_PROF_PCIE_RX_BYTES").when(&[("direction", "receive")]).per_second(),
        // In KB per second; deprecated since DCGM 3.
        dcgm("DCGM_FI_DEV_PCIE_TX_THROUGHPUT").when(&[("direction", "transmit")]).per_second().over(1_000),
        dcgm("DCGM_FI_DEV_PCIE_RX_THROUGHPUT").when(&[("direction", "receive")]).per_second().over(1_000),
        dcgm("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL").when(&[("direction", "transmit")]),
        dcgm("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL").when(&[("direction", "receive")]),
        otel("hw.gpu.io", &[HW_GPU, ("network.io.direction", "=direction")]),
    ]),
    Family::counter(
        "gpu_pcie_replays_total",
        Unit::None,
        "PCIe transfers repeated since the driver was loaded; a total above 100 is normal on \
         some boards, an increase is not.",
        Gpu(Read(&[point(&[], &[field(94), named("nvmlDeviceGetPcieReplayCounter", 0)])])),
    )
    .level(Level::Lean)
    .tier(Tier::Medium)
    .judged()
    .aliases(&[
        dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
        otel("hw.errors", &[HW_GPU, ("error.type", "pcie_replay")]),
    ]),
    Family::gauge(
        "gpu_nvlink_links_up",
        Unit::None,
        "NVLinks of the GPU that are active.",
        Gpu(Read(&[point(
            &[],
            &[
                links(165),
                // Branch 470 has no field of it.
                named(LINK_STATE, 0),
            ],
        )])),
    )
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .most(MOST_LINKS as i64)
    .unsupported(NO_NVLINK),
    Family::gauge(
        "gpu_nvlink_links_expected",
        Unit::None,
        "NVLinks that should be active: those that lead to a switch, as the driver says, or on \
         a registered fabric all, once one was active; else the most that were active at once \
         since the driver was loaded. Absent where none ever was: its links are not connected.",
        // Without an answer of the driver the agent sets it.
        Gpu(Read(&[point(&[], &[Source::NotZero { id: 147, scope: 0, times: 1 }])])),
    )
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .most(MOST_LINKS as i64)
    .unsupported(
        "no NVLink of this GPU was active since the driver was loaded, as without a bridge, or the board has none",
    ),
    Family::counter(
        "gpu_nvlink_bytes_total",
        Unit::Bytes,
        "Payload over all NVLinks as the GPU sees it, since the driver was loaded; where the \
         driver reports it through GPM only, packet headers are included.",
        // Some drivers answer 0 for all links together, whatever each counts and whether there is any.
        Gpu(Read(&[
            point(
                TRANSMIT,
                &[
                    Source::NotZero { id: 138, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 138, times: KIBIBYTE },
                    links(202),
                    Source::GpmLinks { first: 262, times: 1 },
                ],
            ),
            point(
                RECEIVE,
                &[
                    Source::NotZero { id: 139, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 139, times: KIBIBYTE },
                    links(204),
                    Source::GpmLinks { first: 261, times: 1 },
                ],
            ),
        ])),
    )
    .labels(&["gpu", "uuid", "direction"])
    .level(Level::Standard)
    .tier(Tier::Medium)
    .source_from(Level::Full)
    .unsupported(NO_NVLINK)
    .aliases(&[
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
        dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES").when(&[("direction", "transmit")]).per_second(),
        dcgm("DCGM_FI_PROF_NVLINK_RX_BYTES").when(&[("direction", "receive")]).per_second(),
    ]),
    Family::counter(
        "gpu_nvlink_errors_total",
        Unit::None,
        "Errors over all NVLinks since the driver was loaded. Up to NVLink 4: failed checksums \
         of flow control (crc_flit) and, before Hopper, of data (crc_data), replayed transfers. \
         NVLink 5: packets received with errors (receive), errors that correction left in packets \
         (effective) and symbols (symbol), times that a link had too many errors \
         (local_integrity), recoveries that failed (recovery_failed). All: recoveries of a link. \
         One fault can count in more than one.",
        Gpu(Read(&[
            point(&[("kind", "crc_flit")], &[links(163), total(38)]),
            point(&[("kind", "crc_data")], &[total(45)]),
            point(&[("kind", "replay")], &[links(161), total(52)]),
            point(&[("kind", "recovery")], &[links(162), links(213), total(59)]),
            point(&[("kind", "receive")], &[links(208)]),
            point(&[("kind", "recovery_failed")], &[links(214)]),
            point(&[("kind", "local_integrity")], &[links(211)]),
            point(&[("kind", "effective")], &[links(219)]),
            point(&[("kind", "symbol")], &[links(221)]),
        ])),
    )
    .labels(&["gpu", "uuid", "kind"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .judged()
    .unsupported(NO_NVLINK)
    .aliases(&[
        dcgm("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL").when(&[("kind", "crc_flit")]),
        dcgm("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL").when(&[("kind", "crc_data")]),
        dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL").when(&[("kind", "replay")]),
        dcgm("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL").when(&[("kind", "recovery")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS").when(&[("kind", "receive")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS").when(&[("kind", "recovery")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS").when(&[("kind", "recovery_failed")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS").when(&[("kind", "local_integrity")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS").when(&[("kind", "symbol")]),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS").when(&[("kind", "effective")]),
    ]),
    // Single links (GPM 104 to 159) have no family: they share the load, and no counter covers them.
    c2c(
        "gpu_c2c_bytes_total",
        "Bytes over the C2C link between the GPU and its Grace CPU as the GPU sees it, packet \
         headers included, since the agent's start: GPM's rate multiplied by time.",
        &[point(TRANSMIT, &[mebibytes(100)]), point(RECEIVE, &[mebibytes(101)])],
    )
    .unsupported(NO_GRACE)
    .aliases(&[
        dcgm("DCGM_FI_PROF_C2C_TX_ALL_BYTES").when(&[("direction", "transmit")]).per_second(),
        dcgm("DCGM_FI_PROF_C2C_RX_ALL_BYTES").when(&[("direction", "receive")]).per_second(),
    ]),
    c2c(
        "gpu_c2c_payload_bytes_total",
        "Bytes over the C2C link between the GPU and its Grace CPU as the GPU sees it, without \
         packet headers, since the agent's start: a part of gpu_c2c_bytes_total.",
        &[point(TRANSMIT, &[mebibytes(102)]), point(RECEIVE, &[mebibytes(103)])],
    )
    .unsupported(NO_GRACE)
    .aliases(&[
        dcgm("DCGM_FI_PROF_C2C_TX_DATA_BYTES").when(&[("direction", "transmit")]).per_second(),
        dcgm("DCGM_FI_PROF_C2C_RX_DATA_BYTES").when(&[("direction", "receive")]).per_second(),
    ]),
    Family::gauge(
        "gpu_fabric_state",
        Unit::None,
        "Always 1; state of the GPU's registration with its NVLink fabric. Jobs can use the \
         fabric only when it is completed; failed means that registration ended with an error.",
        Gpu(State(&[
            point(&[("state", "not_started")], &[named("nvmlDeviceGetGpuFabricInfo", 0)]),
            point(&[("state", "in_progress")], &[named("nvmlDeviceGetGpuFabricInfo", 1)]),
            point(&[("state", "completed")], &[named("nvmlDeviceGetGpuFabricInfo", 2)]),
            point(&[("state", "failed")], &[named("nvmlDeviceGetGpuFabricInfo", 3)]),
        ])),
    )
    .labels(&["gpu", "uuid", "state"])
    .level(Level::Lean)
    .tier(Tier::Slow)
    .judged()
    .since(HOPPER)
    .unsupported(NO_FABRIC),
    Family::gauge(
        "gpu_fabric_health",
        Unit::None,
        "Always 1; what the NVLink fabric says of the GPU in sum: healthy, unhealthy, or limited_capacity.",
        Gpu(State(&[
            point(&[("state", "healthy")], &[named(FABRIC_HEALTH, 5)]),
            point(&[("state", "unhealthy")], &[named(FABRIC_HEALTH, 6)]),
            point(&[("state", "limited_capacity")], &[named(FABRIC_HEALTH, 7)]),
        ])),
    )
    .labels(&["gpu", "uuid", "state"])
    .tier(Tier::Slow)
    .since(BLACKWELL)
    .unsupported(NO_FABRIC_HEALTH),
    Family::gauge(
        "gpu_fabric_fault",
        Unit::None,
        "1 while the NVLink fabric reports that of the GPU, else 0: its bandwidth is degraded, its routes are being \
         recovered or are unhealthy, it recovers from accesses that timed out, or it is configured for another place.",
        Gpu(Read(&[
            point(&[("reason", "degraded_bandwidth")], &[named(FABRIC_HEALTH, 0)]),
            point(&[("reason", "route_recovery")], &[named(FABRIC_HEALTH, 1)]),
            point(&[("reason", "route_unhealthy")], &[named(FABRIC_HEALTH, 2)]),
            point(&[("reason", "access_timeout")], &[named(FABRIC_HEALTH, 3)]),
            point(&[("reason", "incorrect_configuration")], &[named(FABRIC_HEALTH, 4)]),
        ])),
    )
    .labels(&["gpu", "uuid", "reason"])
    .tier(Tier::Slow)
    .judged()
    .most(1)
    .since(BLACKWELL)
    .unsupported(NO_FABRIC_HEALTH),
    Family::gauge(
        "gpu_fabric_health_mask",
        Unit::None,
        "What the NVLink fabric says of the GPU, as NVML's mask; gpu_fabric_fault has its parts, one by one.",
        Gpu(Read(&[point(&[], &[named(FABRIC_HEALTH, 8)])])),
    )
    .tier(Tier::Slow)
    .most(0xff_ffff)
    .since(BLACKWELL)
    .unsupported(NO_FABRIC_HEALTH)
    .aliases(&[dcgm("DCGM_FI_DEV_FABRIC_HEALTH_MASK")]),
];

/// The function whose later versions report the health of the fabric.
const FABRIC_HEALTH: &str = "nvmlDeviceGetGpuFabricInfoV";

const fn c2c(name: &'static str, help: &'static str, points: &'static [Point]) -> Family {
    Family::counter(name, Unit::Bytes, help, Gpu(Flow(points))).labels(&["gpu", "uuid", "direction"])
}

const TRANSMIT: &[(&str, &str)] = &[("direction", "transmit")];
const RECEIVE: &[(&str, &str)] = &[("direction", "receive")];

/// DCGM's throughput of NVLinks since its last sample: KiB per second over 1000, which it calls MB/s
/// (ReadAndCacheNvLinkBandwidth in DcgmCacheManager.cpp, DCGM 4).
const fn nvlink_rate(name: &'static str) -> Alias {
    dcgm(name).per_second().over(1_024_000)
}

/// MiB per second.
const fn mebibytes(id: u32) -> Source {
    Source::Gpm { id, times: MEBIBYTE }
}

/// The sum of a field over the links.
const fn links(id: u32) -> Source {
    Source::Links { id, times: 1 }
}

/// A sum that the driver keeps; older than the counters of single links.
const fn total(id: u32) -> Source {
    Source::LinksTotal { id, times: 1 }
}

pub(super) const NO_FABRIC: &str =
    "only GPUs on an NVLink fabric (Hopper and later behind NVSwitch) belong to one";
const NO_FABRIC_HEALTH: &str = "only GPUs on an NVLink fabric of the fifth generation (Blackwell and later behind NVSwitch) report its health";
const NO_NVLINK: &str = "this board has no NVLink, or its driver is too old to tell; nvidia-smi nvlink -s shows \
         the links";

const LINKS: usize = MOST_LINKS as usize;

pub(super) const NUMBERS: [&str; LINKS] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35",
];

/// A value that every link has: its label beside `link`, and its fields with their factors, at most two, best first.
struct LinkFields {
    label: LabelPair,
    fields: &'static [(u32, i64)],
}

#[derive(Clone, Copy)]
struct LinkPoint {
    labels: [LabelPair; 2],
    sources: [Source; 2],
}

const fn link_points<const N: usize>(values: &[LinkFields]) -> [LinkPoint; N] {
    let unused = Source::Link { id: 0, link: 0, times: 0 };
    let mut all = [LinkPoint { labels: [("", ""); 2], sources: [unused; 2] }; N];
    let mut place = 0;
    while place < N {
        let (link, value) = (place / values.len(), &values[place % values.len()]);
        all[place].labels = [("link", NUMBERS[link]), value.label];
        let mut nth = 0;
        while nth < value.fields.len() {
            let (id, times) = value.fields[nth];
            all[place].sources[nth] = Source::Link { id, link: link as u32, times };
            nth += 1;
        }
        place += 1;
    }
    all
}

/// The same as points; the family has the first `labels` labels.
const fn points<const N: usize>(
    values: &[LinkFields],
    all: &'static [LinkPoint; N],
    labels: usize,
) -> [Point; N] {
    let mut points = [const { point(&[], &[]) }; N];
    let mut place = 0;
    while place < N {
        let sources = values[place % values.len()].fields.len();
        points[place] = point(all[place].labels.split_at(labels).0, all[place].sources.split_at(sources).0);
        place += 1;
    }
    points
}

const STATE: &[LinkFields] = &[LinkFields { label: ("", ""), fields: &[(165, 1)] }];
static STATE_OF_LINKS: [LinkPoint; LINKS] = link_points(STATE);
static STATE_POINTS: [Point; LINKS] = points(STATE, &STATE_OF_LINKS, 1);

const BYTES: &[LinkFields] = &[
    LinkFields { label: ("direction", "transmit"), fields: &[(138, KIBIBYTE), (202, 1)] },
    LinkFields { label: ("direction", "receive"), fields: &[(139, KIBIBYTE), (204, 1)] },
];
static BYTES_OF_LINKS: [LinkPoint; LINKS * 2] = link_points(BYTES);
static BYTES_POINTS: [Point; LINKS * 2] = points(BYTES, &BYTES_OF_LINKS, 2);

/// The first two exist up to Hopper, recoveries on all boards, the others from NVLink 5 on.
const ERRORS: &[LinkFields] = &[
    LinkFields { label: ("kind", "crc_flit"), fields: &[(163, 1)] },
    LinkFields { label: ("kind", "replay"), fields: &[(161, 1)] },
    // On NVLink 5 those that succeeded.
    LinkFields { label: ("kind", "recovery"), fields: &[(162, 1), (213, 1)] },
    LinkFields { label: ("kind", "malformed_packet"), fields: &[(206, 1)] },
    LinkFields { label: ("kind", "buffer_overrun"), fields: &[(207, 1)] },
    LinkFields { label: ("kind", "receive"), fields: &[(208, 1)] },
    LinkFields { label: ("kind", "local_integrity"), fields: &[(211, 1)] },
    LinkFields { label: ("kind", "recovery_failed"), fields: &[(214, 1)] },
    LinkFields { label: ("kind", "effective"), fields: &[(219, 1)] },
    LinkFields { label: ("kind", "symbol"), fields: &[(221, 1)] },
];
static ERRORS_OF_LINKS: [LinkPoint; LINKS * 10] = link_points(ERRORS);
static ERRORS_POINTS: [Point; LINKS * 10] = points(ERRORS, &ERRORS_OF_LINKS, 2);

/// The same of each link; a board has those of the links that it reports.
pub(super) const PER_LINK: &[Family] = &[
    Family::gauge(
        "gpu_nvlink_link_up",
        Unit::None,
        "1 while the NVLink is active, else 0.",
        Gpu(Read(&STATE_POINTS)),
    )
    .labels(&["gpu", "uuid", "link"])
    .tier(Tier::Slow)
    .most(1)
    .unsupported(NO_NVLINK),
    Family::counter(
        "gpu_nvlink_link_bytes_total",
        Unit::Bytes,
        "Payload over the NVLink as the GPU sees it, since the driver was loaded.",
        Gpu(Read(&BYTES_POINTS)),
    )
    .labels(&["gpu", "uuid", "link", "direction"])
    .tier(Tier::Medium)
    .unsupported(NO_NVLINK)
    .aliases(&[
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L0").when(&[("link", "0")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L1").when(&[("link", "1")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L2").when(&[("link", "2")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L3").when(&[("link", "3")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L4").when(&[("link", "4")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L5").when(&[("link", "5")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L6").when(&[("link", "6")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L7").when(&[("link", "7")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L8").when(&[("link", "8")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L9").when(&[("link", "9")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L10").when(&[("link", "10")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L11").when(&[("link", "11")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L12").when(&[("link", "12")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L13").when(&[("link", "13")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L14").when(&[("link", "14")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L15").when(&[("link", "15")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L16").when(&[("link", "16")]),
        nvlink_rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_L17").when(&[("link", "17")]),
    ]),
    Family::counter(
        "gpu_nvlink_link_errors_total",
        Unit::None,
        "Errors of the NVLink since the driver was loaded, by kind; which kinds there are \
         depends on the generation of NVLink. They are counted at several layers (symbols, \
         packets, the link), so one fault can count in more than one.",
        Gpu(Read(&ERRORS_POINTS)),
    )
    .labels(&["gpu", "uuid", "link", "kind"])
    .tier(Tier::Slow)
    .unsupported(NO_NVLINK),
];
