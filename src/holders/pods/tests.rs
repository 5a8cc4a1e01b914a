//! Holdings of pods over rounds of lists, logs and metadata.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use std::sync::Arc;

use super::grant::NVIDIA_DRIVER;
use super::*;
use crate::holders::host::Host;
use crate::holders::host::pod_logs::ContainerLog;
use crate::holders::host::slurm::RecordFile;
use crate::holders::kubelet::ClaimName;
use crate::holders::kubelet::messages::{ClaimResource, ContainerDevices, DynamicResource, PodResources};
use crate::holders::kubelet::pod::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, ObjectMeta,
    OwnerReference, Pod, PodStatus, Time,
};
use crate::holders::workload_path::WorkloadPath;
use crate::holders::{BelievedCgroups, JobObservation, JobTracker, NodeGpus, ResolvedWorkloads};
use crate::model::{HoldingSource, PodLabel, PodPattern};

const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
const UID: &str = "11111111-052c-4b11-80d3-4d7b2d2d3464";
const OTHER_UID: &str = "22222222-052c-4b11-80d3-4d7b2d2d3464";
const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

fn devices(ids: &[&str]) -> ContainerDevices {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids }
}

fn container(name: &str, ids: &[&str]) -> ContainerResources {
    ContainerResources { name: name.into(), devices: vec![devices(ids)], dynamic_resources: Vec::new() }
}

fn listed(containers: Vec<ContainerResources>) -> ListPodResourcesResponse {
    let pod = PodResources { name: "train-0".into(), namespace: "ml".into(), containers };
    ListPodResourcesResponse { pod_resources: vec![pod] }
}

fn logged(uid: &str) -> LoggedPod {
    LoggedPod { namespace: "ml".into(), name: "train-0".into(), uid: uid.into() }
}

/// Logs of these pods, begun one after the other, and of one container of the last.
fn logs(uids: &[&str]) -> PodLogs {
    let pods = (1..).zip(uids).map(|(second, uid)| PodLog { pod: logged(uid), changed: Utc(second) });
    let main = |uid: &&str| ContainerLog { pod: logged(uid), name: "main".into(), id: ID.into() };
    let containers = Some(uids.last().map(main).into_iter().collect());
    PodLogs { pods: Some(pods.collect()), containers, unread: None }
}

struct TestNode {
    pods: PodTracker,
    resources: Resources,
    metadata: PodMetadata,
    running: Option<BTreeSet<String>>,
    administrative: BTreeSet<ClaimedDevice>,
    now: Utc,
}

impl TestNode {
    fn new(replicas: Option<u32>) -> Self {
        let resources = Resources { names: vec!["nvidia.com/*".into()], replicas, ignored: Vec::new() };
        let (pods, metadata) = (PodTracker::default(), PodMetadata::default());
        let administrative = BTreeSet::new();
        Self { pods, resources, metadata, running: None, administrative, now: Utc(10) }
    }

    fn round(
        &mut self,
        listed: Option<&ListPodResourcesResponse>,
        allocatable: Option<&[&str]>,
        logs: &PodLogs,
    ) -> PodHoldings {
        let allocatable = allocatable.map(|ids| AllocatableResourcesResponse { devices: vec![devices(ids)] });
        self.pods.observe(PodObservation {
            listed,
            allocatable: allocatable.as_ref(),
            logs,
            metadata: &self.metadata,
            running: self.running.as_ref(),
            minors: &BTreeMap::from([(0, GPU.to_owned())]),
            now: self.now,
            resources: &self.resources,
            administrative: &self.administrative,
        })
    }
}

fn held(known: &PodHoldings) -> Vec<(&str, Fraction)> {
    known.allocations.iter().map(|one| (one.holder.id.as_str(), one.fraction)).collect()
}

const fn one_of(denominator: u32) -> Fraction {
    Fraction { numerator: 1, denominator }
}

#[test]
fn a_container_with_a_gpu_holds_it_and_its_processes_are_its() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU]), container("sidecar", &[])]);
    let known = node.round(Some(&list), None, &logs(&[UID]));
    let id = format!("k8s:{UID}/main");
    assert_eq!(held(&known), [(&*id, Fraction::WHOLE)]);
    assert_eq!(known.problems, BTreeSet::new());
    let holder = known.map.holder(UID, ID).unwrap();
    assert_eq!(*holder, known.allocations[0].holder);
    let facts: Vec<_> = holder.facts.iter().map(|(_, text)| text).collect();
    assert_eq!(facts, ["ml", "train-0", UID, "main"]);
    assert_eq!(known.map.holder(OTHER_UID, ID), None, "a container of another pod");
    assert_eq!(known.map.holder(UID, ""), None);
}

#[test]
fn a_holding_ends_with_the_second_list_that_has_it_not_and_a_failed_list_ends_nothing() {
    let mut node = TestNode::new(None);
    let (list, none) = (listed(vec![container("main", &[GPU])]), ListPodResourcesResponse::default());
    let id = format!("k8s:{UID}/main");
    node.round(Some(&list), None, &logs(&[UID]));
    let missing = node.round(Some(&none), None, &logs(&[]));
    assert_eq!((held(&missing), missing.is_ending), (vec![(&*id, Fraction::WHOLE)], true));
    let unanswered = node.round(None, None, &logs(&[]));
    assert_eq!(held(&unanswered).len(), 1);
    let ended = node.round(Some(&none), None, &logs(&[]));
    assert_eq!((held(&ended), ended.is_ending), (vec![], false));
    node.round(Some(&list), None, &logs(&[UID]));
    node.round(Some(&none), None, &logs(&[UID]));
    let back = node.round(Some(&list), None, &logs(&[UID]));
    assert_eq!(held(&back).len(), 1);
    assert_eq!(held(&node.round(Some(&none), None, &logs(&[UID]))).len(), 1, "missing for the first time");
}

