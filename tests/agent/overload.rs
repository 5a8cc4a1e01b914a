//! More of everything than anybody wants to see.

use std::fmt::Write as _;

use crate::running::{Agent, Demo};
use crate::scrape::Scrape;

/// A node of eight GPUs with that many processes.
fn crowd(processes: usize) -> String {
    let mut list = String::new();
    for index in 0..processes {
        let (comma, pid, gpu) = (if index > 0 { "," } else { "" }, 10_000 + index, index % 8);
        write!(
            list,
            r#"{comma}{{"pid":{pid},"name":"/usr/bin/job","gpu":{gpu},"phases":[{{"from":0,"to":600,"demand":0.5,"memory_bytes":{}}}]}}"#,
            1_048_576 * (1 + index)
        )
        .unwrap();
    }
    format!(r#"{{"cycle_seconds":600,"gpus":[{{"profile":"h100","count":8}}],"processes":[{list}]}}"#)
}

#[test]
fn a_crowd_of_processes_is_cut_to_the_limit_and_what_is_left_off_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let [scenario, config] = ["crowd.json", "c.yaml"].map(|name| directory.path().join(name));
    std::fs::write(&scenario, crowd(800)).unwrap();
    let text = "sampling: {level: full}\nattribution: {presence: true}\nlimits: {series: 3500}\n";
    std::fs::write(&config, text).unwrap();
    let arguments = ["--scenario", scenario.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let agent = Agent::start(Demo::command(&directory.path().join("state"), &arguments));
    let up = |page: &Scrape| page.of("gpu_up", &[]).filter(|(_, up)| *up == "1").count();
    let page = agent.wait_for("the guard", |page| {
        up(page) == 8 && page.has("gpumeter_series_dropped_total", &["family=\"gpu_process_memory_bytes\""])
    });
    assert!(page.series.len() <= 3_500, "{} series", page.series.len());
    for family in ["gpu_info", "gpu_power_watts", "gpu_energy_joules_total", "gpu_present"] {
        assert_eq!(page.of(family, &[]).count(), 8, "{family}");
    }
    // The largest processes stand by name, and the rest in one row, so that sums are whole.
    let sum = page.nano_sum("gpu_process_memory_bytes", &["gpu=\"0\""]) / 1_000_000_000;
    let whole: i128 = (0..800).step_by(8).map(|index| 1_048_576 * (1 + index)).sum();
    assert_eq!(sum, whole);
    assert!(page.has("gpu_process_memory_bytes", &["pid=\"10799\""]));
    assert!(page.has("gpu_process_memory_bytes", &["gpu=\"0\"", "pid=\"other\""]));
    std::fs::write(&config, text.replace("3500", "20000")).unwrap();
    let page =
        agent.wait_for("the higher limit", |page| page.of("gpu_process_memory_bytes", &[]).count() == 800);
    assert!(!page.has("gpu_process_memory_bytes", &["pid=\"other\""]));
}
