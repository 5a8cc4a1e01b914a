//! Advice over generated fleets: their runs have the quantiles of the clusters of AcmeTrace (CC BY 4.0), in which large language
//! models are trained well. None of it was measured: each workload is drawn at one place of all quantiles.

use std::collections::BTreeMap;

use gpumeter::accounting::advice::{AdviceFinding, AdviceRequest};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use serde_json::{Value, json};

use super::{quantiles, shown_in_document};
use crate::history::Written;

/// Quantiles in percent.
struct Cluster {
    name: &'static str,
    utilization: [(f64, f64); 6],
    memory: [(f64, f64); 6],
    sm: [(f64, f64); 6],
}

const PLACES: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0];

/// The least value is 0, and so is the lower quartile of all of them.
const fn from_median([median, third, most, all]: [f64; 4]) -> [(f64, f64); 6] {
    let [none, first, half, three, ninety, end] = PLACES;
    [(none, 0.0), (first, 0.0), (half, median), (three, third), (ninety, most), (end, all)]
}

const KALOS: Cluster = Cluster {
    name: "Acme Kalos",
    utilization: from_median([98.0, 99.0, 100.0, 100.0]),
    memory: from_median([75.0, 77.0, 88.0, 99.0]),
    sm: from_median([33.0, 73.0, 91.0, 100.0]),
};

const SEREN: Cluster = Cluster {
    name: "Acme Seren",
    utilization: from_median([99.0, 99.0, 100.0, 100.0]),
    memory: from_median([39.0, 61.0, 83.0, 99.0]),
    sm: from_median([50.0, 73.0, 81.0, 100.0]),
};

const GPUS: usize = 6;
const SHIFTS: [&str; 6] = ["00:10", "04:10", "08:10", "12:10", "16:10", "20:10"];
const WORKLOADS: usize = GPUS * SHIFTS.len();
const DAYS: usize = 28;
const RUNS: usize = WORKLOADS * DAYS;

/// The boards have GPM, which the A100 of these clusters has by DCGM.
fn workload(cluster: &Cluster, place: usize) -> Value {
    const MEMORY_GIB: f64 = 79.0;
    let of = |quantiles: &[(f64, f64); 6]| quantiles::at(quantiles, (place as f64 + 0.5) / WORKLOADS as f64);
    let (utilization, sm) = (of(&cluster.utilization), of(&cluster.sm));
    let memory = (of(&cluster.memory) * MEMORY_GIB / 100.0).ceil();
    // Any step that has no divisor in common with the number mixes them.
    let slot = place * 13 % WORKLOADS;
    let share = if utilization > 0.0 { (sm * 100.0 / utilization).round() } else { 0.0 };
    let jitter = if utilization > 20.0 { 10 } else { 0 };
    json!({
        "holder": { "job": { "cluster": "acme", "account": format!("w{place:02}"), "user": "ada", "first": 1_000 * (place + 1) } },
        "gpus": [slot % GPUS], "memory_gib": memory as u64, "sm": share as u64, "tensor": share as u64 / 2, "dram": 20,
        "runs": { "days": "mon-sun", "at": SHIFTS[slot / GPUS], "minutes": 200, "jitter_minutes": 10 },
        "activity": [{ "busy": utilization.round() as u64, "jitter": jitter }]
    })
}

fn findings(cluster: &Cluster) -> Vec<AdviceFinding> {
    let workloads: Vec<Value> = (0..WORKLOADS).map(|place| workload(cluster, place)).collect();
    let scenario = json!({
        "seed": 7,
        "gpus": [{ "profile": "h100", "count": GPUS }],
        "config": "node: {name: acme}\nattribution: {presence: false}\nprices: {currency: EUR, rates: [{gpu_hour: 2.00}]}\n",
        "history": { "nodes": [{ "workloads": workloads }] }
    });
    let written = Written::new(&scenario, HistoryExtent { days: DAYS as u64, nodes: 1, seed: 7 });
    Reader::open(&written.ledger()).unwrap().advice(&AdviceRequest::default()).unwrap().findings
}

#[test]
fn a_well_run_cluster_of_language_models_is_told_only_what_it_held_without_a_process() {
    for cluster in [KALOS, SEREN] {
        let findings = findings(&cluster);
        let mut kinds = BTreeMap::<&str, usize>::new();
        for finding in &findings {
            *kinds.entry(finding.id.split('-').next().unwrap()).or_default() += 1;
        }
        // A quarter of the runs has neither use nor memory.
        assert_eq!(kinds, BTreeMap::from([("A1", WORKLOADS / 4)]), "{}", cluster.name);
        let runs: usize = findings.iter().map(|finding| finding.runs).sum();
        assert_eq!((runs, RUNS), (RUNS / 4, 1_008));
        assert!(findings.iter().all(|finding| &*finding.tenant < "w09"), "{findings:?}");
        shown_in_document(cluster.name, "1,008 runs", &kinds, RUNS);
    }
}
