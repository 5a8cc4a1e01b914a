//! A6 from a ledger and from exports: who would fit on a smaller MIG instance, who nearly would, and of whom nothing is known.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use gpumeter::accounting::advice::{Advice, AdviceFinding, AdviceRequest};
use gpumeter::accounting::day_files::{
    ExportDirectory, ExportSource, make_advice, make_advice_for_readers, write_days,
};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{HOUR, Money, VisibleAccount};
use serde_json::{Value, json};

use super::fleet::shown;
use super::node::check_stretches;
use super::scenario::{daily, job, pod, workload};
use super::{explaining, found};
use crate::history::Written;

/// An instance of an H100 has a price, where a part of it would cost 0.25; no H200 is divided by the other two.
const CONFIG: &str = r#"
node: {name: sliced}
attribution: {presence: false}
prices:
  currency: EUR
  rates:
    - {gpu_hour: 2.00}
    - {model: "*H100*", mig_profile: 1g.10gb, instance_hour: 0.40}
    - {model: "*A100*", mig_profile: 1g.10gb, instance_hour: 0.40}
    - {mig_profile: 1g.18gb, instance_hour: 0.10}
    - {model: "*H200*", mig_profile: 1g.10gb, instance_hour: 0.10}
terms:
  - {tenant: a6-true-used, basis: used}
  - {tenant: a6-true-attributes, discount: 50}
"#;

/// GPUs that nobody holds, which the ledger is made to know as instances: of an H100, and of a B200 one after the other.
const SLICED: [u32; 2] = [0, 21];

/// The size of the small cases: 9 % of the multiprocessors and of the memory bandwidth.
fn small(holder: Value, gpus: &[u32], runs: Value) -> Value {
    let mut small = workload(holder, gpus, 6, runs, json!([{ "busy": 60 }]));
    (small["sm"], small["dram"]) = (json!(15), json!(15));
    small
}

fn with(mut workload: Value, changes: &[(&str, Value)]) -> Value {
    changes.iter().for_each(|(key, value)| workload[*key] = value.clone());
    workload
}

fn nightly(tenant: &str, gpus: &[u32]) -> Value {
    small(job(tenant, 1_000 * u64::from(gpus[0])), gpus, daily("00:30", 480))
}

fn workloads() -> Vec<Value> {
    let morning = json!([{ "after_minutes": 150, "busy": 0 }, { "busy": 60 }]);
    let bursts = json!([{ "every_minutes": 110, "for_minutes": 1, "busy": 90 }]);
    let once = small(job("a6-near-one-run", 3_900), &[3], Value::Null);
    vec![
        nightly("a6-true", &[1]),
        with(nightly("a6-near-memory", &[2]), &[("memory_gib", json!(9))]),
        nightly("a6-near-one-run", &[3]),
        with(once, &[("memory_gib", json!(9)), ("from", json!("-5d 12:00")), ("to", json!("-5d 16:00"))]),
        with(nightly("a6-near-sm", &[4]), &[("sm", json!(17))]),
        with(nightly("a6-near-dram", &[5]), &[("dram", json!(17))]),
        with(nightly("a6-silent-preallocator", &[6]), &[("memory_gib", json!(71))]),
        nightly("a6-silent-two", &[7, 8]),
        small(pod("a6-silent-service", "Deployment"), &[9], Value::Null),
        with(nightly("a6-silent-half", &[10]), &[("share", json!([1, 2]))]),
        small(pod("a6-silent-unknown", "RayCluster"), &[11], Value::Null),
        with(
            small(pod("a6-near-bursts", "Notebook"), &[12], Value::Null),
            &[("activity", bursts), ("sm", json!(90))],
        ),
        with(small(pod("a6-true-open", "Notebook"), &[13], daily("08:00", 660)), &[("activity", morning)]),
        with(
            nightly("a6-true-busy", &[14]),
            &[("activity", json!([{ "busy": 97 }])), ("sm", json!(9)), ("dram", json!(9))],
        ),
        nightly("a6-true-used", &[15]),
        with(nightly("a6-silent-rare", &[16]), &[("from", json!("-1d"))]),
        nightly("a6-silent-no-gpm", &[17]),
        nightly("a6-silent-no-profile", &[18]),
        nightly("a6-true-attributes", &[19]),
        nightly("a6-silent-warm", &[20]),
    ]
}

