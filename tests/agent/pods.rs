//! Pods on GPUs: the client of the kubelet, and the whole agent beside one.

use std::path::{Path, PathBuf};

use gpumeter::holders::kubelet::messages::{ClaimResource, DynamicResource};
use gpumeter::holders::kubelet::{Error, KubeletSocket};
use gpumeter::model::Nanoseconds;
use gpumeter::runtime::clock::{ClockPage, PageState, REAL_TIME, system_now};
use serde_json::Value;
use tonic::Code;

use crate::kubelet::{Answers, Fault, Kubelet, gpus, log, pod};
use crate::kubernetes_api::described;
use crate::running::{Demo, Unheld, bill_lines, held_on_first_gpu, seconds, time_of_first_gpu, wait_until};
use crate::scrape::Scrape;

fn socket() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("pod-resources/kubelet.sock");
    (directory, socket)
}

#[test]
fn the_client_reads_what_a_kubelet_serves() {
    let (_directory, socket) = socket();
    let pods = vec![pod("ml", "train-0", "main", &["GPU-a", "GPU-b"])];
    let allocatable = Some(vec![gpus(&["GPU-a", "GPU-b", "GPU-c"])]);
    let kubelet = Kubelet::start(&socket, Answers { pods: pods.clone(), allocatable, ..Answers::default() });
    let client = KubeletSocket::new(&socket).unwrap();
    assert_eq!(client.list().unwrap().pod_resources, pods);
    assert_eq!(client.allocatable().unwrap().devices, [gpus(&["GPU-a", "GPU-b", "GPU-c"])]);
    kubelet.answer(|answers| answers.allocatable = None);
    assert!(matches!(client.allocatable(), Err(Error::Unsupported { .. })));
}

#[test]
fn every_kubelet_fault_has_its_reason_and_a_restart_recovers() {
    let (_directory, socket) = socket();
    let client = KubeletSocket::new(&socket).unwrap();
    assert!(matches!(client.list(), Err(Error::Missing { .. })));
    let kubelet = Kubelet::start(&socket, Answers::default());
    assert!(client.list().is_ok());
    kubelet.answer(|answers| answers.fault = Some(Fault::Error(Code::ResourceExhausted)));
    let error = client.list().unwrap_err();
    assert!(matches!(error, Error::Failed { code: Code::ResourceExhausted, .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    kubelet.answer(|answers| {
        answers.fault = None;
        answers.pods = vec![pod("ml", "train-0", &"long".repeat(5 << 20), &[])];
    });
    let error = client.list().unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("List has more than 16 MiB, the most that is read") && !error.contains("log"),
        "{error}"
    );
    kubelet.answer(|answers| {
        answers.pods.clear();
        answers.fault = Some(Fault::Hangup);
    });
    assert!(matches!(client.list(), Err(Error::Unreachable { .. } | Error::Failed { .. })));
    drop(kubelet);
    assert!(matches!(client.list(), Err(Error::Missing { .. })));
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(matches!(client.list(), Err(Error::Unreachable { .. })), "there is no server");
    std::fs::remove_file(&socket).unwrap();
    let kubelet = Kubelet::start(&socket, Answers::default());
    assert!(client.list().is_ok());
    kubelet.answer(|answers| answers.fault = Some(Fault::BlackHole));
    let error = client.list().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

const SECOND: i128 = 1_000_000_000;
const UID: &str = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

/// A node of two GPUs with a process at work in a pod on the first.
struct Node {
    demo: Demo,
    kubelet: Kubelet,
    gpus: Vec<String>,
    _scenario: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        Self::start_after(&[], |_| ()).0
    }

    /// The same, with a Pods API that exists before the kubelet and describes no pod yet.
    fn start_described() -> (Self, Kubelet) {
        Self::start_after(&[], |demo| {
            let socket = Self::root(demo).join("var/lib/kubelet/pods-api/pods-api.sock");
            Kubelet::start(&socket, Answers { described: Some(Vec::new()), ..Answers::default() })
        })
    }

    /// The node with further processes on its second GPU, by pid and user.
    fn start_after<T>(others: &[(u32, u32)], first: impl FnOnce(&Demo) -> T) -> (Self, T) {
        let scenario = tempfile::tempdir().unwrap();
        let process = |pid: u32, gpu: u32, uid: u32, cgroup: String| {
            serde_json::json!({
                "pid": pid, "name": "python3", "gpu": gpu,
                "phases": [{"from": 0, "to": 600, "demand": 0.6, "memory_bytes": 8_589_934_592_u64}],
                "host": {"uid": uid, "cgroup": cgroup},
            })
        };
        let mut processes = vec![process(4001, 0, 0, format!("/kubepods/burstable/pod{UID}/{ID}"))];
        let session = |uid: u32| format!("/user.slice/user-{uid}.slice/session-3.scope");
        processes.extend(others.iter().map(|(pid, uid)| process(*pid, 1, *uid, session(*uid))));
        let text = serde_json::json!({
            "driver_version": "590.48.01", "cycle_seconds": 600, "pods": [],
            "gpus": [{"profile": "h100", "count": 2}],
            "users": [{"uid": 1500, "name": "ml"}], "processes": processes,
            "config": "limits: {birth_delay: 0s}\nattribution: {kubernetes: {labels: [kueue.x-k8s.io/queue-name]}}\n",
        });
        let file = scenario.path().join("scenario.json");
        std::fs::write(&file, text.to_string()).unwrap();
        let demo = Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]);
        let page = demo.agent.wait_for("both GPUs", |page| page.series_of("gpu_up", &[]).count() == 2);
        let label = |name: &str| name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let gpus = page.series_of("gpu_up", &[]).map(|(name, _)| label(name)).collect();
        let first = first(&demo);
        let kubelet = Kubelet::start(&Self::socket(&demo), Answers::default());
        (Self { demo, kubelet, gpus, _scenario: scenario }, first)
    }

    fn root(demo: &Demo) -> PathBuf {
        demo.directory.path().join("host")
    }

    fn socket(demo: &Demo) -> PathBuf {
        Self::root(demo).join("var/lib/kubelet/pod-resources/kubelet.sock")
    }

    fn log(&self, container: &str, id: &str) {
        log(Path::new(&Self::root(&self.demo)), ("ml", "train-0", UID), (container, id));
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        self.demo.agent.wait_for(what, wanted)
    }
}

