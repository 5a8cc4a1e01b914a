//! The worked segments of the account's model (tests/fixtures/account-examples.json), reproduced to the
//! nanosecond by the agent's settlement of a window, and printed by `examples/settle`.

use std::collections::BTreeMap;

use gpumeter::meter::attribution::{SettleError, settle};
use gpumeter::model::{HolderId, Settlement};
use serde_json::{Value, json};

#[path = "../../examples/settle/print.rs"]
mod print;
#[path = "../../examples/settle/read.rs"]
mod read;

use read::Segment;

const EXAMPLES: &str = include_str!("../fixtures/account-examples.json");

/// Notes, segments and results.
fn examples() -> Vec<(String, Segment, Value)> {
    let examples: Vec<Value> = serde_json::from_str(EXAMPLES).unwrap();
    let segments = read::segments(EXAMPLES).unwrap();
    let whole = examples.into_iter().zip(segments);
    whole
        .map(|(example, segment)| {
            (example["note"].as_str().unwrap().to_owned(), segment, example["result"].clone())
        })
        .collect()
}

fn settle_segment(segment: &Segment) -> Result<Settlement, SettleError> {
    let Segment { spans, carry, previous, .. } = segment;
    settle(spans[0].from, spans[spans.len() - 1].to, spans, carry, previous)
}

#[test]
fn the_settle_example_prints_the_results_of_all_worked_segments() {
    let examples = examples();
    assert_eq!(examples.len(), 18);
    for (note, segment, result) in examples {
        let settled = settle_segment(&segment).expect(&note);
        assert_eq!(print::result(&segment, &settled), as_rows_have_it(result), "{note}");
    }
}

/// A result with held time without what is nested in it, and use within holdings as one number.
fn as_rows_have_it(mut result: Value) -> Value {
    for slot in result["slots"].as_object_mut().unwrap().values_mut() {
        for held in slot["held"].as_object_mut().unwrap().values_mut() {
            held.as_object_mut().unwrap().remove("gross");
        }
        for used in slot["used"].as_object_mut().unwrap().values_mut() {
            used["within"] = json!(entries(&used["within"]).iter().map(|(_, time)| int(time)).sum::<u64>());
        }
    }
    result
}

/// A segment of a whole GPU with that slot and further keys.
fn segment(slot: &Value, more: &Value) -> Value {
    let mut segment = json!({
        "t0": 0, "t1": 15, "layout": {"total": 1, "slots": {"gpu": 1}}, "slots": {"gpu": slot},
    });
    segment.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    segment
}

fn printed(segment: &Value) -> Value {
    let segment = read::segments(&segment.to_string()).unwrap().remove(0);
    print::result(&segment, &settle_segment(&segment).unwrap())
}

#[test]
fn a_bad_segment_is_refused_with_its_place() {
    let measured = |more: Value| {
        let mut slot = json!({"state": "measured", "holdings": [], "ticks": []});
        slot.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        slot
    };
    let held = |holder: &str, fraction: Value| json!({"holder": holder, "fraction": fraction});
    let fine = measured(json!({}));
    let cases = [
        (segment(&fine, &json!({"t1": 0})), "t1: 0 is not after t0"),
        (segment(&fine, &json!({"t0": 1.5})), "t0: 1.5 is not an integer"),
        (segment(&fine, &json!({"tick": 1})), "unknown key \"tick\""),
        (segment(&fine, &json!({"covered_by": {"a": "b", "b": "a"}})), "covered_by.a: \"b\" leads back"),
        (
            segment(&fine, &json!({"carry": {"gpu/held": {"a": "1/0"}}})),
            "carry.gpu/held.a: \"1/0\" is not a carry",
        ),
        (segment(&fine, &json!({"energy": {"delta": 1}})), "energy: lacks \"floor\""),
        (segment(&measured(json!({"state": "idle"})), &json!({})), "slots.gpu.state: \"idle\" is no state"),
        (segment(&measured(json!({"u_kind": "__unobserved__"})), &json!({})), "slots.gpu.u_kind: "),
        (
            segment(
                &measured(json!({"holdings": [held("a", json!("1/2")), held("b", json!(0.5))]})),
                &json!({}),
            ),
            "slots.gpu.holdings[1].fraction: 0.5 is not a text",
        ),
        (
            segment(&measured(json!({"holdings": [held("a", json!("3/2"))]})), &json!({})),
            "slots.gpu.holdings[0].fraction: \"3/2\" is not between 0 and 1",
        ),
        (
            segment(&measured(json!({"holdings": [held("__system__", json!("1/2"))]})), &json!({})),
            "slots.gpu.holdings[0].holder: \"__system__\" is reserved",
        ),
        (
            segment(&measured(json!({"ticks": [{"busy": 15}, {"busy": 1}]})), &json!({})),
            "slots.gpu.ticks: do not divide 15 ns equally",
        ),
        (
            segment(&measured(json!({"ticks": [{"length": 9}, {"length": 5}]})), &json!({})),
            "slots.gpu.ticks: are 14 ns long together",
        ),
        (
            segment(&measured(json!({"ticks": [{"busy": 16}]})), &json!({})),
            "slots.gpu.ticks[0].busy: 16 is above the tick's length, 15",
        ),
        (
            segment(&measured(json!({"ticks": [{"weights": {"a": -1}}]})), &json!({})),
            "slots.gpu.ticks[0].weights.a: -1 is not an integer",
        ),
    ];
    for (bad, expected) in cases {
        let problem = read::segments(&bad.to_string()).err().unwrap_or_else(|| panic!("{bad} was read"));
        assert!(problem.contains(expected), "{expected:?} in {problem:?}");
    }
    let problem = read::segments("[{\"segment\": 1}]").err().unwrap();
    assert_eq!(problem, "[0].segment: 1 is not an object");
    assert!(read::segments("[{]").err().unwrap().contains("line 1 column 3"));
}

