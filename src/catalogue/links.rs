//! PCIe and NVLink.

use super::{ALL_LINKS, CallValue, Family, Kind, Level, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const KIBIBYTE: i64 = 1_024;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_pcie_replays_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "PCIe transfers repeated since the driver was loaded; above 100 is normal on some boards, growth is not.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Medium,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[
                Source::Field { id: 94, scope: 0, times: 1 },
                Source::Call { value: CallValue::PcieReplays, times: 1 },
            ],
        }]),
    },
    Family {
        name: "gpu_nvlink_bytes_total",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help: "Payload over all NVLinks as the GPU sees it.",
        labels: &["gpu", "uuid", "direction"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Device(&[
            Point {
                labels: &[("direction", "transmit")],
                sources: &[Source::Field { id: 138, scope: ALL_LINKS, times: KIBIBYTE }],
            },
            Point {
                labels: &[("direction", "receive")],
                sources: &[Source::Field { id: 139, scope: ALL_LINKS, times: KIBIBYTE }],
            },
        ]),
    },
];
