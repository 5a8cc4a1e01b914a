//! MIG instances through the real binary: from the driver to the lines of a bill.

use serde_json::Value;

use crate::running::{Demo, bill_lines, wait_until};
use crate::scrape::Scrape;

const SCENARIO: &str = r#"{
    "driver_version": "590.48.01", "cycle_seconds": 6000,
    "gpus": [
        {"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]},
        {"profile": "a100", "mig": [{"profile": "4g.40gb", "start": 0}]}
    ],
    "processes": [
        {"pid": 4001, "name": "python3", "gpu": 0, "instance": 0,
         "phases": [{"from": 0, "to": 6000, "demand": 0.5, "memory_bytes": 8589934592}],
         "host": {"uid": 0, "cgroup": "/system.slice/train.service"}},
        {"pid": 4002, "name": "python3", "gpu": 1, "instance": 0,
         "phases": [{"from": 0, "to": 6000, "demand": 0.5, "memory_bytes": 8589934592}],
         "host": {"uid": 0, "cgroup": "/system.slice/infer.service"}}
    ]}"#;

const CONFIG: &str = "attribution:
  standing:
    - {id: training, gpu: 0, unit: train.service}
    - {id: inference, gpu: 1, unit: infer.service}
";

/// Nanoseconds of a line.
fn time(line: &Value, key: &str) -> u64 {
    line[key].as_str().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{key} in {line}"))
}

fn line<'a>(lines: &'a [Value], tenant: &str, gpu: u64, gpu_instance: Option<u64>) -> Option<&'a Value> {
    lines.iter().find(|line| {
        line["tenant"] == tenant && line["gpu"] == gpu && line["gpu_instance"].as_u64() == gpu_instance
    })
}

#[test]
fn a_mig_instance_is_billed_and_a_new_layout_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let [scenario, config] = ["scenario.json", "config.yaml"].map(|name| directory.path().join(name));
    std::fs::write(&scenario, SCENARIO).unwrap();
    std::fs::write(&config, CONFIG).unwrap();
    let files = [scenario.to_str().unwrap(), config.to_str().unwrap()];
    let demo = Demo::start(&["--scenario", files[0], "--config", files[1], "--speed", "10"]);
    let slot = |page: &Scrape| page.nano_sum("gpu_slot_seconds_total", &["gpu=\"0\"", "gpu_instance=\"2\""]);
    let page = demo.agent.wait_for("minutes of account", |page| slot(page) >= 120_000_000_000);
    let labels = ["tenant=\"train.service\"", "gpu=\"0\"", "gpu_instance=\"2\""];
    assert!(page.nano_sum("gpu_tenant_used_seconds_total", &labels) > 0);
    assert_eq!(page.value("gpu_holding_ratio", &["gpu=\"0\"", "gpu_instance=\"7\""]), Some("1"));
    assert_eq!(page.value("gpumeter_mig_layout_changes_total", &["gpu=\"0\""]), Some("0"));
    let mut lines = bill_lines(&demo.agent);
    // A busy machine may miss ticks at first, whose time is unmeasured; what follows outweighs it.
    wait_until("an account that is measured", || {
        lines = bill_lines(&demo.agent);
        let large = line(&lines, "train.service", 0, Some(2)).unwrap();
        10 * time(large, "unmeasured_ns") <= time(large, "held_ns")
    });
    let of = |gpu, instance| line(&lines, "train.service", gpu, instance).unwrap();
    let (large, small) = (of(0, Some(2)), of(0, Some(7)));
    let held = [large, small].map(|line| time(line, "held_ns"));
    assert!(held[0].abs_diff(4 * held[1]) < 1_000, "by placement, to a unit for each window: {held:?}");
    let share = time(large, "used_ns") as f64 / time(large, "held_ns") as f64;
    assert!((0.4..0.6).contains(&share), "half busy: {share}");
    assert_eq!(time(small, "used_ns"), 0);
    assert!(
        line(&lines, "__unobserved__", 0, None).is_none_or(|line| time(line, "held_ns") < 60_000_000_000)
    );
    let free = time(line(&lines, "__unallocated__", 0, None).unwrap(), "held_ns");
    assert!(free.abs_diff(3 * time(small, "held_ns")) <= 3 * 1_000_000_000, "three eighths are free: {free}");
    // Before Hopper an instance's activity cannot be read.
    let blind = line(&lines, "infer.service", 1, Some(1)).unwrap();
    assert_eq!(time(blind, "unmeasured_ns"), time(blind, "held_ns"));
    assert!(page.has("gpu_unsupported", &["gpu=\"1\"", "family=\"gpu_mig_gr_engine_active_ratio\""]));
    demo.state(r#"{"mig": {"0": {"mode": "on", "instances": [{"profile": "7g.80gb", "start": 0}]}}}"#);
    let changed =
        |page: &Scrape| page.value("gpumeter_mig_layout_changes_total", &["gpu=\"0\""]) == Some("1");
    let page = demo.agent.wait_for("the other layout", changed);
    assert!(page.has("gpu_mig_info", &["gpu=\"0\"", "profile=\"7g.80gb\""]));
    assert!(!page.has("gpu_mig_info", &["gpu=\"0\"", "profile=\"3g.40gb\""]));
    let log = demo.agent.wait_for_log("the MIG layout of the GPU has changed");
    assert!(log.contains("GPU instances 2 (4/8), 7 (1/8)") && log.contains("GPU instances 0 (8/8)"), "{log}");
    let whole = |page: &Scrape| page.has("gpu_slot_seconds_total", &["gpu=\"0\"", "gpu_instance=\"0\""]);
    demo.agent.wait_for("the other instance's account", whole);
    let lines = bill_lines(&demo.agent);
    let between = line(&lines, "__unavailable__", 0, None);
    assert!(between.is_none_or(|line| time(line, "held_ns") < 120_000_000_000), "{between:?}");
}