#[test]
fn slots_that_differ_from_the_layout_are_refused() {
    let slot = json!({"state": "measured", "holdings": [], "ticks": []});
    let read = |more: Value| read::segments(&segment(&slot, &more).to_string());
    for (more, expected) in [
        (json!({"slots": {}}), "lacks the slot gpu"),
        (json!({"layout": null}), "are given without a layout"),
        (json!({"layout": {"total": 2, "slots": {"gpu": 1}}}), "divides the GPU"),
        (json!({"mig": true}), "is the slot of a whole GPU, gpu, or with mig an instance such as gi1"),
    ] {
        let problem = read(more).unwrap_err();
        assert!(problem.contains(expected), "{expected:?} in {problem:?}");
    }
    let refused = |layout: Value| {
        let segment = read(json!({"mig": true, "layout": layout, "slots": {"gi1": slot}})).unwrap().remove(0);
        settle_segment(&segment).unwrap_err()
    };
    let missing = refused(json!({"total": 2, "slots": {"gi1": 1, "gi2": 1}}));
    assert_eq!(missing, SettleError::MissingSlot { slot: "2".into() });
    let unknown = refused(json!({"total": 2, "slots": {}, "unallocated": 2}));
    assert_eq!(unknown, SettleError::UnknownSlot { slot: "1".into() });
    let uneven = refused(json!({"total": 2, "slots": {"gi1": 1}}));
    assert_eq!(uneven, SettleError::Layout { total: 2, sum: 1 });
}

#[test]
fn who_comes_to_an_instance_after_the_work_uses_nothing_of_it() {
    let slot = |ticks: Value| {
        json!({
            "state": "measured", "holdings": [], "memory": {"a": 3, "b": 1}, "present": ["a", "b"],
            "ticks": ticks,
        })
    };
    let used = |slot: Value| {
        let segment = json!({
            "t0": 0, "t1": 16, "mig": true, "layout": {"total": 1, "slots": {"gi1": 1}}, "slots": {"gi1": slot},
        });
        let result = printed(&segment);
        ["a", "b"].map(|user| result["slots"]["gi1"]["used"][user]["used"].as_u64().unwrap_or(0))
    };
    let (before, after) = (json!({"busy": 8, "present": ["a"]}), json!({"busy": 0, "present": ["a", "b"]}));
    assert_eq!(used(slot(json!([before, after]))), [8, 0]);
    let together = json!({"busy": 8, "present": ["a", "b"]});
    assert_eq!(used(slot(json!([before, together]))), [8 + 6, 2]);
    assert_eq!(
        used(slot(json!([{"busy": 8}, {"busy": 0}]))),
        [6, 2],
        "the slot's list counts where a tick has none"
    );
}