#[test]
fn a_pod_on_a_gpu_has_its_bill_line_under_its_namespace() {
    let node = Node::start();
    node.log("main", ID);
    let gpu = node.gpus[0].as_str();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[gpu])]);
    let page = node.wait_for("two minutes of the namespace", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "ml") >= 120
            && seconds(page, "gpu_tenant_used_seconds_total", "ml") >= 60
    });
    let workload = format!("workload=\"k8s:{UID}/main\"");
    assert_eq!(page.value("gpu_holding_ratio", &[&workload, "source=\"kubernetes\""]), Some("1"));
    let info = page.series_of("gpu_workload_info", &[&workload]).next().unwrap().0.to_owned();
    for label in [
        "kind=\"k8s\"",
        "tenant=\"ml\"",
        "k8s_namespace_name=\"ml\"",
        "k8s_pod_name=\"train-0\"",
        "k8s_container_name=\"main\"",
    ] {
        assert!(info.contains(label), "{label} in {info}");
    }
    assert_eq!(page.value("gpumeter_resolver_success", &["resolver=\"pods\""]), Some("1"));
    let log = node.demo.agent.wait_for_log("labels and owners of pods cannot be read (");
    let line = log.lines().last().unwrap();
    assert!(line.contains("(the kubelet's Pods API: /") && line.ends_with("); none are known yet"), "{line}");
    let of_pods: Vec<Value> =
        bill_lines(&node.demo.agent).into_iter().filter(|line| line["tenant"] == "ml").collect();
    let [line] = &of_pods[..] else { panic!("one line of ml in {of_pods:?}") };
    assert_eq!(line["uuid"], gpu);
    assert!(line["used_ns"] != "0" && line["idle_ns"] != "0", "{line}");
    // The pod is deleted: its holding ends, and later use is outside of any holding.
    node.kubelet.answer(|answers| answers.pods.clear());
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[&workload]));
}

