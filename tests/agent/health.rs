//! The health of GPUs as a running agent reports it: on the page, in the API, to the command, in the log.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Output;

use gpumeter::model::HOUR;
use gpumeter::runtime::clock::{ClockPage, REAL_TIME};

use crate::faults::start_scenario;
use crate::running::{BEGIN, Demo, program, set_clock, wait_until};
use crate::scrape::Scrape;

/// The command's answer about a demo's agent.
fn health(demo: &Demo, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = program();
    command
        .args(["health", "--simulated", "--url", &format!("http://{}", demo.agent.address)])
        .args(arguments);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn is(gpu: &'static str, state: &'static str) -> impl Fn(&Scrape) -> bool {
    move |page| {
        let states = page.series_of("gpu_health", &[gpu]).count();
        page.value("gpu_health", &[gpu, state]) == Some("1") && states == 1
    }
}

/// Two GPUs, in a cycle that is longer than any test.
fn node() -> Demo {
    start_scenario(r#"{"cycle_seconds": 3600, "gpus": [{"profile": "h100", "count": 2}]}"#)
}

/// Waits until both GPUs are well and their XIDs would be seen: their events are registered after the first page.
fn wait_for_verdicts(demo: &Demo) {
    demo.agent.wait_for("verdicts", |page| page.series_of("gpu_health", &["state=\"ok\""]).count() == 2);
    wait_until("events of both", || {
        let calls = std::fs::read_to_string(demo.driver("calls")).unwrap();
        let calls: serde_json::Value = serde_json::from_str(&calls).unwrap();
        calls["nvmlDeviceRegisterEvents"].as_u64().is_some_and(|count| count >= 2)
    });
}

/// Raises XIDs of GPUs, so many of each at so many per second.
fn raise(demo: &Demo, xids: &[(u32, u32)], [count, per_second]: [usize; 2]) {
    let storm = |(gpu, xid): &(u32, u32)| {
        format!(r#"{{"gpu": {gpu}, "xid": {xid}, "per_second": {per_second}, "count": {count}}}"#)
    };
    let storms = xids.iter().map(storm).collect::<Vec<_>>().join(", ");
    demo.state(&format!(r#"{{"xids": [{storms}]}}"#));
}

const ONCE: [usize; 2] = [1, 1];

#[test]
fn a_failed_gpu_is_reported_everywhere_with_the_action() {
    let demo = node();
    wait_for_verdicts(&demo);
    raise(&demo, &[(1, 79), (0, 13)], ONCE);
    let page = demo.agent.wait_for("the fault", |page| {
        // An application's fault is not the GPU's.
        is("gpu=\"1\"", "state=\"failed\"")(page)
            && is("gpu=\"0\"", "state=\"ok\"")(page)
            && page.has("gpu_xid_info", &["gpu=\"1\""])
    });
    assert!(
        page.has(
            "gpu_xid_info",
            &["gpu=\"1\"", "xid=\"79\"", "class=\"hardware\"", "action=\"reboot_node\""]
        )
    );

    let (status, body) = demo.agent.get("/api/v1/health");
    assert_eq!(status, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["state"], &body["simulated"]), (&"failed".into(), &true.into()));
    let failed_gpu = &body["gpus"][1];
    assert_eq!((&failed_gpu["state"], &failed_gpu["action"]), (&"failed".into(), &"reboot_node".into()));
    let reason = &failed_gpu["reasons"][0];
    assert_eq!(reason["rule"], "xid_reboot");
    assert!(
        reason["evidence"].as_str().unwrap().starts_with("XID 79 (GPU has fallen off the bus) once"),
        "{reason}"
    );
    assert!(reason["since"].is_string(), "{reason}");
    let well = &body["gpus"][0];
    assert_eq!((&well["state"], &well["action"]), (&"ok".into(), &"restart_app".into()));

    let (status, page, _) = health(&demo, &[]);
    assert_eq!(status, Some(1), "{page}");
    let line = page.lines().find(|line| line.starts_with("GPU 1 ")).unwrap_or_default();
    assert!(line.ends_with(": failed, action reboot_node"), "{page}");
    let (status, json, _) = health(&demo, &["--json", "--fail-on", "failed"]);
    assert_eq!(status, Some(1));
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
}

#[test]
fn a_hung_gpu_and_a_missing_agent_have_unknown_health() {
    let mut demo = node();
    wait_for_verdicts(&demo);
    wait_until("health of both", || health(&demo, &[]).0 == Some(0));
    demo.faults(r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 1, "hang": true}]"#);
    wait_until("unknown health of one", || {
        let (status, _, message) = health(&demo, &[]);
        status == Some(2) && message.contains("health of 1 GPU is unknown")
    });
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| page.series_of("gpu_health", &["state=\"ok\""]).count() == 2);
    demo.agent.kill();
    let (status, _, message) = health(&demo, &[]);
    assert_eq!(status, Some(2));
    assert!(message.contains("is the agent running?"), "{message}");
    assert_eq!(health(&demo, &["--fail-on", "sometimes"]).0, Some(2));
}

/// A GPU's PCI address as the kernel prints it: a short domain, lower case, no function.
fn place(page: &Scrape, gpu: &str) -> String {
    let labels = [gpu];
    let (info, _) = page.series_of("gpu_info", &labels).next().unwrap();
    let place = info.split_once("pci_bus_id=\"").and_then(|(_, rest)| rest.split('.').next()).unwrap();
    place[4..].to_lowercase()
}

#[test]
fn an_xid_from_the_kernel_log_is_counted_once_even_if_the_driver_reports_it_too() {
    let demo = node();
    wait_for_verdicts(&demo);
    raise(&demo, &[(1, 13)], ONCE);
    let readable = ["collector=\"kernel_log\""];
    let page = demo.agent.wait_for("the event", |page| {
        page.has("gpu_xid_errors_total", &["xid=\"13\""])
            && page.value("gpumeter_collector_success", &readable).is_some()
    });
    let at = place(&page, "gpu=\"1\"");
    let lines = [
        "6,1,1,-;usb 1-1: new device\n SUBSYSTEM=usb\n".to_owned(),
        format!("12,3,2,-;NVRM: Xid (PCI:{at}): 48, written by a process\n"),
        "4,4,2,-;NVRM: Xid (PCI:0042:42:00): 48, of a GPU that is not here\n".to_owned(),
        format!("4,5,3,-;NVRM: Xid (PCI:{at}): 62, 0cb5(2d50) 8503d428\n"),
    ];
    wait_until("the event's own line", || {
        std::fs::read_to_string(demo.driver("kmsg")).is_ok_and(|log| log.contains("): 13,"))
    });
    let mut log = std::fs::OpenOptions::new().append(true).open(demo.driver("kmsg")).unwrap();
    log.write_all(lines.concat().as_bytes()).unwrap();
    let page = demo.agent.wait_for("the lines", |page| {
        is("gpu=\"1\"", "state=\"failed\"")(page) && page.has("gpu_xid_errors_total", &["xid=\"62\""])
    });
    // The event's line came before the kernel's.
    assert_eq!(
        page.series_of("gpu_xid_errors_total", &[]).map(|(_, count)| count).collect::<Vec<_>>(),
        ["1", "1"]
    );
    assert_eq!(page.value("gpu_xid_errors_total", &["gpu=\"1\"", "xid=\"62\""]), Some("1"));
    assert_eq!(page.value("gpumeter_collector_success", &readable), Some("1"));
}

#[test]
fn sxids_of_nvswitches_are_counted_and_shown_as_xids_are() {
    let demo = node();
    let readable = ["collector=\"kernel_log\""];
    demo.agent
        .wait_for("the kernel log", |page| page.value("gpumeter_collector_success", &readable).is_some());
    let head = "nvidia-nvswitch0: SXid (PCI:0000:84:00.0)";
    let lines = [
        format!("3,9001,1,-;{head}: 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)\n"),
        format!("3,9002,1,-;{head}: 12028, Severity 0 Engine instance 32 Sub-engine instance 00\n"),
        format!("3,9003,1,-;{head}: 12028, Data {{0x00140004, 0x00100000}}\n"),
        format!("3,9004,1,-;{head}: 12028, Non-fatal, Link 33 egress non-posted PRIV error\n"),
        format!("3,9005,1,-;{head}: 20034, Fatal, Link 30 LTSSM Fault Up\n"),
        format!("12,9006,1,-;{head}: 11004, Fatal, written by a process\n"),
    ];
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(demo.driver("kmsg")).unwrap();
    log.write_all(lines.concat().as_bytes()).unwrap();
    let switch = "pci_bus_id=\"00000000:84:00.0\"";
    let fatal = [switch, "sxid=\"20034\"", "severity=\"fatal\""];
    let page = demo.agent.wait_for("the lines", |page| page.has("gpu_nvswitch_sxid_errors_total", &fatal));
    let other = [switch, "sxid=\"12028\"", "severity=\"non_fatal\""];
    assert_eq!(page.value("gpu_nvswitch_sxid_errors_total", &other), Some("2"));
    assert_eq!(page.value("gpu_nvswitch_sxid_errors_total", &fatal), Some("1"));
    assert_eq!(page.series_of("gpu_nvswitch_sxid_last_timestamp_seconds", &[]).count(), 2);
    assert!(!page.has("gpu_xid_errors_total", &[]), "they are of no GPU");
    let log = demo.agent.wait_for_log("SXID 20034");
    let line = log.lines().last().unwrap();
    assert!(line.contains("ERROR") && line.contains("event=\"nvswitch.sxid\""), "{line}");
    let body: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/events").1).unwrap();
    let events = body["events"].as_array().unwrap();
    let of = |code: &str| {
        let sxid = events.iter().find(|event| event["attributes"]["sxid"] == code).unwrap();
        (sxid["name"].clone(), sxid["count"].clone(), sxid["severity"].clone())
    };
    let name = serde_json::Value::from("nvswitch.sxid");
    assert_eq!(of("12028"), (name.clone(), 2.into(), "WARN".into()));
    assert_eq!(of("20034"), (name, 1.into(), "ERROR".into()));
    let summary: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/summary").1).unwrap();
    let problems = summary["problems"].as_array().unwrap();
    let problem = problems.iter().find(|one| one["title"] == "NVSwitch 00000000:84:00.0 failed").unwrap();
    assert_eq!(
        (&problem["level"], &problem["text"]),
        (&"failed".into(), &"SXID 20034, which is fatal".into())
    );
    assert_eq!(summary["node"]["sxids"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_plugin_of_node_problem_detector_has_its_exit_statuses_and_one_line() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-problem-detector/gpumeter-health.sh");
    let run = |demo: &Demo| {
        let url = format!("http://{}", demo.agent.address);
        let mut command = std::process::Command::new("sh");
        command.arg(script).args(["--simulated", "--url", &url]).env("GPUMETER", program().get_program());
        let Output { status, stdout, .. } = command.output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap())
    };
    let mut demo = node();
    wait_for_verdicts(&demo);
    wait_until("health of both", || run(&demo) == (Some(0), "all GPUs are ok\n".to_owned()));
    raise(&demo, &[(1, 79)], ONCE);
    demo.agent.wait_for("the fault", is("gpu=\"1\"", "state=\"failed\""));
    let (status, line) = run(&demo);
    assert_eq!(status, Some(1), "{line}");
    assert!(line.starts_with("GPU 1: failed, reboot_node: ") && line.contains("XID 79"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    demo.agent.kill();
    let (status, line) = run(&demo);
    assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
    let rules = std::fs::read_to_string(script.replace(".sh", ".json")).unwrap();
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    assert!(rules["rules"][0]["path"].as_str().unwrap().ends_with("/gpumeter-health.sh"));
}

#[test]
fn a_storm_of_xids_is_counted_exactly_and_logged_in_few_lines() {
    const EACH: usize = 10_000;
    let mut demo = node();
    wait_for_verdicts(&demo);
    raise(&demo, &[(0, 13), (1, 31)], [EACH, EACH / 2]);
    let counted = |page: &Scrape, gpu, xid| -> usize {
        page.value("gpu_xid_errors_total", &[gpu, xid]).and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    let page = demo.agent.wait_for("the storm's end", |page| {
        counted(page, "gpu=\"0\"", "xid=\"13\"") >= EACH && counted(page, "gpu=\"1\"", "xid=\"31\"") >= EACH
    });
    assert_eq!(counted(&page, "gpu=\"0\"", "xid=\"13\""), EACH);
    assert_eq!(counted(&page, "gpu=\"1\"", "xid=\"31\""), EACH);
    for gpu in ["gpu=\"0\"", "gpu=\"1\""] {
        let action = ["action=\"restart_app\"", gpu];
        assert_eq!(page.value("gpu_xid_action_errors_total", &action), Some("10000"));
    }
    demo.agent.terminate();
    let log = demo.agent.log_to_end();
    let lines = log.lines().filter(|line| line.contains("XID ")).count();
    assert!((1..100).contains(&lines), "{lines} lines for {} XIDs", 2 * EACH);
}

/// A node whose driver reports no recovery action and whose second GPU has had the XID of failed memory, and its
/// scenario for the next start of the agent.
fn failed() -> (Demo, tempfile::NamedTempFile) {
    let scenario = tempfile::NamedTempFile::new().unwrap();
    let text =
        r#"{"cycle_seconds": 3600, "persona": "early_535", "gpus": [{"profile": "h100", "count": 2}]}"#;
    std::fs::write(scenario.path(), text).unwrap();
    let demo = Demo::start(&["--scenario", scenario.path().to_str().unwrap()]);
    wait_for_verdicts(&demo);
    raise(&demo, &[(1, 48)], ONCE);
    let page = demo.agent.wait_for("the fault", is("gpu=\"1\"", "state=\"failed\""));
    assert!(!page.has("gpu_recovery_action", &[]), "otherwise there is no sticky fault");
    demo.agent.wait_for("the commit of the sticky faults", |_| has_sticky_faults(&demo));
    (demo, scenario)
}

/// Whether the ledger has stored the verdict on the second GPU, and that its time is unavailable.
fn has_sticky_faults(demo: &Demo) -> bool {
    let ledger = rusqlite::Connection::open(demo.directory.path().join("ledger.db")).unwrap();
    let rows = "SELECT count(*) FROM sticky_fault JOIN gpu ON gpu.id = sticky_fault.gpu
        WHERE gpu_index = 1 AND json_array_length(faults, '$.faults') = 1 AND faults ->> 'failed' IS NOT NULL";
    ledger.query_row(rows, [], |row| row.get::<_, i64>(0)).unwrap() == 1
}

/// The verdict on the second GPU with its text.
fn verdict(demo: &Demo) -> serde_json::Value {
    let body: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/health").1).unwrap();
    assert_eq!(body["remembered"], true);
    body["gpus"][1].clone()
}

/// The second GPU's seconds in the ledger: settled, busy or idle, unavailable.
fn account(demo: &Demo) -> [i64; 3] {
    let ledger = rusqlite::Connection::open(demo.directory.path().join("ledger.db")).unwrap();
    let sums = "SELECT coalesce(sum(within_ns + lent_ns + idle_ns), 0), coalesce(sum(unavailable_ns), 0),
                (SELECT slot_ns FROM gpu WHERE gpu_index = 1)
                FROM account JOIN gpu ON gpu.id = account.gpu WHERE gpu_index = 1";
    let sums = ledger.query_row(sums, [], |row| Ok([row.get(2)?, row.get(0)?, row.get(1)?])).unwrap();
    sums.map(|time: i64| time / 1_000_000_000)
}

#[test]
fn a_hardware_fault_survives_an_agent_restart() {
    let (mut demo, scenario) = failed();
    let before = verdict(&demo);
    // The account begins after the clock, so no more of it is before the fault.
    let until_fault =
        ClockPage::open(&demo.driver("clock")).unwrap().now().utc.since(*BEGIN).0 / 1_000_000_000;
    demo.kill_and_restart(&["--scenario", scenario.path().to_str().unwrap()]);
    let page = demo.agent.wait_for("the fault, remembered", |page| {
        page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 2
            && is("gpu=\"1\"", "state=\"failed\"")(page)
    });
    assert!(is("gpu=\"0\"", "state=\"ok\"")(&page));
    assert_eq!(verdict(&demo), before, "with its text and time");
    let (status, text, _) = health(&demo, &[]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("XID 48"), "{text}");
    assert!(!text.contains("the agent keeps no ledger"), "{text}");
    // The account agrees, also for more than the window in which the agent was killed.
    let [.., so_far] = account(&demo);
    let page = demo.agent.wait_for("its account", |_| account(&demo)[2] >= so_far + 20);
    let [settled, known, unavailable] = account(&demo);
    assert!(
        known.unsigned_abs() <= until_fault,
        "of {settled} s: {known} as of a GPU that works, {unavailable} as of none, after a fault within {until_fault} s"
    );
    assert!(is("gpu=\"1\"", "state=\"failed\"")(&page));
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
}

#[test]
fn a_reset_or_reboot_while_the_agent_is_down_clears_a_hardware_fault() {
    for reboot in [false, true] {
        let (mut demo, scenario) = failed();
        // A reset is known by the counter of energy, which must be seen below what it was.
        ClockPage::open(&demo.driver("clock")).unwrap().run(30 * REAL_TIME).unwrap();
        demo.agent.wait_for("energy of minutes", |page| {
            page.nano_sum("gpu_energy_joules_total", &["gpu=\"1\""]) >= 10_000_000_000_000
        });
        demo.agent.kill();
        if reboot {
            // Another clock is another boot, and the XID was of the one before.
            set_clock(demo.directory.path(), BEGIN.plus(HOUR));
            demo.state("{}");
        } else {
            demo.state(r#"{"driver": {"epoch": 2}}"#);
        }
        demo.kill_and_restart(&["--scenario", scenario.path().to_str().unwrap()]);
        demo.agent.wait_for("its end", |page| page.series_of("gpu_health", &["state=\"ok\""]).count() == 2);
    }
}

#[test]
fn an_agent_without_a_ledger_reports_that_faults_do_not_survive_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("c.yaml");
    std::fs::write(&config, "ledger: {enabled: false}\n").unwrap();
    let demo = Demo::start(&["--config", config.to_str().unwrap()]);
    demo.agent.wait_for("verdicts", |page| page.series_of("gpu_health", &["state=\"ok\""]).count() == 8);
    wait_until("health of all", || {
        let (status, text, _) = health(&demo, &[]);
        status == Some(0) && text.contains("the agent keeps no ledger")
    });
}

#[test]
fn xid_counts_survive_a_restart_and_old_kernel_lines_are_not_counted_again() {
    let (mut demo, scenario) = failed();
    let of = ["gpu=\"1\"", "xid=\"48\""];
    let page = demo.agent.wait_for("the count", |page| page.value("gpu_xid_errors_total", &of).is_some());
    let at = place(&page, "gpu=\"1\"");
    let last = page.value("gpu_xid_last_timestamp_seconds", &of).unwrap().to_owned();
    demo.kill_and_restart(&["--scenario", scenario.path().to_str().unwrap()]);
    let page = demo.agent.wait_for("the first page", |page| page.has("gpu_xid_info", &of));
    assert_eq!(page.value("gpu_xid_errors_total", &of), Some("1"));
    assert_eq!(page.value("gpu_xid_last_timestamp_seconds", &of), Some(&*last));
    assert_eq!(page.value("gpu_xid_action_errors_total", &["gpu=\"1\"", "action=\"reset_gpu\""]), Some("1"));
    // The log has the line from before the restart too.
    let path = demo.driver("kmsg");
    assert!(std::fs::read_to_string(&path).unwrap().contains("): 48, "));
    let mut log = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    writeln!(log, "4,9000,2,-;NVRM: Xid (PCI:{at}): 62, x").unwrap();
    let page = demo
        .agent
        .wait_for("the next line", |page| page.has("gpu_xid_errors_total", &["gpu=\"1\"", "xid=\"62\""]));
    assert_eq!(page.value("gpu_xid_errors_total", &of), Some("1"));
}

/// A receiver of OTLP; returns the bodies that arrive at the path of logs.
fn receive_logs() -> (std::net::SocketAddr, std::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, logs) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut length, mut line, mut is_log) = (0, String::new(), false);
            while reader.read_line(&mut line).unwrap() > 2 {
                is_log |= line.starts_with("POST /v1/logs ");
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            let mut request = Vec::new();
            flate2::read::GzDecoder::new(&*body).read_to_end(&mut request).unwrap();
            if is_log && sender.send(request).is_err() {
                return;
            }
        }
    });
    (address, logs)
}

#[test]
fn an_xid_is_an_event_in_log_api_and_otlp_that_names_who_holds_the_gpu() {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use prost::Message;

    let (address, logs) = receive_logs();
    let directory = tempfile::tempdir().unwrap();
    let [config, scenario] = ["c.yaml", "s.json"].map(|name| directory.path().join(name));
    let text = format!(
        "attribution: {{standing: [{{gpu: all, user: root}}]}}\n\
         otlp: {{interval: 1s, destinations: [{{endpoint: \"http://{address}\", events: true}}]}}\n"
    );
    std::fs::write(&config, text).unwrap();
    std::fs::write(&scenario, r#"{"cycle_seconds": 3600, "gpus": [{"profile": "h100", "count": 2}]}"#)
        .unwrap();
    let arguments = ["--config", config.to_str().unwrap(), "--scenario", scenario.to_str().unwrap()];
    let demo = Demo::start(&arguments);
    wait_for_verdicts(&demo);
    let holder = ["gpu=\"1\"", "tenant=\"root\""];
    demo.agent.wait_for("its holder", |page| page.has("gpu_holding_ratio", &holder));
    raise(&demo, &[(1, 79)], ONCE);
    let log = demo.agent.wait_for_log("event=\"gpu.xid\"");
    let line = log.lines().last().unwrap();
    assert!(line.contains("XID 79") && line.contains("user:root") && line.contains("ERROR"), "{line}");
    let body: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/events").1).unwrap();
    let events = body["events"].as_array().unwrap();
    let xid = events.iter().find(|event| event["name"] == "gpu.xid").unwrap();
    assert_eq!((&xid["gpu"], &xid["attributes"]["action"]), (&1.into(), &"reboot_node".into()));
    assert_eq!(xid["workloads"][0]["workload"], "user:root");
    let record = logs.iter().find_map(|body| {
        let request = ExportLogsServiceRequest::decode(&*body).unwrap();
        let records = &request.resource_logs[0].scope_logs[0].log_records;
        records.iter().find(|record| record.event_name == "gpu.xid").cloned()
    });
    let record = record.unwrap();
    let id = record.attributes.iter().find(|one| one.key == "event.id").unwrap();
    assert!(format!("{id:?}").contains(xid["id"].as_str().unwrap()), "{id:?}");
    assert!(format!("{record:?}").contains("user:root"), "{record:?}");
}
