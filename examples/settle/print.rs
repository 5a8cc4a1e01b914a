//! Prints the settlement of a segment as JSON.

use std::collections::BTreeMap;

use gpumeter::attribution::{GpuSegment, GpuSettlement, SlotHolder, SlotSettlement, UserShare};
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
    if let (Some(of), Some(split), Some(result)) = (segment.energy, &settled.energy, result.as_object_mut()) {
        let (floor, dynamic) = (by_slot(&split.floor), by_slot(&split.dynamic));
        let energy = json!({"delta": of.delta.0, "floor": floor, "dynamic": dynamic});
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
        // As in tests/fixtures/account-examples.json.
        "waste": parts.idle,
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

fn by_slot(energy: &BTreeMap<SlotHolder, u64>) -> Value {
    let mut slots = Map::new();
    for (SlotHolder { slot, holder }, energy) in energy {
        let slot = slots.entry(&**slot).or_insert_with(|| json!({}));
        if *energy > 0 {
            slot[holder.as_str()] = json!(energy);
        }
    }
    Value::Object(slots)
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
