//! Mistakes of operators and of other programs: a clear error, the right status, nothing lost.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use crate::running::{Agent, Demo, output, program};

fn refused(arguments: &[&str], words: &[&str]) {
    let output = output(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{word:?} in {error}");
    }
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn all_configuration_errors_are_reported_at_once_with_their_lines() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "config.yaml");
    fs::write(&file, "samplin:\n  interval: 1s\nweb:\n  listen: nowhere\nledger:\n  path: relative.db\n")
        .unwrap();
    refused(
        &["run", "--config", &file],
        &["config.yaml:1", "did you mean", "sampling", "config.yaml:4", "config.yaml:6"],
    );
    refused(&["check-config", &file], &["config.yaml:1", "config.yaml:4"]);
    let output_text = String::from_utf8(output(&["check-config", &file]).stderr).unwrap();
    assert!(output_text.starts_with(&format!("gpumeter: {file}: 3 problems\n")), "{output_text}");
    assert!(output_text.lines().skip(1).all(|line| line.starts_with(&format!("{file}:"))), "{output_text}");
}

#[test]
fn a_pipe_a_device_or_a_directory_in_place_of_a_file_is_an_error_and_never_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| path(&directory, name);
    assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    fs::create_dir(place("directory")).unwrap();
    for (name, target) in [("link-pipe", place("pipe")), ("device", "/dev/zero".into())] {
        std::os::unix::fs::symlink(target, place(name)).unwrap();
    }
    let quiet =
        format!("ledger: {{path: {}}}\nweb: {{control: {}}}\n", place("ledger.db"), place("control.sock"));
    fs::write(place("ok.yaml"), quiet).unwrap();
    let day = place("exports/cluster=a/date=2025-11-01/ledger=b");
    fs::create_dir_all(&day).unwrap();
    for (name, what) in [
        ("pipe", "it is a named pipe"),
        ("link-pipe", "it is a named pipe"),
        ("device", "it is a device"),
        ("directory", "it is a directory"),
    ] {
        let (file, state, ok, exports, out) =
            (place(name), place("state"), place("ok.yaml"), place("exports"), place("out"));
        let labels = place("labels.yaml");
        fs::write(&labels, format!("node: {{labels_file: {file}}}\n")).unwrap();
        let tls = place("web.yaml");
        fs::write(&tls, format!("tls_server_config: {{cert_file: {file}, key_file: {file}}}\n")).unwrap();
        let _ = fs::remove_file(format!("{day}/day.parquet"));
        std::os::unix::fs::symlink(&file, format!("{day}/day.parquet")).unwrap();
        for arguments in [
            &["check-config", &file][..],
            &["check-config", &ok, "--web.config.file", &file],
            &["run", "--config", &file],
            &["run", "--config", &labels],
            &["run", "--config", &ok, "--web.config.file", &tls],
            &["demo", "--state-dir", &state, "--scenario", &file],
            &["replay", "--state-dir", &state, &file],
            &["bill", "--ledger", &file],
            &["bill", "--ledger", &file, "--book", &file],
            &["bill", "--exports", &exports],
            &["bill", "--exports", &exports, "--expect", &file],
            &["bill", "--exports", &exports, "--against", &file],
            &["bill", "--web.user", "ada", "--web.password-file", &file],
            &["bill", "--url", "https://127.0.0.1:1", "--web.ca-file", &file],
            &["job", "--sum", &file],
            &["explain", "1", "--ledger", &file],
            &["inventory", "--ledger", &file],
            &["inventory", "forget", "GPU-1", "--ledger", &file],
            &["ledger", "compact", "--ledger", &file],
            &["ledger", "restore", "--ledger", &file],
            &["ledger", "snapshot", &out, "--ledger", &file],
            &["statement", "show", &file],
            &["statement", "verify", &ok, "--ledger", &file],
        ] {
            refused(arguments, &[what]);
        }
        let recorded = output(&["record", &out, "--nvml-library", &file]);
        let error = String::from_utf8(recorded.stderr).unwrap();
        // As root it is refused earlier where other users can write it.
        let is_told = error.contains(what) || error.contains("not loaded as root");
        assert!(!recorded.status.success() && is_told, "{error}");
        fs::remove_file(out).unwrap_or_default();
    }
}

