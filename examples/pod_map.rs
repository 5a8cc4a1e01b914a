//! Shows what one refresh of the map of pods costs on a node with 250 pods: answers of the kubelet decoded, joined with
//! the log directories, and made into holdings.
//!
//! `cargo run --release --example pod_map` prints one line; exit status 1 where the median is above 5 ms. Between two
//! refreshes the map is only read.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program, not the agent")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use gpumeter::clock::processor_time;
use gpumeter::holders::{PodMetadata, PodObservation, Pods, Resources};
use gpumeter::host::PodLogs;
use gpumeter::host::pod_logs::{ContainerLog, LoggedPod, PodLog};
use gpumeter::kubelet::messages::{
    ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources,
};
use gpumeter::kubelet::pod::{ContainerStatus, ObjectMeta, OwnerReference, Pod, PodStatus};
use gpumeter::model::Utc;
use prost::Message;

const PODS: usize = 250;
const ROUNDS: usize = 101;
const MOST: Duration = Duration::from_millis(5);

fn uid(pod: usize) -> String {
    format!("{pod:08x}-052c-4b11-80d3-4d7b2d2d3464")
}

fn container_id(pod: usize, container: usize) -> String {
    format!("{:064x}", pod * 2 + container)
}

/// A pod of two containers, the first of which has a replica of one of eight GPUs.
fn listed(pod: usize) -> PodResources {
    let device = format!("GPU-{:08x}-052c-4b11-80d3-4d7b2d2d3464::{pod}", pod % 8);
    let devices = vec![ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids: vec![device] }];
    let container = |name: &str, devices| ContainerResources {
        name: name.into(),
        devices,
        dynamic_resources: Vec::new(),
    };
    PodResources {
        name: format!("worker-{pod}"),
        namespace: "research".into(),
        containers: vec![container("main", devices), container("sidecar", Vec::new())],
    }
}

/// The same pod as Kubernetes describes it, with the annotations and labels of a usual one.
fn described(pod: usize) -> Vec<u8> {
    let pairs = |of: &str, length: usize| {
        (0..10).map(|at| (format!("example.com/{of}-{at}"), "x".repeat(length))).collect()
    };
    let container = |(at, name): (usize, &str)| ContainerStatus {
        name: name.into(),
        container_id: format!("containerd://{}", container_id(pod, at)),
        state: None,
    };
    let metadata = ObjectMeta {
        name: format!("worker-{pod}"),
        namespace: "research".into(),
        uid: uid(pod),
        labels: pairs("label", 20),
        annotations: pairs("annotation", 300),
        owner_references: vec![OwnerReference {
            kind: "Job".into(),
            name: "worker".into(),
            controller: true,
        }],
        ..ObjectMeta::default()
    };
    let status = PodStatus {
        phase: "Running".into(),
        container_statuses: [(0, "main"), (1, "sidecar")].map(container).into(),
        ..PodStatus::default()
    };
    Pod { metadata: Some(metadata), status: Some(status) }.encode_to_vec()
}

fn logs() -> PodLogs {
    let pod = |pod| LoggedPod { namespace: "research".into(), name: format!("worker-{pod}"), uid: uid(pod) };
    let containers = (0..PODS).flat_map(|number| {
        [(0, "main"), (1, "sidecar")].map(|(at, name)| ContainerLog {
            pod: pod(number),
            name: name.into(),
            id: container_id(number, at),
        })
    });
    PodLogs {
        pods: Some((0..PODS).map(|number| PodLog { pod: pod(number), changed: Utc(1) }).collect()),
        containers: Some(containers.collect()),
    }
}

fn main() -> ExitCode {
    let list = ListPodResourcesResponse { pod_resources: (0..PODS).map(listed).collect() }.encode_to_vec();
    let pods: Vec<Vec<u8>> = (0..PODS).map(described).collect();
    let bytes = list.len() + pods.iter().map(Vec::len).sum::<usize>();
    let labels = ["example.com/label-1".to_owned()];
    let resources = Resources { names: vec!["nvidia.com/*".into()], replicas: Some(32) };
    let (minors, logs) = (BTreeMap::new(), logs());
    let mut node = Pods::default();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = processor_time();
        let listed = ListPodResourcesResponse::decode(&*list).unwrap();
        let pods: Vec<Pod> = pods.iter().map(|pod| Pod::decode(&**pod).unwrap()).collect();
        let metadata = PodMetadata::new(&pods, &labels, Utc(2));
        let known = node.observe(PodObservation {
            listed: Some(&listed),
            allocatable: None,
            logs: &logs,
            metadata: &metadata,
            minors: &minors,
            resources: &resources,
        });
        assert_eq!((known.allocations.len(), known.problems.len()), (PODS, 0));
        times.push(Duration::from_nanos(processor_time().0 - begun.0));
    }
    times.sort();
    let (median, longest) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!("{PODS} pods, {bytes} bytes: {median:?} of processor time per refresh, at most {longest:?}");
    if median > MOST { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
