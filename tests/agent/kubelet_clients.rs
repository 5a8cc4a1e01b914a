//! The clients of kubelet and API server, each over a socket with its faults: which containers hold GPUs, what pods there
//! are, and which claims only watch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpumeter::holders::kubelet::{
    ClaimName, ClaimReader, Error, KubeletSocket, PodSource, PodSources, SourceSettings,
};
use gpumeter::model::Nanoseconds;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::kubelet::{self, Kubelet, gpus, pod};
use crate::kubernetes_api::{Answers, Fault, Server, account, claim, claim_path as path, described};

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
    let kubelet = Kubelet::start(
        &socket,
        kubelet::Answers { pods: pods.clone(), allocatable, ..kubelet::Answers::default() },
    );
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
    let kubelet = Kubelet::start(&socket, kubelet::Answers::default());
    assert!(client.list().is_ok());
    kubelet.answer(|answers| answers.fault = Some(kubelet::Fault::Error(Code::ResourceExhausted)));
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
        answers.fault = Some(kubelet::Fault::Hangup);
    });
    assert!(matches!(client.list(), Err(Error::Unreachable { .. } | Error::Failed { .. })));
    drop(kubelet);
    assert!(matches!(client.list(), Err(Error::Missing { .. })));
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(matches!(client.list(), Err(Error::Unreachable { .. })), "there is no server");
    std::fs::remove_file(&socket).unwrap();
    let kubelet = Kubelet::start(&socket, kubelet::Answers::default());
    assert!(client.list().is_ok());
    kubelet.answer(|answers| answers.fault = Some(kubelet::Fault::BlackHole));
    let error = client.list().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

const UID: &str = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

/// A node with both sources, each of which describes a pod named after it.
struct SourceNode {
    directory: TempDir,
    pods_api: Kubelet,
    kubelet: Server,
    sources: PodSources,
    /// Nanoseconds; more than any pause after a failed round.
    now: Nanoseconds,
}

impl SourceNode {
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
    let mut node = SourceNode::start();
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
    let mut node = SourceNode::without_pods_api();
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
    let mut node = SourceNode::without_pods_api();
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
    let mut node = SourceNode::without_pods_api();
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

fn name(namespace: &str, name: &str) -> ClaimName {
    ClaimName { namespace: namespace.into(), name: name.into() }
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
