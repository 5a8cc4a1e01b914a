//! The thread that asks the kubelet which containers hold which GPUs, and names the pods of processes.
//!
//! Labels and owners of pods come from one of [`PodSources`]; without any a container is known by its names. The thread
//! asks when a pod or container is added to or removed from the log directories, when a process runs in an unknown pod,
//! when the last process of a container has left the GPUs, and every ten seconds; after any of these events each second
//! for ten seconds, since the kubelet learns of an end later; less often while it does not respond. The last result
//! stays in force; what the ledger says was held when the agent last stopped stays until the first list. On a node without
//! a kubelet it only looks whether there is one. A missing socket is a failure where its directory exists or a process on
//! a GPU runs in a pod.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{FIRST_ROUND_TIMEOUT, REFRESH_INTERVAL, Resolvers, log_new_problems, replace};
use crate::accounting::batches::Recovered;
use crate::config::KubernetesConfig;
use crate::holders::host::Host;
use crate::holders::kubelet::messages::{AllocatableResourcesResponse, ListPodResourcesResponse};
use crate::holders::kubelet::{
    Address, ClaimReader, Error, KubeletSocket, PodSource, PodSources, SourceSettings,
};
use crate::holders::{PodHoldings, PodMetadata, PodObservation, PodTracker, Resources, gpu_claims};
use crate::model::{HolderKind, HoldingSource, Nanoseconds, UnattributedReason, Utc};
use crate::runtime::clock::{Backoff, system_now};
use crate::runtime::thread;
use crate::runtime::trace;

/// How often the kubelet's `/pods` is read without a request: it returns every field of every pod as JSON.
const KUBELET_PERIOD: Nanoseconds = Nanoseconds::from_seconds(30);

/// Where Kubernetes mounts the service account of a pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Starts the thread where the configuration names a socket.
pub(super) fn start(shared: &Arc<Resolvers>, recovered: Option<&Recovered>) -> Result<(), thread::Error> {
    let Some(socket) = shared.policy.now().config.attribution.kubernetes.socket.clone() else {
        return Ok(());
    };
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Pod));
    // A container without the volume of the kubelet's directory waits for a list that never comes.
    let can_be_listed = shared.host.path(&socket).parent().is_some_and(Path::is_dir);
    shared.allocate_recovered(recovered.filter(|_| can_be_listed), HoldingSource::Kubernetes);
    let kubernetes = shared.policy.now().config.attribution.kubernetes.clone();
    let first_round = shared.start_rounds(|statuses| &statuses.pods, move |shared| {
        let tracker = PodTracker::continuing(shared.allocated(HoldingSource::Kubernetes));
        let client = KubeletSocket::new(&shared.host.path(&socket));
        let sources = pod_sources(&kubernetes, &shared.host).map_err(Error::from);
        let pods = HostPods::new(shared.host.clone(), tracker, &kubernetes).map_err(Error::from);
        match client.and_then(|client| Ok(PodRounds::new(client, sources?, pods?))) {
            Ok(mut rounds) => {
                if rounds.pods.tracker.awaits_first_list() {
                    // The kubelet may be slow.
                    rounds.observe(shared, None);
                }
                Some(move |shared: &Resolvers| rounds.poll(shared))
            }
            Err(error) => {
                tracing::error!(%error, "the Kubernetes client cannot start: GPU use in pods is booked on __unattributed__ until the agent is restarted");
                None
            }
        }
    })?;
    let _ = first_round.recv_timeout(FIRST_ROUND_TIMEOUT);
    Ok(())
}

fn resources(kubernetes: &KubernetesConfig) -> Resources {
    let KubernetesConfig { resources, replicas, ignore, .. } = kubernetes;
    let replicas = (*replicas > 0).then_some(*replicas);
    Resources { names: resources.clone(), replicas, ignored: ignore.clone() }
}

pub(crate) struct KubeletAnswer {
    listed: ListPodResourcesResponse,
    /// Its devices, asked for where shares of replicas depend on them.
    allocatable: Option<AllocatableResourcesResponse>,
}

pub(crate) struct HostPods {
    host: Host,
    tracker: PodTracker,
    resources: Resources,
    claims: ClaimReader,
}

