//! Prints the settlement of a segment as JSON.

use std::collections::BTreeMap;

use gpumeter::attribution::{GpuSegment, GpuSettlement, SlotEnergy, SlotSettlement, UserShare};
use gpumeter::model::{HolderId, Parts, SlotState};
use serde_json::{Map, Value, json};

/// The result of a segment.
pub fn result(segment: &GpuSegment, settled: &GpuSettlement) -> Value {
    let slots: Map<String, Value> =
        settled.slots.iter().map(|(name, slot)| (name.to_string(), self::slot(slot))).collect();
    let mut result = json!({
        "time": segment.to.since(segment.from).0,
        "root": settled.root,
        "slots": slots,
        "flags": settled.flags,
        "carry": carry(settled),
    });
    if let (Some(of), Some((floor, dynamic)), Some(result)) =
        (segment.energy, &settled.energy, result.as_object_mut())
    {
        let energy = json!({"delta": of.delta.0, "floor": by_slot(floor), "dynamic": by_slot(dynamic)});
        result.insert("energy".to_owned(), energy);
    }
    result
}

fn slot(slot: &SlotSettlement) -> Value {
    json!({
        "P": slot.time,
        "state": match slot.state {
            SlotState::Measured => "measured",
            SlotState::Unmeasured | SlotState::Unobserved => "unmeasured",
            SlotState::Unavailable => "unavailable",
        },
        "u_kind": slot.remainder.as_str(),
        "U": slot.unheld,
        "drawn": slot.drawn,
        "busy": slot.busy,
        "grade": slot.grade.name(),
        "held": by_holder(&slot.parts, |holder, parts| held(slot.gross.get(holder).copied(), parts)),
        "used": by_holder(&slot.used, |_, share| used(share)),
    })
}

fn held(gross: Option<u64>, parts: &Parts) -> Value {
    json!({
        "gross": gross.unwrap_or(0),
        "held": parts.held(),
        "within": parts.within,
        "lent": parts.lent,
        "waste": parts.waste,
        "unmeasured": parts.unmeasured,
        "unavailable": parts.unavailable,
    })
}

fn used(share: &UserShare) -> Value {
    json!({
        "used": share.used.total(),
        "within": by_holder(&share.within, |_, time| json!(time)),
        "beyond": share.used.beyond,
        "outside": share.used.outside,
        "unheld": share.used.unheld,
    })
}

fn by_slot(energy: &SlotEnergy) -> Value {
    let slot = |part: &BTreeMap<HolderId, u64>| {
        let part = part.iter().filter(|(_, energy)| **energy > 0);
        Value::Object(part.map(|(holder, energy)| (holder.to_string(), json!(energy))).collect())
    };
    Value::Object(energy.iter().map(|(name, part)| (name.to_string(), slot(part))).collect())
}

/// The carry, in reduced fractions of a nanosecond.
fn carry(settled: &GpuSettlement) -> Value {
    let fraction = |units: i64| {
        let shift = units.trailing_zeros().min(32);
        json!(format!("{}/{}", units >> shift, 1_u64 << (32 - shift)))
    };
    let nodes = settled.carry.iter();
    let nodes = nodes.map(|(node, owed)| (node.clone(), by_holder(owed, |_, units| fraction(*units))));
    Value::Object(nodes.collect())
}

fn by_holder<T>(of: &BTreeMap<HolderId, T>, value: impl Fn(&HolderId, &T) -> Value) -> Value {
    Value::Object(of.iter().map(|(holder, one)| (holder.to_string(), value(holder, one))).collect())
}