#[test]
fn a_replica_keeps_the_share_that_it_was_granted() {
    let mut node = TestNode::new(Some(3));
    let replica = |at: u32| format!("{GPU}::{at}");
    let all: Vec<String> = (0..10).map(replica).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let first = listed(vec![container("main", &all[..1])]);
    assert!(node.pods.needs_allocatable(&first, &node.resources));
    let known = node.round(Some(&first), Some(&all[..4]), &logs(&[UID]));
    assert_eq!(known.allocations[0].fraction, one_of(4));
    assert!(!node.pods.needs_allocatable(&first, &node.resources));
    let both = listed(vec![container("main", &all[..1]), container("other", &all[7..8])]);
    let known = node.round(Some(&both), Some(&all), &logs(&[UID]));
    let shares: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
    assert_eq!(shares, [one_of(4), one_of(10)]);
    let mut old_kubelet = TestNode::new(Some(3));
    assert_eq!(old_kubelet.round(Some(&first), None, &logs(&[UID])).allocations[0].fraction, one_of(3));
    let mut unknown = TestNode::new(None);
    let known = unknown.round(Some(&first), None, &logs(&[UID]));
    assert!(known.allocations.is_empty());
    let problem = known.problems.first().unwrap();
    assert!(problem.contains("attribution.kubernetes.replicas"), "{problem}");
}

fn held_before(uid: &str, container: &str, fraction: Fraction) -> Allocation {
    let facts = Facts::new([
        (Fact::Namespace, "ml"),
        (Fact::Pod, "train-0"),
        (Fact::PodContainer, container),
        (Fact::PodUid, uid),
    ]);
    let holder = Holder::new(HolderKind::Pod, facts);
    Allocation::new(&holder, GPU, fraction, HoldingSource::Kubernetes)
}

#[test]
fn what_was_held_stays_until_the_first_list_or_until_its_pod_has_no_cgroup() {
    let mut node = TestNode::new(None);
    let before = vec![held_before(UID, "main", one_of(2)), held_before(OTHER_UID, "main", one_of(4))];
    node.pods = PodTracker::continuing(before.clone());
    assert_eq!(node.round(None, None, &logs(&[UID])).allocations, before, "nobody knows which pods run");
    node.running = Some([UID.to_owned(), OTHER_UID.to_owned()].into());
    assert_eq!(node.round(None, None, &logs(&[UID])).allocations, before);
    node.running = Some([OTHER_UID.to_owned()].into());
    assert_eq!(node.round(None, None, &logs(&[UID])).allocations, before[1..]);
    assert!(node.pods.awaits_first_list());
    let list = listed(vec![container("main", &[GPU])]);
    let known = node.round(Some(&list), None, &logs(&[UID]));
    assert_eq!(
        held(&known),
        [(&*format!("k8s:{UID}/main"), Fraction::WHOLE)],
        "the list decides, and it began anew"
    );
    assert!(!node.pods.awaits_first_list());
}

#[test]
fn a_replica_keeps_its_share_over_a_restart_of_the_agent() {
    let replicas: Vec<String> = (0..10).map(|at| format!("{GPU}::{at}")).collect();
    let replicas: Vec<&str> = replicas.iter().map(String::as_str).collect();
    let list = listed(vec![container("main", &replicas[..2]), container("other", &replicas[3..4])]);
    let held_before =
        |of: &str, numerator, denominator| held_before(UID, of, Fraction { numerator, denominator });
    // It was granted when the GPU had four replicas; it has ten now.
    let mut node = TestNode::new(None);
    node.pods = PodTracker::continuing(vec![held_before("main", 1, 2), held_before("gone", 1, 4)]);
    for _ in 0..2 {
        let known = node.round(Some(&list), Some(&replicas), &logs(&[UID]));
        let shares: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
        assert_eq!(shares, [one_of(4), one_of(4), one_of(10)]);
    }
}

#[test]
fn a_pod_made_anew_under_the_same_name_is_another_holder() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    node.round(Some(&list), None, &logs(&[UID]));
    let known = node.round(Some(&list), None, &logs(&[UID, OTHER_UID]));
    assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
    assert_eq!(known.map.holder(OTHER_UID, ID).unwrap().id.as_str(), format!("k8s:{OTHER_UID}/main"));
}

