//! Containers named by their runtime: the client of its socket, and the whole agent beside a fake runtime.

use std::path::PathBuf;

use gpumeter::holders::docker::{DockerClient, Error};

use crate::docker::{Docker, Response};
use crate::running::Demo;
use crate::scrape::Scrape;

const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

fn containers(name: &str, image: &str) -> Response {
    Response::Containers(vec![(ID.into(), name.into(), image.into())])
}

#[test]
fn every_runtime_fault_has_its_reason_and_a_restart_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/docker.sock");
    let client = DockerClient::new(&socket).unwrap();
    assert!(matches!(client.containers(), Err(Error::Missing { .. })));
    let docker = Docker::start(&socket, containers("trainer", "ml/train:7"));
    let listed = client.containers().unwrap();
    assert_eq!((&*listed[ID].name, &*listed[ID].image), ("trainer", "ml/train:7"));
    docker.respond(Response::Status(500, "{\"message\":\"out of\\nmemory\"}".into()));
    let error = client.containers().unwrap_err();
    assert!(matches!(&error, Error::Failed { status, .. } if status.as_u16() == 500), "{error}");
    docker.respond(Response::Hangup);
    assert!(matches!(client.containers(), Err(Error::Unreachable { .. })));
    for garbage in ["<html>".to_owned(), "{}".to_owned(), "\n".repeat(9 << 20)] {
        docker.respond(Response::Status(200, garbage));
        let error = client.containers().unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    docker.respond(Response::Half);
    assert!(matches!(client.containers(), Err(Error::Malformed { .. })));
    docker.respond(Response::BlackHole);
    assert!(matches!(client.containers(), Err(Error::TimedOut { .. })));
    assert_eq!(docker.requests(), ["GET /containers/json HTTP/1.1"], "the agent only reads");
    drop(docker);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(matches!(client.containers(), Err(Error::Unreachable { .. })), "there is no server");
    std::fs::remove_file(&socket).unwrap();
    let _docker = Docker::start(&socket, Response::Containers(Vec::new()));
    assert!(client.containers().unwrap().is_empty());
}

/// A node with a busy process in a container, and the path of its runtime's socket.
fn node(configuration: &str) -> (Demo, PathBuf, tempfile::TempDir) {
    let (demo, scenario) = node_of(&[(4001, 0, &format!("/system.slice/docker-{ID}.scope"))], configuration);
    let socket = demo.directory.path().join("host/run/docker.sock");
    (demo, socket, scenario)
}

/// A node of one GPU with busy processes, by pid, user and cgroup.
fn node_of(processes: &[(u32, u32, &str)], configuration: &str) -> (Demo, tempfile::TempDir) {
    let scenario = tempfile::tempdir().unwrap();
    let process = |(pid, uid, cgroup): &(u32, u32, &str)| {
        serde_json::json!({
            "pid": pid, "name": "python3", "gpu": 0,
            "phases": [{"from": 0, "to": 600, "demand": 0.4, "memory_bytes": 8_589_934_592_u64}],
            "host": {"uid": uid, "cgroup": cgroup},
        })
    };
    let text = serde_json::json!({
        "driver_version": "590.48.01", "cycle_seconds": 600,
        "gpus": [{"profile": "h100", "count": 1}],
        "users": [{"uid": 1500, "name": "alice"}],
        "processes": processes.iter().map(process).collect::<Vec<_>>(),
        "config": format!("limits: {{birth_delay: 0s}}\nattribution: {{presence: true{configuration}}}\n"),
    });
    let file = scenario.path().join("scenario.json");
    std::fs::write(&file, text.to_string()).unwrap();
    let demo = Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]);
    (demo, scenario)
}

fn workload(page: &Scrape) -> Option<String> {
    let of_container = format!("workload=\"container:docker/{ID}\"");
    page.series_of("gpu_workload_info", &[&of_container]).next().map(|(name, _)| name.to_owned())
}

