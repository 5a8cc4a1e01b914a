//! The worked segments of the account's model (tests/fixtures/account-examples.json), reproduced to the
//! nanosecond. Those with instances or nested holdings are for the versions that know these.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;

use gpumeter::attribution::settle;
use gpumeter::model::{
    ActivitySource, Carry, Fraction, Grade, HolderId, Holding, HoldingSource, Method, Microjoules, Presence,
    Row, Settlement, SlotState, Span, Utc,
};
use serde_json::Value;

#[test]
fn the_worked_segments_come_out_to_the_nanosecond() {
    let examples: Value = serde_json::from_str(include_str!("fixtures/account-examples.json")).unwrap();
    let mut settled = 0;
    for example in examples.as_array().unwrap() {
        let (segment, result) = (&example["segment"], &example["result"]);
        if segment["mig"] == true || !entries(&segment["covered_by"]).is_empty() {
            continue;
        }
        let note = example["note"].as_str().unwrap();
        let spans = spans(segment);
        let (from, to) = (spans[0].from, spans.last().unwrap().to);
        let settlement = settle(from, to, &spans, &carry(&segment["carry"]), &BTreeMap::new()).expect(note);
        compare(&settlement, result, note);
        settled += 1;
    }
    assert_eq!(settled, 15);
}

/// The spans of a segment: its ticks, equally long.
fn spans(segment: &Value) -> Vec<Span> {
    let slot = &segment["slots"]["gpu"];
    let (from, to) = (int(&segment["t0"]), int(&segment["t1"]));
    let none = vec![Value::Object(serde_json::Map::new())];
    let ticks = slot["ticks"].as_array().filter(|ticks| !ticks.is_empty()).unwrap_or(&none);
    let length = (to - from) / ticks.len() as u64;
    let holdings: Vec<Holding> = slot["holdings"].as_array().unwrap().iter().map(holding).collect();
    (0..)
        .zip(ticks)
        .map(|(place, tick)| Span {
            from: Utc(from + place * length),
            to: Utc(from + (place + 1) * length),
            state: match slot["state"].as_str().unwrap() {
                "measured" => SlotState::Measured,
                "unmeasured" => SlotState::Unmeasured,
                "unavailable" => SlotState::Unavailable,
                other => panic!("{other}"),
            },
            source: ActivitySource::Gpm,
            method: Method::Observed,
            holdings: holdings.clone().into(),
            covered_by: BTreeMap::new(),
            busy: tick["busy"].as_u64().unwrap_or(0),
            present: present(slot, tick),
            blind: tick["blind"] == true,
            energy: segment["energy"]["delta"].as_u64().map(Microjoules),
            idle_energy: Microjoules(segment["energy"]["floor"].as_u64().unwrap_or(0)),
        })
        .collect()
}

fn holding(holding: &Value) -> Holding {
    let (numerator, denominator) = holding["fraction"].as_str().unwrap().split_once('/').unwrap();
    Holding {
        holder: HolderId::new(holding["holder"].as_str().unwrap()),
        fraction: Fraction {
            numerator: numerator.parse().unwrap(),
            denominator: denominator.parse().unwrap(),
        },
        source: HoldingSource::Standing,
        rank: holding["rank"].as_u64().map(|rank| rank.try_into().unwrap()),
    }
}

fn present(slot: &Value, tick: &Value) -> BTreeMap<HolderId, Presence> {
    let mut present: BTreeMap<HolderId, Presence> = BTreeMap::new();
    for place in [slot, tick] {
        for user in place["present"].as_array().into_iter().flatten() {
            present.entry(HolderId::new(user.as_str().unwrap())).or_default();
        }
        for (user, weight) in entries(&place["weights"]) {
            present.entry(user).or_default().weight = Some(int(weight));
        }
        for (user, memory) in entries(&place["memory"]) {
            present.entry(user).or_default().memory = Some(int(memory));
        }
    }
    present
}