#[test]
fn a_pod_that_is_listed_beside_the_one_that_replaced_it_under_its_name_holds_nothing() {
    const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000000";
    let list = |gpus: &[&[&str]]| {
        let pods = gpus.iter().flat_map(|ids| listed(vec![container("main", ids)]).pod_resources);
        ListPodResourcesResponse { pod_resources: pods.collect() }
    };
    let mut node = TestNode::new(None);
    let mut held = |gpus: &[&[&str]]| {
        let known = node.round(Some(&list(gpus)), None, &logs(&[UID]));
        known.allocations.iter().map(|one| one.device.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(held(&[&[GPU]]), [GPU]);
    for order in [[&[GPU][..], &[OTHER]], [&[OTHER], &[GPU]], [&[GPU], &[OTHER]]] {
        assert_eq!(held(&order), [OTHER], "{order:?}");
    }
    assert_eq!(held(&[&[], &[OTHER]]), [OTHER], "what has ended has given its devices back");
    assert_eq!(held(&[&[OTHER], &[]]), [OTHER]);
    assert_eq!(held(&[&[OTHER]]), [OTHER]);
    assert_eq!(held(&[&[OTHER], &[GPU]]), [GPU], "replaced another time");
}

#[test]
fn a_pod_that_has_ended_and_is_still_listed_yields_its_gpu_to_the_next() {
    let mut node = TestNode::new(None);
    let mut list = listed(vec![container("main", &[GPU])]);
    node.round(Some(&list), None, &logs(&[UID]));
    let mut next = list.pod_resources[0].clone();
    next.name = "train-1".into();
    list.pod_resources.push(next);
    let holders = |known: &PodHoldings| {
        known
            .allocations
            .iter()
            .map(|one| one.holder.facts.get(Fact::Pod).unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(holders(&node.round(Some(&list), None, &logs(&[UID]))), ["train-1"]);
    assert_eq!(holders(&node.round(Some(&list), None, &logs(&[UID]))), ["train-1"]);
    list.pod_resources.pop();
    node.round(Some(&list), None, &logs(&[UID]));
    assert!(node.round(Some(&list), None, &logs(&[UID])).allocations.is_empty(), "ended is ended");
}

fn described(uid: &str, phase: &str) -> Pod {
    let owner = OwnerReference { kind: "Job".into(), name: "train".into(), controller: true };
    let metadata = ObjectMeta {
        name: "train-0".into(),
        namespace: "ml".into(),
        uid: uid.into(),
        labels: [("team", "vision"), ("queue", "x y")].map(|(key, value)| (key.into(), value.into())).into(),
        owner_references: vec![owner],
        ..ObjectMeta::default()
    };
    let main =
        ContainerStatus { name: "main".into(), container_id: format!("containerd://{ID}"), state: None };
    let status = PodStatus { phase: phase.into(), container_statuses: vec![main], ..PodStatus::default() };
    Pod { metadata: Some(metadata), status: Some(status) }
}

fn metadata(pods: &[Pod]) -> PodMetadata {
    PodMetadata::new(pods, &["team".to_owned(), "queue".to_owned()], Utc(2))
}

#[test]
fn what_kubernetes_says_of_a_pod_joins_its_processes_and_is_known_of_its_containers() {
    let mut node = TestNode::new(None);
    node.metadata = metadata(&[described(UID, "Running")]);
    let list = listed(vec![container("main", &[GPU])]);
    let unread = PodLogs { unread: Some("no logs".into()), ..PodLogs::default() };
    let known = node.round(Some(&list), None, &unread);
    assert_eq!(known.problems, BTreeSet::new(), "logs are not needed");
    let holder = known.map.holder(UID, ID).unwrap();
    assert_eq!(*holder, known.allocations[0].holder);
    assert_eq!(holder.facts.get(Fact::OwnerKind).map(|text| &**text), Some("Job"));
    assert_eq!(holder.facts.get(Fact::OwnerName).map(|text| &**text), Some("train"));
    let labels: Vec<_> = holder.facts.pod_labels().iter().map(PodLabel::name_and_value).collect();
    assert_eq!(labels, [("k8s_pod_label_team", "vision")], "a value that is none is left out");
}

#[test]
fn a_changed_label_of_a_pod_reaches_its_running_processes() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    let mut workloads = |team: Option<&str>| {
        let mut pod = described(UID, "Running");
        let labels = team.map(|team| ("team".to_owned(), team.to_owned()));
        pod.metadata.as_mut().unwrap().labels = labels.into_iter().collect();
        node.metadata = metadata(&[pod]);
        let known = node.round(Some(&list), None, &logs(&[UID]));
        let holder = known.map.holder(UID, ID).unwrap().clone();
        assert_eq!(holder, known.allocations[0].holder);
        (ResolvedWorkloads { pods: Arc::new(known.map), ..ResolvedWorkloads::default() }, holder)
    };
    let (_, first) = workloads(Some("vision"));
    for team in [Some("speech"), None] {
        let (workloads, now) = workloads(team);
        assert_eq!(workloads.current(&first).as_ref(), Some(&now));
        assert_eq!(first.facts.completed_by(&now.facts), None, "another version");
    }
}

#[test]
fn a_holding_began_with_the_first_list_or_with_its_container_where_that_was_earlier() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    let mut began = |now: u64, started: Option<i64>, uids: &[&str]| {
        node.now = Utc(now * 1_000_000_000);
        let mut pod = described(uids[uids.len() - 1], "Running");
        let status = &mut pod.status.as_mut().unwrap().container_statuses[0];
        let started_at = started.map(|seconds| Time { seconds, nanos: 0 });
        let running = Some(ContainerStateRunning { started_at });
        status.state = Some(ContainerState { running, terminated: None });
        node.metadata = metadata(&[pod]);
        let known = node.round(Some(&list), None, &logs(uids));
        known.allocations[0].since.unwrap().0 / 1_000_000_000
    };
    assert_eq!(began(10, None, &[UID]), 10, "it has not started");
    assert_eq!(began(11, Some(11), &[UID]), 10, "listed before it started");
    assert_eq!(began(12, Some(7), &[UID]), 7, "its start became known later");
    assert_eq!(began(13, Some(13), &[UID]), 7, "it was started anew");
    assert_eq!(began(14, None, &[UID]), 7, "it waits for its restart");
    assert_eq!(began(20, Some(18), &[UID, OTHER_UID]), 18, "another pod of the same name");
}

#[test]
fn a_pod_that_has_ended_holds_nothing_however_long_it_is_listed() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    assert_eq!(held(&node.round(Some(&list), None, &logs(&[UID]))).len(), 1);
    for phase in ["Succeeded", "Failed"] {
        node.metadata = metadata(&[described(UID, phase)]);
        assert!(held(&node.round(Some(&list), None, &logs(&[UID]))).is_empty(), "{phase}");
    }
    // Another of the same name has begun; the former is still described.
    node.metadata = metadata(&[described(UID, "Failed"), described(OTHER_UID, "Pending")]);
    let known = node.round(Some(&list), None, &logs(&[UID]));
    assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
}

/// What Kubernetes says of pod `ml/train-0` with containers that ended at these seconds; none runs still.
fn ended(phase: &str, containers: &[(&str, Option<i64>)]) -> Pod {
    let time = |seconds| Some(Time { seconds, nanos: 0 });
    let status = |(name, finished): &(&str, Option<i64>)| ContainerStatus {
        name: (*name).into(),
        state: Some(match finished {
            Some(finished) => {
                let terminated =
                    ContainerStateTerminated { started_at: time(20), finished_at: time(*finished) };
                ContainerState { terminated: Some(terminated), running: None }
            }
            None => ContainerState {
                running: Some(ContainerStateRunning { started_at: time(20) }),
                terminated: None,
            },
        }),
        container_id: String::new(),
    };
    let mut pod = described(UID, phase);
    pod.status.as_mut().unwrap().container_statuses = containers.iter().map(status).collect();
    pod
}

/// Holders with the seconds between which they held.
fn spans(ended: &[Allocation]) -> Vec<(String, u64, u64)> {
    let second = |time: Utc| time.0 / 1_000_000_000;
    let span = |one: &Allocation| {
        (one.holder.id.to_string(), second(one.since.unwrap()), second(one.until.unwrap()))
    };
    ended.iter().map(span).collect()
}

#[test]
fn a_pod_that_is_listed_no_more_held_until_its_last_container_ended() {
    let main = format!("k8s:{UID}/main");
    let (list, none) = (listed(vec![container("main", &[GPU])]), ListPodResourcesResponse::default());
    for (pod, until) in [
        (Some(ended("Running", &[("main", Some(25))])), 25),
        (Some(ended("Running", &[("main", Some(25)), ("sidecar", Some(28))])), 28),
        (Some(ended("Running", &[("main", Some(25)), ("sidecar", None)])), 30),
        (Some(ended("Running", &[("main", Some(-62_135_596_800))])), 30),
        (None, 30),
    ] {
        let mut node = TestNode::new(None);
        let at = |node: &mut TestNode, second: u64, list: &ListPodResourcesResponse| {
            node.now = Utc(second * 1_000_000_000);
            node.round(Some(list), None, &logs(&[UID]))
        };
        assert_eq!(spans(&at(&mut node, 21, &list).ended), []);
        node.metadata = pod.clone().map(|pod| metadata(&[pod])).unwrap_or_default();
        let began = if pod.is_some() { 20 } else { 21 };
        assert_eq!(spans(&at(&mut node, 30, &none).ended), [], "the next list decides");
        // The API server may have forgotten it by then.
        node.metadata = PodMetadata::default();
        let known = at(&mut node, 31, &none);
        assert_eq!((held(&known).len(), spans(&known.ended)), (0, vec![(main.clone(), began, until)]));
        assert_eq!(spans(&at(&mut node, until + 59, &none).ended).len(), 1);
        assert_eq!(spans(&at(&mut node, until + 60, &none).ended), [], "no window is open any more");
    }
}

#[test]
fn a_pod_that_has_ended_and_is_still_listed_held_until_its_last_container_ended() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    node.now = Utc(26_000_000_000);
    node.metadata = metadata(&[ended("Succeeded", &[("main", Some(25))])]);
    let known = node.round(Some(&list), None, &logs(&[UID]));
    assert_eq!(held(&known), [], "also where it was never seen to run");
    assert_eq!(spans(&known.ended), [(format!("k8s:{UID}/main"), 20, 25)]);
    node.now = Utc(85_000_000_000);
    assert_eq!(node.round(Some(&list), None, &logs(&[UID])).ended, []);
}

