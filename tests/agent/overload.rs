//! More processes, descriptors and XIDs than the limits.

use std::fmt::Write as _;

use crate::running::{Agent, Demo};
use crate::scrape::Scrape;

/// A node of eight GPUs with that many processes.
fn node_with(processes: usize) -> String {
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
fn processes_beyond_the_series_limit_are_counted_as_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let [scenario, config] = ["crowd.json", "c.yaml"].map(|name| directory.path().join(name));
    std::fs::write(&scenario, node_with(800)).unwrap();
    let text = "sampling: {level: full}\nattribution: {presence: true}\nlimits: {series: 3500}\n";
    std::fs::write(&config, text).unwrap();
    let arguments = ["--scenario", scenario.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let agent = Agent::start(Demo::command(&directory.path().join("state"), &arguments));
    let up = |page: &Scrape| page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count();
    let page = agent.wait_for("the guard", |page| {
        up(page) == 8 && page.has("gpumeter_series_dropped_total", &["family=\"gpu_process_memory_bytes\""])
    });
    assert!(page.series.len() <= 3_500, "{} series", page.series.len());
    for family in ["gpu_info", "gpu_power_watts", "gpu_energy_joules_total", "gpu_present"] {
        assert_eq!(page.series_of(family, &[]).count(), 8, "{family}");
    }
    // The largest processes have series of their own and the rest share one, so that sums are complete.
    let sum = page.nano_sum("gpu_process_memory_bytes", &["gpu=\"0\""]) / 1_000_000_000;
    let whole: i128 = (0..800).step_by(8).map(|index| 1_048_576 * (1 + index)).sum();
    assert_eq!(sum, whole);
    assert!(page.has("gpu_process_memory_bytes", &["pid=\"10799\""]));
    assert!(page.has("gpu_process_memory_bytes", &["gpu=\"0\"", "pid=\"other\""]));
    std::fs::write(&config, text.replace("3500", "20000")).unwrap();
    let page = agent
        .wait_for("the higher limit", |page| page.series_of("gpu_process_memory_bytes", &[]).count() == 800);
    assert!(!page.has("gpu_process_memory_bytes", &["pid=\"other\""]));
}

/// The soft and the hard limit on open files of a process.
fn most_files(pid: u32) -> [String; 2] {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

#[test]
fn the_agent_holds_more_processes_than_its_soft_descriptor_limit() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("local.json");
    let mut list = String::new();
    for index in 0..300 {
        let comma = if index > 0 { "," } else { "" };
        let phases = r#"[{"from":0,"to":600,"demand":0.0,"memory_bytes":1048576}]"#;
        write!(list, r#"{comma}{{"pid":0,"name":"/usr/bin/job","gpu":{},"phases":{phases}}}"#, index % 8)
            .unwrap();
    }
    let node = format!(
        r#"{{"local":true,"cycle_seconds":600,"gpus":[{{"profile":"h100","count":8}}],"processes":[{list}]}}"#
    );
    std::fs::write(&scenario, node).unwrap();
    let state = directory.path().join("state");
    let command = Demo::command(&state, &["--scenario", scenario.to_str().unwrap()]);
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 400 && exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    let agent = Agent::start(limited);
    let [soft, hard] = most_files(agent.id());
    assert_eq!(soft, hard);
    // One descriptor per process, above those that `select` supports.
    let held = || {
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", agent.id())).unwrap();
        let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
        numbers.filter(|number| *number >= 1_024).count()
    };
    if hard.parse().is_ok_and(|hard: u32| hard < 2_000) {
        return;
    }
    agent.wait_for("a descriptor of each process", |_| held() == 300);
    let own = agent.id();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    let child = children.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(most_files(child)[0], "400");
}

#[test]
fn an_xid_storm_does_not_read_every_tier_every_second() {
    const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
    let list: Vec<String> =
        (0..60).map(|second| format!(r#"{{"at": {second}, "gpu": 0, "xid": 74}}"#)).collect();
    let directory = tempfile::tempdir().unwrap();
    let [scenario, config] = ["xids.json", "c.yaml"].map(|name| directory.path().join(name));
    let events = list.join(", ");
    let node = format!(r#"{{"cycle_seconds": 60, "gpus": [{{"profile": "h100"}}], "xids": [{events}]}}"#);
    std::fs::write(&scenario, node).unwrap();
    // Presence would read lists of its own.
    std::fs::write(&config, "sampling: {level: full}\nattribution: {presence: false}\n").unwrap();
    let files = ["--scenario", scenario.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let demo = Demo::start(&files);
    let xids = |page: &Scrape| {
        let count = page.value("gpu_xid_errors_total", &["xid=\"74\""]);
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let lists = || {
        let calls = std::fs::read_to_string(demo.driver("calls")).unwrap();
        serde_json::from_str::<serde_json::Value>(&calls).unwrap()[COMPUTE].as_u64().unwrap()
    };
    let first = xids(&demo.agent.wait_for("XIDs", |page| xids(page) >= 3));
    let before = lists();
    let last = xids(&demo.agent.wait_for("more XIDs", |page| xids(page) >= first + 16));
    let listed = lists() - before;
    // One is counted each second; the lists were counted before this one.
    let seconds = xids(&demo.agent.wait_for("another XID", |page| xids(page) > last)) - first;
    assert!((1..=seconds / 5 + 1).contains(&listed), "{listed} lists in {seconds} s");
}
