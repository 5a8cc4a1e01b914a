//! A replay shows what the recorded driver showed, on a machine without that driver.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::running::{Agent, Demo, output, program, wait_until};
use crate::scrape::Scrape;

/// GPUs at rest except for one XID per cycle, so that one falls into any recording of a cycle.
const STILL: &str = r#"{"cycle_seconds": 8,
    "gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}, {"profile": "2g.20gb", "start": 0}]},
             {"profile": "l4"}],
    "processes": [{"pid": 77, "gpu": 1, "phases": [{"from": 0, "to": 8, "memory_bytes": 1073741824}]}],
    "xids": [{"at": 4, "gpu": 1, "xid": 31}]}"#;

/// Families that do not change while the GPUs are at rest.
const STEADY: [&str; 8] = [
    "gpu_info",
    "gpu_mig_info",
    "gpu_memory_used_bytes",
    "gpu_mig_memory_total_bytes",
    "gpu_power_limit_watts",
    "gpu_clock_hertz",
    "gpu_unsupported",
    "gpu_process_memory_bytes",
];

fn steady(page: &Scrape) -> Vec<(String, String)> {
    let series = STEADY.iter().flat_map(|family| page.series_of(family, &[]));
    series.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether every GPU was read in time for the page; on a busy machine one may be late.
fn is_whole(page: &Scrape) -> bool {
    page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 2
        && STEADY.iter().all(|family| page.has(family, &[]))
}

fn replay(recording: &Path, directory: &Path) -> Agent {
    let mut command = program();
    command.args(["replay", "--listen", "127.0.0.1:0", "--state-dir"]).arg(directory.join("state"));
    let config = directory.join("config.yaml");
    std::fs::write(&config, "sampling:\n  level: full\n").unwrap();
    command.arg("--config").arg(config).arg(recording);
    Agent::start(command)
}

#[test]
fn an_interrupted_recording_reports_its_size_and_path() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let recording = demo.directory.path().join("node.jsonl");
    let mut command = program();
    command.args(["record", "--for", "1h", "--interval", "100ms", "--nvml-library"]);
    command.arg(demo.driver("libnvidia-ml.so.1")).arg(&recording);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line is written at once, and answers once the file exceeds the write buffer.
    wait_until("a record", || std::fs::metadata(&recording).is_ok_and(|file| file.len() >= 10_000));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let [printed, errors] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(output.status.code(), Some(1), "{printed}{errors}");
    assert!(
        errors.contains("interrupted before 3600 s were over") && errors.contains("node.jsonl"),
        "{errors}"
    );
    let answers = std::fs::read_to_string(&recording).unwrap().lines().count() - 1;
    assert!(
        printed.contains("GPUs 8, readings of each ") && printed.contains(&format!(", answers {answers};")),
        "{printed}"
    );
    drop(demo);
}

#[test]
fn a_replay_shows_what_the_driver_showed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), STILL).unwrap();
    let demo = Demo::start(&["--scenario", file.path().to_str().unwrap()]);
    let recording = demo.directory.path().join("node.jsonl");
    let library = demo.driver("libnvidia-ml.so.1");
    let recorded = output(&[
        "record",
        "--nvml-library",
        library.to_str().unwrap(),
        "--for",
        "9s",
        recording.to_str().unwrap(),
    ]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let original = demo
        .agent
        .wait_for("the XID", |page| is_whole(page) && page.has("gpu_xid_errors_total", &["xid=\"31\""]));
    let original = steady(&original);
    drop(demo.agent);

    let foreign = tempfile::tempdir().unwrap();
    let notes = foreign.path().join("host/notes.txt");
    std::fs::create_dir(foreign.path().join("host")).unwrap();
    std::fs::write(&notes, "mine").unwrap();
    let [state, path] = [foreign.path(), &recording].map(|path| path.to_str().unwrap());
    let answer = output(&["replay", "--listen", "127.0.0.1:0", "--state-dir", state, path]);
    let errors = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(answer.status.code(), Some(2), "{errors}");
    assert!(errors.contains("not empty"), "{errors}");
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "mine");

    let directory = tempfile::tempdir().unwrap();
    let agent = replay(&recording, directory.path());
    let page = agent.wait_for("the recorded XID", |page| {
        is_whole(page) && page.has("gpu_xid_errors_total", &["gpu=\"1\"", "xid=\"31\""])
    });
    assert_eq!(steady(&page), original);
    assert_eq!(
        page.value("gpumeter_simulated", &[]),
        Some("1"),
        "recorded figures are not the agent's own measurements"
    );
}