#[test]
fn no_key_reads_a_secret_from_a_pipe_not_even_from_one_that_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| path(&directory, name);
    assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    std::os::unix::fs::symlink(place("pipe"), place("link")).unwrap();
    fs::write(place("none"), "").unwrap();
    let https = "otlp: {destinations: [{endpoint: \"https://127.0.0.1:1\"";
    let check = |text: &str, variable: &str| {
        fs::write(place("c.yaml"), text).unwrap();
        // Open and never written to.
        let (input, writer) = std::io::pipe().unwrap();
        let mut command = program();
        command
            .args(["check-config", &place("c.yaml"), "--node"])
            .stdin(input)
            .env("SSL_CERT_FILE", variable);
        let output = command.output().unwrap();
        drop(writer);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}: {error}");
        assert!(
            error.contains("cannot be read: it is a named pipe, and must be a regular file"),
            "{text}: {error}"
        );
    };
    for file in [place("pipe"), place("link"), "/dev/stdin".to_owned()] {
        for text in [
            format!("web: {{users: {{alice: {file}}}}}"),
            format!("web: {{tls: {{cert_file: {file}, key_file: {file}}}}}"),
            format!("{https}, header_files: {{authorization: {file}}}}}]}}"),
            format!("{https}, ca_file: {file}}}]}}"),
            format!("{https}, cert_file: {file}, key_file: {file}}}]}}"),
            format!("node: {{labels_file: {file}}}"),
            format!("web: {{dcgm_counters: {file}}}"),
        ] {
            check(&text, &place("none"));
        }
    }
    check(&format!("{https}}}]}}"), &place("link"));
}

#[test]
fn a_pipe_in_place_of_a_secret_stops_no_start_no_reload_and_no_end() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| path(&directory, name);
    assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    let config = |hash: &str| {
        format!(
            "web: {{users: {{alice: {hash}}}}}\notlp: {{destinations: [{{endpoint: \"https://127.0.0.1:1\"}}]}}\n"
        )
    };
    fs::write(place("hash"), bcrypt::hash_with_salt("alice", 4, [7; 16]).unwrap().to_string()).unwrap();
    fs::write(place("c.yaml"), config(&place("hash"))).unwrap();
    let mut command = Demo::command(&directory.path().join("state"), &["--config", &place("c.yaml")]);
    command.env("SSL_CERT_FILE", place("pipe"));
    let mut agent = Agent::start(command);
    agent.wait_for_log("SSL_CERT_FILE");
    assert_eq!(agent.get("/metrics").0, 401);
    fs::write(place("c.yaml"), config(&place("pipe"))).unwrap();
    let log = agent.wait_for_log("configuration not reloaded");
    assert!(log.contains("cannot be read: it is a named pipe"), "{log}");
    assert_eq!(agent.get("/metrics").0, 401);
    assert!(agent.terminate().success());
}

#[test]
fn a_first_price_in_the_future_is_a_warning_and_not_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "config.yaml");
    let prices = "prices: {currency: EUR, rates: [{gpu_hour: 1.1, from: \"2200-01-01T00:00:00Z\"}]}\n";
    fs::write(&file, prices).unwrap();
    let checked = output(&["check-config", &file]);
    let output_text = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success(), "{output_text}");
    let warning = "warning: prices.rates: no price is in force before 2200-01-01T00:00:00Z";
    assert!(
        output_text.starts_with(&format!("{file}: {warning}")) && output_text.ends_with("config.yaml: ok\n"),
        "{output_text}"
    );
    let doctor = String::from_utf8(output(&["doctor", "--config", &file]).stdout).unwrap();
    assert!(doctor.contains("FAILED  prices: prices.rates: no price is in force before 2200-"), "{doctor}");
}

#[test]
fn an_invalid_file_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "config.yaml");
    fs::write(&file, "web:\n  listen: [\n").unwrap();
    refused(&["check-config", &file], &["config.yaml:"]);
}

#[test]
fn a_demo_whose_port_is_taken_ends_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().to_str().unwrap();
    refused(&["demo", "--state-dir", state, "--listen", &address], &[&address, "in use"]);
}

#[test]
fn an_address_that_is_not_this_host_s_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "config.yaml");
    fs::write(&file, format!("ledger: {{path: {}}}\n", path(&directory, "ledger.db"))).unwrap();
    let words = ["192.0.2.1:9855", "no interface of this host has this address"];
    refused(&["run", "--config", &file, "--listen", "192.0.2.1:9855"], &words);
}

