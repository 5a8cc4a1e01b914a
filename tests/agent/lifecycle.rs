//! Driver reloads, quiesce, and GPUs that are removed, replaced and returned while the agent runs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};

use gpumeter::accounting::ledger::{ClosedPeriod, RecordedDocument};
use gpumeter::agent::control::{ControlReply, ControlRequest, send_request};
use rustix::process::{Pid, Signal, kill_process};

use crate::running::{Demo, output, program, wait_until};
use crate::scrape::{Scrape, nano};

/// Every call of every sampler fails with "uninitialized", and a new initialisation fails with "driver not
/// loaded".
const UNLOADED: &str = r#"[{"function": "nvmlInit_v2", "code": 9}, {"function": "*", "code": 1}]"#;

fn up(page: &Scrape) -> usize {
    page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count()
}

fn start_demo() -> Demo {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    demo
}

/// Runs a command over the local socket of a demo's agent.
fn run_command(demo: &Demo, arguments: &[&str]) -> Output {
    let socket = demo.directory.path().join("control.sock");
    let mut all = vec![arguments[0], "--socket", socket.to_str().unwrap()];
    all.extend(&arguments[1..]);
    output(&all)
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The files of the demo's driver that a process has open or mapped: the library and the devices.
fn driver_files(demo: &Demo) -> BTreeSet<String> {
    let process = format!("/proc/{}", demo.agent.id());
    let open = std::fs::read_dir(format!("{process}/fd")).unwrap();
    let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let open = open.map(|path| path.to_string_lossy().into_owned());
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    let mapped = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    let is_driver = |path: &String| {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.contains("libnvidia-ml") || name.starts_with("nvidia")
    };
    open.chain(mapped).filter(is_driver).collect()
}

fn assert_ledger_balances(page: &Scrape) {
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
    assert_eq!(page.value("gpumeter_account_unsettled_windows_total", &[]), Some("0"));
    assert_eq!(page.value("gpumeter_ledger_unobserved_seconds_total", &[]), Some("0"));
}

/// Asserts that every GPU-second since the GPU was first seen is in the ledger exactly once.
fn assert_time_is_complete(demo: &Demo) {
    let ledger = rusqlite::Connection::open(demo.directory.path().join("ledger.db")).unwrap();
    let gap = "SELECT uuid, settled_until_ns - first_seen_ns - slot_ns FROM gpu";
    let mut statement = ledger.prepare(gap).unwrap();
    let gaps = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let gaps: Vec<(String, i64)> = gaps.map(Result::unwrap).collect();
    assert_eq!(gaps.len(), 8);
    assert!(gaps.iter().all(|(_, gap)| *gap == 0), "{gaps:?}");
    let unobserved = "SELECT count(*) FROM account JOIN holder ON holder = id WHERE name = '__unobserved__'";
    let unobserved: i64 = ledger.query_row(unobserved, [], |row| row.get(0)).unwrap();
    assert_eq!(unobserved, 0, "the agent ran all the time");
}

#[test]
fn quiesce_closes_every_driver_file_and_resume_restores_all_gpus() {
    let mut demo = start_demo();
    assert!(!driver_files(&demo).is_empty());
    let reply = succeeded(&run_command(&demo, &["quiesce"]));
    assert!(reply.contains("released"), "{reply}");
    assert_eq!(driver_files(&demo), BTreeSet::new());
    let page = demo.agent.wait_for("the quiesced agent", |page| {
        page.value("gpumeter_quiesced", &[]) == Some("1") && up(page) == 0
    });
    // Nothing is lost: the GPUs exist, and no alert may fire.
    assert!(page.series_of("gpu_present", &[]).all(|(_, present)| present == "1"));
    assert!(!page.has("gpu_absence_info", &[]));
    assert!(!page.has("gpu_power_watts", &[]));
    // Nothing hangs, so no call may be reported as hung.
    let health = output(&["health", "--url", &format!("http://{}", demo.agent.address)]);
    let health = String::from_utf8(health.stdout).unwrap();
    let released = "unknown, none: the driver is released on request until 20";
    assert_eq!(health.matches(released).count(), 8, "{health}");
    assert!(health.contains("(gpumeter_quiesced is 1)") && !health.contains("name the call"), "{health}");
    let before = page.nano_sum("gpu_slot_seconds_total", &[]);
    // The account continues meanwhile.
    demo.agent.wait_for("closed windows", |page| page.nano_sum("gpu_slot_seconds_total", &[]) > before);
    assert_eq!(succeeded(&run_command(&demo, &["resume"])), "the agent uses the driver again\n");
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    assert_eq!(page.value("gpumeter_quiesced", &[]), Some("0"));
    let reply = succeeded(&run_command(&demo, &["resume"]));
    assert!(reply.contains("the driver was not released"), "{reply}");
    assert!(!driver_files(&demo).is_empty());
    let after = page.nano_sum("gpu_slot_seconds_total", &[]);
    let page = demo
        .agent
        .wait_for("windows closed after it", |page| page.nano_sum("gpu_slot_seconds_total", &[]) > after);
    assert_ledger_balances(&page);
    demo.agent.terminate();
    assert_time_is_complete(&demo);
}

#[test]
fn after_a_kill_the_log_has_the_length_of_the_gap_and_its_booking() {
    let mut demo = start_demo();
    let commit = |page: &Scrape| page.nano_sum("gpumeter_ledger_last_commit_timestamp_seconds", &[]);
    let page = demo.agent.wait_for("holders", |page| page.has("gpu_holding_ratio", &[]) && commit(page) > 0);
    demo.agent.wait_for("their commit", |later| commit(later) > commit(&page) + 2_000_000_000);
    demo.kill_and_restart(&[]);
    let log = demo.agent.wait_for_log("GPU time in which no agent ran was added to the account");
    let line = log.lines().last().unwrap();
    let seconds = |name: &str| -> f64 {
        let (_, rest) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("{name}: {line}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (gap, bridged, unobserved) =
        (seconds("seconds"), seconds("bridged_gpu_seconds"), seconds("unobserved_gpu_seconds"));
    assert!(line.contains(" gpus=8 "), "{line}");
    assert_eq!(seconds("unavailable_gpu_seconds"), 0.0, "the node was not off: {line}");
    // What was held on both sides is bridged, the rest is unobserved.
    assert!(bridged > 0.0 && bridged + unobserved <= 8.0 * gap + 1.0, "{line}");
}

#[test]
fn quiesce_runs_a_command_and_exits_with_its_status() {
    let demo = start_demo();
    let process = demo.agent.id().to_string();
    // The shell checks this itself: the library must not be mapped while it runs.
    let script = format!("if grep -q libnvidia-ml /proc/{process}/maps; then exit 7; else exit 3; fi");
    let reply = run_command(&demo, &["quiesce", "--for", "1h", "--", "sh", "-c", &script]);
    assert_eq!(reply.status.code(), Some(3), "{}", String::from_utf8_lossy(&reply.stderr));
    demo.agent
        .wait_for("all GPUs", |page| up(page) == 8 && page.value("gpumeter_quiesced", &[]) == Some("0"));
    let none = run_command(&demo, &["quiesce", "--", "/nowhere/at/all"]);
    assert_eq!(none.status.code(), Some(2));
    demo.agent.wait_for("all GPUs", |page| up(page) == 8);
}

#[test]
fn an_interrupted_quiesce_command_ends_and_the_driver_is_reopened() {
    let demo = start_demo();
    let socket = demo.directory.path().join("control.sock");
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let sign = demo.directory.path().join(format!("running-{status}"));
        let script = format!("touch {}; exec sleep 60", sign.display());
        let mut command = program();
        command.args(["quiesce", "--for", "1h", "--socket"]).arg(&socket).args(["--", "sh", "-c", &script]);
        let mut quiesce = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the command", || sign.exists());
        kill_process(Pid::from_child(&quiesce), signal).unwrap();
        assert_eq!(quiesce.wait().unwrap().code(), Some(status));
        demo.agent
            .wait_for("all GPUs", |page| up(page) == 8 && page.value("gpumeter_quiesced", &[]) == Some("0"));
    }
}

#[test]
fn a_mistyped_command_leaves_a_running_quiesce_alone() {
    let demo = start_demo();
    succeeded(&run_command(&demo, &["quiesce"]));
    for command in ["no-such-command", "./no-such-command", "/etc/passwd"] {
        let reply = run_command(&demo, &["quiesce", "--", command]);
        assert_eq!(reply.status.code(), Some(2), "{command}");
        let problem = String::from_utf8_lossy(&reply.stderr).into_owned();
        assert!(problem.contains(command) && problem.contains("no such command"), "{problem}");
    }
    let page = demo.agent.wait_for("a page", |_| true);
    let before = page.nano_sum("gpu_slot_seconds_total", &[]);
    let page =
        demo.agent.wait_for("closed windows", |page| page.nano_sum("gpu_slot_seconds_total", &[]) > before);
    assert_eq!(page.value("gpumeter_quiesced", &[]), Some("1"));
    assert_eq!(driver_files(&demo), BTreeSet::new());
}

#[test]
fn quiesce_ends_after_its_time() {
    let demo = start_demo();
    succeeded(&run_command(&demo, &["quiesce", "--for", "4s"]));
    demo.agent.wait_for_log("the driver was released on request");
    demo.agent
        .wait_for("all GPUs", |page| up(page) == 8 && page.value("gpumeter_quiesced", &[]) == Some("0"));
}

/// Lets a call of GPU 3 hang, and waits until the agent is in it.
fn hang_gpu_3(demo: &Demo) {
    demo.faults(r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 3, "hang": true}]"#);
    demo.agent.wait_for("the fault", |page| {
        let call = ["gpu=\"3\"", "call=\"nvmlDeviceGetUtilizationRates\""];
        page.has("gpumeter_driver_call_in_flight_seconds", &call)
            && page.value("gpu_up", &["gpu=\"3\""]) == Some("0")
    });
}

#[test]
fn quiesce_names_a_stuck_gpu_and_the_others_are_read_again() {
    let demo = start_demo();
    hang_gpu_3(&demo);
    let reply = run_command(&demo, &["quiesce"]);
    assert_eq!(reply.status.code(), Some(1));
    let problem = String::from_utf8_lossy(&reply.stderr).into_owned();
    assert!(problem.contains("GPU 3 in nvmlDeviceGetUtilizationRates"), "{problem}");
    let page = demo.agent.wait_for("the other GPUs", |page| {
        up(page) == 7 && page.value("gpumeter_quiesced", &[]) == Some("0")
    });
    assert_eq!(page.value("gpu_present", &["gpu=\"3\""]), Some("1"), "a stuck GPU is not absent");
    assert!(!page.has("gpu_absence_info", &[]));
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
    succeeded(&run_command(&demo, &["quiesce"]));
    assert_eq!(driver_files(&demo), BTreeSet::new());
}

#[test]
fn an_unloaded_driver_is_reopened_after_its_return() {
    let mut demo = start_demo();
    demo.faults(UNLOADED);
    let page = demo.agent.wait_for("the fault", |page| {
        up(page) == 0 && page.value("gpumeter_collector_success", &["collector=\"driver\""]) == Some("0")
    });
    assert!(
        page.series_of("gpu_present", &[]).all(|(_, present)| present == "1"),
        "no GPU is reported as lost"
    );
    let joules = page.nano_sum("gpu_tenant_energy_joules_total", &[]);
    demo.faults("[]");
    let page = demo.agent.wait_for("recovery", |page| up(page) == 8);
    let slot = page.nano_sum("gpu_slot_seconds_total", &[]);
    let page =
        demo.agent.wait_for("windows after it", |page| page.nano_sum("gpu_slot_seconds_total", &[]) > slot);
    assert!(page.nano_sum("gpu_tenant_energy_joules_total", &[]) >= joules);
    assert_ledger_balances(&page);
    demo.agent.terminate();
    assert_time_is_complete(&demo);
}

#[test]
fn a_hung_driver_init_is_named_and_used_once_it_returns() {
    let demo = start_demo();
    succeeded(&run_command(&demo, &["quiesce"]));
    demo.faults(
        r#"[{"function": "nvmlInit_v2", "hang": true}, {"function": "nvmlInitWithFlags", "hang": true}]"#,
    );
    // The answer waits for the driver.
    let resume =
        program().args(["resume", "--socket"]).arg(demo.directory.path().join("control.sock")).spawn();
    let page = demo.agent.wait_for("the fault", |page| {
        page.value("gpumeter_collector_success", &["collector=\"driver\""]) == Some("0")
    });
    assert_eq!(page.value("gpumeter_collector_errors_total", &["reason=\"no_answer\""]), Some("1"));
    demo.agent.wait_for_log("nvmlInit_v2");
    demo.faults("[]");
    let page = demo.agent.wait_for("recovery", |page| up(page) == 8);
    assert_eq!(page.value("gpumeter_collector_success", &["collector=\"driver\""]), Some("1"));
    resume.unwrap().wait().unwrap();
}

#[test]
fn a_container_whose_library_was_replaced_closes_its_ledger_and_asks_to_be_restarted() {
    let mut demo = start_demo();
    let marks = demo.directory.path().join("host/run");
    std::fs::create_dir_all(&marks).unwrap();
    std::fs::write(marks.join(".containerenv"), "").unwrap();
    demo.faults(r#"[{"function": "nvmlInit_v2", "code": 18}, {"function": "*", "code": 18}]"#);
    let status = demo.agent.wait_for_end();
    assert_eq!(status.code(), Some(75));
    let log = demo.agent.log_to_end();
    assert!(log.contains("replaced under this container"), "{log}");
    let ledger = demo.directory.path().join("ledger.db");
    succeeded(&output(&["bill", "--ledger", ledger.to_str().unwrap()]));
}

#[test]
fn on_a_host_the_agent_waits_for_a_matching_library() {
    let demo = start_demo();
    demo.faults(r#"[{"function": "nvmlInit_v2", "code": 18}, {"function": "*", "code": 18}]"#);
    demo.agent.wait_for("the fault", |page| {
        page.has("gpumeter_collector_errors_total", &["reason=\"version_mismatch\""])
    });
    demo.faults("[]");
    demo.agent.wait_for("recovery", |page| up(page) == 8);
}

/// The simulated node's PCI bus with eight GPUs, all bound to the driver except one.
fn write_pci_bus(demo: &Demo, page: &Scrape, odd: &str, driver: Option<&str>) {
    let devices = demo.directory.path().join("host/sys/bus/pci/devices");
    let _ = std::fs::remove_dir_all(&devices);
    for (name, _) in page.series_of("gpu_info", &[]) {
        let address = name.split("pci_bus_id=\"").nth(1).unwrap().split('"').next().unwrap();
        let address = address.to_lowercase()[4..].to_owned();
        let own = if name.contains(odd) { driver } else { Some("nvidia") };
        let Some(own) = own else { continue };
        let device = devices.join(address);
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(device.join("class"), "0x030200\n").unwrap();
        std::os::unix::fs::symlink(format!("../../drivers/{own}"), device.join("driver")).unwrap();
    }
}

fn lose_gpu(demo: &Demo) {
    demo.faults(r#"[{"function": "*", "gpu": 3, "code": 15}]"#);
}

fn is_absent(reason: &str) -> impl Fn(&Scrape) -> bool {
    let label = format!("reason=\"{reason}\"");
    move |page: &Scrape| {
        page.has("gpu_absence_info", &["gpu=\"3\"", &label])
            && page.value("gpu_present", &["gpu=\"3\""]) == Some("0")
    }
}

#[test]
fn lost_passed_through_and_removed_gpus_are_distinguished_and_a_returned_one_continues() {
    let demo = start_demo();
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    lose_gpu(&demo);
    demo.agent.wait_for("a lost GPU", is_absent("lost"));
    write_pci_bus(&demo, &page, "gpu=\"3\"", Some("vfio-pci"));
    demo.agent.wait_for("a guest's GPU", is_absent("guest"));
    write_pci_bus(&demo, &page, "gpu=\"3\"", None);
    demo.agent.wait_for("a GPU that is gone", is_absent("gone"));
    let listed = succeeded(&run_command(&demo, &["inventory"]));
    let gone: Vec<&str> = listed.lines().filter(|line| line.contains(" gone ")).collect();
    assert_eq!(gone.len(), 1, "{listed}");
    assert_eq!(listed.lines().filter(|line| line.contains(" present ")).count(), 7, "{listed}");
    demo.faults("[]");
    let page = demo.agent.wait_for("its return", |page| up(page) == 8 && !page.has("gpu_absence_info", &[]));
    assert_eq!(page.value("gpu_present", &["gpu=\"3\""]), Some("1"));
}

#[test]
fn a_forgotten_gpu_has_no_series_and_its_account_survives_a_restart() {
    let mut demo = start_demo();
    let page = demo.agent.wait_for("an account", |page| {
        page.series_of("gpu_slot_seconds_total", &["gpu=\"3\""]).any(|(_, value)| nano(value) > 0)
    });
    let settled = page.nano_sum("gpu_slot_seconds_total", &["gpu=\"3\""]);
    let (name, _) = page.series_of("gpu_present", &["gpu=\"3\""]).next().unwrap();
    let uuid = name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let refused = run_command(&demo, &["inventory", "forget", &uuid]);
    assert_eq!(refused.status.code(), Some(1), "a GPU that is present");
    lose_gpu(&demo);
    demo.agent.wait_for("a lost GPU", is_absent("lost"));
    let unknown = run_command(&demo, &["inventory", "forget", "GPU-of-somebody-else"]);
    assert_eq!(unknown.status.code(), Some(1));
    demo.agent.wait_for("the account in the ledger", |_| {
        run_command(&demo, &["inventory", "forget", &uuid]).status.success()
    });
    demo.agent.wait_for("its end", |page| !page.has("gpu_present", &["gpu=\"3\""]));
    demo.kill_and_restart(&[]);
    let page = demo.agent.wait_for("the other GPUs", |page| up(page) == 7);
    assert!(!page.series.keys().any(|name| name.contains(&uuid)), "it has series");
    let listed = succeeded(&run_command(&demo, &["inventory", "--json"]));
    assert!(listed.contains("forgotten"), "{listed}");
    // Once it is back it is expected again, and its account continues.
    demo.faults("[]");
    let page =
        demo.agent.wait_for("its return", |page| page.value("gpu_present", &["gpu=\"3\""]) == Some("1"));
    assert!(page.nano_sum("gpu_slot_seconds_total", &[&uuid]) >= settled);
    assert_ledger_balances(&page);
}

#[test]
fn an_inventory_is_read_and_changed_without_an_agent() {
    let mut demo = start_demo();
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    let (name, _) = page.series_of("gpu_present", &["gpu=\"5\""]).next().unwrap();
    let uuid = name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let ledger = demo.directory.path().join("ledger.db").to_str().unwrap().to_owned();
    assert_eq!(output(&["inventory", "--ledger", &ledger]).status.code(), Some(2), "an agent owns it");
    demo.agent.terminate();
    let listed = succeeded(&output(&["inventory", "--ledger", &ledger]));
    assert_eq!(listed.lines().count(), 9, "{listed}");
    succeeded(&output(&["inventory", "--ledger", &ledger, "forget", &uuid]));
    let listed = succeeded(&output(&["inventory", "--ledger", &ledger]));
    assert_eq!(listed.lines().filter(|line| line.contains(" forgotten ")).count(), 1, "{listed}");
    let none = output(&["inventory", "--ledger", &ledger, "forget", "GPU-of-somebody-else"]);
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn sigterm_ends_a_quiesced_agent_and_one_without_a_driver() {
    for unloaded in [false, true] {
        let mut demo = start_demo();
        if unloaded {
            demo.faults(UNLOADED);
            demo.agent.wait_for("the fault", |page| {
                page.value("gpumeter_collector_success", &["collector=\"driver\""]) == Some("0")
            });
        } else {
            succeeded(&run_command(&demo, &["quiesce"]));
        }
        let status = demo.agent.terminate();
        assert!(status.success(), "{status}: {}", demo.agent.log_to_end());
        let ledger = demo.directory.path().join("ledger.db");
        succeeded(&output(&["bill", "--ledger", ledger.to_str().unwrap()]));
    }
}

#[test]
fn sigterm_during_a_wait_for_a_stuck_gpu_ends_the_agent_while_the_call_hangs() {
    let mut demo = start_demo();
    hang_gpu_3(&demo);
    let socket = demo.directory.path().join("control.sock");
    let ask = || program().arg("quiesce").arg("--socket").arg(&socket).spawn().unwrap();
    let asker = RefCell::new(ask());
    // The other samplers end at once; only the stuck one is waited for, so long that a page shows it. On a busy machine
    // that time may pass between two pages; then it is asked again.
    demo.agent.wait_for("the end of the other samplers", |page| {
        if asker.borrow_mut().try_wait().unwrap().is_some() {
            *asker.borrow_mut() = ask();
        }
        up(page) == 0
    });
    // The hang is never lifted: an agent that waited for the call to return would not end.
    let status = demo.agent.terminate();
    assert!(status.success(), "{status}: {}", demo.agent.log_to_end());
    assert!(!asker.into_inner().wait().unwrap().success(), "the driver was not closed");
    let ledger = demo.directory.path().join("ledger.db");
    succeeded(&output(&["bill", "--ledger", ledger.to_str().unwrap()]));
}

#[test]
fn invalid_requests_on_the_local_socket_get_an_error_and_change_nothing() {
    use std::io::{Read, Write};
    let demo = start_demo();
    let socket = demo.directory.path().join("control.sock");
    for nonsense in [&b"\n"[..], b"{}\n", b"{\"do\":\"reboot\"}\n", &[0xFF; 10_000], b""] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        // It may be answered and closed before all of it is written.
        let _ = stream.write_all(nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(!answer.contains("\"error\":null"), "{answer}");
    }
    succeeded(&run_command(&demo, &["inventory"]));
    let nobody = program().args(["resume", "--socket", "/nowhere/control.sock"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2));
}

#[test]
fn a_period_is_closed_over_the_local_socket_alone_and_only_once() {
    let demo = Demo::start(&["--speed", "60"]);
    let socket = demo.directory.path().join("control.sock");
    let closed_until = || {
        let bill: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/bill").1).unwrap();
        bill["closed_until"].as_str().unwrap_or_default().to_owned()
    };
    let (mut begin, mut end) = (String::new(), String::new());
    wait_until("an account", || {
        begin = closed_until();
        begin.starts_with("20")
    });
    wait_until("a minute that is closed", || {
        end = closed_until();
        end > begin
    });
    let order = |from: &str, to: &str| ControlRequest::ClosePeriod {
        from: from.to_owned(),
        to: to.to_owned(),
        time_zone: Some("UTC".to_owned()),
        by: "ada".to_owned(),
    };
    let later = send_request(&socket, &order(&begin, "2099-01-01")).unwrap();
    assert!(later.error.unwrap().starts_with("the period ends at 2099-01-01T00:00:00"));
    let ControlReply { error, closed, .. } = send_request(&socket, &order(&begin, &end)).unwrap();
    let closed = closed.unwrap_or_else(|| panic!("{error:?}"));
    assert!(closed.bill.is_balanced() && !closed.bill.lines.is_empty());
    let period = ClosedPeriod { from: closed.bill.from, to: closed.bill.to, by: "ada".to_owned() };
    let (number, digest) = ("0001".to_owned(), "sha256:1".to_owned());
    let document = RecordedDocument { period, is_credit: false, number, digest };
    assert_eq!(send_request(&socket, &ControlRequest::RecordDocument { document }).unwrap().error, None);
    let ControlReply { documents, .. } = send_request(&socket, &ControlRequest::Documents).unwrap();
    let documents = documents.unwrap().documents;
    assert_eq!(documents.iter().map(|known| &*known.number).collect::<Vec<_>>(), ["0001"]);
    let again = send_request(&socket, &order(&begin, &end)).unwrap().error.unwrap();
    assert!(again.contains("is closed already by statement 0001"), "{again}");
    // HTTP has no such request.
    for path in ["/api/v1/statement", "/api/v1/statement/close", "/api/v1/close"] {
        assert_eq!(demo.agent.get(path).0, 404, "{path}");
    }
    let statements = demo.directory.path().join("statements");
    let month = ["close", "--month", "2099-01", "--statements", statements.to_str().unwrap()];
    for (socket, status) in [(socket.to_str().unwrap(), 1), ("/nowhere/control.sock", 2)] {
        let refused = output(&[&["statement"], &month[..], &["--socket", socket]].concat());
        assert_eq!(refused.status.code(), Some(status), "{refused:?}");
    }
}

#[test]
fn a_driver_that_is_unloaded_and_loaded_again_is_a_new_epoch_of_the_same_account() {
    let mut demo = start_demo();
    demo.agent.wait_for("joules", |page| page.nano_sum("gpu_energy_joules_total", &[]) > 0);
    demo.state(r#"{"driver": {"loaded": false}}"#);
    demo.agent.wait_for("its end", |page| {
        up(page) == 0 && page.value("gpumeter_collector_success", &["collector=\"driver\""]) == Some("0")
    });
    wait_until("nothing to keep the module busy", || driver_files(&demo).is_empty());
    demo.state(r#"{"driver": {"epoch": 2, "version": "590.48.01"}}"#);
    let page = demo.agent.wait_for("recovery", |page| up(page) == 8);
    assert_eq!(page.series_of("gpu_info", &["driver_version=\"590.48.01\""]).count(), 8);
    let slot = page.nano_sum("gpu_slot_seconds_total", &[]);
    let page =
        demo.agent.wait_for("windows after it", |page| page.nano_sum("gpu_slot_seconds_total", &[]) > slot);
    assert_ledger_balances(&page);
    demo.agent.terminate();
    assert_time_is_complete(&demo);
}

#[test]
fn a_driver_reloaded_under_its_clients_is_reopened_at_once() {
    let demo = start_demo();
    demo.state(r#"{"driver": {"epoch": 2, "version": "590.48.01"}}"#);
    demo.agent.wait_for("the new driver", |page| {
        up(page) == 8 && page.series_of("gpu_info", &["driver_version=\"590.48.01\""]).count() == 8
    });
}

#[test]
fn a_driver_can_be_upgraded_during_quiesce() {
    let demo = start_demo();
    let state = demo.driver("state");
    let upgrade = format!(
        r#"echo '{{"driver": {{"epoch": 2, "version": "590.48.01"}}}}' > {0}.new && mv {0}.new {0}"#,
        state.to_str().unwrap()
    );
    succeeded(&run_command(&demo, &["quiesce", "--", "sh", "-c", &upgrade]));
    demo.agent.wait_for("the new driver", |page| {
        up(page) == 8 && page.series_of("gpu_info", &["driver_version=\"590.48.01\""]).count() == 8
    });
}

#[test]
fn a_container_that_still_has_the_old_library_asks_to_be_restarted() {
    let mut demo = start_demo();
    let marks = demo.directory.path().join("host/run");
    std::fs::create_dir_all(&marks).unwrap();
    std::fs::write(marks.join(".containerenv"), "").unwrap();
    demo.state(r#"{"driver": {"epoch": 2, "version": "590.48.01", "library": "old"}}"#);
    assert_eq!(demo.agent.wait_for_end().code(), Some(75));
}

#[test]
fn a_replacement_board_is_another_gpu() {
    let demo = start_demo();
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    // One board is removed and another is put in its place.
    demo.state(r#"{"gpus": {"3": {"state": "gone"}}}"#);
    write_pci_bus(&demo, &page, "gpu=\"3\"", None);
    demo.agent.wait_for("a GPU that is gone", is_absent("gone"));
    demo.state(r#"{"gpus": {"3": {"state": "replaced", "uuid_seed": 7}}}"#);
    write_pci_bus(&demo, &page, "gpu=\"3\"", Some("nvidia"));
    let page = demo.agent.wait_for("the new board", |page| is_absent("replaced")(page) && up(page) == 8);
    assert_eq!(page.series_of("gpu_present", &[]).count(), 9);
    // The label is the driver's index: the new board has that of the old one.
    assert_eq!(page.series_of("gpu_present", &["gpu=\"3\""]).count(), 2);
    assert_eq!(page.value("gpumeter_collector_success", &["collector=\"gpu3\""]), Some("1"));
    assert_eq!(page.value("gpumeter_standing_unmatched", &[]), Some("0"));
    assert_eq!(page.series_of("gpu_absence_info", &[]).count(), 1);
    let listed = succeeded(&run_command(&demo, &["inventory"]));
    assert_eq!(listed.lines().filter(|line| line.contains(" replaced ")).count(), 1, "{listed}");
}

#[test]
fn a_gpu_returned_by_a_guest_is_found() {
    let demo = start_demo();
    let page = demo.agent.wait_for("all GPUs", |page| up(page) == 8);
    write_pci_bus(&demo, &page, "gpu=\"3\"", Some("vfio-pci"));
    demo.state(r#"{"gpus": {"3": {"state": "guest"}}}"#);
    demo.agent.wait_for("a guest's GPU", is_absent("guest"));
    // A new session does not count it; the agent finds it on the PCI bus.
    let sampled = |page: &Scrape| page.nano_sum("gpumeter_last_sample_timestamp_seconds", &["gpu=\"0\""]);
    let since = sampled(&page);
    demo.agent.wait_for("twelve seconds without it", |page| {
        assert!(!is_absent("guest")(page) || up(page) <= 7);
        is_absent("guest")(page) && up(page) == 7 && sampled(page) >= since + 12_000_000_000
    });
    demo.state("{}");
    write_pci_bus(&demo, &page, "gpu=\"3\"", Some("nvidia"));
    let page = demo.agent.wait_for("its return", |page| up(page) == 8 && !page.has("gpu_absence_info", &[]));
    assert_eq!(page.series_of("gpu_present", &[]).count(), 8);
}
