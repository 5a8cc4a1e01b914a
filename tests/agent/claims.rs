//! Resource claims with administrative access: the reader at the API server, and the whole agent beside one.

use std::collections::BTreeSet;
use std::time::Duration;

use gpumeter::holders::kubelet::messages::{
    ClaimResource, ContainerResources, DynamicResource, PodResources,
};
use gpumeter::holders::kubelet::{ClaimName, ClaimReader, SourceSettings};
use serde_json::{Value, json};

use crate::kubelet::{self, Kubelet, log};
use crate::kubernetes_api::{Answers, Fault, Server, account};
use crate::running::{Agent, Demo, wait_until};
use crate::scrape::{Scrape, nano};

const UID: &str = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";
const SECOND: i128 = 1_000_000_000;

fn name(namespace: &str, name: &str) -> ClaimName {
    ClaimName { namespace: namespace.into(), name: name.into() }
}

/// A claim as the API server writes it, with these devices and whether each is only watched.
fn claim(devices: &[(&str, Option<bool>)]) -> Value {
    let result = |(device, admin): &(&str, Option<bool>)| json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device, "adminAccess": admin});
    let results: Vec<Value> = devices.iter().map(result).collect();
    json!({"metadata": {"uid": UID}, "status": {"allocation": {"devices": {"results": results}}}})
}

fn path(version: &str, namespace: &str, name: &str) -> String {
    format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}")
}

/// An API server with these claims, and a reader that has its service account.
fn reader(claims: &[(String, Value)]) -> (tempfile::TempDir, Server, ClaimReader) {
    let directory = tempfile::tempdir().unwrap();
    account(directory.path(), "ca");
    let server = Server::start(Answers { claims: claims.iter().cloned().collect(), ..Answers::default() });
    let settings = SourceSettings {
        account: directory.path().into(),
        api_server: Some(server.address.clone()),
        ..SourceSettings::default()
    };
    let reader = ClaimReader::new(&settings).unwrap();
    (directory, server, reader)
}

/// The devices that are only watched, by claim.
fn watched(reader: &ClaimReader) -> Vec<(&str, &str)> {
    reader.administrative().iter().map(|one| (&*one.claim.name, &*one.device)).collect()
}

#[test]
fn each_listed_claim_is_read_once_in_the_newest_version_that_the_server_has() {
    let (_directory, server, mut reader) = reader(&[
        (path("v1", "ml", "train"), claim(&[("gpu-0", None), ("gpu-1", Some(false))])),
        (path("v1beta1", "monitoring", "admin"), claim(&[("gpu-0", Some(true)), ("gpu-1", Some(true))])),
        (path("v1", "ml", "mixed"), claim(&[("gpu-0", Some(true)), ("gpu-0", None), ("gpu-1", Some(true))])),
        (path("v1", "ml", "pending"), json!({"metadata": {}, "status": {"allocation": null}})),
    ]);
    let train = name("ml", "train");
    let listed = BTreeSet::from([
        train.clone(),
        name("monitoring", "admin"),
        name("ml", "mixed"),
        name("ml", "pending"),
        name("ml", "gone"),
    ]);
    reader.refresh(&listed, Duration::ZERO);
    let expected = [("mixed", "gpu-1"), ("admin", "gpu-0"), ("admin", "gpu-1")];
    assert_eq!((watched(&reader), reader.problem()), (expected.to_vec(), None));
    let asked = server.requested_paths().len();
    reader.refresh(&listed, Duration::from_secs(60));
    assert_eq!(server.requested_paths().len(), asked, "each is read once");
    reader.refresh(&BTreeSet::from([train]), Duration::from_secs(120));
    assert_eq!(watched(&reader), []);
    reader.refresh(&listed, Duration::from_secs(180));
    assert_eq!(watched(&reader), expected, "a claim that comes back is another one");
}

