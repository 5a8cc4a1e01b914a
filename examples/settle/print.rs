//! Prints the settlement of a segment as JSON.

use std::collections::BTreeMap;

use gpumeter::model::{Amounts, Grade, HolderId, Parts, Row, Settlement, SlotState, Use};
use serde_json::{Map, Value, json};

use super::read::{Segment, SegmentSlot};

/// The result of a segment.
pub fn result(segment: &Segment, settled: &Settlement) -> Value {
    let (mut slots, mut root) = (Map::new(), Map::new());
    for slot in &segment.slots {
        let rows = rows_of(settled, slot.gpu_instance);
        let time: u64 = rows.iter().map(|row| row.amounts.parts.held()).sum();
        root.insert(slot.name.clone(), json!(time));
        slots.insert(slot.name.clone(), self::slot(slot, time, &rows));
    }
    if segment.is_divided {
        let free = rows_of(settled, None).into_iter();
        root.extend(free.map(|row| (row.holder.to_string(), json!(row.amounts.parts.held()))));
    }
    let mut result = json!({
        "time": settled.to.since(settled.from).0,
        "root": root,
        "slots": slots,
        "flags": settled.flags.iter().map(|flag| segment.outer_name(flag)).collect::<Vec<_>>(),
        "carry": carry(segment, settled),
    });
    if let (Some(energy), Some(result)) = (segment.spans[0].energy, result.as_object_mut()) {
        let floor = by_slot(segment, settled, |amounts| amounts.energy_static.0);
        let dynamic = by_slot(segment, settled, |amounts| amounts.energy_dynamic.0);
        result.insert("energy".to_owned(), json!({"delta": energy.0, "floor": floor, "dynamic": dynamic}));
    }
    result
}

fn rows_of(settled: &Settlement, gpu_instance: Option<u32>) -> Vec<&Row> {
    settled.rows.iter().filter(|row| row.slot.gpu_instance == gpu_instance).collect()
}

fn slot(slot: &SegmentSlot, time: u64, rows: &[&Row]) -> Value {
    let (state, remainder) = match slot.state {
        SlotState::Measured => ("measured", HolderId::UNALLOCATED),
        SlotState::Unmeasured => ("unmeasured", HolderId::UNALLOCATED),
        SlotState::Unobserved => ("unmeasured", HolderId::UNOBSERVED),
        SlotState::Unavailable => ("unavailable", HolderId::UNAVAILABLE),
    };
    let parts: BTreeMap<&str, &Parts> =
        rows.iter().map(|row| (row.holder.as_str(), &row.amounts.parts)).collect();
    let none = Parts::default();
    let parts_of = |holder: &str| parts.get(holder).copied().unwrap_or(&none);
    let held = slot.holders.iter().map(|holder| (holder.to_string(), held(parts_of(holder.as_str()))));
    let used = rows.iter().filter(|row| row.amounts.used.total() > 0);
    json!({
        "P": time,
        "state": state,
        "u_kind": remainder,
        "U": parts_of(remainder).held(),
        "drawn": parts_of(remainder).lent,
        "busy": rows.iter().map(|row| row.amounts.used.total()).sum::<u64>(),
        "grade": rows.iter().map(|row| row.grade).max().unwrap_or(Grade::Measured).name(),
        "held": held.collect::<Map<_, _>>(),
        "used": used.map(|row| (row.holder.to_string(), self::used(&row.amounts.used))).collect::<Map<_, _>>(),
    })
}

fn held(parts: &Parts) -> Value {
    json!({
        "held": parts.held(),
        "within": parts.within,
        "lent": parts.lent,
        // As in tests/fixtures/account-examples.json.
        "waste": parts.idle,
        "unmeasured": parts.unmeasured,
        "unavailable": parts.unavailable,
    })
}

fn used(used: &Use) -> Value {
    json!({
        "used": used.total(),
        "within": used.within,
        "beyond": used.beyond,
        "outside": used.outside,
        "unheld": used.unheld,
    })
}

/// The energy by slot and holder; that of time that belongs to no slot is under `root`.
fn by_slot(segment: &Segment, settled: &Settlement, energy: impl Fn(&Amounts) -> u64) -> Value {
    let mut slots = Map::new();
    for row in settled.rows.iter().filter(|row| energy(&row.amounts) > 0) {
        let slot = segment.slots.iter().find(|slot| slot.gpu_instance == row.slot.gpu_instance);
        let slot = slots.entry(slot.map_or("root", |slot| &slot.name)).or_insert_with(|| json!({}));
        slot[row.holder.as_str()] = json!(energy(&row.amounts));
    }
    Value::Object(slots)
}

/// The carry, in reduced fractions of a nanosecond.
fn carry(segment: &Segment, settled: &Settlement) -> Value {
    let fraction = |units: i64| {
        let shift = units.trailing_zeros().min(32);
        json!(format!("{}/{}", units >> shift, 1_u64 << (32 - shift)))
    };
    let owed = |owed: &BTreeMap<HolderId, i64>| -> Map<String, Value> {
        owed.iter().map(|(holder, units)| (holder.to_string(), fraction(*units))).collect()
    };
    let nodes = settled.carry.iter();
    Value::Object(nodes.map(|(node, parts)| (segment.outer_name(node), json!(owed(parts)))).collect())
}
