//! `gpumeter doctor` on healthy and faulty nodes, beside a running agent.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use crate::kubelet::{Answers, Fault, Kubelet, pod};
use crate::running::{Agent, Demo, program};

struct Diagnosis {
    status: Option<i32>,
    page: String,
}

/// The output for a demo's node, with the demo's ledger.
fn doctor(demo: &Demo) -> Diagnosis {
    doctor_with(demo, "")
}

/// The same with additional configuration.
fn doctor_with(demo: &Demo, more: &str) -> Diagnosis {
    let Output { status, stdout, .. } = command(demo, more).output().unwrap();
    Diagnosis { status: status.code(), page: String::from_utf8(stdout).unwrap() }
}

/// The command that says so.
fn command(demo: &Demo, more: &str) -> Command {
    let ledger = demo.directory.path().join("ledger.db");
    let config = demo.directory.path().join("doctor.yaml");
    std::fs::write(&config, format!("ledger:\n  path: {}\n{more}", ledger.display())).unwrap();
    let mut command = program();
    command.arg("doctor").arg("--config").arg(config);
    command.arg("--nvml-library").arg(demo.driver("libnvidia-ml.so.1"));
    command
}

/// Whether a section under that heading names the family.
fn section(page: &str, heading: &str, family: &str) -> bool {
    page.split(heading).skip(1).any(|rest| {
        let names = rest.lines().skip(1).take_while(|line| line.starts_with("    "));
        names.flat_map(str::split_whitespace).any(|name| name == family)
    })
}

#[test]
fn doctor_as_root_refuses_a_library_that_another_user_can_replace() {
    use std::os::unix::fs::PermissionsExt;
    // A library of another user is a danger only for that user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let directory = demo.driver("");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let Diagnosis { page, status } = doctor(&demo);
    assert_eq!(status, Some(1), "{page}");
    let name = directory.display().to_string();
    for words in ["driver: driver library", "not loaded as root", name.trim_end_matches('/'), "every user"] {
        assert!(page.contains(words), "{words:?} in {page}");
    }
}

#[test]
fn doctor_reports_every_family_and_the_running_agent_of_a_healthy_node() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let Diagnosis { page, .. } = doctor(&demo);
    assert!(page.contains("ok      driver: a simulated library"), "{page}");
    assert!(page.contains("driver/libnvidia-ml.so.1)"), "the library that was used: {page}");
    assert!(page.contains("ok      gpus: the driver lists 8"), "{page}");
    let owner = format!("ledger.db: a running agent writes it, process {}\n", demo.agent.id());
    assert!(page.lines().any(|line| line.starts_with("ok      ledger: ")), "{page}");
    assert!(page.contains(&owner), "{page}");
    // Over a simulated driver no reading is refused.
    assert!(page.contains(" node lock: /run/gpumeter.lock: "), "{page}");
    assert!(page.contains("ok      xids: the driver reports them as events"), "{page}");
    assert_eq!(page.lines().filter(|line| line.starts_with("GPU ")).count(), 8, "{page}");
    assert_eq!(page.matches(" metric families exported").count(), 1, "they answer the same: {page}");
    assert!(page.contains("\nOn this node the agent provides "), "{page}");
    assert!(
        section(&page, "  off, needs sampling.level: full; now it is standard:", "gpu_process_memory_bytes"),
        "{page}"
    );
    assert!(page.contains("  off, MIG mode is off:\n    gpu_mig_"), "{page}");
    // GPM values need a pair of samples, and the simulated H100 has them all.
    assert!(!page.contains("gpu_sm_active_ratio"), "{page}");
}

#[test]
fn in_a_pod_there_is_a_kubelet_also_where_the_agent_sees_nothing_of_it() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let output = command(&demo, "").env("KUBERNETES_SERVICE_HOST", "10.96.0.1").output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let told = "holding: GPUs are held by grants alone: who uses a GPU without a grant holds nothing \
                (attribution.presence: auto, and there is a kubelet)";
    assert!(page.contains(told), "{page}");
}

#[test]
fn a_grant_on_an_unknown_gpu_index_is_a_finding() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let grants = "attribution: {standing: [{id: old, gpu: 8, user: alice, fraction: 1}, \
                  {id: new, gpu: 3, user: alice, fraction: 1}]}\n";
    let Diagnosis { status, page } = doctor_with(&demo, grants);
    assert_eq!(status, Some(1), "{page}");
    let finding = page.lines().find(|line| line.starts_with("FAILED  grants: ")).unwrap_or_default();
    assert!(finding.contains("old (GPU 8);") && !finding.contains("new"), "{page}");
    let Diagnosis { page, .. } = doctor_with(&demo, &grants.replace("gpu: 8", "gpu: 4"));
    assert!(page.contains("ok      grants: all 2 grants in attribution.standing match a GPU"), "{page}");
}

