//! Driver faults, and their effect on the agent.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use crate::running::{Demo, free_address};
use crate::scrape::Scrape;

const HANG: &str = r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 3, "hang": true}]"#;

#[test]
fn a_hung_gpu_is_named_and_the_others_stay_fresh() {
    let demo = Demo::start(&[]);
    demo.agent
        .wait_for("all GPUs", |page| page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 8);
    demo.faults(HANG);
    // On a busy machine another GPU may be late for a page; one that waits for the hung one would never be up.
    let page = demo.agent.wait_for("the fault", |page| {
        page.value("gpu_up", &["gpu=\"3\""]) == Some("0")
            && up(page) == 7
            && page.has(
                "gpumeter_driver_call_in_flight_seconds",
                &["gpu=\"3\"", "call=\"nvmlDeviceGetUtilizationRates\""],
            )
    });
    // No old readings of the hung GPU are shown; its identity and presence stay.
    assert!(!page.has("gpu_power_watts", &["gpu=\"3\""]));
    assert!(!page.has("gpu_utilization_ratio", &["gpu=\"3\""]));
    assert!(page.has("gpu_info", &["gpu=\"3\""]));
    assert_eq!(page.value("gpu_present", &["gpu=\"3\""]), Some("1"));
    for gpu in [0, 1, 2, 4, 5, 6, 7] {
        let label = format!("gpu=\"{gpu}\"");
        assert_eq!(page.value("gpu_up", &[&label]), Some("1"), "{label}");
        assert!(page.has("gpu_power_watts", &[&label]), "{label}");
    }
    assert_eq!(demo.agent.get("/-/healthy").0, 200, "a faulty GPU must not restart the agent");
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| {
        page.value("gpu_up", &["gpu=\"3\""]) == Some("1") && page.has("gpu_power_watts", &["gpu=\"3\""])
    });
}

#[test]
fn a_call_that_returns_late_counts_as_driver_time() {
    const SUM: &str = "gpumeter_driver_call_duration_seconds_sum";
    let seconds = |page: &Scrape| page.value(SUM, &[]).and_then(|sum| sum.parse::<f64>().ok());
    let demo = Demo::start(&[]);
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    let before = seconds(&page).unwrap();
    demo.faults(HANG);
    demo.agent.wait_for("three seconds", |page| {
        let lasting = page.value("gpumeter_driver_call_in_flight_seconds", &["gpu=\"3\""]);
        lasting.is_some_and(|lasting| lasting.parse::<f64>().unwrap() > 3.0)
    });
    demo.faults("[]");
    let late = &["collector=\"gpu3\"", "reason=\"late\""];
    demo.agent.wait_for("the late tick", |page| {
        page.has("gpumeter_collector_errors_total", late) && seconds(page).unwrap() > before + 3.0
    });
}

#[test]
fn sigterm_during_a_hung_call_closes_listener_and_ledger_while_the_call_hangs() {
    let mut demo = Demo::start(&[]);
    demo.agent
        .wait_for("all GPUs", |page| page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 8);
    demo.faults(HANG);
    demo.agent.wait_for("the fault", |page| page.value("gpu_up", &["gpu=\"3\""]) == Some("0"));
    // The hang is never lifted: an agent that waited for the call to return would not end.
    let status = demo.agent.terminate();
    assert!(status.success(), "{status}: {}", demo.agent.log_to_end());
    // The ledger was closed, not killed: it has no owner and can be opened.
    let ledger = demo.directory.path().join("ledger.db");
    let bill = crate::running::output(&["bill", "--ledger", ledger.to_str().unwrap()]);
    assert!(bill.status.success(), "{}", String::from_utf8_lossy(&bill.stderr));
}

