//! The sources that describe a node's pods: the kubelet's Pods API and `nodes/pods`; and their faults.

use std::path::Path;

use gpumeter::holders::kubelet::{PodSource, PodSources, SourceSettings};
use gpumeter::model::Nanoseconds;
use tempfile::TempDir;
use tonic::Code;

use crate::kubelet::{self, Kubelet};
use crate::kubernetes_api::{Answers, Fault, Server, account, described};

const UID: &str = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

/// A node with both sources, each of which describes a pod named after it.
struct Node {
    directory: TempDir,
    pods_api: Kubelet,
    kubelet: Server,
    sources: PodSources,
    /// Nanoseconds; more than any pause after a failed round.
    now: Nanoseconds,
}

impl Node {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        account(&directory.path().join("account"), "ca");
        let socket = directory.path().join("pods-api/pods-api.sock");
        let pod = |name| vec![described("ml", name, UID)];
        let answers = kubelet::Answers { described: Some(pod("pods-api")), ..kubelet::Answers::default() };
        let pods_api = Kubelet::start(&socket, answers);
        let kubelet = Server::start(Answers { pods: pod("kubelet"), ..Answers::default() });
        let sources = PodSources::new(&SourceSettings {
            pods_socket: Some(socket),
            account: directory.path().join("account"),
            kubelet: Some(kubelet.address.clone()),
            api_server: None,
        });
        Self { directory, pods_api, kubelet, sources: sources.unwrap(), now: Nanoseconds(0) }
    }

    /// The names of the pods in a round a minute later.
    fn round(&mut self) -> Option<Vec<String>> {
        self.now += Nanoseconds::from_seconds(60);
        let pods = self.sources.refresh(self.now)?;
        Some(pods.into_iter().map(|pod| pod.metadata.unwrap().name).collect())
    }

    fn without_pods_api() -> Self {
        let node = Self::start();
        node.pods_api.answer(|answers| answers.described = None);
        node
    }

    fn problem(&self, of: PodSource) -> String {
        let problem = self.sources.problems().find(|(source, _)| *source == of);
        problem.unwrap_or_else(|| panic!("{of} has no problem")).1.to_owned()
    }
}

fn only(name: &str) -> Option<Vec<String>> {
    Some(vec![name.to_owned()])
}

#[test]
fn the_first_answering_source_describes_the_pods() {
    let mut node = Node::start();
    assert_eq!(node.round(), only("pods-api"));
    assert_eq!(node.kubelet.requested_paths(), Vec::<String>::new());
    node.pods_api.answer(|answers| answers.described = None);
    assert_eq!(node.round(), only("kubelet"));
    assert!(node.problem(PodSource::PodsApi).contains("it needs Kubernetes 1.37 or newer"));
    node.kubelet.answer(|answers| answers.fault = Some(Fault::Status(403)));
    assert_eq!((node.round(), node.sources.current()), (None, None));
    let problem = node.problem(PodSource::Kubelet);
    assert!(problem.contains("403") && problem.contains("grant the agent's service account"), "{problem}");
    assert_eq!(node.kubelet.requested_paths(), ["/pods"; 2]);
    node.pods_api.answer(|answers| answers.described = Some(Vec::new()));
    assert_eq!(node.round(), Some(Vec::new()), "the first source is used again");
}

#[test]
fn a_failing_source_is_retried_less_often() {
    let mut node = Node::without_pods_api();
    for fault in [Fault::Status(403), Fault::Status(500)] {
        node.kubelet.answer(|answers| answers.fault = Some(fault));
        let before = node.kubelet.requested_paths().len();
        for second in 0..20 {
            node.sources.refresh(node.now + Nanoseconds::from_seconds(60 + second));
        }
        let asked = node.kubelet.requested_paths().len() - before;
        assert!((1..=6).contains(&asked), "{fault:?}: {asked} times in 20 s");
        node.now += Nanoseconds::from_seconds(600);
    }
}

#[test]
fn every_source_fault_has_its_reason() {
    let mut node = Node::without_pods_api();
    for (fault, reason) in [
        (Fault::Status(500), "500"),
        (Fault::Status(503), "503"),
        (Fault::HalfAnswer, ""),
        (Fault::Garbage, "expected"),
        (Fault::BlackHole, "no response within 3 s"),
    ] {
        node.kubelet.answer(|answers| answers.fault = Some(fault));
        assert_eq!(node.round(), None, "{fault:?}");
        let problem = node.problem(PodSource::Kubelet);
        assert!(!problem.is_empty() && problem.contains(reason), "{fault:?}: {problem}");
        assert!(!problem.contains('\n'), "{problem}");
    }
    node.kubelet.answer(|answers| answers.fault = None);
    for fault in [kubelet::Fault::Hangup, kubelet::Fault::Error(Code::FailedPrecondition)] {
        node.pods_api.answer(|answers| answers.fault = Some(fault));
        assert_eq!(node.round(), only("kubelet"), "{fault:?}");
    }
}

#[test]
fn the_token_is_sent_only_to_trusted_servers_and_never_missing() {
    let mut node = Node::without_pods_api();
    account(&node.directory.path().join("account"), "other-ca");
    assert_eq!(node.round(), None);
    assert!(node.problem(PodSource::Kubelet).contains("certificate"), "{}", node.problem(PodSource::Kubelet));
    assert_eq!(node.kubelet.requested_paths(), Vec::<String>::new());
    std::fs::write(node.directory.path().join("account/ca.crt"), "nonsense").unwrap();
    assert_eq!(node.round(), None);
    assert!(node.problem(PodSource::Kubelet).contains("ca.crt"), "{}", node.problem(PodSource::Kubelet));
    account(&node.directory.path().join("account"), "ca");
    std::fs::write(node.directory.path().join("account/token"), "another").unwrap();
    assert_eq!(node.round(), None);
    assert!(node.problem(PodSource::Kubelet).contains("401"));
    std::fs::remove_file(node.directory.path().join("account/token")).unwrap();
    let asked = node.kubelet.requested_paths().len();
    assert_eq!(node.round(), None);
    assert_eq!(node.kubelet.requested_paths().len(), asked);
    account(&node.directory.path().join("account"), "ca");
    assert_eq!(node.round(), only("kubelet"));
}

#[test]
fn absent_servers_are_not_sources() {
    let mut sources = PodSources::new(&SourceSettings {
        account: Path::new("/nonexistent").into(),
        ..SourceSettings::default()
    })
    .unwrap();
    assert_eq!(sources.refresh(Nanoseconds(0)), None);
    assert_eq!(sources.problems().count(), 0);
}