/// A node of one GPU in MIG mode, with minor number 3.
fn mig_node() -> (Demo, Kubelet, tempfile::TempDir) {
    let scenario = tempfile::tempdir().unwrap();
    let instances =
        serde_json::json!([{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]);
    let text = serde_json::json!({
        "driver_version": "590.48.01", "cycle_seconds": 600, "processes": [],
        "gpus": [{"profile": "h100", "mig": instances}],
    });
    let file = scenario.path().join("scenario.json");
    std::fs::write(&file, text.to_string()).unwrap();
    let demo = Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]);
    let page = demo.agent.wait_for("the GPU", |page| page.has("gpu_mig_info", &["profile=\"3g.40gb\""]));
    let name = page.series_of("gpu_up", &[]).next().unwrap().0.to_owned();
    let uuid = name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap();
    let gpu = Node::root(&demo).join("proc/driver/nvidia/gpus/0000:0f:00.0");
    std::fs::create_dir_all(&gpu).unwrap();
    std::fs::write(gpu.join("information"), format!("GPU UUID: {uuid}\nDevice Minor: 3\n")).unwrap();
    let kubelet = Kubelet::start(&Node::socket(&demo), Answers::default());
    (demo, kubelet, scenario)
}

#[test]
fn a_mig_instance_is_held_by_uuid_or_by_claim_and_placement() {
    let (demo, kubelet, _scenario) = mig_node();
    let claim = DynamicResource {
        claim_name: "claim".into(),
        claim_namespace: "ml".into(),
        claim_resources: vec![ClaimResource {
            driver_name: "gpu.nvidia.com".into(),
            pool_name: "node-1".into(),
            device_name: "gpu-3-mig-1g10gb-19-0".into(),
            share_id: None,
        }],
    };
    let mut claiming = pod("ml", "claiming", "main", &[]);
    claiming.containers[0].dynamic_resources.push(claim);
    // The driver gives a 3g instance at slice 4 the id 2, and a 1g instance at slice 0 the id 7.
    kubelet.answer(|answers| {
        answers.pods = vec![pod("gke", "infer", "main", &["nvidia3/gi2"]), claiming];
    });
    let holds = |page: &Scrape, instance: &str, workload: &str| {
        let labels = [format!("gpu_instance=\"{instance}\""), format!("workload=\"{workload}\"")];
        page.value("gpu_holding_ratio", &[&labels[0], &labels[1]]) == Some("1")
    };
    demo.agent.wait_for("both holdings", |page| {
        holds(page, "2", "k8s:gke/infer/main") && holds(page, "7", "k8s:ml/claiming/main")
    });
    demo.agent.wait_for("the account of the instance", |page| {
        page.has("gpu_tenant_held_seconds_total", &["tenant=\"gke\"", "gpu_instance=\"2\""])
    });
}

/// Stops the simulated time.
fn hold_clock(clock: &ClockPage) {
    let elapsed = clock.state().elapsed_at(system_now().boottime);
    clock.set(PageState { held: true, elapsed, ..clock.state() }).unwrap();
}

#[test]
fn a_holding_begins_with_its_container_even_if_listed_later() {
    let (node, pods_api) = Node::start_described();
    let clock = ClockPage::open(&node.demo.driver("clock")).unwrap();
    node.wait_for("half a minute", |page| {
        page.nano_sum("gpu_slot_seconds_total", &["gpu=\"0\""]) >= 30 * SECOND
    });
    // Slowly enough for a tick in each second.
    clock.run(2 * REAL_TIME).unwrap();
    let slow = clock.now().boottime;
    wait_until("six seconds", || clock.now().boottime >= slow + Nanoseconds::from_seconds(6));
    hold_clock(&clock);
    // The window of that time stays open for 6 s more, which take a minute, also on a busy machine.
    let started = clock.now().utc.0 / 1_000_000_000 - 4;
    let mut described = described("ml", "train-0", UID);
    let start = jiff::Timestamp::from_second(started.try_into().unwrap()).unwrap();
    described["status"]["containerStatuses"][0]["state"] =
        serde_json::json!({"running": {"startedAt": start.to_string()}});
    pods_api.answer(|answers| answers.described = Some(vec![described]));
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[&node.gpus[0]])]);
    let lists = node.kubelet.lists();
    node.log("main", ID);
    // The second one is asked for after the first was read.
    wait_until("a list", || node.kubelet.lists() > lists + 1);
    clock.run(REAL_TIME / 10).unwrap();
    let holder = format!("k8s:{UID}/main");
    node.wait_for("the holding", |page| page.has("gpu_holding_ratio", &[&format!("workload=\"{holder}\"")]));
    hold_clock(&clock);
    let ledger = node.demo.directory.path().join("ledger.db");
    let ledger = rusqlite::Connection::open(ledger).unwrap();
    let first = |with: &str| -> Option<i64> {
        let query = "SELECT min(from_ns) FROM raw JOIN gpu ON gpu.id = gpu WHERE uuid = ?1 AND from_ns >= ?2 AND span LIKE ?3";
        let from = i64::try_from(started * 1_000_000_000).unwrap();
        ledger.query_row(query, (&node.gpus[0], from, with), |row| row.get(0)).unwrap()
    };
    let with = format!("%\"{holder}\"%\"kubernetes\"%");
    wait_until("spans with the holding", || first(&with).is_some());
    assert_eq!(first(&with), first("%"), "from the first tick after {started} on");
}