#[test]
fn a_claim_that_cannot_be_read_counts_and_the_reason_says_what_to_grant() {
    let (directory, server, mut reader) =
        reader(&[(path("v1", "monitoring", "admin"), claim(&[("gpu-0", Some(true))]))]);
    let listed = BTreeSet::from([name("monitoring", "admin")]);
    server.answer(|answers| answers.fault = Some(Fault::Status(403)));
    reader.refresh(&listed, Duration::ZERO);
    assert_eq!(watched(&reader), []);
    let problem = reader.problem().unwrap();
    assert!(problem.contains("403") && problem.contains("get on resourceclaims"), "{problem}");
    server.answer(|answers| answers.fault = Some(Fault::Garbage));
    reader.refresh(&listed, Duration::from_secs(1));
    assert_eq!(server.requested_paths().len(), 1, "it waits after a failure");
    reader.refresh(&listed, Duration::from_secs(60));
    assert!(reader.problem().unwrap().contains("monitoring/admin"), "{:?}", reader.problem());
    server.answer(|answers| answers.fault = None);
    reader.refresh(&listed, Duration::from_secs(120));
    assert_eq!((watched(&reader), reader.problem()), (vec![("admin", "gpu-0")], None));
    std::fs::remove_file(directory.path().join("token")).unwrap();
    reader.refresh(&BTreeSet::new(), Duration::from_secs(180));
    assert_eq!(reader.problem(), None, "there is no claim");
    reader.refresh(&listed, Duration::from_secs(240));
    assert!(reader.problem().unwrap().contains("no service account"), "{:?}", reader.problem());
}

#[test]
fn a_claim_that_cannot_be_read_hides_no_other_and_a_refusal_is_not_repeated_for_each() {
    let claims = [
        (path("v1", "ml", "broken"), json!({"status": 7})),
        (path("v1", "monitoring", "admin"), claim(&[("gpu-0", Some(true))])),
    ];
    let listed = BTreeSet::from([name("ml", "broken"), name("monitoring", "admin")]);
    for (fault, asked) in [
        (None, 2),
        (Some(Fault::Status(401)), 1),
        (Some(Fault::Status(403)), 1),
        (Some(Fault::Status(500)), 2),
    ] {
        let (_directory, server, mut reader) = reader(&claims);
        server.answer(|answers| answers.fault = fault);
        reader.refresh(&listed, Duration::ZERO);
        assert_eq!(server.requested_paths().len(), asked, "{fault:?}");
        assert!(reader.problem().is_some(), "{fault:?}");
        if fault.is_none() {
            assert_eq!(watched(&reader), [("admin", "gpu-0")]);
            assert!(reader.problem().unwrap().contains("ml/broken"), "{:?}", reader.problem());
        }
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
        let answers = kubelet::Answers {
            pods: vec![
                claiming("ml", "train-0", "train", &["gpu-0"]),
                claiming("monitoring", "dcgm-exporter-x7", "admin-all-gpus", &["gpu-0", "gpu-1"]),
            ],
            ..kubelet::Answers::default()
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
        (path("v1", "ml", "train"), claim(&[("gpu-0", None)])),
        (path("v1", "monitoring", "admin-all-gpus"), claim(&[("gpu-0", Some(true)), ("gpu-1", Some(true))])),
    ];
    Server::start(Answers { claims: claims.into(), ..Answers::default() })
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
fn a_change_of_the_log_directories_has_the_kubelets_list_read_each_second_and_its_pods_once() {
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
    // Directories are made one after the other, and the period of 30 s may pass, so not the first ten lists need be such.
    let counts = || (reads(), node.kubelet.lists());
    let mut begin = counts();
    wait_until("ten lists with at most two reads of pods", || {
        let now = counts();
        let is_whole = now.1 >= begin.1 + 10;
        let is_calm = now.0 <= begin.0 + 2;
        if is_whole && !is_calm {
            begin = now;
        }
        is_whole && is_calm
    });
}

#[test]
fn without_the_right_to_read_claims_an_administrative_one_holds_and_the_log_says_so() {
    let api = api_server();
    api.answer(|answers| answers.fault = Some(Fault::Status(403)));
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