#[test]
fn a_pod_whose_gpu_the_next_pod_has_in_the_same_list_held_until_its_last_container_ended() {
    let pod = |name: &str| PodResources {
        name: name.into(),
        namespace: "ml".into(),
        containers: vec![container("main", &[GPU])],
    };
    let list = |names: &[&str]| ListPodResourcesResponse {
        pod_resources: names.iter().map(|name| pod(name)).collect(),
    };
    let next = LoggedPod { name: "train-1".into(), ..logged(OTHER_UID) };
    let logs = PodLogs {
        pods: Some(vec![PodLog { pod: logged(UID), changed: Utc(1) }, PodLog { pod: next, changed: Utc(2) }]),
        ..PodLogs::default()
    };
    let [first, second] = [UID, OTHER_UID].map(|uid| format!("k8s:{uid}/main"));
    for (names, phase, finished, until) in [
        (&["train-1"][..], "Running", Some(25), 25),
        (&["train-0", "train-1"], "Running", Some(25), 25),
        (&["train-0", "train-1"], "Succeeded", Some(25), 25),
        (&["train-1"], "Running", None, 30),
    ] {
        let mut node = TestNode::new(None);
        let mut at = |second: u64, names: &[&str], phase: &str, finished: Option<i64>| {
            node.now = Utc(second * 1_000_000_000);
            node.metadata = metadata(&[ended(phase, &[("main", finished)])]);
            node.round(Some(&list(names)), None, &logs)
        };
        let known = at(21, &["train-0"], "Running", None);
        assert_eq!((held(&known), known.ended.len()), (vec![(&*first, Fraction::WHOLE)], 0));
        for now in [30, 31, 32] {
            let known = at(now, names, phase, finished);
            assert_eq!(held(&known), [(&*second, Fraction::WHOLE)]);
            assert_eq!(
                spans(&known.ended),
                [(first.clone(), 20, until)],
                "{names:?} {phase} {finished:?} {now}"
            );
        }
    }
}