#[test]
fn a_holding_ends_with_its_container_even_if_that_is_known_later() {
    let (node, pods_api) = Node::start_described();
    let clock = ClockPage::open(&node.demo.driver("clock")).unwrap();
    node.log("main", ID);
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[&node.gpus[0]])]);
    node.wait_for("half a minute of the holding", |page| held_on_first_gpu(page, &["ml"]) >= 30 * SECOND);
    // Slowly enough for a tick in each second.
    clock.run(2 * REAL_TIME).unwrap();
    let slow = clock.now().boottime;
    wait_until("six seconds", || clock.now().boottime >= slow + Nanoseconds::from_seconds(6));
    hold_clock(&clock);
    // The window of that time stays open for 6 s more, which take a minute, also on a busy machine.
    let finished = clock.now().utc.0 / 1_000_000_000 - 4;
    let mut described = described("ml", "train-0", UID);
    let end = jiff::Timestamp::from_second(finished.try_into().unwrap()).unwrap();
    described["status"]["containerStatuses"][0]["state"] =
        serde_json::json!({"terminated": {"finishedAt": end.to_string()}});
    pods_api.answer(|answers| answers.described = Some(vec![described]));
    node.kubelet.answer(|answers| answers.pods.clear());
    let lists = node.kubelet.lists();
    node.log("main", &ID.replace("2b18", "0000"));
    wait_until("the second list", || node.kubelet.lists() > lists + 2);
    clock.run(REAL_TIME / 10).unwrap();
    let holder = format!("k8s:{UID}/main");
    node.wait_for("the end", |page| !page.has("gpu_holding_ratio", &[&format!("workload=\"{holder}\"")]));
    hold_clock(&clock);
    let ledger = node.demo.directory.path().join("ledger.db");
    let ledger = rusqlite::Connection::open(ledger).unwrap();
    let last = |with: &str| -> Option<i64> {
        let query = "SELECT max(from_ns) FROM raw JOIN gpu ON gpu.id = gpu WHERE uuid = ?1 AND from_ns < ?2 AND span LIKE ?3";
        let end = i64::try_from((finished + 60) * 1_000_000_000).unwrap();
        ledger.query_row(query, (&node.gpus[0], end, with), |row| row.get(0)).unwrap()
    };
    let with = format!("%\"{holder}\"%\"kubernetes\"%");
    let end = i64::try_from(finished * 1_000_000_000).unwrap();
    wait_until("the last span with the holding", || last(&with).is_some_and(|last| last < end));
    assert!(last("%").unwrap() > end, "the account goes on");
}