/// A carry of the examples, printed as rationals, in units of 2^-32.
fn carry(carry: &Value) -> Carry {
    let units = |value: &Value| {
        let (numerator, denominator) = value.as_str().unwrap().split_once('/').unwrap();
        numerator.parse::<i64>().unwrap() * ((1 << 32) / denominator.parse::<i64>().unwrap())
    };
    let nodes = carry.as_object().unwrap().iter();
    nodes
        .map(|(node, owed)| {
            (node.clone(), entries(owed).into_iter().map(|(holder, value)| (holder, units(value))).collect())
        })
        .collect()
}

fn compare(settlement: &Settlement, result: &Value, note: &str) {
    let slot = &result["slots"]["gpu"];
    let rows: BTreeMap<HolderId, &Row> =
        settlement.rows.iter().map(|row| (row.holder.clone(), row)).collect();
    for (holder, expected) in entries(&slot["held"]) {
        let parts = rows.get(&holder).map(|row| row.parts).unwrap_or_default();
        let found = [parts.within, parts.lent, parts.waste, parts.unmeasured, parts.unavailable];
        let names = ["within", "lent", "waste", "unmeasured", "unavailable"];
        assert_eq!(found, names.map(|name| int(&expected[name])), "{note}: held by {holder}");
        assert_eq!(parts.held(), int(&expected["held"]), "{note}: held by {holder}");
    }
    for (user, expected) in entries(&slot["used"]) {
        let used = rows[&user].used;
        let within: u64 = entries(&expected["within"]).into_iter().map(|(_, time)| int(time)).sum();
        let shares = ["beyond", "outside", "unheld"].map(|name| int(&expected[name]));
        assert_eq!([used.beyond, used.outside, used.unheld], shares, "{note}: used by {user}");
        assert_eq!(used.within, within, "{note}: used by {user}");
        assert_eq!(used.total(), int(&expected["used"]), "{note}: used by {user}");
    }
    let rest =
        rows.get(&HolderId::new(slot["u_kind"].as_str().unwrap())).map(|row| row.parts).unwrap_or_default();
    assert_eq!([rest.held(), rest.lent], [int(&slot["U"]), int(&slot["drawn"])], "{note}: remainder");
    let grade = rows.values().map(|row| row.grade).max().unwrap_or(Grade::Measured);
    assert_eq!(grade.name(), slot["grade"].as_str().unwrap(), "{note}");
    let used: u64 = rows.values().map(|row| row.used.total()).sum();
    assert_eq!(used, int(&slot["busy"]), "{note}");
    compare_energy(&rows, &result["energy"], note);
    assert_eq!(settlement.carry, carry(&result["carry"]), "{note}");
    let flags: Vec<&str> =
        result["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap()).collect();
    assert_eq!(settlement.flags, flags, "{note}");
}

fn compare_energy(rows: &BTreeMap<HolderId, &Row>, expected: &Value, note: &str) {
    let parts = |name: &str| entries(&expected[name]["gpu"]).into_iter().collect::<BTreeMap<_, _>>();
    let (floor, dynamic) = (parts("floor"), parts("dynamic"));
    for (holder, row) in rows {
        let energy = |part: &BTreeMap<HolderId, &Value>| part.get(holder).map_or(0, |value| int(value));
        assert_eq!(row.energy_static.0, energy(&floor), "{note}: floor of {holder}");
        assert_eq!(row.energy_dynamic.0, energy(&dynamic), "{note}: dynamic energy of {holder}");
    }
    let sum: u64 = rows.values().map(|row| row.energy_static.0 + row.energy_dynamic.0).sum();
    assert_eq!(sum, expected["delta"].as_u64().unwrap_or(0), "{note}");
}

fn entries(object: &Value) -> Vec<(HolderId, &Value)> {
    object
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (HolderId::new(key.as_str()), value))
        .collect()
}

fn int(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}