#[test]
fn a_pod_whose_name_and_gpu_the_next_pod_has_held_until_its_last_container_ended() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    node.now = Utc(21_000_000_000);
    node.metadata = metadata(&[ended("Running", &[("main", None)])]);
    node.round(Some(&list), None, &logs(&[UID]));
    node.now = Utc(30_000_000_000);
    node.metadata = metadata(&[ended("Running", &[("main", Some(25))])]);
    let gone = "33333333-052c-4b11-80d3-4d7b2d2d3464";
    let known = node.round(Some(&list), None, &logs(&[gone, UID, OTHER_UID]));
    assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
    assert_eq!(spans(&known.ended), [(format!("k8s:{UID}/main"), 20, 25)]);
}

#[test]
fn a_pod_that_ended_at_an_unknown_time_holds_nothing_after_it_is_listed_no_more() {
    let mut node = TestNode::new(None);
    let (list, none) = (listed(vec![container("main", &[GPU])]), ListPodResourcesResponse::default());
    node.metadata = metadata(&[described(UID, "Failed")]);
    let is_nothing = |known: PodHoldings| known.allocations.is_empty() && known.ended.is_empty();
    assert!(is_nothing(node.round(Some(&list), None, &logs(&[UID]))));
    node.metadata = PodMetadata::default();
    for list in [&list, &none, &none] {
        assert!(is_nothing(node.round(Some(list), None, &logs(&[UID]))));
    }
}

#[test]
fn a_container_whose_id_the_kubelet_cut_is_found_by_its_first_digits() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU]), container("sidecar", &[])]);
    let log = |name: &str, id: &str| ContainerLog { pod: logged(UID), name: name.into(), id: id.into() };
    let mut find = |containers: Vec<ContainerLog>, id: &str| {
        let pods = Some(vec![PodLog { pod: logged(UID), changed: Utc(1) }]);
        let logs = PodLogs { pods, containers: Some(containers), unread: None };
        let known = node.round(Some(&list), None, &logs);
        known.map.holder(UID, id).map(|holder| holder.facts.get(Fact::PodContainer).unwrap().to_string())
    };
    let other = ID.replace("2b18", "2b19");
    for (main, sidecar, found) in
        [(8, 8, Some("main")), (4, 4, Some("main")), (3, 3, None), (0, 0, None), (64, 0, Some("main"))]
    {
        let both = vec![log("main", &ID[..main]), log("sidecar", &other[..sidecar])];
        assert_eq!(find(both, ID).as_deref(), found, "{main} {sidecar}");
    }
    assert_eq!(find(vec![log("main", "")], ID).as_deref(), Some("main"), "the only container");
    assert_eq!(find(vec![log("main", &ID[..3]), log("main", &ID[..3])], ID).as_deref(), Some("main"));
    assert_eq!(find(vec![log("main", &ID[..3])], &other.replace("2b", "3b")), None);
}

#[test]
fn a_pod_that_began_after_it_was_read_what_pods_there_are_is_known_by_its_logs() {
    let mut node = TestNode::new(None);
    node.metadata = metadata(&[described(UID, "Running")]);
    let list = listed(vec![container("main", &[GPU])]);
    // The pods' logs began at 1, 2 and 3; what is described was read at 2.
    let gone = "33333333-052c-4b11-80d3-4d7b2d2d3464";
    let known = node.round(Some(&list), None, &logs(&[gone]));
    assert_eq!(held(&known)[0].0, format!("k8s:{UID}/main"), "the other one is gone");
    let known = node.round(Some(&list), None, &logs(&[gone, UID, OTHER_UID]));
    assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
}

#[test]
fn without_logs_a_container_holds_under_its_names_and_no_process_is_joined() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    let unread = PodLogs { unread: Some("no logs".into()), ..PodLogs::default() };
    let known = node.round(Some(&list), None, &unread);
    assert_eq!(held(&known), [("k8s:ml/train-0/main", Fraction::WHOLE)]);
    assert_eq!(known.problems, ["no logs".to_owned()].into());
    assert_eq!(known.allocations[0].holder.facts.get(Fact::Namespace).map(|text| &**text), Some("ml"));
    assert_eq!(known.map, PodMap::default());
}

#[test]
fn empty_log_directories_are_a_problem_where_the_kubelet_lists_devices() {
    let mut node = TestNode::new(None);
    let of_nobody = node.round(Some(&listed(vec![container("main", &[])])), None, &logs(&[]));
    assert_eq!(of_nobody.problems, BTreeSet::new());
    let list = listed(vec![container("main", &[GPU])]);
    let problems = node.round(Some(&list), None, &logs(&[])).problems;
    assert!(problems.first().unwrap().contains("no GPU process can be matched to its pod"), "{problems:?}");
    assert_eq!(node.round(Some(&list), None, &logs(&[UID])).problems, BTreeSet::new());
}

#[test]
fn without_container_ids_only_a_pod_of_one_container_is_joined() {
    let mut node = TestNode::new(None);
    let only_pods = PodLogs { containers: None, ..logs(&[UID]) };
    let known = node.round(Some(&listed(vec![container("main", &[GPU])])), None, &only_pods);
    assert_eq!(known.map.holder(UID, ID).unwrap().id.as_str(), format!("k8s:{UID}/main"));
    let two = listed(vec![container("main", &[GPU]), container("sidecar", &[])]);
    assert_eq!(node.round(Some(&two), None, &only_pods).map.holder(UID, ID), None);
}