fn scenario() -> Value {
    let gpus = [("h100", 17), ("a100", 1), ("h200", 1), ("b200", 1), ("h100", 1), ("b200", 1)];
    let gpus: Vec<Value> =
        gpus.iter().map(|(profile, count)| json!({ "profile": profile, "count": count })).collect();
    let classes = json!({ "classes": [{ "match": { "slurm_account": "a6-silent-warm" }, "class": "warm" }] });
    json!({
        "seed": 11,
        "gpus": gpus,
        "config": format!("{CONFIG}advice: {classes}\n"),
        "history": { "nodes": [{ "workloads": workloads() }] }
    })
}

/// The history, whose free boards became instances, and its exports after that.
static WRITTEN: LazyLock<(Written, tempfile::TempDir)> = LazyLock::new(|| {
    let written = Written::new(&scenario(), HistoryExtent { days: 14, nodes: 1, seed: 11 });
    let connection = rusqlite::Connection::open(written.ledger()).unwrap();
    let profiles = [("1g.10gb", 1), ("1g.23gb+me", 1), ("2g.45gb", 2)];
    for (name, size) in profiles {
        let sql = "INSERT INTO mig_profile (name, size, total) VALUES (?1, ?2, 8)";
        connection.execute(sql, rusqlite::params![name, size]).unwrap();
    }
    let [h100, b200] = SLICED;
    for (gpu, name, parity) in
        [(h100, "1g.10gb", None), (b200, "1g.23gb+me", Some(0)), (b200, "2g.45gb", Some(1))]
    {
        let sql =
            "UPDATE account SET gpu_instance = 7, profile = (SELECT id FROM mig_profile WHERE name = ?2)
                   WHERE gpu = (SELECT id FROM gpu WHERE gpu_index = ?1)
                     AND (?3 IS NULL OR minute_ns / 86400000000000 % 2 = ?3)";
        assert!(connection.execute(sql, rusqlite::params![gpu, name, parity]).unwrap() > 0);
    }
    let exports = tempfile::tempdir().unwrap();
    let mut reader = Reader::open(&written.ledger()).unwrap();
    write_days(&mut reader, ExportDirectory(exports.path()), || false).unwrap();
    (written, exports)
});

fn ledger() -> PathBuf {
    WRITTEN.0.ledger()
}

fn advice(request: &AdviceRequest) -> Advice {
    Reader::open(&ledger()).unwrap().advice(request).unwrap()
}

fn of(tenant: &str) -> AdviceFinding {
    let found = advice(&AdviceRequest::default()).findings;
    found.into_iter().find(|finding| finding.tenant == tenant && finding.id.starts_with("A6")).unwrap()
}

#[test]
fn only_who_fits_with_all_runs_on_an_instance_of_the_model_is_found() {
    let expected = [
        ("a6-true", "A6"),
        ("a6-true-attributes", "A6"),
        // Busy with few multiprocessors, which a smaller instance answers.
        ("a6-true-busy", "A6"),
        ("a6-true-open", "A3"),
        ("a6-true-open", "A6"),
        ("a6-true-used", "A6"),
    ];
    let expected: BTreeSet<(String, String)> =
        expected.into_iter().map(|(tenant, code)| (tenant.to_owned(), code.to_owned())).collect();
    assert_eq!(found(&advice(&AdviceRequest::default())), expected);
}

