//! XIDs, errors that the driver reports as events: by code, and by recommended action.

use super::Rows::Gpu;
use super::aliases::{HW_GPU, otel};
use super::{Family, GpuRows, Level};
use crate::model::Unit;

pub(super) const ROWS: &[Family] = &[
    Family::counter(
        "gpu_xid_errors_total",
        Unit::None,
        "XID errors by code, since the ledger was created (without a ledger: since the agent's \
         start); a code has no series until it is first seen.",
        Gpu(GpuRows::XidErrors),
    )
    .labels(&["gpu", "uuid", "xid"])
    .level(Level::Standard),
    Family::counter(
        "gpu_xid_action_errors_total",
        Unit::None,
        "XID errors by recommended action, since the ledger was created (without a ledger: since \
         the agent's start); every action has a series from the start, at 0.",
        Gpu(GpuRows::XidActionErrors),
    )
    .labels(&["gpu", "uuid", "action"])
    .level(Level::Lean)
    .values(&[("action", ACTIONS)])
    .aliases(&[otel("hw.errors", &[HW_GPU, ("error.type", "xid")])]),
    Family::gauge(
        "gpu_xid_last_timestamp_seconds",
        Unit::Seconds,
        "When the XID was last seen, in seconds since 1970; kept in the ledger over restarts of \
         the agent.",
        Gpu(GpuRows::XidLastTimestamp),
    )
    .labels(&["gpu", "uuid", "xid"])
    .level(Level::Lean),
    Family::gauge(
        "gpu_xid_info",
        Unit::None,
        "Always 1; class and recommended action of an XID that was seen.",
        Gpu(GpuRows::XidInfo),
    )
    .labels(&["gpu", "uuid", "xid", "class", "action"])
    .level(Level::Lean)
    .values(&[("action", ACTIONS)]),
];

const ACTIONS: &[&str] = &[
    "ignore",
    "restart_app",
    "reset_gpu",
    "reboot_node",
    "check_mechanicals",
    "update_software",
    "contact_support",
];
