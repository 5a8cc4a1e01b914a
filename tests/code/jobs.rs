//! Reports of jobs: over three nodes, of an array, and of the pods of a RayCluster; the same from ledgers as over their exports.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gpumeter::accounting::advice::{add_notes, job_report};
use gpumeter::accounting::billing::{BillRequest, Explanation, JobReport, JobSummary, only_bill};
use gpumeter::accounting::day_files::{ExportSource, make_bills};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{DAY, QUARTER_HOUR, Utc, VisibleAccount};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::history::{END, Written};

fn job(first: u64, array: Option<u64>) -> Value {
    json!({ "job": { "cluster": "alpha", "account": "physics", "user": "ada", "first": first, "array": array } })
}

/// Six hours of job 4711 on the last but one day, of which the last two are idle.
fn trained(busy: u64) -> Value {
    json!({
        "holder": job(4711, None), "gpus": [0, 1], "memory_gib": 30, "from": "-1d 08:00", "to": "-1d 14:00",
        "activity": [{ "last_minutes": 120, "busy": 0 }, { "busy": busy }]
    })
}

fn pods(name: &str, gpus: &[u32]) -> Value {
    json!({
        "holder": { "pod": { "namespace": "ml", "name": name, "owner_kind": "RayCluster", "owner": "ray" } },
        "gpus": gpus, "replicas": true, "memory_gib": 50, "from": "-2d 06:00", "to": "-2d 16:00",
        "activity": [{ "busy": 70 }]
    })
}

/// Three nodes with job 4711, which never uses the third; an array on the second, and a RayCluster on the others.
fn scenario() -> Value {
    let node = |name: &str| json!({ "node": { "name": name, "cluster": "zurich" }, "attribution": { "presence": false } });
    let tasks = json!({
        "holder": job(4798, Some(4800)), "gpus": [2], "memory_gib": 60,
        "runs": { "days": "mon-sun", "at": "01:00", "minutes": 120 },
        "activity": [{ "last_minutes": 60, "busy": 0 }, { "busy": 90 }]
    });
    let boards = json!([{ "profile": "h100", "count": 4 }]);
    json!({
        "seed": 5,
        "gpus": boards,
        "config": "node: {name: n1, cluster: zurich}\nattribution: {presence: false}\nprices: {currency: EUR, rates: [{gpu_hour: 2.00}]}\n",
        "history": { "nodes": [
            { "workloads": [trained(90), pods("ray-head", &[3])] },
            { "config": node("n2"), "gpus": boards, "workloads": [trained(80), tasks],
              "failures": [{ "gpu": 0, "from": "-1d 09:00", "to": "-1d 09:10" }] },
            { "config": node("n3"), "gpus": boards, "workloads": [trained(0), pods("ray-worker", &[2, 3])] }
        ] }
    })
}

static WRITTEN: LazyLock<Written> =
    LazyLock::new(|| Written::new(&scenario(), HistoryExtent { days: 3, nodes: 3, seed: 5 }));

/// The request of the API with these parameters, in UTC.
fn request(parameters: &[(&str, &str)]) -> BillRequest {
    let parameters = parameters.iter().map(|(name, text)| (*name, (*text).to_owned()));
    JobReport::parse(parameters, TimeZone::UTC, END).unwrap()
}

fn over_exports(request: &BillRequest) -> JobReport {
    let directory = WRITTEN.exports();
    let made = make_bills(&ExportSource::of(&directory), request, |_, _| {}).unwrap();
    let bill = only_bill(made).unwrap().visible_to(&request.visible);
    job_report(&Explanation::of_bill(bill), request)
}

fn ledgers() -> [PathBuf; 3] {
    let further = |name: &str| WRITTEN.ledger().with_file_name(format!("nodes/{name}/ledger.db"));
    [WRITTEN.ledger(), further("n2"), further("n3")]
}

fn of_ledger(ledger: &Path, request: &BillRequest) -> JobReport {
    Reader::open(ledger).unwrap().jobs(request).unwrap()
}

fn only(report: JobReport) -> JobSummary {
    assert_eq!(report.jobs.len(), 1, "{report:?}");
    report.jobs.into_iter().next().unwrap()
}

fn notes(job: &JobSummary) -> Vec<&str> {
    job.notes.iter().map(|note| &*note.text).collect()
}

/// Hours of nanoseconds.
fn hours(time: gpumeter::model::TimeSum) -> u128 {
    time.0 / 3_600_000_000_000
}

#[test]
fn a_job_over_three_nodes_is_one_report_with_what_to_change() {
    let job = only(over_exports(&request(&[("job", "4711")])));
    assert_eq!((&*job.job, &job.nodes[..]), ("4711", &["n1", "n2", "n3"].map(str::to_owned)[..]));
    assert_eq!((job.gpus.len(), hours(job.total.held_ns), job.goes_on()), (6, 36, false));
    assert_eq!(job.total.start.since(Utc(END.0 - DAY.0)).0 + DAY.0 - 8 * 4 * QUARTER_HOUR.0, DAY.0);
    assert!(job.settled.iter().all(|node| node.until == END), "{:?}", job.settled);
    assert_eq!(
        notes(&job),
        [
            "2 of 6 GPUs never used",
            "idle after 2026-11-27 12:00 Z, for 33 % of its time",
            "at most 30 of 79 GiB of memory",
            "n2 GPU 0 had a fault (xid_reboot) from 2026-11-27 09:00 Z to 2026-11-27 09:10 Z"
        ]
    );
    let failed = &job.gpus[2];
    assert_eq!((&*failed.node, failed.gpu, failed.memory_total_bytes), ("n2", 0, Some(79 << 30)));
    assert!(job.gpus.iter().all(|gpu| gpu.faults.is_empty() != std::ptr::eq(gpu, failed)), "{:?}", job.gpus);
    // Lines of bills have fewer amounts in JSON.
    let brief = JobSummary { lines: Vec::new(), ..job };
    let text = serde_json::to_string(&brief).unwrap();
    assert!(serde_json::from_str::<JobSummary>(&text).unwrap() == brief, "{text}");
}