fn claiming(name: &str, device: &str) -> ContainerResources {
    let device = ClaimResource {
        driver_name: NVIDIA_DRIVER.into(),
        pool_name: "node-1".into(),
        device_name: device.into(),
        share_id: None,
    };
    let claim = DynamicResource {
        claim_name: "claim".into(),
        claim_namespace: "ml".into(),
        claim_resources: vec![device],
    };
    ContainerResources { name: name.into(), devices: Vec::new(), dynamic_resources: vec![claim] }
}

#[test]
fn a_claimed_gpu_is_held_and_containers_that_share_the_claim_share_it_equally() {
    let mut node = TestNode::new(None);
    let known = node.round(Some(&listed(vec![claiming("main", "gpu-0")])), None, &logs(&[UID]));
    let main = format!("k8s:{UID}/main");
    assert_eq!(held(&known), [(&*main, Fraction::WHOLE)]);
    assert_eq!(known.allocations[0].device, GPU.into());
    let mut node = TestNode::new(None);
    let both = listed(vec![claiming("main", "gpu-0"), claiming("other", "gpu-0")]);
    let known = node.round(Some(&both), None, &logs(&[UID]));
    let other = format!("k8s:{UID}/other");
    assert_eq!(held(&known), [(&*main, one_of(2)), (&*other, one_of(2))]);
    assert_eq!(held(&node.round(Some(&both), None, &logs(&[UID]))).len(), 2, "neither ends the other's");
    let far = node.round(Some(&listed(vec![claiming("main", "gpu-7")])), None, &logs(&[UID]));
    assert!(far.problems.first().unwrap().contains("minor number 7"), "{:?}", far.problems);
}

/// Pod `ml/train-0` and a monitoring pod with claims of their own on one GPU, and those of the claims.
fn monitored() -> (ListPodResourcesResponse, [ClaimedDevice; 2]) {
    let mut list = listed(vec![claiming("main", "gpu-0")]);
    let mut exporter = claiming("exporter", "gpu-0");
    exporter.dynamic_resources[0].claim_name = "admin".into();
    exporter.dynamic_resources[0].claim_namespace = "monitoring".into();
    list.pod_resources.push(PodResources {
        name: "exporter-x7".into(),
        namespace: "monitoring".into(),
        containers: vec![exporter],
    });
    let devices = [0, 1].map(|at| {
        let claim = &list.pod_resources[at].containers[0].dynamic_resources[0];
        let device = &claim.claim_resources[0];
        ClaimedDevice {
            claim: ClaimName { namespace: claim.claim_namespace.clone(), name: claim.claim_name.clone() },
            driver: device.driver_name.clone(),
            pool: device.pool_name.clone(),
            device: device.device_name.clone(),
        }
    });
    (list, devices)
}

#[test]
fn a_claim_with_administrative_access_is_no_claim() {
    let (list, [used, watched]) = monitored();
    assert_eq!(gpu_claims(&list), [used.claim, watched.claim.clone()].into());
    let mut node = TestNode::new(None);
    let main = format!("k8s:{UID}/main");
    let both = [(&*main, Fraction::WHOLE), ("k8s:monitoring/exporter-x7/exporter", Fraction::WHOLE)];
    assert_eq!(held(&node.round(Some(&list), None, &logs(&[UID]))), both, "nothing tells it yet");
    node.administrative.insert(watched);
    assert_eq!(held(&node.round(Some(&list), None, &logs(&[UID]))), [both[0]]);
}

#[test]
fn a_pod_that_is_ignored_holds_nothing() {
    let (list, _) = monitored();
    for (namespace, pod, holders) in [
        ("monitoring", "*", vec![format!("k8s:{UID}/main")]),
        ("mon*", "exporter-??", vec![format!("k8s:{UID}/main")]),
        ("*", "train-*", vec!["k8s:monitoring/exporter-x7/exporter".to_owned()]),
        (
            "ml",
            "exporter-*",
            vec![format!("k8s:{UID}/main"), "k8s:monitoring/exporter-x7/exporter".to_owned()],
        ),
    ] {
        let mut node = TestNode::new(None);
        node.resources.ignored = vec![PodPattern { namespace: namespace.into(), pod: pod.into() }];
        let recovered = held_before(OTHER_UID, "main", Fraction::WHOLE);
        node.pods = PodTracker::continuing(vec![recovered]);
        let before = node.round(None, None, &logs(&[])).allocations.len();
        assert_eq!(before, usize::from(pod != "train-*"), "{namespace}/{pod}");
        let known = node.round(Some(&list), None, &logs(&[UID]));
        assert_eq!(held(&known).iter().map(|(id, _)| (*id).to_owned()).collect::<Vec<_>>(), holders);
        assert!(known.map.holder(UID, ID).is_some(), "its use has a name all the same");
    }
}

#[test]
fn the_share_of_a_claim_follows_the_containers_that_hold_it() {
    let names: Vec<String> = (0..10).map(|at| format!("c{at}")).collect();
    let list = |count: usize| listed(names[..count].iter().map(|name| claiming(name, "gpu-0")).collect());
    let mut node = TestNode::new(None);
    let mut shares = |count: usize| {
        let known = node.round(Some(&list(count)), None, &logs(&[UID]));
        known.allocations.iter().map(|one| one.fraction).collect::<Vec<_>>()
    };
    assert_eq!(shares(10), [one_of(10); 10]);
    assert_eq!(shares(1), [one_of(10); 10], "the next list decides whether the others have ended");
    assert_eq!(shares(1), [Fraction::WHOLE], "alone on the GPU");
    assert_eq!(shares(2), [one_of(2); 2]);
}

