//! PCIe and NVLink.

mod per_link;

use super::aliases::{HW_GPU, dcgm, otel};
use super::family::HOPPER;
use super::power::NO_GRACE;
use super::source::{call, field, named, point};
use super::{ALL_LINKS, CallValue, Counter, Family, Level, MOST_LINKS, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) use per_link::ROWS as PER_LINK;

const KIBIBYTE: i64 = 1_024;
const MEBIBYTE: i64 = 1 << 20;

const fn pcie(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family::gauge(name, Unit::None, help, Rows::Device(points)).level(level).tier(Tier::Slow)
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
    .most(10),
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
    .most(32),
    Family::counter(
        "gpu_pcie_bytes_total",
        Unit::Bytes,
        "Bytes over PCIe as the GPU counts them, since the agent's start: from GPM's counter, \
         else from GPM's rate multiplied by time, else from the board's own counter \
         (gpumeter_source_info says which).",
        Rows::Flow(&[
            point(
                TRANSMIT,
                &[Source::Since(Counter::PcieTransmit), mebibytes(20), Source::Count { id: 197, times: 1 }],
            ),
            point(
                RECEIVE,
                &[Source::Since(Counter::PcieReceive), mebibytes(21), Source::Count { id: 198, times: 1 }],
            ),
        ]),
    )
    .labels(&["gpu", "uuid", "direction"])
    .level(Level::Standard)
    .source_told_from(Level::Standard)
    .unsupported("of boards before Hopper only newer drivers count them, 580 for one")
    .aliases(&[
        dcgm("DCGM_FI_PROF_PCIE_TX_BYTES").when(&[("direction", "transmit")]).per_second(),
        dcgm("DCGM_FI_PROF_PCIE_RX_BYTES").when(&[("direction", "receive")]).per_second(),
        dcgm("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL").when(&[("direction", "transmit")]).counter(),
        dcgm("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL").when(&[("direction", "receive")]).counter(),
        otel("hw.gpu.io", &[("network.io.direction", "=direction")]).counter(),
    ]),
    Family::counter(
        "gpu_pcie_replays_total",
        Unit::None,
        "PCIe transfers repeated since the driver was loaded; a total above 100 is normal on \
         some boards, an increase is not.",
        Rows::Device(&[point(&[], &[field(94), named("nvmlDeviceGetPcieReplayCounter", 0)])]),
    )
    .level(Level::Lean)
    .tier(Tier::Medium)
    .aliases(&[
        dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER").counter(),
        otel("hw.errors", &[HW_GPU, ("error.type", "pcie_replay")]).counter(),
    ]),
    Family::gauge(
        "gpu_nvlink_links_up",
        Unit::None,
        "NVLinks of the GPU that are active.",
        Rows::Device(&[point(
            &[],
            &[
                links(165),
                // Branch 470 has no field of it.
                call(CallValue::NvLinksUp),
            ],
        )]),
    )
    .level(Level::Lean)
    .tier(Tier::Slow)
    .most(MOST_LINKS as i64)
    .unsupported(NO_NVLINK),
    Family::gauge(
        "gpu_nvlink_links_expected",
        Unit::None,
        "NVLinks that should be active: those that lead to a switch or, on boards without a \
         switch, all links of the GPU, some of which may be unconnected.",
        Rows::Device(&[point(
            &[],
            &[Source::NotZero { id: 147, times: 1 }, Source::NotZero { id: 91, times: 1 }],
        )]),
    )
    .level(Level::Lean)
    .tier(Tier::Slow)
    .most(MOST_LINKS as i64)
    .unsupported(NO_NVLINK),
    Family::counter(
        "gpu_nvlink_bytes_total",
        Unit::Bytes,
        "Payload over all NVLinks as the GPU sees it, since the driver was loaded; where the \
         driver reports it through GPM only, packet headers are included.",
        Rows::Device(&[
            point(
                TRANSMIT,
                &[
                    Source::Field { id: 138, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 138, times: KIBIBYTE },
                    links(202),
                    Source::GpmLinks { first: 262, times: 1 },
                ],
            ),
            point(
                RECEIVE,
                &[
                    Source::Field { id: 139, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 139, times: KIBIBYTE },
                    links(204),
                    Source::GpmLinks { first: 261, times: 1 },
                ],
            ),
        ]),
    )
    .labels(&["gpu", "uuid", "direction"])
    .level(Level::Standard)
    .tier(Tier::Medium)
    .source_told_from(Level::Full)
    .unsupported(NO_NVLINK)
    .aliases(&[
        dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL").over(1_024).counter(),
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
        Rows::Device(&[
            point(&[("kind", "crc_flit")], &[links(163), total(38)]),
            point(&[("kind", "crc_data")], &[total(45)]),
            point(&[("kind", "replay")], &[links(161), total(52)]),
            point(&[("kind", "recovery")], &[links(162), links(213), total(59)]),
            point(&[("kind", "receive")], &[links(208)]),
            point(&[("kind", "recovery_failed")], &[links(214)]),
            point(&[("kind", "local_integrity")], &[links(211)]),
            point(&[("kind", "effective")], &[links(219)]),
            point(&[("kind", "symbol")], &[links(221)]),
        ]),
    )
    .labels(&["gpu", "uuid", "kind"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .unsupported(NO_NVLINK)
    .aliases(&[
        dcgm("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL").when(&[("kind", "crc_flit")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL").when(&[("kind", "crc_data")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL").when(&[("kind", "replay")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL").when(&[("kind", "recovery")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS").when(&[("kind", "receive")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS")
            .when(&[("kind", "recovery")])
            .counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS")
            .when(&[("kind", "recovery_failed")])
            .counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS")
            .when(&[("kind", "local_integrity")])
            .counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS").when(&[("kind", "symbol")]).counter(),
        dcgm("DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS").when(&[("kind", "effective")]).counter(),
    ]),
    // Of single links (GPM 104 to 159) nothing is shown: they share the load, and no counter tells of them.
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
        Rows::State(&[
            point(&[("state", "not_started")], &[named("nvmlDeviceGetGpuFabricInfo", 0)]),
            point(&[("state", "in_progress")], &[named("nvmlDeviceGetGpuFabricInfo", 1)]),
            point(&[("state", "completed")], &[named("nvmlDeviceGetGpuFabricInfo", 2)]),
            point(&[("state", "failed")], &[named("nvmlDeviceGetGpuFabricInfo", 3)]),
        ]),
    )
    .labels(&["gpu", "uuid", "state"])
    .level(Level::Lean)
    .tier(Tier::Slow)
    .since(HOPPER)
    .unsupported(NO_FABRIC),
];

const fn c2c(name: &'static str, help: &'static str, points: &'static [Point]) -> Family {
    Family::counter(name, Unit::Bytes, help, Rows::Flow(points)).labels(&["gpu", "uuid", "direction"])
}

const TRANSMIT: &[(&str, &str)] = &[("direction", "transmit")];
const RECEIVE: &[(&str, &str)] = &[("direction", "receive")];

/// Per second, of the header's MiB.
const fn mebibytes(id: u32) -> Source {
    Source::Gpm { id, times: MEBIBYTE }
}

/// The sum of a field over the links.
const fn links(id: u32) -> Source {
    Source::Links { id, times: 1 }
}

/// A sum that the driver keeps itself; the links' own counters are newer.
const fn total(id: u32) -> Source {
    Source::LinksTotal { id, times: 1 }
}

pub(super) const NO_FABRIC: &str =
    "only GPUs on an NVLink fabric (Hopper and later behind NVSwitch) belong to one";
const NO_NVLINK: &str = "this board has no NVLink, or its driver is too old to tell; nvidia-smi nvlink -s shows \
         the links";