#[test]
fn a_pod_has_labels_and_owner_and_its_end_ends_the_holding() {
    let (node, pods_api) = Node::start_described();
    let described = |phase: &str| {
        let mut pod = described("ml", "train-0", UID);
        pod["status"]["phase"] = phase.into();
        pod["status"]["containerStatuses"][0]["containerID"] = format!("containerd://{ID}").into();
        Some(vec![pod])
    };
    pods_api.answer(|answers| answers.described = described("Running"));
    let gpu = node.gpus[0].as_str();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[gpu])]);
    let workload = format!("workload=\"k8s:{UID}/main\"");
    let labels = [
        workload.as_str(),
        "k8s_owner_kind=\"Deployment\"",
        "k8s_owner_name=\"serve\"",
        "k8s_pod_label_kueue_x_k8s_io_queue_name=\"research\"",
    ];
    let page = node.wait_for("the pod's labels", |page| page.has("gpu_workload_info", &labels));
    let info = page.series_of("gpu_workload_info", &[&workload]).next().unwrap().0.to_owned();
    assert!(!info.contains("pod_template_hash"), "a label that is not allowed: {info}");
    // There are no logs: the container's id comes from its status.
    node.wait_for("its use", |page| seconds(page, "gpu_tenant_used_seconds_total", "ml") >= 30);
    assert!(node.demo.agent.wait_for_log("labels and owners of pods are known").contains("Pods API"));
    pods_api.answer(|answers| answers.described = described("Succeeded"));
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[&workload]));
    pods_api.answer(|answers| answers.fault = Some(Fault::Error(Code::Unavailable)));
    let log = node.demo.agent.wait_for_log("labels and owners of pods cannot be read (");
    let line = log.lines().last().unwrap();
    assert!(
        line.contains("(the kubelet's Pods API: /")
            && line.ends_with("); the last known ones are still used"),
        "{line}"
    );
    let page = node.wait_for("another round", |page| page.has("gpu_workload_info", &labels));
    assert!(!page.has("gpu_holding_ratio", &[&workload]), "the end of the holding stays");
}

#[test]
fn a_failing_kubelet_changes_no_holding() {
    let mut node = Node::start();
    node.log("main", ID);
    let gpu = node.gpus[0].clone();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[&gpu])]);
    let holds = |page: &Scrape| page.has("gpu_holding_ratio", &["tenant=\"ml\""]);
    node.wait_for("the holding", holds);
    for fault in [Fault::Error(Code::Internal), Fault::Hangup] {
        node.kubelet.answer(|answers| answers.fault = Some(fault));
        let failed =
            |page: &Scrape| page.value("gpumeter_resolver_success", &["resolver=\"pods\""]) == Some("0");
        let page = node.wait_for("the failure", failed);
        assert!(holds(&page));
        node.kubelet.answer(|answers| answers.fault = None);
        node.wait_for("the kubelet's return", |page| !failed(page));
    }
    let answers = Answers { pods: vec![pod("ml", "train-0", "main", &[&gpu])], ..Answers::default() };
    let lists = node.kubelet.lists();
    let socket = Node::socket(&node.demo);
    // The old kubelet removes its socket before the new one binds it.
    let other = Kubelet::start(&socket.with_extension("other"), Answers::default());
    drop(std::mem::replace(&mut node.kubelet, other));
    assert!(lists > 0);
    node.kubelet = Kubelet::start(&socket, answers);
    let again = || node.kubelet.lists() > 0;
    let page = node.wait_for("a list of the restarted kubelet", |_| again());
    assert!(holds(&page));
}

#[test]
fn a_restart_while_the_kubelet_is_down_keeps_what_pods_hold() {
    let mut node = Node::start();
    node.log("main", ID);
    let gpu = node.gpus[0].clone();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[&gpu])]);
    let before =
        node.wait_for("a minute of the holding", |page| held_on_first_gpu(page, &["ml"]) >= 60 * SECOND);
    // The demo makes the host's files anew: the kubelet's socket is gone.
    let scenario = node._scenario.path().join("scenario.json");
    node.demo.kill_and_restart(&["--speed", "30", "--scenario", scenario.to_str().unwrap()]);
    node.demo.agent.wait_for_log("the kubelet does not answer; holdings of pods stay as they were");
    let later = time_of_first_gpu(&before) + 600 * SECOND;
    let unheld = Unheld::of(&before);
    let after = node.wait_for("ten minutes", |page| {
        unheld.assert_stays(page);
        time_of_first_gpu(page) >= later
    });
    unheld.assert_recovered();
    assert!(after.has("gpu_holding_ratio", &["tenant=\"ml\"", "source=\"kubernetes\""]));
    let socket = Node::socket(&node.demo);
    drop(std::mem::replace(
        &mut node.kubelet,
        Kubelet::start(&socket.with_extension("other"), Answers::default()),
    ));
    node.kubelet = Kubelet::start(&socket, Answers::default());
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &["tenant=\"ml\""]));
}

