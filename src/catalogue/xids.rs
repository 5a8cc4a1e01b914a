//! XIDs: errors that the driver tells as events, by code and by the action that they call for.

use super::{Family, Kind, Level, Rows, XidValue};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_xid_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "XID errors by code, since the ledger was created (without a ledger: since the agent's start); a code has no series until it is first seen.",
        labels: &["gpu", "uuid", "xid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::Errors),
    },
    Family {
        name: "gpu_xid_action_errors_total",
        kind: Kind::Counter,
        unit: Unit::None,
        help: "XID errors by recommended action, since the ledger was created (without a ledger: since the agent's start); every action has a series from the start, at 0.",
        labels: &["gpu", "uuid", "action"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::ActionErrors),
    },
    Family {
        name: "gpu_xid_last_timestamp_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "When the XID was last seen, in seconds since 1970; kept in the ledger over restarts of the agent.",
        labels: &["gpu", "uuid", "xid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::LastTimestamp),
    },
    Family {
        name: "gpu_xid_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; class and recommended action of an XID that was seen.",
        labels: &["gpu", "uuid", "xid", "class", "action"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Xid(XidValue::Info),
    },
];
