//! Bills for tests, as the JSON in which they are exchanged.

use serde_json::{Value, json};

use super::Bill;

/// A bill of the node n1 and one hour without lines, with these fields instead.
pub(crate) fn bill(fields: &Value) -> Bill {
    let empty = json!({"node": "n1", "from": "2026-11-01T00:00:00Z", "to": "2026-11-01T01:00:00Z",
        "closed_until": "2026-11-01T01:00:00Z", "currency": null, "lines": [], "gpus": [],
        "reconciliation": {"slot_ns": 0, "held_ns": 0, "imbalance_ns": "0", "gpu_money": "0.000000000",
            "line_money": "0.000000000", "imbalance_money": "0.000000000"}});
    serde_json::from_value(with(empty, fields)).unwrap()
}

/// A line of the unit x on the first GPU without time, with these fields instead.
pub(crate) fn line(fields: &Value) -> Value {
    let empty = json!({"tenant": "x", "holder": "unit:x", "gpu": 0, "uuid": "GPU-0", "held_ns": 0, "within_ns": 0,
        "lent_ns": 0, "idle_ns": 0, "unmeasured_ns": 0, "unavailable_ns": 0, "used_ns": 0, "beyond_share_ns": 0,
        "outside_holding_ns": 0, "unheld_ns": 0, "energy_static_uj": null, "energy_dynamic_uj": null,
        "grade": "measured", "measured_ns": 0, "method": "observed", "sources": []});
    with(empty, fields)
}

fn with(mut all: Value, fields: &Value) -> Value {
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}