impl HostPods {
    pub(crate) fn new(
        host: Host,
        tracker: PodTracker,
        kubernetes: &KubernetesConfig,
    ) -> std::io::Result<Self> {
        let claims = ClaimReader::new(&source_settings(kubernetes, &host))?;
        Ok(Self { host, tracker, resources: resources(kubernetes), claims })
    }

    /// Asks the kubelet once, and the API server for claims that are new in its list.
    pub(crate) fn ask(&mut self, client: &KubeletSocket) -> Result<KubeletAnswer, Error> {
        let listed = client.list()?;
        self.claims.refresh(&gpu_claims(&listed), Duration::from_nanos(system_now().boottime.0));
        if !self.tracker.needs_allocatable(&listed, &self.resources) {
            return Ok(KubeletAnswer { listed, allocatable: None });
        }
        match client.allocatable() {
            Ok(allocatable) => Ok(KubeletAnswer { listed, allocatable: Some(allocatable) }),
            Err(Error::Unsupported { .. }) => Ok(KubeletAnswer { listed, allocatable: None }),
            Err(error) => Err(error),
        }
    }

    /// Updates the holdings from that answer, or from the log directories alone where the kubelet did not respond.
    pub(crate) fn observe(
        &mut self,
        answer: Option<&KubeletAnswer>,
        metadata: &PodMetadata,
        now: Utc,
    ) -> PodHoldings {
        let running = self.tracker.awaits_first_list().then(|| self.host.pods_with_cgroups()).flatten();
        let mut known = self.tracker.observe(PodObservation {
            listed: answer.map(|answer| &answer.listed),
            allocatable: answer.and_then(|answer| answer.allocatable.as_ref()),
            logs: &self.host.pod_logs(),
            metadata,
            running: running.as_ref(),
            minors: &self.host.gpu_minors(),
            now,
            resources: &self.resources,
            administrative: self.claims.administrative(),
        });
        known.problems.extend(self.claims.problem().map(|problem| {
            format!(
                "resource claims with administrative access cannot be told from others, and hold GPUs like them: {problem}; \
                 name pods that only watch GPUs in attribution.kubernetes.ignore"
            )
        }));
        known
    }
}

/// The sources of labels and owners. In a pod, the environment has the address of the kubelet.
pub(crate) fn pod_sources(kubernetes: &KubernetesConfig, host: &Host) -> std::io::Result<PodSources> {
    PodSources::new(&source_settings(kubernetes, host))
}

fn source_settings(kubernetes: &KubernetesConfig, host: &Host) -> SourceSettings {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let port = |text: String| text.parse().ok();
    let kubelet_port = u16::try_from(kubernetes.kubelet_port).unwrap_or(0);
    SourceSettings {
        pods_socket: kubernetes.pods_socket.as_deref().map(|socket| host.path(socket)),
        account: host.path(Path::new(ACCOUNT)),
        kubelet: variable("NODE_IP").map(|host| Address { host, port: kubelet_port }),
        api_server: variable("KUBERNETES_SERVICE_HOST")
            .zip(variable("KUBERNETES_SERVICE_PORT").and_then(port))
            .map(|(host, port)| Address { host, port }),
    }
}

struct PodRounds {
    client: KubeletSocket,
    pods: HostPods,
    schedule: Backoff,
    /// Time since boot until which it is asked each second.
    attentive_until: Nanoseconds,
    logs_modified: [Option<SystemTime>; 2],
    problems: BTreeSet<String>,
    descriptions: PodDescriptions,
}

struct PodDescriptions {
    sources: PodSources,
    metadata: PodMetadata,
    /// The source that was logged last, where one responded; none before the first round.
    logged: Option<Option<PodSource>>,
    /// When they are read again without a request.
    next: Nanoseconds,
}

