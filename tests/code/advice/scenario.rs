//! A node with a GPU for each case. A tenant is called after its kind and what is expected: `true`, `near` or `silent`.

use serde_json::{Value, json};

const CONFIG: &str = "
node: {name: advised}
attribution: {presence: false}
prices: {currency: EUR, rates: [{gpu_hour: 2.00}]}
terms:
  - {tenant: a2-true, basis: used}
  - {tenant: a1-true, discount: 50}
advice:
  classes:
    - {match: {slurm_account: a1-silent-warm}, class: warm}
";

pub fn job(tenant: &str, first: u64) -> Value {
    json!({ "job": { "cluster": "c", "account": tenant, "user": "ada", "first": first } })
}

pub fn pod(tenant: &str, owner_kind: &str) -> Value {
    json!({ "pod": { "namespace": tenant, "name": "main", "owner_kind": owner_kind, "owner": "main" } })
}

pub fn workload(holder: Value, gpus: &[u32], memory_gib: u64, runs: Value, activity: Value) -> Value {
    let mut workload =
        json!({ "holder": holder, "gpus": gpus, "memory_gib": memory_gib, "activity": activity });
    if !runs.is_null() {
        workload["runs"] = runs;
    }
    workload
}

pub fn daily(at: &str, minutes: u64) -> Value {
    json!({ "days": "mon-sun", "at": at, "minutes": minutes })
}

/// Held without a process.
fn without_process() -> Vec<Value> {
    let busy_after = |minutes: u64| json!([{ "after_minutes": minutes, "busy": 90, "memory_gib": 40 }]);
    vec![
        workload(job("a1-true", 1_000), &[0], 0, daily("20:00", 600), busy_after(180)),
        workload(job("a1-near", 1_100), &[0], 0, daily("08:00", 300), busy_after(20)),
        workload(pod("a1-silent", "Deployment"), &[1], 0, Value::Null, json!([])),
        workload(job("a1-silent-warm", 1_200), &[2], 0, daily("08:00", 600), json!([])),
    ]
}

/// More GPUs than are used.
fn unused_gpus() -> Vec<Value> {
    let late = json!([
        { "first_gpus": 1, "busy": 85 },
        { "after_minutes": 240, "busy": 60 }
    ]);
    let alternating = json!([
        { "first_gpus": 1, "hours": "18-20", "busy": 85 },
        { "first_gpus": 1, "busy": 0 },
        { "hours": "20-22", "busy": 85 }
    ]);
    let half = json!([{ "first_gpus": 1, "busy": 85 }]);
    let once = json!([{ "first_gpus": 1, "busy": 85 }]);
    let mut rare = workload(job("a2-silent", 2_300), &[12, 13], 20, Value::Null, once);
    rare["from"] = json!("-5d");
    rare["to"] = json!("-2d");
    vec![
        workload(job("a2-true", 2_000), &[3, 4], 20, daily("00:30", 480), half),
        workload(job("a2-near-late", 2_100), &[3, 4], 20, daily("09:00", 480), late),
        workload(job("a2-near-turns", 2_200), &[3, 4], 20, daily("18:00", 240), alternating),
        rare,
    ]
}

/// Idle ends and open sessions.
fn idle_ends() -> Vec<Value> {
    let last_idle = |minutes: u64| json!([{ "last_minutes": minutes, "busy": 0 }, { "busy": 90 }]);
    let now_and_then = |every: u64| json!([{ "every_minutes": every, "for_minutes": 10, "busy": 60 }]);
    let morning = json!([{ "after_minutes": 150, "busy": 0 }, { "busy": 50 }]);
    vec![
        workload(job("a3-true", 3_000), &[5], 40, daily("20:00", 540), last_idle(150)),
        workload(job("a3-near", 3_100), &[5], 40, daily("08:00", 480), last_idle(20)),
        workload(pod("a3-silent", "Deployment"), &[6], 40, Value::Null, now_and_then(480)),
        workload(pod("a3-true-open", "Notebook"), &[7], 12, daily("08:00", 660), morning),
        workload(pod("a3-near-open", "Notebook"), &[8], 12, daily("08:00", 660), now_and_then(90)),
        workload(pod("a3-silent-open", "RayCluster"), &[9], 12, Value::Null, now_and_then(480)),
    ]
}

/// Jobs that were idle for two hours on the last but one day, from 10:00 on.
fn beside_faults() -> Vec<Value> {
    let paused = json!([{ "hours": "10-12", "busy": 0 }, { "busy": 90 }]);
    let jobs = [("a8-true", 10, 8_000), ("a8-near", 11, 8_100)];
    let once = jobs.map(|(tenant, gpu, first)| {
        let mut once = workload(job(tenant, first), &[gpu], 40, Value::Null, paused.clone());
        once["from"] = json!("-1d 08:00");
        once["to"] = json!("-1d 16:00");
        once
    });
    // Idle long before the fault, and from its begin on: neither stopped with it.
    once.into_iter()
        .chain([idle_before("a8-near-idle", 20, 8_200), idle_before("a8-near-unused", 21, 8_300)])
        .collect()
}

/// A job that is idle when a fault begins at 09:30 of the last but one day: since 09:00, or, if it is called unused, since ever.
fn idle_before(tenant: &str, gpu: u32, first: u64) -> Value {
    let busy = if tenant.ends_with("unused") { 0 } else { 90 };
    let activity = json!([{ "hours": "9-24", "busy": 0 }, { "busy": busy }]);
    let mut once = workload(job(tenant, first), &[gpu], 40, Value::Null, activity);
    once["from"] = json!("-1d 08:00");
    once["to"] = json!("-1d 16:00");
    once
}

/// Jobs that work on the last but one day while their GPUs may be slowed down.
fn slowed_down() -> Vec<Value> {
    let jobs = [("a10-true", 14, 10_000), ("a10-near", 15, 10_100)];
    let once = jobs.map(|(tenant, gpu, first)| {
        let mut once = workload(job(tenant, first), &[gpu], 40, Value::Null, json!([{ "busy": 90 }]));
        once["from"] = json!("-1d 08:00");
        once["to"] = json!("-1d 16:00");
        once
    });
    once.into()
}

/// Busy with few multiprocessors; then as well-run training, as decoding, and as a code in FP64.
fn shallow() -> Vec<Value> {
    let cases = [
        ("a11-true", [12, 7, 0]),
        ("a11-near-training", [33, 30, 0]),
        ("a11-near-decoding", [12, 70, 0]),
        ("a11-silent", [15, 7, 20]),
    ];
    let shapes = (0..).zip(cases).map(|(place, (tenant, [sm, dram, fp64]))| {
        let holder = job(tenant, 11_000 + u64::from(place) * 100);
        let mut shape = workload(holder, &[16 + place], 40, daily("09:00", 480), json!([{ "busy": 97 }]));
        for (series, share) in [("sm", sm), ("dram", dram), ("fp64", fp64)] {
            shape[series] = json!(share);
        }
        shape
    });
    shapes.collect()
}

pub fn scenario() -> Value {
    let workloads =
        [without_process(), unused_gpus(), idle_ends(), beside_faults(), slowed_down(), shallow()].concat();
    json!({
        "seed": 5,
        "gpus": [{ "profile": "h100", "count": 23 }],
        "config": CONFIG,
        "history": { "nodes": [{ "workloads": workloads }] }
    })
}