#[test]
fn containers_that_share_a_claim_end_with_the_shares_that_they_had() {
    let both = listed(vec![claiming("main", "gpu-0"), claiming("other", "gpu-0")]);
    let none = ListPodResourcesResponse::default();
    let shares = |known: &PodHoldings| known.ended.iter().map(|one| one.fraction).collect::<Vec<_>>();
    let mut node = TestNode::new(None);
    node.round(Some(&both), None, &logs(&[UID]));
    node.round(Some(&none), None, &logs(&[UID]));
    assert_eq!(shares(&node.round(Some(&none), None, &logs(&[UID]))), [one_of(2); 2]);
    let mut node = TestNode::new(None);
    node.now = Utc(26_000_000_000);
    node.metadata = metadata(&[ended("Succeeded", &[("main", Some(25)), ("other", Some(25))])]);
    for _ in 0..2 {
        assert_eq!(
            shares(&node.round(Some(&both), None, &logs(&[UID]))),
            [one_of(2); 2],
            "it is still listed"
        );
    }
}

#[test]
fn a_pod_that_has_ended_and_is_still_listed_has_no_share_of_its_claim() {
    let pod = |name: &str| PodResources {
        name: name.into(),
        namespace: "ml".into(),
        containers: vec![claiming("main", "gpu-0")],
    };
    let list = ListPodResourcesResponse { pod_resources: vec![pod("train-0"), pod("train-1")] };
    let mut other = described(OTHER_UID, "Running");
    other.metadata.as_mut().unwrap().name = "train-1".into();
    let mut node = TestNode::new(None);
    let mut shares = |phase: &str| {
        node.metadata = metadata(&[described(UID, phase), other.clone()]);
        let known = node.round(Some(&list), None, &PodLogs::default());
        known.allocations.iter().map(|one| (one.holder.id.to_string(), one.fraction)).collect::<Vec<_>>()
    };
    let [first, second] = [UID, OTHER_UID].map(|uid| format!("k8s:{uid}/main"));
    assert_eq!(shares("Running"), [(first, one_of(2)), (second.clone(), one_of(2))]);
    assert_eq!(shares("Succeeded"), [(second, Fraction::WHOLE)]);
}

#[test]
fn a_mig_instance_is_held_by_its_uuid() {
    let mut node = TestNode::new(None);
    let mig = GPU.replace("GPU-", "MIG-");
    let known = node.round(Some(&listed(vec![container("main", &[&mig])])), None, &logs(&[UID]));
    assert_eq!(
        (&known.allocations[0].device, known.allocations[0].fraction),
        (&(&*mig).into(), Fraction::WHOLE)
    );
}

#[test]
fn what_is_no_known_device_and_who_has_no_kubernetes_name_holds_nothing_and_is_told() {
    let mut node = TestNode::new(None);
    let hami = format!("{GPU}-0");
    let claiming = claiming("claims", "gpu-0-mig-19-0");
    let mut unrelated = container("other", &["x"]);
    unrelated.devices[0].resource_name = "example.com/fpga".into();
    let list = listed(vec![
        container("main", &[&hami, "MIG-1", "nvidia7", "nvidia0", "nvidia0/gi"]),
        claiming,
        unrelated,
        container("a\nb", &[GPU]),
        container(&"x".repeat(64), &[GPU]),
    ]);
    let known = node.round(Some(&list), None, &logs(&[UID]));
    assert_eq!(held(&known), [(&*format!("k8s:{UID}/main"), Fraction::WHOLE)], "nvidia0");
    assert_eq!(known.problems.len(), 7, "{:#?}", known.problems);
    assert!(known.problems.iter().all(|problem| !problem.contains('\n')));
}

#[test]
fn of_two_pods_that_a_first_list_shows_on_one_gpu_the_one_that_began_last_holds_it() {
    let pod = |name: &str| PodResources {
        name: name.into(),
        namespace: "ml".into(),
        containers: vec![container("main", &[GPU])],
    };
    let list = ListPodResourcesResponse { pod_resources: vec![pod("train-0"), pod("train-1")] };
    let log = |name: &str, uid: &str, second| PodLog {
        pod: LoggedPod { name: name.into(), ..logged(uid) },
        changed: Utc(second),
    };
    let of = |logs: Option<Vec<PodLog>>| {
        let logs = PodLogs { pods: logs, ..PodLogs::default() };
        let known = TestNode::new(None).round(Some(&list), Some(&[]), &logs);
        known.allocations.iter().map(|one| one.holder.id.to_string()).collect::<Vec<_>>()
    };
    let logs = vec![log("train-0", UID, 7), log("train-1", OTHER_UID, 3)];
    assert_eq!(of(Some(logs)), [format!("k8s:{UID}/main")], "train-1 has ended and is not deleted yet");
    assert_eq!(of(None).len(), 2, "nobody knows which");
}

#[test]
fn logs_that_cannot_be_read_for_a_round_rename_nobody() {
    let mut node = TestNode::new(None);
    let list = listed(vec![container("main", &[GPU])]);
    let before = node.round(Some(&list), Some(&[]), &logs(&[UID]));
    let after = node.round(Some(&list), Some(&[]), &PodLogs::default());
    assert_eq!(after.allocations, before.allocations);
    assert_eq!(after.map.containers, before.map.containers);
    assert_eq!(after.allocations[0].holder.id.as_str(), format!("k8s:{UID}/main"));
}

fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["ml", "train-0", "a.b", "", "A", "a/b", "a_b", "a\nb", "../..", "\u{202e}x"])
        .prop_map(str::to_owned)
}

fn any_device() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "::0", "::1", "::x", "-0", "/vgpu0"]).prop_flat_map(|end| {
        prop::sample::select(vec![GPU, "MIG-1", "nvidia0", "nvidia9", ""])
            .prop_map(move |device| format!("{device}{end}"))
    })
}