impl PodDescriptions {
    /// Reads them where that is requested or due; they stay as they were while no source responds.
    fn refresh(&mut self, labels: &[String], now: Nanoseconds, is_requested: bool) {
        if now < self.next && !is_requested {
            return;
        }
        if let Some(pods) = self.sources.refresh(now) {
            self.metadata = PodMetadata::new(&pods, labels, system_now().utc);
            let is_costly = self.sources.current() == Some(PodSource::Kubelet);
            self.next = now + if is_costly { KUBELET_PERIOD } else { Nanoseconds(0) };
        }
        let source = self.sources.current();
        let before = self.logged.replace(source);
        if before == Some(source) {
            return;
        }
        let was_known = before.is_some();
        match source {
            Some(source) => tracing::info!(%source, "labels and owners of pods are known"),
            None => {
                let reasons = self.sources.problems().map(|(source, problem)| format!("{source}: {problem}"));
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                let reasons = if reasons.is_empty() { "no source is configured" } else { &reasons };
                let known =
                    if was_known { "the last known ones are still used" } else { "none are known yet" };
                tracing::info!("labels and owners of pods cannot be read ({reasons}); {known}");
            }
        }
    }
}

impl PodRounds {
    fn new(client: KubeletSocket, sources: PodSources, pods: HostPods) -> Self {
        let metadata = PodMetadata::default();
        Self {
            client,
            pods,
            schedule: Backoff::default(),
            attentive_until: Nanoseconds(0),
            logs_modified: [None; 2],
            problems: BTreeSet::new(),
            descriptions: PodDescriptions { sources, metadata, logged: None, next: Nanoseconds(0) },
        }
    }

    fn poll(&mut self, shared: &Resolvers) {
        let now = system_now().boottime;
        let logs_modified = shared.host.pod_logs_modified();
        let is_requested = shared.statuses.pods.take_request() || logs_modified != self.logs_modified;
        if is_requested {
            self.attentive_until = now + REFRESH_INTERVAL;
        }
        // A request brings the round forward while the kubelet responds.
        if self.schedule.is_due(now) || (is_requested && !self.schedule.has_failed()) {
            self.logs_modified = logs_modified;
            let _span = trace::begin_round("pods");
            self.run_round(shared, now, is_requested);
        } else if self.pods.tracker.awaits_first_list() {
            self.observe(shared, None);
        }
    }

    fn run_round(&mut self, shared: &Resolvers, now: Nanoseconds, is_requested: bool) {
        let kubernetes = shared.policy.now().config.attribution.kubernetes.clone();
        self.pods.resources = resources(&kubernetes);
        let answer = self.pods.ask(&self.client);
        match &answer {
            Ok(_) => {
                if shared.statuses.pods.record_success(now) {
                    tracing::info!("the kubelet lists the containers that hold GPUs");
                }
                self.descriptions.refresh(&kubernetes.labels, now, is_requested);
            }
            Err(error) => {
                let has_kubelet = self.client.has_directory()
                    || self.pods.tracker.awaits_first_list()
                    || shared.has_processes_of(HolderKind::Pod);
                let is_missing = matches!(error, Error::Missing { .. });
                if shared.statuses.pods.record_failure(is_missing && !has_kubelet) {
                    tracing::warn!(%error, "the kubelet does not answer; holdings of pods stay as they were");
                }
            }
        }
        let is_ending = self.observe(shared, answer.as_ref().ok());
        match answer {
            Err(_) => self.schedule.fail(now),
            // The next list decides whether a container that is missing has ended, or shows what is about to end.
            Ok(_) if is_ending || now < self.attentive_until => {
                self.schedule.succeed(now, Nanoseconds::SECOND)
            }
            Ok(_) => self.schedule.succeed(now, REFRESH_INTERVAL),
        }
    }

    /// Publishes the holdings; returns whether the next list decides about the end of some.
    fn observe(&mut self, shared: &Resolvers, answer: Option<&KubeletAnswer>) -> bool {
        // The time of the agent, which in a demo is not the system's, dates holdings and GPUs.
        let listed_at = shared.clock.now().utc;
        let known = self.pods.observe(answer, &self.descriptions.metadata, listed_at);
        log_new_problems(&mut self.problems, known.problems);
        shared.update_workloads(|workloads| {
            workloads.allocate(HoldingSource::Kubernetes, &known.allocations);
            replace(&mut workloads.ended, known.ended);
            replace(&mut workloads.pods, known.map);
        });
        known.is_ending
    }
}
