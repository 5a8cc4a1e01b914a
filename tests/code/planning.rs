//! Fit and demand over a made-up past of two months: a nightly batch, two services that are busy by day, and one that hardly works.

use std::sync::LazyLock;

use gpumeter::accounting::day_files::{ExportSource, make_demand, make_fit};
use gpumeter::accounting::ledger::Reader;
use gpumeter::accounting::planning::{Demand, DemandRequest, Fit, FitRequest};
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{Bytes, HOUR, Money, Nanoseconds};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::history::Written;

const CONFIG: &str = "
node: {name: planned, pool: h100}
attribution: {presence: false}
prices: {currency: EUR, rates: [{gpu_hour: 2.00}]}
";

static WRITTEN: LazyLock<Written> = LazyLock::new(|| {
    let service = |name: &str, gpu: u32, memory: u64, activity: Value| {
        json!({
            "holder": { "pod": { "namespace": "ml", "name": format!("{name}-1"), "owner_kind": "Deployment", "owner": name } },
            "gpus": [gpu], "memory_gib": memory, "activity": activity
        })
    };
    let by_day = |busy: u64| json!([{ "hours": "08-18", "busy": busy }, { "busy": 2 }]);
    let night = json!({
        "holder": { "job": { "cluster": "c", "account": "night", "user": "ada", "first": 100 } },
        "gpus": [0], "memory_gib": 50, "dram": 30, "activity": [{ "busy": 90 }],
        "runs": { "days": "mon-fri", "at": "22:00", "minutes": 480 }
    });
    let workloads = [
        night,
        service("web", 1, 20, by_day(60)),
        service("rank", 2, 40, by_day(70)),
        service("mail", 3, 20, json!([{ "busy": 5 }])),
    ];
    let scenario = json!({
        "seed": 5,
        "gpus": [{ "profile": "h100", "count": 4 }],
        "config": CONFIG,
        "history": { "nodes": [{ "workloads": workloads }] }
    });
    Written::new(&scenario, HistoryExtent { days: 58, nodes: 1, seed: 5 })
});

fn request(workloads: &[&str], on: Option<&str>) -> FitRequest {
    FitRequest {
        workloads: workloads.iter().map(|name| (*name).to_owned()).collect(),
        on: on.map(str::to_owned),
    }
}

/// From the ledger, and over its exports.
fn fits(workloads: &[&str], on: Option<&str>) -> [Fit; 2] {
    let request = request(workloads, on);
    let directory = WRITTEN.exports();
    let of_files = make_fit(&ExportSource::of(&directory), &request, |_, _| Ok(())).unwrap();
    [Reader::open(&WRITTEN.ledger()).unwrap().fit(&request).unwrap(), of_files]
}

fn demands(pool: Option<&str>) -> [Demand; 2] {
    let request = DemandRequest { pool: pool.map(str::to_owned), zone: TimeZone::UTC };
    let directory = WRITTEN.exports();
    let of_files = make_demand(&ExportSource::of(&directory), &request, |_, _| Ok(())).unwrap();
    [Reader::open(&WRITTEN.ledger()).unwrap().demand(&request).unwrap(), of_files]
}

const SERVICES: [&str; 2] = ["k8s:ml/Deployment/web", "ml/Deployment/rank"];

#[test]
fn services_that_fit_by_their_means_and_not_by_day_are_told_over_minutes_and_over_quarter_hours() {
    for fit in fits(&SERVICES, None) {
        let days = fit.together.shared.0 / (24 * HOUR.0);
        assert!((27..=28).contains(&days), "{days}");
        // Ten hours of each day.
        let [too_busy, too_full] = [fit.together.too_busy, fit.together.too_full].map(|time| time.0 / HOUR.0);
        assert!((too_busy / 10).abs_diff(days) <= 1, "{too_busy} h of {days} days");
        assert_eq!(too_full, 0);
        assert!(fit.together.busy < 0.7 && fit.together.busy_peak > 1.2, "{:?}", fit.together);
        let peak = fit.together.memory_peak.unwrap().0 >> 30;
        assert!((55..=70).contains(&peak), "{peak}");
        let told = "by their means they would have fitted; by their busiest times they would not";
        assert!(fit.notes.iter().any(|note| note == told), "{:?}", fit.notes);
        assert_eq!(fit.together.worst.len(), 5);
        // Two GPUs against one for the same time.
        let [apart, joined] = [fit.apart, fit.joined].map(Option::unwrap);
        assert!((apart.0 - 2 * joined.0).abs() < Money(1_000_000_000).0, "{apart:?} {joined:?}");
    }
}