proptest! {
    #[test]
    fn whatever_the_kubelet_lists_only_known_devices_are_held_by_printable_names(
        lists in prop::collection::vec(
            prop::collection::vec((any_name(), any_name(), any_name(), any_device()), 0..6), 1..4,
        )
    ) {
        let mut node = TestNode::new(None);
        for list in lists {
            let pod_resources = list.iter().map(|(namespace, name, of, device)| PodResources {
                name: name.clone(),
                namespace: namespace.clone(),
                containers: vec![container(of, &[device])],
            });
            let list = ListPodResourcesResponse { pod_resources: pod_resources.collect() };
            let known = node.round(Some(&list), Some(&[]), &logs(&[UID]));
            for one in known.allocations {
                prop_assert_eq!(one.device, GPU.into());
                prop_assert!(one.holder.id.as_str().starts_with("k8s:"));
                prop_assert!(one.holder.id.as_str().chars().all(|c| c.is_ascii_graphic()));
                prop_assert!(one.fraction.numerator == 1 && one.fraction.denominator >= 1);
            }
            prop_assert!(known.problems.iter().all(|problem| !problem.contains(char::is_control)));
        }
    }
}

/// What is known of a pod on the GPU, and of job 7 whose record names that GPU, with this pattern of nodes.
fn with_job_in_pod(pattern: &str, gpu: &str) -> ResolvedWorkloads {
    let mut node = TestNode::new(None);
    let pods = node.round(Some(&listed(vec![container("main", &[GPU])])), None, &logs(&[UID]));
    let record = format!("job_id=7\ncluster=alpha\naccount=phys\ngpus={gpu}\n");
    let records = [RecordFile { name: "7".into(), version: (1, 0, 0), bytes: Ok(record.into_bytes()) }];
    let jobs = JobTracker::default().observe(JobObservation {
        records: &records,
        mappings: &[],
        cluster: None,
        cgroups: None,
        environments: &BTreeMap::new(),
        gres: None,
        gpus: &NodeGpus::default(),
        now: crate::model::Nanoseconds(0),
        utc: Utc(0),
    });
    let root = tempfile::tempdir().unwrap();
    let cgroups = BelievedCgroups::new(&[], &[pattern.to_owned()], &Host::at(root.path())).into();
    let mut workloads = ResolvedWorkloads { cgroups, ..ResolvedWorkloads::default() };
    workloads.allocate(HoldingSource::Kubernetes, &pods.allocations);
    workloads.allocate(HoldingSource::Slurm, &jobs.allocations);
    (workloads.pods, workloads.jobs) = (pods.map.into(), jobs.map.into());
    workloads.nest_jobs();
    workloads
}

#[test]
fn a_job_is_in_a_pod_that_is_named_as_a_node_and_was_granted_the_gpu_of_its_record() {
    let pattern = format!("/kubepods/pod{UID}/*");
    let pod = HolderId::new(format!("k8s:{UID}/main"));
    let other_gpu = "GPU-00000000-052c-4b11-80d3-4d7b2d2d3464";
    let path = |job: &str| WorkloadPath::Job {
        node: String::new(),
        job: job.to_owned(),
        step: "0".to_owned(),
        pod: Some(Box::new(WorkloadPath::Pod { uid: UID.to_owned(), container: ID.to_owned() })),
    };
    for (pattern, gpu, within, holder) in [
        (&*pattern, GPU, Some(&pod), "slurm:alpha/7.0"),
        ("/kubepods/pod22222222*/*", GPU, None, pod.as_str()),
        (&*pattern, other_gpu, None, pod.as_str()),
    ] {
        let workloads = with_job_in_pod(pattern, gpu);
        let of_job = workloads.allocations.iter().find(|one| one.source == HoldingSource::Slurm).unwrap();
        assert_eq!(of_job.within.as_ref(), within, "{pattern} {gpu}");
        assert_eq!(workloads.identify(&path("7")).holder.id.as_str(), holder, "{pattern} {gpu}");
        assert_eq!(workloads.identify(&path("8")).holder.id, pod, "a job without a record");
    }
}

#[test]
fn a_job_in_a_pod_ends_with_the_pod_although_its_record_stays_and_its_next_run_is_in_the_next_pod() {
    let mut workloads = with_job_in_pod("/kubepods/pod*/*", GPU);
    let [of_pod, of_job] = [HoldingSource::Kubernetes, HoldingSource::Slurm]
        .map(|source| workloads.allocations.iter().find(|one| one.source == source).cloned().unwrap());
    let holders = |workloads: &ResolvedWorkloads| {
        workloads.allocations.iter().map(|one| one.holder.id.to_string()).collect::<Vec<_>>()
    };
    let mut round = |pods: &[Allocation], jobs: &[Allocation]| {
        workloads.allocate(HoldingSource::Kubernetes, pods);
        workloads.allocate(HoldingSource::Slurm, jobs);
        workloads.nest_jobs();
        holders(&workloads)
    };
    let (job, pod) = (of_job.holder.id.to_string(), of_pod.holder.id.to_string());
    let of_job = Allocation { within: None, ..of_job };
    let [of_pods, of_jobs] = [&of_pod, &of_job].map(std::slice::from_ref);
    assert_eq!(round(of_pods, of_jobs), [pod.clone(), job.clone()]);
    for _ in 0..2 {
        assert_eq!(round(&[], of_jobs), [""; 0], "the pod was deleted, and no epilog ran");
    }
    let mut next = of_pod.clone();
    next.holder.id = HolderId::new(format!("k8s:{OTHER_UID}/main"));
    assert_eq!(round(&[next], of_jobs), [format!("k8s:{OTHER_UID}/main")]);
    let mut requeued = of_job.clone();
    requeued.holder.facts.started = Some(2_000_000_000);
    assert_eq!(round(of_pods, &[requeued]), [pod, job]);
}
