//! PCIe and NVLink.

mod per_link;

use super::{ALL_LINKS, CallValue, Counter, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) use per_link::ROWS as PER_LINK;

const KIBIBYTE: i64 = 1_024;
const MEBIBYTE: i64 = 1 << 20;

const fn call(value: CallValue) -> Source {
    Source::Call { value, times: 1 }
}

const fn pcie(name: &'static str, level: Level, help: &'static str, points: &'static [Point]) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: Unit::None,
        help,
        labels: &["gpu", "uuid"],
        level,
        tier: Tier::Slow,
        rows: Rows::Device(points),
    }
}

const fn alone(sources: &'static [Source]) -> Point {
    Point { labels: &[], sources }
}

pub(super) const ROWS: &[Family] = &[
    pcie(
        "gpu_pcie_link_generation",
        Level::Standard,
        "Current PCIe generation of the link; boards lower it when idle to save power.",
        &[alone(&[call(CallValue::PcieGeneration)])],
    ),
    pcie(
        "gpu_pcie_link_generation_max",
        Level::Standard,
        "Highest PCIe generation that GPU and system reach together.",
        &[alone(&[call(CallValue::PcieGenerationMax)])],
    ),
    pcie(
        "gpu_pcie_link_width",
        Level::Standard,
        "Current PCIe lanes of the link; fewer than the maximum means a badly seated board, a bad riser or a bad slot.",
        &[alone(&[call(CallValue::PcieWidth)])],
    ),
    pcie(
        "gpu_pcie_link_width_max",
        Level::Standard,
        "Most PCIe lanes that GPU and system reach together.",
        &[alone(&[call(CallValue::PcieWidthMax)])],
    ),
    Family {
        name: "gpu_pcie_bytes_total",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help: "Bytes over PCIe as the GPU counts them, since the agent's start: from GPM's counter, else from GPM's rate multiplied by time, else from the board's own counter (gpumeter_source_info says which).",
        labels: &["gpu", "uuid", "direction"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Flow(&[
            labelled(
                TRANSMIT,
                &[Source::Since(Counter::PcieTransmit), mebibytes(20), Source::Count { id: 197, times: 1 }],
            ),
            labelled(
                RECEIVE,
                &[Source::Since(Counter::PcieReceive), mebibytes(21), Source::Count { id: 198, times: 1 }],
            ),
        ]),
    },
    Family {
        name: "gpu_pcie_replays_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "PCIe transfers repeated since the driver was loaded; a total above 100 is normal on some boards, an increase is not.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[alone(&[
            Source::Field { id: 94, scope: 0, times: 1 },
            call(CallValue::PcieReplays),
        ])]),
    },
    Family {
        name: "gpu_nvlink_links_up",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "NVLinks of the GPU that are active.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Device(&[alone(&[
            links(165),
            // Branch 470 has no field of it.
            call(CallValue::NvLinksUp),
        ])]),
    },
    Family {
        name: "gpu_nvlink_links_expected",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "NVLinks that should be active: those that lead to a switch or, on boards without a switch, all links of the GPU, some of which may be unconnected.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Device(&[alone(&[
            Source::NotZero { id: 147, times: 1 },
            Source::NotZero { id: 91, times: 1 },
        ])]),
    },
    Family {
        name: "gpu_nvlink_bytes_total",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help: "Payload over all NVLinks as the GPU sees it, since the driver was loaded; where the driver reports it through GPM only, packet headers are included.",
        labels: &["gpu", "uuid", "direction"],
        level: Level::Standard,
        tier: Tier::Medium,
        rows: Rows::Device(&[
            labelled(
                TRANSMIT,
                &[
                    Source::Field { id: 138, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 138, times: KIBIBYTE },
                    links(202),
                    Source::GpmLinks { first: 262, times: 1 },
                ],
            ),
            labelled(
                RECEIVE,
                &[
                    Source::Field { id: 139, scope: ALL_LINKS, times: KIBIBYTE },
                    Source::Links { id: 139, times: KIBIBYTE },
                    links(204),
                    Source::GpmLinks { first: 261, times: 1 },
                ],
            ),
        ]),
    },
    Family {
        name: "gpu_nvlink_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "Errors over all NVLinks since the driver was loaded. Up to NVLink 4: failed checksums of flow control (crc_flit) and, before Hopper, of data (crc_data), replayed transfers. NVLink 5: packets received with errors (receive), errors that correction left in packets (effective) and symbols (symbol), times that a link had too many errors (local_integrity), recoveries that failed (recovery_failed). All: recoveries of a link. One fault can count in more than one.",
        labels: &["gpu", "uuid", "kind"],
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Device(&[
            labelled(&[("kind", "crc_flit")], &[links(163), total(38)]),
            labelled(&[("kind", "crc_data")], &[total(45)]),
            labelled(&[("kind", "replay")], &[links(161), total(52)]),
            labelled(&[("kind", "recovery")], &[links(162), links(213), total(59)]),
            labelled(&[("kind", "receive")], &[links(208)]),
            labelled(&[("kind", "recovery_failed")], &[links(214)]),
            labelled(&[("kind", "local_integrity")], &[links(211)]),
            labelled(&[("kind", "effective")], &[links(219)]),
            labelled(&[("kind", "symbol")], &[links(221)]),
        ]),
    },
    // Of single links (GPM 104 to 159) nothing is shown: they share the load, and no counter tells of them.
    c2c(
        "gpu_c2c_bytes_total",
        "Bytes over the C2C link between the GPU and its Grace CPU as the GPU sees it, packet headers included, since the agent's start: GPM's rate multiplied by time.",
        &[labelled(TRANSMIT, &[mebibytes(100)]), labelled(RECEIVE, &[mebibytes(101)])],
    ),
    c2c(
        "gpu_c2c_payload_bytes_total",
        "Bytes over the C2C link between the GPU and its Grace CPU as the GPU sees it, without packet headers, since the agent's start: a part of gpu_c2c_bytes_total.",
        &[labelled(TRANSMIT, &[mebibytes(102)]), labelled(RECEIVE, &[mebibytes(103)])],
    ),
    Family {
        name: "gpu_fabric_state",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; state of the GPU's registration with its NVLink fabric. Jobs can use the fabric only when it is completed; failed means that registration ended with an error.",
        labels: &["gpu", "uuid", "state"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::State(&[
            labelled(&[("state", "not_started")], &[call(CallValue::FabricNotStarted)]),
            labelled(&[("state", "in_progress")], &[call(CallValue::FabricInProgress)]),
            labelled(&[("state", "completed")], &[call(CallValue::FabricCompleted)]),
            labelled(&[("state", "failed")], &[call(CallValue::FabricFailed)]),
        ]),
    },
];

const fn c2c(name: &'static str, help: &'static str, points: &'static [Point]) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help,
        labels: &["gpu", "uuid", "direction"],
        // Such a board fills level standard without.
        level: Level::Full,
        tier: Tier::Fast,
        rows: Rows::Flow(points),
    }
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

const fn labelled(labels: &'static [(&'static str, &'static str)], sources: &'static [Source]) -> Point {
    Point { labels, sources }
}