#[test]
fn an_agent_whose_port_is_taken_keeps_the_account_and_listens_once_it_is_free() {
    let demo = Demo::start(&["--speed", "30"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let socket = path(&directory, "control.sock");
    let config = path(&directory, "config.yaml");
    let text = format!("ledger: {{path: {}}}\nweb: {{control: {socket}}}\n", path(&directory, "ledger.db"));
    fs::write(&config, text).unwrap();
    let mut command = program();
    command.args([
        "run",
        "--config",
        &config,
        "--listen",
        &address,
        "--listen",
        "127.0.0.1:0",
        "--nvml-library",
    ]);
    let agent = Agent::start({
        command.arg(demo.driver("libnvidia-ml.so.1"));
        command
    });
    let page = agent.wait_for("an account", |page| page.has("gpu_slot_seconds_total", &["gpu=\"7\""]));
    assert_eq!(page.value("gpumeter_listen_missing", &[]), Some("1"));
    assert_eq!(page.value("gpumeter_ledger_open", &[]), Some("1"));
    let (status, why) = agent.get("/-/ready");
    assert_eq!(status, 503);
    assert!(why.starts_with(&format!("not ready: listen {address}: address already in use")), "{why}");
    assert_eq!(agent.get("/-/healthy").0, 200);
    let probe = |more: &[&str]| output(&[&["probe", "--socket", &socket], more].concat());
    assert!(probe(&[]).status.success());
    let refused = probe(&["--ready"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("already in use"));
    drop(taken);
    agent.wait_for("the free address", |page| page.value("gpumeter_listen_missing", &[]) == Some("0"));
    let log = agent.wait_for_log(&format!("listening address={address}"));
    // Agent::start took the lines until the other address.
    let said = agent.first_lines.clone() + &log;
    assert_eq!(said.matches("Nobody can scrape the agent there").count(), 1, "{said}");
    assert_eq!(agent.get_at(&address, "/-/ready"), (200, "ready\n".to_owned()));
    assert!(probe(&["--ready"]).status.success());
}

#[test]
fn an_empty_file_where_a_ledger_was_is_named_and_not_taken_for_a_new_one() {
    let mut demo = Demo::start(&[]);
    demo.agent.wait_for("an open ledger", |page| page.value("gpumeter_ledger_open", &[]) == Some("1"));
    demo.agent.kill();
    let ledger = demo.directory.path().join("ledger.db");
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(demo.directory.path().join(format!("ledger.db{suffix}")));
    }
    fs::write(&ledger, "").unwrap();
    demo.kill_and_restart(&[]);
    demo.agent.wait_for("no account", |page| page.value("gpumeter_ledger_open", &[]) == Some("0"));
    let (_, why) = demo.agent.get("/-/ready");
    for words in ["ledger.db", "it is empty, and a ledger was there", "remove the empty file"] {
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(fs::metadata(&ledger).unwrap().len(), 0);
    fs::remove_file(&ledger).unwrap();
    demo.agent.wait_for("a new account", |page| page.value("gpumeter_ledger_open", &[]) == Some("1"));
}

#[test]
fn commands_without_an_agent_name_the_address_to_use() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("the first page", |page| page.has("gpu_up", &[]));
    let ledger = demo.directory.path().join("ledger.db");
    let ledger = ledger.to_str().unwrap();
    refused(
        &["bill", "--ledger", ledger],
        &["a running agent writes it", "`gpumeter bill` without --ledger"],
    );
    refused(&["inventory", "--ledger", ledger], &["`gpumeter inventory` without --ledger"]);
    refused(
        &["resume", "--socket", "/nowhere.sock"],
        &["/nowhere.sock", "no agent listens there", "--socket"],
    );
}

#[test]
fn a_second_agent_on_one_ledger_is_refused_with_the_owners_pid() {
    let demo = Demo::start(&[]);
    // It listens before it opens its ledger.
    demo.agent.wait_for("the first page", |page| page.has("gpu_up", &[]));
    let ledger = demo.directory.path().join("ledger.db");
    let library = demo.driver("libnvidia-ml.so.1");
    let directory = tempfile::tempdir().unwrap();
    let config = path(&directory, "config.yaml");
    fs::write(&config, format!("ledger:\n  path: {}\n", ledger.display())).unwrap();
    let owner = demo.agent.id().to_string();
    let library = library.to_str().unwrap();
    refused(
        &["run", "--config", &config, "--listen", "127.0.0.1:0", "--nvml-library", library],
        &["ledger.db", &owner],
    );
    demo.agent.wait_for("more ticks of the first agent", |page| page.has("gpu_up", &[]));
}

#[test]
fn a_second_demo_in_one_directory_is_refused_and_changes_nothing() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let state = demo.directory.path().to_str().unwrap();
    let owner = demo.agent.id().to_string();
    let files = || ["clock", "scenario"].map(|name| fs::read(demo.driver(name)).unwrap());
    let places = || {
        use std::os::unix::fs::MetadataExt;
        ["driver/libnvidia-ml.so.1", "host/etc/passwd", "ledger.db", "ledger.db.lock", "demo.lock"]
            .map(|name| fs::metadata(demo.directory.path().join(name)).unwrap().ino())
    };
    let before = (files(), places());
    for more in [&["--fresh"][..], &["--speed", "100", "--scenario", "local"]] {
        let arguments = [&["demo", "--state-dir", state, "--listen", "127.0.0.1:0"], more].concat();
        refused(&arguments, &[state, &owner, "--state-dir"]);
    }
    assert_eq!((files(), places()), before);
    demo.agent
        .wait_for("more ticks of the first agent", |page| page.value("gpu_up", &["gpu=\"0\""]) == Some("1"));
}

#[test]
fn a_fresh_demo_removes_old_state_and_keeps_the_lock_files() {
    let mut demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    demo.faults("[]");
    demo.kill_and_restart(&["--fresh"]);
    assert!(!demo.driver("faults").exists());
    assert!(demo.directory.path().join("ledger.db.lock").exists());
}

#[test]
fn a_demo_does_not_empty_a_ledger_that_another_agent_writes() {
    let mut demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let status = demo.agent.terminate();
    assert!(status.success());
    let ledger = demo.directory.path().join("ledger.db");
    let elsewhere = tempfile::tempdir().unwrap();
    let config = path(&elsewhere, "config.yaml");
    fs::write(&config, format!("ledger:\n  path: {}\n", ledger.display())).unwrap();
    let mut command = program();
    command.args(["run", "--config", &config, "--listen", "127.0.0.1:0", "--nvml-library"]);
    command.arg(demo.driver("libnvidia-ml.so.1"));
    let agent = Agent::start(command);
    agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let state = demo.directory.path().to_str().unwrap();
    refused(
        &["demo", "--fresh", "--state-dir", state, "--listen", "127.0.0.1:0"],
        &["ledger.db", &agent.id().to_string()],
    );
    assert!(demo.driver("scenario").exists());
}

#[test]
fn a_demo_refuses_a_directory_with_foreign_files() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().to_str().unwrap();
    for name in ["host", "driver"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    let files = ["host/notes.txt", "driver/scenario", "ledger.db"].map(|name| directory.path().join(name));
    for file in &files {
        fs::write(file, "mine").unwrap();
    }
    let listen = ["--state-dir", state, "--listen", "127.0.0.1:0"];
    for command in [&["demo"][..], &["demo", "--fresh"], &["demo", "--scenario", "local"]] {
        refused(&[command, &listen].concat(), &[state, "not empty", ".gpumeter-demo", "--state-dir"]);
    }
    for file in &files {
        assert_eq!(fs::read_to_string(file).unwrap(), "mine", "{}", file.display());
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "nothing was added");
}

#[test]
fn an_invalid_scenario_ends_the_demo_with_its_name_and_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let state = path(&directory, "state");
    for (text, words) in [
        (r#"{"gpus": [{"profile": "h1000"}]}"#, ["gpus[0]", "h1000"]),
        (
            r#"{"gpus": [{"profile": "h100"}], "xids": [{"at": 900, "gpu": 0, "xid": 79}]}"#,
            ["xids[0]", "900"],
        ),
        (r#"{"gpus": "many"}"#, ["gpus", "list"]),
    ] {
        let file = path(&directory, "mine.json");
        fs::write(&file, text).unwrap();
        refused(
            &["demo", "--scenario", &file, "--state-dir", &state, "--listen", "127.0.0.1:0"],
            &[&file, words[0], words[1]],
        );
    }
}

#[test]
fn a_bill_of_a_ledger_that_is_owned_is_refused() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("the first page", |page| page.has("gpu_up", &[]));
    let ledger = demo.directory.path().join("ledger.db");
    refused(&["bill", "--ledger", ledger.to_str().unwrap()], &["ledger.db"]);
}

#[test]
fn a_file_that_is_not_a_ledger_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let [ledger, config] = ["ledger.db", "config.yaml"].map(|name| path(&directory, name));
    fs::write(&ledger, "dear diary").unwrap();
    fs::write(&config, format!("ledger:\n  path: {ledger}\nweb:\n  listen: 127.0.0.1:0\n")).unwrap();
    refused(&["run", "--config", &config], &["ledger.db", "not a gpumeter ledger"]);
    assert_eq!(fs::read_to_string(ledger).unwrap(), "dear diary");
}

