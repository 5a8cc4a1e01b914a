//! The families of a running agent's page: those of the golden page of the same node, and those that only a running agent
//! knows.

use std::collections::BTreeSet;
use std::path::Path;

use crate::running::{Demo, wait_until};

/// What the meter cannot know: build, files, threads, requests and the process.
const OWN: [&str; 21] = [
    "gpumeter_build_info",
    "gpumeter_config_reload_success",
    "gpumeter_http_requests_total",
    "gpumeter_ledger_coarse_windows_total",
    "gpumeter_ledger_durable",
    "gpumeter_ledger_errors_total",
    "gpumeter_ledger_last_commit_timestamp_seconds",
    "gpumeter_ledger_open",
    "gpumeter_ledger_queue_windows",
    "gpumeter_ledger_unobserved_seconds_total",
    "gpumeter_listen_missing",
    "gpumeter_quiesced",
    "gpumeter_resolver_age_seconds",
    "gpumeter_resolver_success",
    "gpumeter_simulated",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
];

/// What a busy machine adds.
const LATE: [&str; 2] = ["gpumeter_collector_errors_total", "gpumeter_driver_call_in_flight_seconds"];

fn families(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[test]
fn a_running_agents_page_has_the_families_of_the_golden_page_and_its_own() {
    let nodes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nodes");
    let golden = |name: &str| std::fs::read_to_string(nodes.join(name)).unwrap();
    let (native, dcgm) = (golden("h100-8.prom"), golden("h100-8.dcgm.prom"));
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = "web: {dcgm_listen: 127.0.0.1:0}\nsampling: {level: full}\nattribution: {presence: true}\n\
                prices: {currency: EUR, rates: [{gpu_hour: 2.4}]}\nlimits: {birth_delay: 0s}\n";
    std::fs::write(&config, text).unwrap();
    let scenario = nodes.join("h100-8.json");
    let demo = Demo::start(&[
        "--speed",
        "10",
        "--scenario",
        scenario.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ]);
    let expected: BTreeSet<&str> = families(&native).into_iter().chain(OWN).collect();
    let mut page = String::new();
    wait_until("all families", || {
        page = demo.agent.get("/metrics").1;
        families(&page).is_superset(&expected)
    });
    let surplus: Vec<_> =
        families(&page).into_iter().filter(|name| !expected.contains(name) && !LATE.contains(name)).collect();
    assert!(surplus.is_empty(), "{surplus:#?}");
    for label in ["collector=\"driver\"", "collector=\"kernel_log\"", "resolver=\"host\""] {
        assert!(page.contains(label), "{label}");
    }
    // Where a sampler is late, its families are absent for a while.
    wait_until("the families of DCGM", || {
        families(&demo.agent.get("/metrics?profile=dcgm").1) == families(&dcgm)
    });
}
