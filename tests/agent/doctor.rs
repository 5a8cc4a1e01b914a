//! What the doctor says of a node, sick or well, beside a running agent.

use std::process::Output;

use crate::running::{Demo, program};

struct Diagnosis {
    status: Option<i32>,
    page: String,
}

/// The doctor's page for a demo's node, with the demo's ledger.
fn doctor(demo: &Demo) -> Diagnosis {
    let ledger = demo.directory.path().join("ledger.db");
    let config = demo.directory.path().join("doctor.yaml");
    std::fs::write(&config, format!("ledger:\n  path: {}\n", ledger.display())).unwrap();
    let mut command = program();
    command.arg("doctor").arg("--config").arg(config);
    let Output { status, stdout, .. } =
        command.arg("--nvml-library").arg(demo.driver("libnvidia-ml.so.1")).output().unwrap();
    Diagnosis { status: status.code(), page: String::from_utf8(stdout).unwrap() }
}

/// What no H100 has: temperatures of limits (it knows distances), fans, retired pages (rows are remapped).
const LACKED: [&str; 4] = [
    "gpu_temperature_limit_celsius",
    "gpu_fan_speed_ratio",
    "gpu_retired_pages",
    "gpu_retired_pages_pending",
];
/// What a real one has, and a simulated library may not answer.
const NOT_SIMULATED: [&str; 2] = ["gpu_fabric_state", "gpu_ecc_sram_threshold_exceeded"];

/// The absent families with their reasons, beside those that no H100 has.
fn absent(page: &str) -> Vec<&str> {
    let absent: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("  absent ")).collect();
    let is_of = |line: &str, names: &[&str]| names.iter().any(|name| line.split(':').next() == Some(name));
    let lacked = absent.iter().filter(|line| is_of(line, &LACKED) && line.ends_with(": not_supported"));
    assert_eq!(lacked.count(), 8 * LACKED.len(), "{page}");
    absent.into_iter().filter(|line| !is_of(line, &LACKED) && !is_of(line, &NOT_SIMULATED)).collect()
}

#[test]
fn a_node_in_order_is_told_with_every_family_and_the_agent_that_runs_there() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let Diagnosis { page, .. } = doctor(&demo);
    assert!(page.contains("ok      driver: a simulated library"), "{page}");
    assert!(page.contains("ok      gpus: 8 counted"), "{page}");
    let owner = format!("ledger.db: a running agent writes it, process {}\n", demo.agent.id());
    assert!(page.lines().any(|line| line.starts_with("ok      ledger: ")), "{page}");
    assert!(page.contains(&owner), "{page}");
    assert_eq!(page.matches(" families answered").count(), 8, "{page}");
    // GPM values need a pair of samples, and the simulated H100 has them all.
    assert_eq!(absent(&page), [""; 0], "{page}");
}

#[test]
fn a_family_that_fails_is_a_finding_and_one_that_the_board_lacks_is_none() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    demo.faults(
        r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 1, "code": 999},
            {"function": "nvmlDeviceGetProcessUtilization", "gpu": 2, "code": 3}]"#,
    );
    let Diagnosis { status, page } = doctor(&demo);
    assert_eq!(status, Some(1), "{page}");
    let finding = page.lines().find(|line| line.starts_with("missing gpu: 1 GPU-")).unwrap_or_default();
    assert!(finding.contains("gpu_utilization_ratio failed"), "{page}");
    assert_eq!(absent(&page), ["gpu_process_utilization_ratio: not_supported"], "{page}");
}

#[test]
fn a_call_that_hangs_is_named_and_what_was_found_before_is_told() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    demo.faults(r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 3, "hang": true}]"#);
    let Diagnosis { status, page } = doctor(&demo);
    assert_eq!(status, Some(1), "{page}");
    let call = "missing driver: the call nvmlDeviceGetUtilizationRates on GPU 3 has not returned for 10 s";
    assert!(page.contains(call), "{page}");
    assert_eq!(page.matches(" families answered").count(), 3, "{page}");
    demo.faults("[]");
}