#[test]
fn a_restart_while_the_kubelet_is_slow_keeps_what_pods_hold() {
    let mut node = Node::start();
    node.log("main", ID);
    let gpu = node.gpus[0].clone();
    let pods = vec![pod("ml", "train-0", "main", &[&gpu])];
    node.kubelet.answer(|answers| answers.pods = pods.clone());
    let before =
        node.wait_for("a minute of the holding", |page| held_on_first_gpu(page, &["ml"]) >= 60 * SECOND);
    // The demo makes the host's files anew, so this kubelet, which is there from the start, is beside them.
    let socket = node.demo.directory.path().join("slow/kubelet.sock");
    let slow = Answers { pods, fault: Some(Fault::BlackHole), ..Answers::default() };
    let kubelet = Kubelet::start(&socket, slow);
    let scenario = node._scenario.path().join("scenario.json");
    let text = std::fs::read_to_string(&scenario).unwrap();
    let text = text.replace("kubernetes: {", "kubernetes: {socket: /../slow/kubelet.sock, ");
    std::fs::write(&scenario, text).unwrap();
    node.demo.kill_and_restart(&["--speed", "30", "--scenario", scenario.to_str().unwrap()]);
    node.log("main", ID);
    let is_held = |page: &Scrape| page.has("gpu_holding_ratio", &["tenant=\"ml\"", "source=\"kubernetes\""]);
    wait_until("a question", || kubelet.lists() > 0);
    let unheld = Unheld::of(&before);
    let asked = node.wait_for("the holding without an answer", |page| {
        unheld.assert_stays(page);
        is_held(page)
    });
    let minute = time_of_first_gpu(&asked) + 60 * SECOND;
    let waiting = node.wait_for("a minute", |page| {
        unheld.assert_stays(page);
        time_of_first_gpu(page) >= minute && is_held(page)
    });
    kubelet.answer(|answers| answers.fault = None);
    node.demo.agent.wait_for_log("the kubelet lists the containers that hold GPUs");
    let later = time_of_first_gpu(&waiting) + 120 * SECOND;
    node.wait_for("two minutes", |page| {
        unheld.assert_stays(page);
        time_of_first_gpu(page) >= later && is_held(page)
    });
    unheld.assert_recovered();
    kubelet.answer(|answers| answers.pods.clear());
    node.wait_for("the end of the holding", |page| !is_held(page));
}

#[test]
fn an_agent_that_is_no_longer_shown_the_kubelets_directory_does_not_know_who_holds() {
    let mut node = Node::start();
    node.log("main", ID);
    let gpu = node.gpus[0].clone();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[&gpu])]);
    let is_held = |page: &Scrape| page.has("gpu_holding_ratio", &["tenant=\"ml\"", "source=\"kubernetes\""]);
    let tenant = |page: &Scrape| page.nano_sum("gpu_tenant_held_seconds_total", &["tenant=\"ml\""]);
    node.wait_for("a minute of the holding", |page| is_held(page) && tenant(page) >= 60 * SECOND);
    // As the variant devices of the chart: the volume is not mounted.
    let scenario = node._scenario.path().join("scenario.json");
    let text = std::fs::read_to_string(&scenario).unwrap().replace("\"pods\":[]", "\"name\":\"devices\"");
    std::fs::write(&scenario, text).unwrap();
    node.demo.kill_and_restart(&["--speed", "30", "--scenario", scenario.to_str().unwrap()]);
    let slot = |page: &Scrape| page.nano_sum("gpu_slot_seconds_total", &["gpu=\"0\""]);
    let first = node.wait_for("both GPUs", |page| page.series_of("gpu_up", &[]).count() == 2);
    let page = node.wait_for("a minute", |page| slot(page) >= slot(&first) + 60 * SECOND);
    assert!(!is_held(&page));
}

/// A demo of one GPU whose only process is in that control group, on a host that has a kubelet's directory or not.
fn node_without_a_socket(cgroup: &str, has_directory: bool) -> Demo {
    let place = tempfile::tempdir().unwrap();
    let mut scenario = serde_json::json!({
        "driver_version": "590.48.01", "cycle_seconds": 600, "gpus": [{"profile": "h100", "count": 1}],
        "processes": [{
            "pid": 4001, "name": "python3", "gpu": 0,
            "phases": [{"from": 0, "to": 600, "demand": 0.6, "memory_bytes": 8_589_934_592_u64}],
            "host": {"uid": 0, "cgroup": cgroup},
        }],
        "config": "limits: {birth_delay: 0s}\n",
    });
    if has_directory {
        scenario["pods"] = serde_json::json!([]);
    }
    let file = place.path().join("scenario.json");
    std::fs::write(&file, scenario.to_string()).unwrap();
    Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()])
}