#[test]
fn a_container_keeps_its_name_and_image_while_its_runtime_fails() {
    let (demo, socket, _scenario) = node(", containers: {socket: /run/docker.sock}");
    let docker = Docker::start(&socket, containers("trainer", "registry.example/ml/train:7"));
    let named = |page: &Scrape| {
        workload(page).is_some_and(|labels| {
            labels.contains("container_name=\"trainer\"")
                && labels.contains("container_image=\"registry.example/ml/train:7\"")
        })
    };
    let success = |page: &Scrape, value| {
        page.value("gpumeter_resolver_success", &["resolver=\"containers\""]) == Some(value)
    };
    demo.agent.wait_for("the container's name", |page| named(page) && success(page, "1"));
    for fault in [Response::Status(503, String::new()), Response::Half, Response::Hangup] {
        docker.respond(fault);
        // On a loaded machine a page of a demo at this speed may lack its GPUs, and so its workloads.
        let page = demo.agent.wait_for("the failure, and the name", |page| success(page, "0") && named(page));
        assert!(page.has("gpumeter_resolver_age_seconds", &["resolver=\"containers\""]));
        docker.respond(containers("trainer", "registry.example/ml/train:7"));
        demo.agent.wait_for("the answer", |page| success(page, "1"));
    }
    drop(docker);
    demo.agent.wait_for("the end of the socket, and the name", |page| success(page, "0") && named(page));
}

#[test]
fn without_a_configured_socket_containers_are_named_by_id() {
    let (demo, socket, _scenario) = node("");
    let docker = Docker::start(&socket, containers("trainer", "ml/train:7"));
    let page = demo.agent.wait_for("the container", |page| workload(page).is_some());
    let labels = workload(&page).unwrap();
    assert!(labels.contains(&format!("container_id=\"{ID}\"")) && !labels.contains("trainer"), "{labels}");
    assert!(!page.has("gpumeter_resolver_success", &["resolver=\"containers\""]));
    assert_eq!(docker.requests(), [""; 0]);
}

#[test]
fn a_container_that_its_runtime_does_not_know_is_billed_too() {
    let (demo, socket, _scenario) = node(", containers: {socket: /run/docker.sock}");
    let _docker = Docker::start(&socket, Response::Containers(Vec::new()));
    let page = demo.agent.wait_for("the container", |page| workload(page).is_some());
    assert!(!workload(&page).unwrap().contains("trainer"));
    let unattributed = page.value("gpu_unattributed_seconds_total", &["reason=\"container\""]);
    assert!(unattributed.is_none_or(|seconds| seconds == "0"), "{unattributed:?}");
}

#[test]
fn a_container_that_poses_as_a_pod_holds_its_half_beside_its_neighbour() {
    let session = "/user.slice/user-1500.slice/session-3.scope";
    let (demo, _scenario) = node_of(&[(4001, 0, "/lxc.payload.x/kubepods"), (4002, 1500, session)], "");
    let holders = ["container:lxc/x", "user:alice"];
    let is_half = |page: &Scrape, holder: &str| {
        let workload = format!("workload=\"{holder}\"");
        page.value("gpu_holding_ratio", &[&workload, "source=\"presence\""]) == Some("0.5")
    };
    demo.agent.wait_for("half of the GPU for each", |page| holders.iter().all(|one| is_half(page, one)));
    let held = |page: &Scrape| {
        ["lxc", "alice"].map(|tenant| {
            let tenant = format!("tenant=\"{tenant}\"");
            page.nano_sum("gpu_tenant_held_seconds_total", &[&tenant])
        })
    };
    let before = demo.agent.wait_for("half a minute of each", |page| held(page)[0] >= 30_000_000_000);
    let later = held(&before)[0] + 60_000_000_000;
    let after = demo.agent.wait_for("a minute more", |page| held(page)[0] >= later);
    let [container, neighbour] = [0, 1].map(|one| held(&after)[one] - held(&before)[one]);
    assert!((container - neighbour).abs() <= 1_000, "one holds {container} ns, the other {neighbour} ns");
    assert_eq!(after.nano_sum("gpu_unattributed_seconds_total", &[]), 0);
}

#[test]
fn the_configuration_names_a_runtime_and_a_container_that_is_a_node() {
    let below_runtime = format!("/system.slice/my-runtime.service/{ID}");
    let below_node = format!("/lxc.payload.node/system.slice/docker-{ID}.scope");
    let processes = [(4001, 0, &*below_runtime), (4002, 0, &*below_node)];
    let holders = |configuration: &str, expected: [String; 2]| {
        let (demo, _scenario) = node_of(&processes, configuration);
        let has = |page: &Scrape, holder: &String| {
            page.has("gpu_workload_info", &[&format!("workload=\"{holder}\"")])
        };
        demo.agent.wait_for(&expected.join(" and "), |page| expected.iter().all(|one| has(page, one)));
    };
    holders("", ["unit:my-runtime.service".to_owned(), "container:lxc/node".to_owned()]);
    holders(
        ", runtimes: [my-runtime.service], container_nodes: [/lxc.payload.node]",
        ["unknown", "docker"].map(|runtime| format!("container:{runtime}/{ID}")),
    );
}