#[test]
fn the_report_over_exports_is_the_sum_of_those_of_the_ledgers() {
    let jobs = [vec![("job", "4711")], vec![("job", "4800")], vec![("job", "ml/ray")]];
    for parameters in jobs {
        let request = request(&parameters);
        let files = only(over_exports(&request));
        let mut found = ledgers().into_iter().flat_map(|ledger| of_ledger(&ledger, &request).jobs);
        let mut sum = found.next().unwrap();
        found.for_each(|other| sum.add(other));
        add_notes(&mut sum);
        let of = |job: &JobSummary| {
            let total = &job.total;
            let times = [total.held_ns, total.used_ns, total.idle_ns, total.lent_ns, total.unavailable_ns];
            let memory = (total.memory_peak_bytes, total.energy_uj, total.last_use, total.start, total.end);
            let faults: Vec<_> = job.gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.faults.clone())).collect();
            (times, memory, total.efficiency, job.nodes.clone(), job.settled.clone(), faults)
        };
        assert_eq!(of(&files), of(&sum), "{parameters:?}");
        assert_eq!(files.notes, sum.notes, "{parameters:?}");
        let money = [&files, &sum].map(|job| job.total.money.unwrap().0);
        assert!(money[0].abs_diff(money[1]) < 100, "{parameters:?}: {money:?}");
    }
}

#[test]
fn an_array_is_one_report_with_its_tasks_and_a_task_or_the_job_of_its_number_is_another() {
    let array = only(over_exports(&request(&[("job", "4800")])));
    let tasks: Vec<&str> = array.members.iter().map(|task| &*task.job).collect();
    assert_eq!((tasks, hours(array.total.held_ns)), (vec!["4800_1", "4800_2", "4800_3"], 6));
    assert_eq!(notes(&array), ["3 of 3 tasks: idle after 2026-11-27 02:00 Z, for 50 % of its time (4800_3)"]);
    let task = only(over_exports(&request(&[("job", "4800_2")])));
    assert_eq!(
        (hours(task.total.held_ns), task.members.len(), notes(&task)),
        (2, 0, vec!["idle after 2026-11-26 02:00 Z, for 50 % of its time"])
    );
    let raw = only(over_exports(&request(&[("slurm_job_id", "4800")])));
    assert_eq!((&*raw.job, hours(raw.total.held_ns)), ("4800_3", 2));
}

#[test]
fn the_pods_of_a_ray_cluster_are_one_report_and_a_pod_its_own() {
    let ray = only(over_exports(&request(&[("job", "ml/ray")])));
    let pods: Vec<&str> = ray.members.iter().map(|pod| &*pod.job).collect();
    assert_eq!((&*ray.job, &ray.nodes[..]), ("RayCluster/ml/ray", &["n1", "n3"].map(str::to_owned)[..]));
    assert_eq!((pods.len(), hours(ray.total.held_ns), notes(&ray)), (3, 30, Vec::<&str>::new()), "{pods:?}");
    let pod = only(over_exports(&request(&[("job", "RAYCLUSTER/ml/ray")])));
    assert_eq!(pod.total, ray.total);
    assert!(over_exports(&request(&[("job", "Job/ml/ray")])).jobs.is_empty());
    assert!(over_exports(&request(&[("job", "other/ray")])).jobs.is_empty());
}

#[test]
fn a_user_is_shown_his_jobs_of_his_cluster_and_nothing_of_others() {
    let of = |user: &str, cluster: &str, parameters: &[(&str, &str)]| {
        let visible = VisibleAccount::OfSlurmUser { user: user.into(), cluster: cluster.into() };
        let report = over_exports(&BillRequest { visible, ..request(parameters) });
        assert!(report.partial);
        report.jobs.into_iter().map(|job| job.job).collect::<Vec<_>>()
    };
    let all = ["4800_1", "4800_2", "4800_3", "4711"];
    let mut found = of("ada", "alpha", &[("slurm_user", "ada")]);
    found.sort();
    assert_eq!(found, {
        let mut all = all.to_vec();
        all.sort_unstable();
        all
    });
    assert_eq!(of("ada", "alpha", &[("job", "4711")]), ["4711"]);
    for (user, cluster) in [("eve", "alpha"), ("ada", "beta")] {
        assert!(of(user, cluster, &[("job", "4711")]).is_empty());
        assert!(of(user, cluster, &[]).is_empty());
    }
    assert!(of("ada", "alpha", &[("job", "ml/ray")]).is_empty(), "pods are no user's of Slurm");
}

#[test]
fn the_reports_of_the_document_are_what_the_command_prints() {
    const DOCUMENT: &str = include_str!("../../docs/jobs.md");
    let mut missing = String::new();
    for id in ["4711", "4800", "ml/ray"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpumeter"));
        command.args(["job", id, "--exports", "exports"]).env("TZ", "UTC");
        let ended = command.current_dir(WRITTEN.exports().parent().unwrap()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let page = String::from_utf8(ended.stdout).unwrap();
        let page: String = page.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let shown = format!("$ gpumeter job {id} --exports exports\n{page}```\n");
        missing += if DOCUMENT.contains(&shown) { "" } else { &shown };
    }
    assert!(missing.is_empty(), "docs/jobs.md has not\n{missing}");
}
