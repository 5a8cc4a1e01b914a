//! What only complete exports of a fleet show.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use gpumeter::accounting::advice::{Advice, AdviceFinding, AdviceRequest};
use gpumeter::accounting::day_files::{ExpectedNode, ExportSource, make_advice};
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{DAY, HOUR, Utc, VisibleAccount};
use serde_json::{Value, json};

use crate::history::{END, Written};

fn pods(tenant: &str, name: &str, gpus: &[u32], activity: Value) -> Value {
    json!({
        "holder": { "pod": { "namespace": tenant, "name": name, "owner_kind": "Deployment", "owner": "serve" } },
        "gpus": gpus, "replicas": true, "memory_gib": 10, "activity": activity
    })
}

/// A node with services, one that nobody uses, and one of which a GPU is always used.
fn scenario() -> Value {
    let now_and_then = json!([{ "every_minutes": 240, "for_minutes": 20, "busy": 60 }]);
    // The replicas of the second service have one hour in which all are needed.
    let morning = json!([{ "hours": "9-10", "busy": 60 }]);
    json!({
        "seed": 7,
        "gpus": [{ "profile": "l4", "count": 9 }],
        "config": "node: {name: serve}\nprices: {currency: EUR, rates: [{gpu_hour: 2.00}]}\n",
        "history": { "nodes": [
            { "workloads": [
                pods("a14-true", "a", &[0, 1], now_and_then),
                pods("a14-true", "b", &[2, 3, 4, 5], json!([])),
                pods("a14-near", "c", &[6, 7, 8], morning)
            ] },
            {
                "config": { "node": { "name": "a4-true" }, "attribution": { "presence": false } },
                "gpus": [{ "profile": "l4", "count": 2 }]
            },
            {
                "config": { "node": { "name": "a4-near" }, "attribution": { "presence": false } },
                "gpus": [{ "profile": "l4", "count": 2 }],
                "workloads": [pods("near", "d", &[1], json!([{ "busy": 60 }]))]
            }
        ] }
    })
}

const DAYS: u64 = 30;

static WRITTEN: LazyLock<Written> =
    LazyLock::new(|| Written::new(&scenario(), HistoryExtent { days: DAYS, nodes: 3, seed: 7 }));

fn advice(nodes: &[&str], request: &AdviceRequest) -> Advice {
    advice_of(&WRITTEN, [Utc(END.0 - DAYS * DAY.0), END], nodes, request)
}

fn advice_of(written: &Written, [from, to]: [Utc; 2], nodes: &[&str], request: &AdviceRequest) -> Advice {
    let expected = |node: &&str| ExpectedNode {
        node: (*node).to_owned(),
        from,
        to,
        gpus: (node.starts_with("a4") || *node == "missing").then_some(2),
        model: Some("NVIDIA L4".to_owned()),
    };
    let directory = written.exports();
    let expected = nodes.iter().map(expected).collect();
    let source = ExportSource { expected, ..ExportSource::of(&directory) };
    make_advice(&source, request, |_, _| Ok(())).unwrap()
}

const ALL: [&str; 3] = ["serve", "a4-true", "a4-near"];

#[test]
fn a_node_that_nobody_needs_and_spare_replicas_are_found_and_no_others() {
    let found = advice(&ALL, &AdviceRequest::default());
    assert_eq!(found.notes, [""; 0]);
    let subjects: BTreeSet<&str> = found
        .findings
        .iter()
        .map(|finding| if finding.tenant.is_empty() { &*finding.workload } else { &*finding.tenant })
        .collect();
    assert_eq!(subjects, BTreeSet::from(["a14-true", "a4-true"]));
    let of = |code: &str| -> &AdviceFinding {
        found.findings.iter().find(|finding| finding.id.starts_with(code)).unwrap()
    };
    let node = of("A4-");
    assert_eq!(node.what, "free in 672 of 672 hours: 672.0 h of the node with its 2 GPUs");
    assert_eq!((node.gpu_count, node.time.0), (2, 2 * 672 * HOUR.0));
    // 2 GPUs x 672 h x 2.00.
    assert_eq!(node.organisation.unwrap().amount.unwrap().0, 2_688 * 1_000_000_000);
    assert_eq!(node.amount.unwrap().0, 0);
    let spare = of("A14-");
    assert_eq!(spare.what, "4 of 6 replicas were never needed at the same time as the others");
    assert_eq!(spare.gpu_count, 4);
    // Two of the four are those that were used now and then: what they used is not spared.
    let hours = spare.time.0 / HOUR.0;
    assert!((1_344 + 1_000..4 * 672).contains(&hours), "{hours}");
    assert!(spare.amount.unwrap().0 > 2_000_000_000 * i128::from(hours));
    assert_eq!(spare.organisation.unwrap().amount.unwrap().0, 0);
}

#[test]
fn nothing_is_said_of_the_fleet_where_it_is_not_known_to_be_complete_or_seen() {
    for nodes in [&[][..], &ALL[..2], &["serve", "a4-true", "a4-near", "missing"]] {
        let partly = advice(nodes, &AdviceRequest::default());
        assert!(partly.findings.is_empty(), "{nodes:?}: {:?}", partly.findings);
        assert_eq!(partly.notes.len(), 1);
    }
    let visible = VisibleAccount::Tenants(vec!["a14-true".to_owned()]);
    let own = advice(&ALL, &AdviceRequest { visible, ..AdviceRequest::default() });
    assert!(own.findings.is_empty() && own.notes.is_empty());
}

#[test]
fn a_node_that_is_behind_on_the_open_day_hides_nothing_of_the_whole_days() {
    let node = |name: &str, to: &str| {
        json!({
            "config": { "node": { "name": name }, "attribution": { "presence": false } },
            "gpus": [{ "profile": "l4", "count": 2 }],
            "to": to
        })
    };
    let scenario = |to: &str| {
        json!({
            "seed": 7,
            "gpus": [{ "profile": "l4", "count": 2 }],
            "config": "node: {name: serve}\nattribution: {presence: false}\nprices: {currency: EUR, rates: [{gpu_hour: 2.00}]}\n",
            "history": { "nodes": [{}, node("behind", to)] }
        })
    };
    let end = END.plus(HOUR).plus(HOUR);
    let found = |to: &str| {
        let written = Written::at(&scenario(to), HistoryExtent { days: DAYS, nodes: 2, seed: 7 }, end);
        let expected = [Utc(END.0 - 28 * DAY.0), END.plus(DAY)];
        advice_of(&written, expected, &["serve", "behind"], &AdviceRequest::default())
    };
    let behind = found("0d 01:00");
    assert_eq!(behind.to, end);
    let subjects: BTreeSet<&str> = behind.findings.iter().map(|finding| &*finding.workload).collect();
    assert_eq!((subjects, behind.notes), (BTreeSet::from(["serve", "behind"]), vec![]));
    // The last day may still come, for six hours.
    assert_eq!(found("-1d 23:00").notes, [""; 0]);
    assert_eq!(found("-2d 23:00").findings.len(), 0, "an hour of a day is missing");
}