#[test]
fn the_error_names_a_read_only_state_directory() {
    // Root ignores permission bits, so this is a place where nobody can create a file.
    refused(
        &["demo", "--state-dir", "/proc/gpumeter", "--listen", "127.0.0.1:0"],
        &["/proc/gpumeter", "--state-dir"],
    );
}

#[test]
fn without_its_ledger_the_agent_serves_with_errors_and_opens_it_later() {
    // Another agent with a ledger of its own.
    let demo = Demo::start(&["--speed", "30"]);
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("mount/ledger.db");
    let config = path(&directory, "config.yaml");
    fs::write(&config, format!("ledger:\n  path: {}\nweb:\n  control: off\n", ledger.display())).unwrap();
    let library = demo.driver("libnvidia-ml.so.1");
    let mut command = program();
    command.args(["run", "--config", &config, "--listen", "127.0.0.1:0", "--nvml-library"]).arg(library);
    let agent = Agent::start(command);
    let page = agent.wait_for("GPUs", |page| page.value("gpu_up", &["gpu=\"0\""]) == Some("1"));
    assert_eq!(page.value("gpumeter_ledger_open", &[]), Some("0"));
    assert!(!page.has("gpumeter_ledger_durable", &[]) && !page.has("gpu_slot_seconds_total", &[]));
    let (status, body) = agent.get("/-/ready");
    assert_eq!(status, 200);
    assert!(body.contains("no account: ") && body.contains("mount/ledger.db"), "{body}");
    let (status, body) = agent.get("/api/v1/bill");
    assert_eq!(status, 503, "{body}");
    assert!(!ledger.parent().unwrap().exists(), "a directory other than the default one is never made");
    fs::create_dir(ledger.parent().unwrap()).unwrap();
    agent.wait_for_log("the ledger is open now");
    let page = agent.wait_for("an account", |page| page.has("gpu_slot_seconds_total", &["gpu=\"7\""]));
    assert_eq!(page.value("gpumeter_ledger_open", &[]), Some("1"));
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
    assert_eq!(agent.get("/-/ready"), (200, "ready\n".to_owned()));
}

