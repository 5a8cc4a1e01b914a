//! XIDs and remapped memory.

use super::{Family, Kind, Level, Point, Rows, Source, XidValue};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_xid_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "XID errors since the agent's start, by code, from first sight.",
        labels: &["gpu", "uuid", "xid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::Errors),
    },
    Family {
        name: "gpu_xid_action_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "XID errors since the agent's start, by the action that they call for, from 0.",
        labels: &["gpu", "uuid", "action"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::ActionErrors),
    },
    Family {
        name: "gpu_xid_last_timestamp_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "When the XID was last seen, in seconds since 1970.",
        labels: &["gpu", "uuid", "xid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::LastTimestamp),
    },
    Family {
        name: "gpu_xid_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; the class of an XID that was seen, and the action that it calls for.",
        labels: &["gpu", "uuid", "xid", "class", "action"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::Info),
    },
    Family {
        name: "gpu_remapped_rows",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Memory rows replaced by spare ones over the board's life, by the kind of error that caused it.",
        labels: &["gpu", "uuid", "cause"],
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Device(&[
            Point {
                labels: &[("cause", "correctable")],
                sources: &[Source::Field { id: 142, scope: 0, times: 1 }],
            },
            Point {
                labels: &[("cause", "uncorrectable")],
                sources: &[Source::Field { id: 143, scope: 0, times: 1 }],
            },
        ]),
    },
    Family {
        name: "gpu_row_remap_pending",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "1 while a memory row waits for the next reset to be replaced, else 0.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Device(&[Point {
            labels: &[],
            sources: &[Source::Field { id: 144, scope: 0, times: 1 }],
        }]),
    },
];
