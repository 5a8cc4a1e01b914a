//! Pods on GPUs: the whole agent beside a kubelet, and beside an API server with resource claims.

use std::path::{Path, PathBuf};

use gpumeter::holders::kubelet::messages::{
    ClaimResource, ContainerResources, DynamicResource, PodResources,
};
use gpumeter::model::Nanoseconds;
use gpumeter::runtime::clock::{ClockPage, PageState, REAL_TIME, system_now};
use serde_json::{Value, json};
use tonic::Code;

use crate::kubelet::{Answers, Fault, Kubelet, log, pod};
use crate::kubernetes_api::{self, Server, account, claim, claim_path, described};
use crate::running::{
    Agent, Demo, Unheld, bill_lines, held_on_first_gpu, seconds, time_of_first_gpu, wait_until,
};
use crate::scrape::{Scrape, nano};

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
    let claiming = claiming("ml", "claiming", "claim", &["gpu-3-mig-1g10gb-19-0"]);
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

/// A pod of one container with a claim on these devices.
fn claiming(namespace: &str, pod: &str, claim: &str, devices: &[&str]) -> PodResources {
    let device = |device: &&str| ClaimResource {
        driver_name: "gpu.nvidia.com".into(),
        pool_name: "node-1".into(),
        device_name: (*device).into(),
        share_id: None,
    };
    let claim = DynamicResource {
        claim_name: claim.into(),
        claim_namespace: namespace.into(),
        claim_resources: devices.iter().map(device).collect(),
    };
    PodResources {
        name: pod.into(),
        namespace: namespace.into(),
        containers: vec![ContainerResources {
            name: "main".into(),
            devices: Vec::new(),
            dynamic_resources: vec![claim],
        }],
    }
}

/// A demo whose agent has that API server and additional configuration of Kubernetes.
struct MonitoredNode {
    demo: Demo,
    kubelet: Kubelet,
    _place: tempfile::TempDir,
}