#[test]
fn a_finding_says_the_profile_what_was_needed_and_what_the_instance_saves() {
    let hours = |finding: &AdviceFinding| finding.time.0 / (HOUR.0 / 10);
    let euros = |finding: &AdviceFinding| (finding.amount.unwrap().0 + 5_000_000) / 10_000_000;
    // 14 nights of 8 h, of which seven eighths are not needed; 2.00 less 0.40.
    let fitting = of("a6-true");
    assert_eq!((hours(&fitting), euros(&fitting), fitting.runs), (980, 17_920, 14));
    assert_eq!(
        fitting.what,
        "would fit on a MIG instance 1g.10gb: at most 6.0 GiB of memory in any reading, and in 99 % of the working time \
         below 10 % of the multiprocessors and 10 % of the memory bandwidth, over 112.0 h alone there"
    );
    assert_eq!(fitting.organisation.unwrap().returned, fitting.time);
    assert_eq!(fitting.organisation.unwrap().amount, Some(Money(0)));
    // Who pays for what he uses is not known to pay less; half price; without a rate it costs its part of the GPU.
    assert_eq!(euros(&of("a6-true-used")), 0);
    let without = of("a6-true-attributes");
    assert!(without.what.starts_with("would fit on a MIG instance 2g.45gb: "), "{}", without.what);
    assert_eq!((hours(&without), euros(&without)), (840, 8_400));
    // 14 days of 11 h, of which 8.5 h less 2 h of grace were idle.
    let open = of("a6-true-open");
    assert_eq!((hours(&open), euros(&open)), (551, 10_080));
}

#[test]
fn the_stretches_of_the_findings_are_held_time_of_lines_of_the_bill_and_none_is_in_two() {
    check_stretches(&ledger());
    let [explained] =
        <[AdviceFinding; 1]>::try_from(advice(&explaining(&of("a6-true").id)).findings).unwrap();
    assert_eq!(explained.stretches.len(), 14);
    let rate = explained.stretches[0].rate.unwrap();
    // 2.00 x 8/7 less 0.40 x 8/7.
    assert_eq!(rate, Money(1_828_571_428));
}

#[test]
fn exports_yield_the_same() {
    let over_exports =
        make_advice(&ExportSource::of(WRITTEN.1.path()), &AdviceRequest::default(), |_, _| Ok(())).unwrap();
    let of_ledger = advice(&AdviceRequest::default());
    assert_eq!(
        over_exports.findings.iter().map(shown).collect::<Vec<_>>(),
        of_ledger.findings.iter().map(shown).collect::<Vec<_>>()
    );
}

#[test]
fn readers_of_some_tenants_get_from_what_is_kept_what_they_would_be_told() {
    let source = ExportSource::of(WRITTEN.1.path());
    let for_readers = make_advice_for_readers(&source, |_, _| Ok(())).unwrap();
    for tenant in ["a6-true", "a6-true-attributes", "a6-near-memory", "a6-silent-no-gpm"] {
        let visible = VisibleAccount::Tenants(vec![tenant.to_owned()]);
        let own = AdviceRequest { visible, ..AdviceRequest::default() };
        let asked = make_advice(&source, &own, |_, _| Ok(())).unwrap();
        assert_eq!(asked.findings.len(), usize::from(tenant.starts_with("a6-true")), "{tenant}");
        assert_eq!(for_readers.answer(&own), asked, "{tenant}");
    }
}

#[test]
fn a_price_for_a_model_makes_a_profile_known_where_no_board_was_divided() {
    // Exports have only the prices of what was there.
    let directory = WRITTEN.0.exports();
    let never = make_advice(&ExportSource::of(&directory), &AdviceRequest::default(), |_, _| Ok(())).unwrap();
    assert!(never.findings.iter().all(|finding| !finding.id.starts_with("A6")));
    let sold = tempfile::tempdir().unwrap();
    let copy = sold.path().join("ledger.db");
    std::fs::copy(ledger(), &copy).unwrap();
    rusqlite::Connection::open(&copy).unwrap().execute("UPDATE account SET profile = 0", []).unwrap();
    let found = Reader::open(&copy).unwrap().advice(&AdviceRequest::default()).unwrap().findings;
    let tenants: BTreeSet<&str> = found.iter().map(|finding| &*finding.tenant).collect();
    assert_eq!(tenants, BTreeSet::from(["a6-true", "a6-true-busy", "a6-true-open", "a6-true-used"]));
}