#[test]
fn a_replay_without_a_configuration_grants_nothing_and_prices_nothing() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let [recording, library] = [demo.directory.path().join("node.jsonl"), demo.driver("libnvidia-ml.so.1")]
        .map(|path| path.to_str().unwrap().to_owned());
    let recorded =
        output(&["record", "--nvml-library", &library, "--for", "2s", "--interval", "500ms", &recording]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    drop(demo.agent);
    let directory = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["replay", "--listen", "127.0.0.1:0", "--state-dir"]).arg(directory.path());
    command.arg(&recording);
    let agent = Agent::start(command);
    let page = agent.wait_for("the recorded GPUs", |page| page.series_of("gpu_up", &[]).count() == 8);
    let grants = agent.first_lines.lines().find(|line| line.contains("grants and prices")).unwrap();
    for none in ["standing=0", "presence=\"auto\"", "rates=0"] {
        assert!(grants.contains(none), "{grants}");
    }
    assert!(!page.has("gpu_holding_ratio", &[]) && !page.has("gpumeter_price_missing", &[]));
}

#[test]
fn a_file_that_is_not_a_recording_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "GPUs: 8\n").unwrap();
    let path = file.to_str().unwrap();
    let state = directory.path().join("state");
    let answer = output(&["replay", "--state-dir", state.to_str().unwrap(), path]);
    let errors = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(answer.status.code(), Some(2), "{errors}");
    assert!(errors.contains(&format!("{path}:1: ")), "{errors}");
    assert!(!state.exists(), "no state is created for an invalid recording");
}

#[test]
fn a_recording_does_not_overwrite_a_file() {
    let demo = Demo::start(&[]);
    let recording = demo.directory.path().join("mine");
    std::fs::write(&recording, "precious").unwrap();
    let library = demo.driver("libnvidia-ml.so.1");
    let answer =
        output(&["record", "--nvml-library", library.to_str().unwrap(), recording.to_str().unwrap()]);
    assert_eq!(answer.status.code(), Some(1), "{}", String::from_utf8_lossy(&answer.stderr));
    assert_eq!(std::fs::read_to_string(&recording).unwrap(), "precious");
}

#[test]
fn the_recording_of_a_real_h100_shows_what_its_driver_answered_last() {
    let recording =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings/h100-sxm5-580.jsonl");
    let directory = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["replay", "--listen", "127.0.0.1:0", "--state-dir"]).arg(directory.path()).arg(recording);
    let agent = Agent::start(command);
    // Millijoules of field 83 in the last lines of the recording, which was made under a matrix product on two processes.
    let page = agent.wait_for("the last answers", |page| {
        page.value("gpu_energy_joules_total", &[]) == Some("20349.875") && page.has("gpu_processes", &[])
    });
    for (family, label, value) in [
        ("gpu_power_watts", "", "684.297"),
        ("gpu_memory_total_bytes", "", "85520809984"),
        ("gpu_memory_reserved_bytes", "", "503316480"),
        ("gpu_power_limit_watts", "limit=\"max\"", "700"),
        ("gpu_temperature_celsius", "sensor=\"memory\"", "51"),
        ("gpu_temperature_margin_celsius", "limit=\"shutdown\"", "37"),
        ("gpu_clock_hertz", "clock=\"memory\"", "2619000000"),
        ("gpu_throttle_active", "reason=\"sw_power_cap\"", "1"),
        ("gpu_pcie_link_generation", "", "5"),
        ("gpu_ecc_errors_total", "location=\"dram\"", "0"),
        ("gpu_recovery_action", "action=\"none\"", "1"),
        ("gpu_health", "state=\"ok\"", "1"),
        ("gpu_processes", "", "2"),
    ] {
        let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
        assert_eq!(page.value(family, labels), Some(value), "{family} {label}");
    }
    // A board without NVLink bridges and without fans has these absent and never 0.
    for family in ["gpu_nvlink_links_up", "gpu_fabric_state", "gpu_fan_speed_ratio", "gpu_retired_pages"] {
        assert!(!page.has(family, &[]), "{family}");
    }
}