impl MonitoredNode {
    /// A node of two GPUs: a trainer with a claim on the first, and a monitoring pod with an administrative claim on both.
    fn start(config: &str, api: Option<&Server>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let text = json!({
            "driver_version": "590.48.01", "cycle_seconds": 600, "gpus": [{"profile": "h100", "count": 2}],
            "processes": [{
                "pid": 4001, "name": "python3", "gpu": 0,
                "phases": [{"from": 0, "to": 600, "demand": 0.9, "memory_bytes": 8_589_934_592_u64}],
                "host": {"uid": 0, "cgroup": format!("/kubepods/burstable/pod{UID}/{ID}")},
            }],
            "config": format!("limits: {{birth_delay: 0s}}\nattribution: {{kubernetes: {{{config}}}}}\n"),
        });
        let scenario = place.path().join("scenario.json");
        std::fs::write(&scenario, text.to_string()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut command =
            Demo::command(directory.path(), &["--speed", "30", "--scenario", scenario.to_str().unwrap()]);
        if let Some(api) = api {
            command.env("NODE_IP", &api.address.host);
            command.env("KUBERNETES_SERVICE_HOST", &api.address.host);
            command.env("KUBERNETES_SERVICE_PORT", api.address.port.to_string());
        }
        let demo = Demo { agent: Agent::start(command), directory };
        let host = demo.directory.path().join("host");
        account(&host.join("var/run/secrets/kubernetes.io/serviceaccount"), "ca");
        log(&host, ("ml", "train-0", UID), ("main", ID));
        let page = demo.agent.wait_for("both GPUs", |page| page.series_of("gpu_up", &[]).count() == 2);
        for (minor, (name, _)) in page.series_of("gpu_up", &[]).enumerate() {
            let uuid = name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap();
            let gpu = host.join(format!("proc/driver/nvidia/gpus/0000:0{minor}:00.0"));
            std::fs::create_dir_all(&gpu).unwrap();
            let text = format!("GPU UUID: {uuid}\nDevice Minor: {minor}\n");
            std::fs::write(gpu.join("information"), text).unwrap();
        }
        let answers = Answers {
            pods: vec![
                claiming("ml", "train-0", "train", &["gpu-0"]),
                claiming("monitoring", "dcgm-exporter-x7", "admin-all-gpus", &["gpu-0", "gpu-1"]),
            ],
            ..Answers::default()
        };
        let kubelet = Kubelet::start(&host.join("var/lib/kubelet/pod-resources/kubelet.sock"), answers);
        Self { demo, kubelet, _place: place }
    }
}

/// Held seconds of a tenant on a GPU.
fn held(page: &Scrape, gpu: &str, tenant: &str) -> i128 {
    let labels = [format!("gpu=\"{gpu}\""), format!("tenant=\"{tenant}\"")];
    page.value("gpu_tenant_held_seconds_total", &[&labels[0], &labels[1]]).map_or(0, nano)
}

/// A server with the claims of the monitored node.
fn api_server() -> Server {
    let claims = [
        (claim_path("v1", "ml", "train"), claim(&[("gpu-0", None)])),
        (
            claim_path("v1", "monitoring", "admin-all-gpus"),
            claim(&[("gpu-0", Some(true)), ("gpu-1", Some(true))]),
        ),
    ];
    Server::start(kubernetes_api::Answers { claims: claims.into(), ..kubernetes_api::Answers::default() })
}

#[test]
fn a_monitoring_claim_takes_nothing_of_a_trainers_gpu_nor_of_idle_ones() {
    let api = api_server();
    let ignoring = "ignore: [{namespace: monitoring, pod: 'dcgm-*'}]";
    for (config, api) in [("", Some(&api)), (ignoring, None)] {
        let node = MonitoredNode::start(config, api);
        let page = node
            .demo
            .agent
            .wait_for("two minutes of the trainer", |page| held(page, "0", "ml") >= 120 * SECOND);
        assert_eq!([held(&page, "0", "monitoring"), held(&page, "1", "monitoring")], [0, 0]);
        let trainer = [format!("workload=\"k8s:{UID}/main\"")];
        assert_eq!(page.value("gpu_holding_ratio", &[&trainer[0]]), Some("1"));
        assert!(held(&page, "1", "__unallocated__") >= 120 * SECOND);
    }
}

#[test]
fn a_change_of_the_log_directories_has_pods_read_once_and_not_with_each_list_that_follows() {
    let api = api_server();
    let node = MonitoredNode::start(&format!("kubelet_port: {}", api.address.port), Some(&api));
    let reads = || api.requested_paths().iter().filter(|path| *path == "/pods").count();
    wait_until("a read of its pods", || reads() > 0);
    let before = reads();
    log(
        &node.demo.directory.path().join("host"),
        ("ml", "other-0", &UID.replace("3cae", "4cae")),
        ("main", ID),
    );
    wait_until("a read after the change", || reads() > before);
    // Where nobody is busy each list is a second after the last one, else up to ten; the pods are read every 30 s besides.
    let counts = || (reads(), node.kubelet.lists());
    let begin = counts();
    wait_until("six lists", || counts().1 >= begin.1 + 6);
    assert!(counts().0 <= begin.0 + 4, "{:?} and then {:?}", begin, counts());
}

#[test]
fn without_the_right_to_read_claims_an_administrative_one_holds_and_the_log_says_so() {
    let api = api_server();
    api.answer(|answers| answers.fault = Some(kubernetes_api::Fault::Status(403)));
    let node = MonitoredNode::start("", Some(&api));
    let page = node.demo.agent.wait_for("two minutes of the trainer", |page| {
        held(page, "0", "ml") >= 120 * SECOND && held(page, "1", "monitoring") >= 120 * SECOND
    });
    let trainer = [format!("workload=\"k8s:{UID}/main\"")];
    assert_eq!(page.value("gpu_holding_ratio", &[&trainer[0]]), Some("0.5"));
    let log = node.demo.agent.wait_for_log("resource claims with administrative access cannot be told");
    assert!(log.contains("grant the agent's service account get on resourceclaims"), "{log}");
    api.answer(|answers| answers.fault = None);
    node.demo
        .agent
        .wait_for("the right", |page| page.value("gpu_holding_ratio", &[&trainer[0]]) == Some("1"));
}