#[test]
fn ticks_may_have_lengths_and_presence_may_be_given_for_the_slot() {
    let slot = json!({
        "state": "measured", "holdings": [], "present": ["a", "b"], "memory": {"a": 3, "b": 1},
        "ticks": [{"length": 3, "busy": 0}, {"length": 12, "busy": 8}],
    });
    let used = |result: &Value, user: &str| result["slots"]["gpu"]["used"][user]["used"].clone();
    let by_memory = printed(&segment(&slot, &json!({})));
    assert_eq!((used(&by_memory, "a"), used(&by_memory, "b")), (json!(6), json!(2)));
    let mut with_previous = slot;
    with_previous["previous"] = json!({"a": 1, "b": 3});
    let by_previous = printed(&segment(&with_previous, &json!({})));
    assert_eq!((used(&by_previous, "a"), used(&by_previous, "b")), (json!(2), json!(6)));
    assert_eq!(by_previous["slots"]["gpu"]["grade"], "split_by_activity");
}

#[test]
fn between_two_epochs_all_time_is_unavailable() {
    let result = printed(&json!({
        "t0": 0, "t1": 15, "mig": true, "layout": null, "slots": {}, "energy": {"delta": 9, "floor": 5},
        "carry": {"gi1/held": {"a": "1/2"}},
    }));
    assert_eq!(result["root"], json!({"__unavailable__": 15}));
    assert_eq!((&result["slots"], &result["carry"]), (&json!({}), &json!({})));
    let energy = json!({"root": {"__unavailable__": 5}});
    assert_eq!(result["energy"]["floor"], energy);
    assert_eq!(result["energy"]["dynamic"], json!({"root": {"__unavailable__": 4}}));
}

#[test]
fn claims_of_equal_rank_that_do_not_fit_share_equally() {
    let claim = |holder: &str, fraction: &str| json!({"holder": holder, "fraction": fraction});
    let slot = json!({
        "state": "measured", "ticks": [],
        "holdings": [claim("a", "1/1"), claim("b", "1/5"), claim("c", "1/1")],
    });
    let result = printed(&segment(&slot, &json!({})));
    let held = ["a", "b", "c"].map(|holder| result["slots"]["gpu"]["held"][holder]["held"].clone());
    assert_eq!(held, [json!(6), json!(3), json!(6)]);
    assert_eq!(result["flags"], json!(["gpu: conflict a", "gpu: conflict b", "gpu: conflict c"]));
}

/// What each holding gets of a whole GPU of 15 ns, with the inner ones inside `outer`.
fn nested(outer: &str, inner: &[(&str, &str)]) -> (Vec<(String, u64)>, Value) {
    let mut holdings = vec![json!({"holder": outer, "fraction": "4/5"})];
    holdings.extend(inner.iter().map(|(holder, fraction)| json!({"holder": holder, "fraction": fraction})));
    let covered_by: BTreeMap<&str, &str> = inner.iter().map(|(holder, _)| (*holder, outer)).collect();
    let slot = json!({"state": "measured", "ticks": [], "holdings": holdings});
    let result = printed(&segment(&slot, &json!({"covered_by": covered_by})));
    let held = entries(&result["slots"]["gpu"]["held"]);
    let held = held.into_iter().map(|(holder, parts)| (holder.to_string(), int(&parts["held"]))).collect();
    (held, result["flags"].clone())
}

#[test]
fn nested_holdings_are_granted_from_their_outer_holding() {
    let expected = |parts: &[(&str, u64)]| -> Vec<(String, u64)> {
        parts.iter().map(|(holder, time)| ((*holder).to_owned(), *time)).collect()
    };
    assert_eq!(nested("job", &[("pod", "1/5")]), (expected(&[("job", 9), ("pod", 3)]), json!([])));
    // A single one is capped to the outer holding.
    assert_eq!(nested("job", &[("pod", "1/1")]), (expected(&[("job", 0), ("pod", 12)]), json!([])));
    // Several that exceed it conflict inside it, except for steps of the job.
    let parts = expected(&[("a", 6), ("b", 6), ("job", 0)]);
    assert_eq!(
        nested("job", &[("a", "3/5"), ("b", "3/5")]),
        (parts, json!(["gpu: conflict a", "gpu: conflict b"]))
    );
    let (job, steps) = ("slurm:c/7", ["slurm:c/7.0", "slurm:c/7.1"]);
    let parts = expected(&[(job, 0), (steps[0], 6), (steps[1], 6)]);
    assert_eq!(nested(job, &steps.map(|step| (step, "3/5"))), (parts, json!([])));
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