#[test]
fn the_doctor_lists_what_each_grant_matches_and_check_config_warns_where_it_runs_on_the_node() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let grants = "attribution: {standing: [{id: lab, gpu: [0, 99], user: root, fraction: 0.5}]}\n";
    let Diagnosis { page, .. } = doctor_with(&demo, grants);
    let listed = page.lines().find(|line| line.starts_with("  lab: 1/2 of GPU 0 GPU-")).unwrap_or_default();
    assert!(listed.ends_with(", GPU 99 (not there); held by user root"), "{page}");
    let file = demo.directory.path().join("doctor.yaml");
    let library = demo.driver("libnvidia-ml.so.1");
    std::fs::write(&file, format!("nvml: {{library: {}}}\n{grants}", library.display())).unwrap();
    let check = |flags: &[&str]| {
        let output = program().arg("check-config").arg(&file).args(flags).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!check(&[]).contains("warning"), "without the flag no driver is called");
    let text = check(&["--node"]);
    assert!(
        text.contains("warning: attribution.standing: no GPU that the driver lists matches lab (GPU 99);"),
        "{text}"
    );
}

#[test]
fn doctor_finds_a_running_demo_and_says_how_to_examine_it() {
    let state = tempfile::tempdir().unwrap();
    let command = |what: &str| {
        let mut command = program();
        command.arg(what).env("XDG_STATE_HOME", state.path());
        command
    };
    let page = || String::from_utf8(command("doctor").output().unwrap().stdout).unwrap();
    assert!(!page().contains(" demo: "), "none runs yet");
    let mut demo = command("demo");
    demo.args(["--listen", "127.0.0.1:0"]);
    let agent = Agent::start(demo);
    agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let page = page();
    let library = state.path().join("gpumeter/demo/driver/libnvidia-ml.so.1");
    let how = format!("examine that with gpumeter doctor --nvml-library {}\n", library.display());
    assert!(page.contains(&format!("ok      demo: process {} runs one in ", agent.id())), "{page}");
    assert!(page.contains(&how), "{page}");
}

#[test]
fn a_failing_family_is_a_finding_and_an_unsupported_one_is_not() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    demo.faults(
        r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 1, "code": 999},
            {"function": "nvmlDeviceGetProcessUtilization", "gpu": 2, "code": 3}]"#,
    );
    let Diagnosis { status, page } = doctor(&demo);
    assert_eq!(status, Some(1), "{page}");
    let finding = page.lines().find(|line| line.starts_with("FAILED  gpu: 1 GPU-")).unwrap_or_default();
    assert!(finding.contains("gpu_utilization_ratio failed"), "{page}");
    assert!(page.contains("  failed, the driver call failed; look for NVRM and Xid lines in the kernel log:\n    gpu_utilization_ratio "), "{page}");
    let absent = "  absent not_supported, this board does not report it:";
    assert!(section(&page, absent, "gpu_process_utilization_ratio"), "{page}");
    assert_eq!(page.matches(" metric families exported").count(), 3, "GPU 1, GPU 2 and the others: {page}");
}

#[test]
fn doctor_names_a_hung_call_and_prints_earlier_findings() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    demo.faults(r#"[{"function": "nvmlDeviceGetUtilizationRates", "gpu": 3, "hang": true}]"#);
    let begun = Instant::now();
    let Diagnosis { status, page } = doctor(&demo);
    let took = begun.elapsed().as_secs();
    assert_eq!(status, Some(1), "{page}");
    let call = "FAILED  driver: the call nvmlDeviceGetUtilizationRates on GPU 3 has not returned for ";
    let seconds =
        page.lines().find_map(|line| line.strip_prefix(call)?.split(' ').next()?.parse::<u64>().ok());
    // On a busy machine it looks later, but never says more than has passed.
    assert!(seconds.is_some_and(|seconds| (10..=took.max(10)).contains(&seconds)), "{took} s: {page}");
    assert_eq!(page.lines().filter(|line| line.starts_with("GPU ")).count(), 3, "{page}");
    demo.faults("[]");
}

#[test]
fn the_json_output_has_every_family_of_every_gpu() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let library = demo.driver("libnvidia-ml.so.1");
    let output = program().args(["doctor", "--json", "--nvml-library"]).arg(library).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["variant"].is_string() && report["findings"].as_array().unwrap().len() >= 6, "{report}");
    let gpus = report["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 8);
    for gpu in gpus {
        let families = gpu["families"].as_array().unwrap();
        let status =
            |name: &str| families.iter().find(|family| family["family"] == name).unwrap()["status"].clone();
        assert_eq!(status("gpu_power_watts"), "exported");
        assert_eq!(status("gpu_process_memory_bytes"), "off");
    }
}