#[test]
fn a_service_that_hardly_works_fits_beside_the_batch_and_on_an_instance_by_work_alone() {
    for fit in fits(&["k8s:ml/Deployment/mail", "slurm:c/night/ada"], None) {
        assert_eq!(
            (fit.together.too_much, fit.together.stretches),
            (Nanoseconds(0), 0),
            "{:?}",
            fit.together
        );
        let [mail, night] = &fit.workloads[..] else { panic!("{:?}", fit.workloads) };
        assert!(night.present < mail.present && night.busy > 0.85, "{night:?}");
        let dram = night.dram.unwrap();
        assert!((0.2..0.4).contains(&dram), "{dram}");
    }
    for fit in fits(&["ml/Deployment/mail"], Some("1g.10gb")) {
        assert_eq!((fit.on.slices, fit.on.of_slices, fit.on.memory), (1, 8, Some(Bytes(10_000_000_000))));
        assert_eq!((fit.together.too_busy, fit.together.too_full), (Nanoseconds(0), fit.together.shared));
    }
}

#[test]
fn a_workload_that_nobody_knows_is_an_error_over_both() {
    let request = request(&["web-2", "rank"], None);
    let told = "\"web-2\" held and used no GPU in the last four weeks";
    let directory = WRITTEN.exports();
    let of_files = make_fit(&ExportSource::of(&directory), &request, |_, _| Ok(())).unwrap_err();
    let of_ledger = Reader::open(&WRITTEN.ledger()).unwrap().fit(&request).unwrap_err();
    assert!(of_files.to_string().contains(told), "{of_files}");
    assert!(of_ledger.to_string().contains(told) && of_ledger.is_of_request(), "{of_ledger}");
}

#[test]
fn the_nightly_batch_is_in_the_demand_and_weeks_tell_the_next_one() {
    let [of_ledger, of_files] = demands(Some("h100"));
    assert_eq!(of_ledger.hours, of_files.hours);
    assert_eq!(of_ledger.weeks, 8);
    let hour = |weekday: usize, hour: usize| &of_ledger.hours[(weekday - 1) * 24 + hour];
    let held = |weekday, of| (hour(weekday, of).held.mean * 10.0).round();
    // Three services; from Monday evening to Saturday morning the batch too.
    assert_eq!(
        [held(1, 3), held(1, 12), held(1, 23), held(6, 3), held(6, 12)],
        [30.0, 30.0, 40.0, 40.0, 30.0]
    );
    assert_eq!([hour(1, 22).most_starts, hour(1, 12).most_starts], [1, 0]);
    assert_eq!([hour(1, 3), hour(1, 12), hour(1, 23)].map(|hour| hour.off_peak_use), [true, false, false]);
    assert_eq!(hour(1, 12).price, Some(Money(2_000_000_000)));
    let expected = hour(1, 23).expected.unwrap();
    assert!((expected.mean - 4.0).abs() < 0.01, "{expected:?}");
    assert!(
        of_ledger.tested > 600 && of_ledger.hits * 10 >= of_ledger.tested * 9,
        "{} of {}",
        of_ledger.hits,
        of_ledger.tested
    );
    let night = of_ledger.workloads.iter().find(|one| one.name == "slurm:c/night/ada").unwrap();
    assert!((35..=40).contains(&night.runs), "{}", night.runs);
    assert!(of_ledger.notes.iter().any(|note| note.contains("all GPUs were held")), "{:?}", of_ledger.notes);
    let request = DemandRequest { pool: Some("a100".to_owned()), zone: TimeZone::UTC };
    assert!(Reader::open(&WRITTEN.ledger()).unwrap().demand(&request).is_err());
}

#[test]
fn the_answer_of_the_document_is_what_the_command_prints() {
    const DOCUMENT: &str = include_str!("../../docs/planning.md");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    command.args(["demand", "--exports", "exports"]).env("TZ", "UTC");
    let ended = command.current_dir(WRITTEN.exports().parent().unwrap()).output().unwrap();
    let page = String::from_utf8(ended.stdout).unwrap();
    let lines: Vec<&str> = page.split_inclusive('\n').collect();
    let place = |begin: &str| {
        lines.iter().position(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{begin}: {page}"))
    };
    // Of the hours of the week only those of a day.
    let (begin, end, below) = (place("hour"), place("Tue 00"), place("Sun 23") + 1);
    let shown = format!(
        "$ gpumeter demand --exports exports\n{}...\n{}```\n",
        lines[..end].concat(),
        lines[below..].concat()
    );
    assert!(begin < end && DOCUMENT.contains(&shown), "docs/planning.md has not\n{shown}");
}