#[test]
fn a_hang_of_every_call_leaves_the_agent_answering() {
    let demo = Demo::start(&[]);
    demo.agent
        .wait_for("all GPUs", |page| page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 8);
    demo.faults(r#"[{"function": "*", "gpu": null, "hang": true}]"#);
    let page =
        demo.agent.wait_for("the fault", |page| page.series_of("gpu_up", &[]).all(|(_, up)| up == "0"));
    assert!(!page.has("gpu_power_watts", &[]));
    assert_eq!(demo.agent.get("/-/healthy").0, 200);
    demo.faults("[]");
}

/// Kills the agent and starts it again over a driver that is faulty from the start.
fn restart_with_faults(faults: &str) -> Demo {
    let mut demo = Demo::start(&[]);
    demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    demo.faults(faults);
    demo.kill_and_restart(&[]);
    demo
}

fn up(page: &Scrape) -> usize {
    page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count()
}

#[test]
fn a_gpu_that_hangs_at_start_delays_no_other_and_is_logged() {
    let demo = restart_with_faults(r#"[{"function": "nvmlDeviceGetUUID", "gpu": 3, "hang": true}]"#);
    let page = demo.agent.wait_for("the other GPUs", |page| up(page) == 7);
    assert_eq!(page.value("gpu_up", &["gpu=\"3\""]), Some("0"));
    let log = RefCell::new(String::new());
    demo.agent.wait_for("the log", |_| {
        let mut log = log.borrow_mut();
        log.push_str(&demo.agent.log_so_far());
        log.contains("has not returned for") && log.contains("nvmlDeviceGetUUID")
    });
    demo.faults("[]");
    let log = demo.agent.wait_for_log("a driver call returned");
    assert!(log.lines().last().unwrap().contains("who=gpu3 call=\"nvmlDeviceGetUUID\" seconds="), "{log}");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
}

#[test]
fn a_hung_call_and_its_late_return_are_logged() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    demo.faults(HANG);
    let log = demo.agent.wait_for_log("a driver call has not returned for more than 2 s");
    let call = "who=gpu3 call=\"nvmlDeviceGetUtilizationRates\"";
    assert!(log.lines().last().unwrap().contains(call), "{log}");
    demo.faults("[]");
    let log = demo.agent.wait_for_log("a driver call returned");
    let line = log.lines().last().unwrap();
    let seconds = line.split_once("seconds=").unwrap().1.trim().parse::<u64>().unwrap();
    assert!(line.contains(call) && (2..60).contains(&seconds), "{line}");
}

#[test]
fn a_gpu_that_fails_at_start_is_retried() {
    let demo = restart_with_faults(r#"[{"function": "nvmlDeviceGetUUID", "gpu": 3, "code": 999}]"#);
    demo.agent.wait_for("the other GPUs", |page| {
        up(page) == 7
            && page.has("gpumeter_collector_errors_total", &["collector=\"gpu3\"", "reason=\"failed\""])
    });
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
}

#[test]
fn a_driver_that_fails_to_count_gpus_is_logged_and_opened_again() {
    let demo = restart_with_faults(r#"[{"function": "nvmlDeviceGetCount_v2", "code": 999}]"#);
    let page = demo.agent.wait_for("the fault", |page| {
        page.has("gpumeter_collector_errors_total", &["collector=\"driver\"", "reason=\"failed\""])
    });
    assert_eq!(up(&page), 0);
    assert_eq!(page.value("gpumeter_simulated", &[]), Some("1"));
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
}

#[test]
fn a_gpu_that_takes_three_seconds_to_identify_itself_is_read() {
    let demo = restart_with_faults(r#"[{"function": "nvmlDeviceGetSerial", "gpu": 2, "delay_ms": 3000}]"#);
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    assert!(!page.has("gpumeter_collector_errors_total", &["collector=\"gpu2\""]));
}

#[test]
fn a_gpu_with_a_slow_tier_of_three_seconds_stays_up() {
    let demo = restart_with_faults(
        r#"[{"function": "nvmlDeviceGetRowRemapperHistogram", "gpu": 2, "delay_ms": 3000}]"#,
    );
    demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    let sampled = |page: &Scrape| page.nano_sum("gpumeter_last_sample_timestamp_seconds", &["gpu=\"2\""]);
    let since = Cell::new(None);
    demo.agent.wait_for("its samples of five seconds", |page| {
        // On a busy machine each GPU may be read late; one that waits for its slow tier would be late alone.
        let is_late_alone = up(page) == 7 && page.value("gpu_up", &["gpu=\"2\""]) == Some("0");
        assert!(!is_late_alone, "the slow tier delays the fast one");
        let now = sampled(page);
        since.set(since.get().or(Some(now)));
        since.get().is_some_and(|since| now >= since + 5_000_000_000)
    });
}

#[test]
fn a_gpu_of_unknown_mig_mode_is_not_treated_as_a_whole_one() {
    let demo = restart_with_faults(r#"[{"function": "nvmlDeviceGetMigMode", "gpu": 3, "code": 999}]"#);
    let page = demo.agent.wait_for("the other GPUs", |page| up(page) == 7);
    assert_eq!(page.value("gpu_up", &["gpu=\"3\""]), Some("0"));
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
}

#[test]
fn identity_calls_that_failed_at_first_are_retried() {
    let demo = restart_with_faults(
        r#"[{"function": "nvmlDeviceGetSerial", "gpu": 3, "code": 999},
            {"function": "nvmlDeviceGetTotalEnergyConsumption", "gpu": 3, "code": 999},
            {"function": "nvmlGpmSampleAlloc", "code": 999}]"#,
    );
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    assert!(page.has("gpu_info", &["gpu=\"3\"", "serial=\"\""]));
    demo.faults("[]");
    demo.agent.wait_for("the serial number", |page| {
        page.has("gpu_info", &["gpu=\"3\""]) && !page.has("gpu_info", &["gpu=\"3\"", "serial=\"\""])
    });
}

#[test]
fn mig_instances_are_followed_when_the_layout_changes() {
    let cut = r#"[{"profile": "3g.40gb", "start": 4}, {"profile": "2g.20gb", "start": 0}]"#;
    let demo = start_scenario(&format!(
        r#"{{"cycle_seconds": 600, "gpus": [{{"profile": "h100", "mig": {cut}}}]}}"#
    ));
    let page = demo.agent.wait_for("instances", |page| page.has("gpu_mig_info", &[]));
    let before = page.series_of("gpu_mig_info", &[]).count();
    demo.faults(r#"[{"function": "nvmlDeviceGetMigDeviceHandleByIndex", "code": 6}]"#);
    demo.agent.wait_for("their end", |page| !page.has("gpu_mig_info", &[]));
    demo.faults("[]");
    demo.agent.wait_for("their return", |page| page.series_of("gpu_mig_info", &[]).count() == before);
}

#[test]
fn the_last_xid_of_a_lost_gpu_is_counted() {
    let demo = start_scenario(
        r#"{"cycle_seconds": 20, "gpus": [{"profile": "h100", "count": 2}],
            "xids": [{"at": 5, "gpu": 1, "xid": 13}, {"at": 15, "gpu": 1, "xid": 79}]}"#,
    );
    let has_xid =
        |xid: &'static str| move |page: &Scrape| page.has("gpu_xid_errors_total", &["gpu=\"1\"", xid]);
    // The first XID shows that the GPU's events are registered.
    demo.agent.wait_for("an XID", has_xid("xid=\"13\""));
    demo.faults(
        r#"[{"function": "nvmlDeviceGetUUID", "gpu": 1, "code": 15},
            {"function": "nvmlDeviceGetFieldValues", "gpu": 1, "code": 15}]"#,
    );
    demo.agent.wait_for("the last XID", has_xid("xid=\"79\""));
}

/// A demo over a scenario of the test's own.
pub(crate) fn start_scenario(scenario: &str) -> Demo {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), scenario).unwrap();
    Demo::start(&["--scenario", file.path().to_str().unwrap()])
}

#[test]
fn points_for_an_absent_otlp_destination_wait_on_disk_through_kills_and_are_sent_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("c.yaml");
    let closed = free_address();
    std::fs::write(&config, format!("otlp: {{endpoint: \"http://{closed}\", interval: 1s}}\n")).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let mut demo = Demo::start(&arguments);
    let waiting = |page: &Scrape| {
        page.value("gpumeter_otlp_queue_bytes", &[]).map_or(0, |bytes| bytes.parse::<u64>().unwrap())
    };
    let mut before = 0;
    for _ in 0..3 {
        let page = demo.agent.wait_for("points that wait", |page| waiting(page) > before);
        assert_eq!(page.value("gpumeter_otlp_points_dropped_total", &[]), Some("0"));
        before = waiting(&page);
        demo.kill_and_restart(&arguments);
    }
    let log = demo.agent.wait_for_log("does not accept all points");
    assert!(log.lines().last().unwrap().contains("Connection refused"), "{log}");
    // A destination that accepts everything.
    let listener = TcpListener::bind(closed).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = answer_empty(stream.unwrap());
        }
    });
    let log = demo.agent.wait_for_log("accepts all points again");
    assert!(log.matches("does not accept all points").count() <= 2, "one line a minute: {log}");
    demo.agent.wait_for("an empty spool", |page| {
        waiting(page) == 0 && page.value("gpumeter_otlp_success", &[]) == Some("1")
    });
}

/// Reads a request to its end and accepts it.
fn answer_empty(stream: std::net::TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length])?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}