/// Answers this many requests with that status line.
fn destination(status: &'static str, requests: usize) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            assert!(String::from_utf8_lossy(&request[..read]).contains("content-encoding: gzip\r\n"));
            stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn doctor_tests_the_otlp_destination_with_an_empty_request() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let with = |address: &str| doctor_with(&demo, &format!("otlp: {{endpoint: \"http://{address}\"}}\n"));
    let well = destination("200 OK", 1).to_string();
    let page = with(&well).page;
    let line = format!("ok      otlp: http://{well}/v1/metrics accepted an empty request\n");
    assert!(page.contains(&line), "{page}");
    let Diagnosis { status, page } = with(&destination("404 Not Found", 1).to_string());
    assert_eq!(status, Some(1), "{page}");
    assert!(
        page.contains(
            "it does not let the agent in (404 ); nothing accepts OTLP at this path; correct its endpoint"
        ),
        "{page}"
    );
    let closed = crate::running::free_address().to_string();
    let page = with(&closed).page;
    assert!(page.contains("FAILED  otlp: ") && page.contains("Connection refused"), "{page}");
    // A lookup at a silent name server lasts longer than the usual timeout.
    let unknown = "otlp: {destinations: [{endpoint: \"http://collector.invalid:4318\", timeout: 60s}]}\n";
    let page = doctor_with(&demo, unknown).page;
    assert!(page.contains("its host name cannot be resolved"), "{page}");
    assert!(!doctor(&demo).page.contains(" otlp: "), "without a destination nothing is tested");
}

/// A user without any privileges.
const NOBODY: u32 = 65_534;

#[test]
fn without_root_doctor_names_what_needs_root() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    // Everybody may read the test's files, and only root the kubelet's directory.
    let allow =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let root = demo.directory.path();
    allow(root, 0o755);
    let [binary, kubelet] = ["gpumeter", "kubelet"].map(|name| root.join(name));
    // By a process of its own: a child of another test could have the copy open for writing when it is executed.
    assert!(
        std::process::Command::new("cp")
            .arg(program().get_program())
            .arg(&binary)
            .status()
            .unwrap()
            .success()
    );
    let socket = kubelet.join("kubelet.sock");
    let _kubelet = Kubelet::start(&socket, Answers::default());
    allow(&kubelet, 0o700);
    let config = root.join("nobody.yaml");
    let ledger = root.join("ledger/ledger.db");
    let text = format!(
        "ledger: {{path: {}}}\nattribution: {{kubernetes: {{socket: {}}}}}\n",
        ledger.display(),
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = std::process::Command::new(&binary);
    command.arg("doctor").arg("--config").arg(&config).uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = command.output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let finding = |what: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("FAILED  {what}: ")));
        line.unwrap_or_else(|| panic!("no {what} has failed in\n{page}"))
    };
    assert!(finding("pods").contains("no GPU is billed to pods"), "{page}");
    assert!(finding("pods").contains("permission denied; run the agent as root"), "{page}");
    assert!(
        finding("ledger").contains("cannot be written")
            && finding("ledger").contains("run the agent as root"),
        "{page}"
    );
    assert_eq!(output.status.code(), Some(1), "{page}");
}

#[test]
fn doctor_reports_the_kubelets_answer_or_its_failure() {
    let demo = Demo::start(&[]);
    demo.agent.wait_for("its first ticks", |page| page.has("gpu_up", &[]));
    let socket = demo.directory.path().join("kubelet.sock");
    let more = format!("attribution: {{kubernetes: {{socket: {}}}}}\n", socket.display());
    let finding = || {
        let page = doctor_with(&demo, &more).page;
        page.lines().find(|line| line.contains(" pods: ")).unwrap_or_default().to_owned()
    };
    let gpu = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    let pods = vec![pod("ml", "a", "main", &[gpu]), pod("ml", "b", "main", &["MIG-1"])];
    let kubelet = Kubelet::start(&socket, Answers { pods, ..Answers::default() });
    let text = finding();
    assert!(text.contains("the kubelet assigned GPUs: 1;") && text.contains("MIG-1"), "{text}");
    kubelet.answer(|answers| answers.fault = Some(Fault::Error(tonic::Code::Unavailable)));
    let text = finding();
    assert!(
        text.starts_with("FAILED  pods: no GPU is billed to pods") && text.contains("List failed"),
        "{text}"
    );
}