#[test]
fn a_missing_socket_is_a_failure_where_a_pod_is_on_a_gpu_or_the_kubelets_directory_is_there() {
    let pod = format!("/kubepods/burstable/pod{UID}/{ID}");
    for (cgroup, has_directory) in [(&*pod, false), ("/system.slice/train.service", true)] {
        let demo = node_without_a_socket(cgroup, has_directory);
        demo.agent.wait_for("the failure", |page| {
            page.value("gpumeter_resolver_success", &["resolver=\"pods\""]) == Some("0")
        });
        let log = demo.agent.wait_for_log("the kubelet does not answer");
        let line = log.lines().last().unwrap();
        assert!(line.contains("WARN") && line.contains("kubelet's root directory"), "{line}");
    }
    let demo = node_without_a_socket("/system.slice/train.service", false);
    let page = demo.agent.wait_for("a minute of use", |page| {
        page.nano_sum("gpu_tenant_used_seconds_total", &[]) >= 30 * SECOND
    });
    assert!(!page.has("gpumeter_resolver_success", &["resolver=\"pods\""]), "there is no kubelet");
}

#[test]
fn replicas_hold_their_share_and_unknown_devices_are_reported() {
    let node = Node::start();
    let replicas: Vec<String> = (0..4).map(|at| format!("{}::{at}", node.gpus[1])).collect();
    let replicas: Vec<&str> = replicas.iter().map(String::as_str).collect();
    let hami = format!("{}-0", node.gpus[0]);
    node.kubelet.answer(|answers| {
        answers.pods = vec![
            pod("web", "chat", "main", &replicas[..1]),
            pod("ml", "notebook", "main", &replicas[1..3]),
            pod("hami", "shared", "main", &[&hami]),
        ];
        answers.allocatable = Some(vec![gpus(&replicas)]);
    });
    let share = |page: &Scrape, workload: &str| {
        let label = format!("workload=\"{workload}\"");
        page.value("gpu_holding_ratio", &[&label]).map(str::to_owned)
    };
    let page = node.wait_for("the holdings", |page| share(page, "k8s:ml/notebook/main").is_some());
    assert_eq!(share(&page, "k8s:web/chat/main").as_deref(), Some("0.25"));
    assert_eq!(share(&page, "k8s:ml/notebook/main").as_deref(), Some("0.5"));
    assert_eq!(share(&page, "k8s:hami/shared/main"), None);
    let log = node.demo.agent.wait_for_log("is not billed to it");
    assert!(log.contains(&hami), "{log}");
}

#[test]
fn a_container_that_restarts_stays_the_same_holder() {
    let node = Node::start();
    let before = ID.replace("2b18", "0000");
    let gpu = node.gpus[0].as_str();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[gpu])]);
    node.log("main", &before);
    let holds = |page: &Scrape| page.has("gpu_holding_ratio", &[&format!("workload=\"k8s:{UID}/main\"")]);
    node.wait_for("the holding", holds);
    // The process runs in a container that began after the agent had looked.
    let lists = node.kubelet.lists();
    node.log("main", ID);
    node.wait_for("use by the namespace", |page| seconds(page, "gpu_tenant_used_seconds_total", "ml") >= 30);
    assert!(node.kubelet.lists() > lists);
}

#[test]
fn a_namespace_and_a_user_of_one_name_are_named_in_the_log() {
    let (node, ()) = Node::start_after(&[(4002, 1500)], |_| ());
    node.log("main", ID);
    let gpu = node.gpus[0].as_str();
    node.kubelet.answer(|answers| answers.pods = vec![pod("ml", "train-0", "main", &[gpu])]);
    let log = node.demo.agent.wait_for_log("the tenant name \"ml\" comes from two sources: ");
    let line = log.lines().last().unwrap();
    let pod = format!("Kubernetes namespace (k8s:{UID}/main)");
    for words in ["WARN", &pod, "Unix user (user:ml)", "is on one bill"] {
        assert!(line.contains(words), "{words} in {line}");
    }
}