#[test]
fn a_library_that_is_not_nvml_is_reported_and_the_agent_serves_its_own_health() {
    let directory = tempfile::tempdir().unwrap();
    let config = path(&directory, "config.yaml");
    fs::write(&config, format!("ledger:\n  path: {}\n", path(&directory, "ledger.db"))).unwrap();
    let mut command = crate::running::program();
    command.args(["run", "--config", &config, "--listen", "127.0.0.1:0", "--nvml-library", "libc.so.6"]);
    let agent = crate::running::Agent::start(command);
    let page = agent.wait_for("the agent's own metrics", |page| page.has("gpumeter_build_info", &[]));
    assert!(!page.has("gpu_up", &[]));
    assert_eq!(page.value("gpumeter_simulated", &[]), Some("0"));
    agent.wait_for_log("not an NVML library");
}

#[test]
fn a_closed_log_pipe_does_not_end_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let config = path(&directory, "config.yaml");
    fs::write(&config, format!("ledger:\n  path: {}\n", path(&directory, "ledger.db"))).unwrap();
    // The agent cannot report an address that it chose itself.
    let address = crate::running::free_address().to_string();
    let mut command = program();
    command.args(["run", "--config", &config, "--listen", &address, "--nvml-library", "libc.so.6"]);
    let agent = Agent::start_without_log(command, address);
    agent.wait_for("the agent's own metrics", |page| page.has("gpumeter_build_info", &[]));
}

#[test]
fn an_invalid_address_is_refused_with_an_example() {
    for command in ["bill", "health"] {
        refused(&[command, "--url", "localhost"], &["localhost", "has no port", "http://127.0.0.1:9855"]);
    }
}

#[test]
fn a_directory_as_ledger_path_is_refused_with_a_valid_path() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    for command in ["bill", "inventory"] {
        refused(&[command, "--ledger", place], &[place, "it is a directory", "/ledger.db"]);
    }
}

#[test]
fn a_server_that_is_not_an_agent_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Without a scheme, which is optional.
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n{\"error\":\"Not Found\"}").unwrap();
        }
    });
    for command in ["bill", "health"] {
        refused(&[command, "--url", &address], &[&address, "this is not a gpumeter agent", "404"]);
    }
}

#[test]
fn a_bill_with_an_invalid_time_is_refused_with_that_time() {
    let demo = Demo::start(&[]);
    for (query, words) in [
        ("from=yesterday", "yesterday"),
        ("to=2026-11-01T08:00:30Z", "2026-11-01T08:00:30Z\\\" is not on a whole minute"),
        ("from=2026-11-15&to=2026-11-01", "swap them"),
    ] {
        let (status, body) = demo.agent.get(&format!("/api/v1/bill?{query}"));
        assert_eq!(status, 400, "{body}");
        assert!(body.contains(words), "{body}");
    }
}
