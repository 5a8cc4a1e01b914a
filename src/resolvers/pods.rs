//! The thread that asks the kubelet which containers hold which GPUs, and names the pods of processes.
//!
//! Labels and owners come from whoever describes the pods ([`PodSources`]); without any a container is known by its names.
//! It asks when a pod or container begins or ceases to have logs, when a process runs in a pod that is not known, and every
//! ten seconds; never more than once per second, and ever less often while the kubelet does not answer. What was last
//! known stays in force. On a node without a kubelet it only looks whether there is one.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::Resolvers;
use crate::clock::system_now;
use crate::config::KubernetesConfig;
use crate::holders::{PodHoldings, PodMetadata, PodObservation, PodTracker, Resources};
use crate::host::Host;
use crate::kubelet::messages::{AllocatableResourcesResponse, ListPodResourcesResponse};
use crate::kubelet::{Address, Error, KubeletSocket, PodSource, PodSources, SourceSettings};
use crate::ledger::Recovered;
use crate::model::{HoldingSource, Nanoseconds, UnattributedReason, Utc};
use crate::thread::{self, Thread};

/// How often the thread looks whether there is a reason to ask.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often it asks without any reason.
const REFRESH_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// The longest time between two attempts while the kubelet does not answer.
const MAX_PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

/// How often nodes/pods of the kubelet is asked without any reason: its answer has every field of every pod, in JSON.
const KUBELET_PERIOD: Nanoseconds = Nanoseconds::from_seconds(30);

/// Where KubernetesConfig mounts the service account of a pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long the start of the agent waits for the first round.
const FIRST_ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// How the thread fares, and what it is asked for.
#[derive(Default)]
pub(crate) struct PodResolverStatus {
    /// Whether a process runs in a pod that is not known.
    wanted: AtomicBool,
    /// Whether the kubelet answered the last time, and when it last did; none while there is no kubelet.
    last: Mutex<Option<(bool, Option<Nanoseconds>)>>,
}

impl PodResolverStatus {
    /// Asks for another round, since a process runs in a pod that is not known.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Whether the kubelet answered the last time, and when it last did.
    pub(crate) fn last(&self) -> Option<(bool, Option<Nanoseconds>)> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an answer of the kubelet.
    fn succeeded(&self, now: Nanoseconds) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((true, Some(now)));
    }

    /// Notes that it did not answer; whether it had answered the last time. Where there never was one nothing has failed.
    fn failed(&self, is_missing: bool) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() && is_missing {
            return false;
        }
        let (succeeded, at) = last.unwrap_or((true, None));
        *last = Some((false, at));
        succeeded
    }
}

/// Starts the thread where the configuration names a socket.
pub(crate) fn start(shared: &Arc<Resolvers>, recovered: Option<&Recovered>) -> Result<(), thread::Error> {
    let Some(socket) = shared.config.active().config.attribution.kubernetes.socket.clone() else {
        return Ok(());
    };
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Pod));
    let shared = Arc::clone(shared);
    let (done, first_round) = mpsc::channel();
    let kubernetes = shared.config.active().config.attribution.kubernetes.clone();
    let gpus = recovered.into_iter().flat_map(|recovered| &recovered.gpus);
    let held = gpus.flat_map(|(uuid, gpu)| gpu.holdings.iter().map(move |held| (uuid, held)));
    let held = held.filter(|(_, held)| held.source == HoldingSource::Kubernetes);
    let pods = PodTracker::with_previous_shares(
        held.map(|(uuid, held)| (held.holder.clone(), Arc::clone(uuid), held.fraction)),
    );
    Thread::start("pods", move || {
        let client = KubeletSocket::new(&shared.host.path(&socket));
        let sources = sources(&kubernetes, &shared.host).map_err(Error::from);
        match client.and_then(|client| Ok(PodRounds::new(client, sources?, pods))) {
            Ok(rounds) => rounds.run(&shared, done),
            Err(error) => tracing::error!(%error, "pods are not attributed"),
        }
    })?;
    // Holdings go on across a restart of the agent only if its first tick knows them.
    let _ = first_round.recv_timeout(FIRST_ROUND_TIMEOUT);
    Ok(())
}

/// Which resources are GPUs, as the configuration says.
pub(crate) fn resources(kubernetes: &KubernetesConfig) -> Resources {
    let KubernetesConfig { resources, replicas, .. } = kubernetes;
    Resources { names: resources.clone(), replicas: (*replicas > 0).then_some(*replicas) }
}

/// Asks the kubelet once: what it lists, and its devices where the shares of replicas depend on them.
pub(crate) fn ask(
    client: &KubeletSocket,
    (pods, resources): (&PodTracker, &Resources),
) -> Result<(ListPodResourcesResponse, Option<AllocatableResourcesResponse>), Error> {
    let listed = client.list()?;
    if !pods.needs_allocatable(&listed, resources) {
        return Ok((listed, None));
    }
    match client.allocatable() {
        Ok(allocatable) => Ok((listed, Some(allocatable))),
        Err(Error::Unsupported { .. }) => Ok((listed, None)),
        Err(error) => Err(error),
    }
}

/// Who may describe the pods of a host. In a pod, the environment says where the kubelet and the API server are.
pub(crate) fn sources(kubernetes: &KubernetesConfig, host: &Host) -> std::io::Result<PodSources> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let port = |text: String| text.parse().ok();
    let kubelet_port = u16::try_from(kubernetes.kubelet_port).unwrap_or(0);
    PodSources::new(&SourceSettings {
        pods_socket: kubernetes.pods_socket.as_deref().map(|socket| host.path(socket)),
        account: host.path(Path::new(ACCOUNT)),
        kubelet: variable("NODE_IP").map(|host| Address { host, port: kubelet_port }),
        api_server: variable("KUBERNETES_SERVICE_HOST")
            .zip(variable("KUBERNETES_SERVICE_PORT").and_then(port))
            .map(|(host, port)| Address { host, port }),
        node: variable("NODE_NAME"),
    })
}

/// What is known of the pods of a host, after that answer.
pub(crate) fn observe(
    pods: &mut PodTracker,
    answer: Option<&(ListPodResourcesResponse, Option<AllocatableResourcesResponse>)>,
    metadata: &PodMetadata,
    (host, resources): (&Host, &Resources),
    now: Utc,
) -> PodHoldings {
    pods.observe(PodObservation {
        listed: answer.map(|(listed, _)| listed),
        allocatable: answer.and_then(|(_, allocatable)| allocatable.as_ref()),
        logs: &host.pod_logs(),
        metadata,
        minors: &host.gpu_minors(),
        now,
        resources,
    })
}

/// The rounds of the thread.
struct PodRounds {
    client: KubeletSocket,
    pods: PodTracker,
    /// When to ask at the latest.
    next: Nanoseconds,
    /// How long to wait after a failure.
    pause: Nanoseconds,
    /// State of the log directories at the last round.
    logs: [Option<(i64, i64)>; 2],
    /// Problems that were logged and still stand.
    problems: BTreeSet<String>,
    described: Described,
}

/// What is known of pods beside their devices.
struct Described {
    sources: PodSources,
    /// As of the last answer.
    metadata: PodMetadata,
    /// Who answered the last time, as the log has it; none before the first round.
    source: Option<Option<PodSource>>,
    /// When to ask at the latest.
    next: Nanoseconds,
}

impl Described {
    /// Asks whoever answers, where there is a reason or it is time; what was known stays where nobody does.
    fn refresh(&mut self, labels: &[String], now: Nanoseconds, is_wanted: bool) {
        if now < self.next && !is_wanted {
            return;
        }
        let Some(pods) = self.sources.refresh(Duration::from_nanos(now.0)) else {
            self.log_source();
            return;
        };
        self.metadata = PodMetadata::new(&pods, labels, system_now().utc);
        let is_costly = self.sources.current() == Some(PodSource::Kubelet);
        self.next = now + if is_costly { KUBELET_PERIOD } else { Nanoseconds(0) };
        self.log_source();
    }

    /// Logs who describes the pods when that changes.
    fn log_source(&mut self) {
        let source = self.sources.current();
        if self.source.replace(source) == Some(source) {
            return;
        }
        match source {
            Some(source) => tracing::info!(%source, "labels and owners of pods are known"),
            None => {
                let reasons = self.sources.problems().map(|(source, problem)| format!("{source}: {problem}"));
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                tracing::info!(reasons, "nobody tells labels and owners of pods; those known stay");
            }
        }
    }
}

impl PodRounds {
    fn new(client: KubeletSocket, sources: PodSources, pods: PodTracker) -> Self {
        let described =
            Described { sources, metadata: PodMetadata::default(), source: None, next: Nanoseconds(0) };
        Self {
            client,
            pods,
            next: Nanoseconds(0),
            pause: Nanoseconds(0),
            logs: [None; 2],
            problems: BTreeSet::new(),
            described,
        }
    }

    fn run(mut self, shared: &Resolvers, done: mpsc::Sender<()>) {
        let mut done = Some(done);
        loop {
            let now = system_now().boottime;
            let logs = shared.host.pod_logs_changed();
            let wanted = shared.pods.wanted.swap(false, Ordering::Relaxed);
            let may_answer = self.pause == Nanoseconds(0);
            let is_wanted = wanted || logs != self.logs;
            if now >= self.next || (may_answer && is_wanted) {
                self.logs = logs;
                self.round(shared, now, is_wanted);
            }
            drop(done.take());
            if shared.stop.wait(POLL_INTERVAL) {
                return;
            }
        }
    }

    fn round(&mut self, shared: &Resolvers, now: Nanoseconds, is_wanted: bool) {
        let kubernetes = shared.config.active().config.attribution.kubernetes.clone();
        let resources = resources(&kubernetes);
        let answer = ask(&self.client, (&self.pods, &resources));
        match &answer {
            Ok(_) => {
                if shared.pods.last().is_none_or(|(succeeded, _)| !succeeded) {
                    tracing::info!("the kubelet tells which containers hold GPUs");
                }
                shared.pods.succeeded(now);
                self.pause = Nanoseconds(0);
            }
            Err(error) => {
                let is_missing = matches!(error, Error::Missing { .. });
                if shared.pods.failed(is_missing) {
                    tracing::warn!(%error, "the kubelet does not answer; holdings of pods stay as they were");
                }
                self.pause = Nanoseconds((self.pause.0 * 2).clamp(Nanoseconds::SECOND.0, MAX_PAUSE.0));
            }
        }
        if answer.is_ok() {
            self.described.refresh(&kubernetes.labels, now, is_wanted);
        }
        let metadata = &self.described.metadata;
        // PodTracker and GPUs live in the agent's time, which in a demo is not the system's.
        let listed = shared.clock.now().utc;
        let known =
            observe(&mut self.pods, answer.as_ref().ok(), metadata, (&shared.host, &resources), listed);
        self.next = match (&answer, known.is_ending) {
            (Err(_), _) => now + self.pause,
            // The next list decides whether what is missing has ended.
            (Ok(_), true) => now + Nanoseconds::SECOND,
            (Ok(_), false) => now + REFRESH_INTERVAL,
        };
        self.publish(shared, known);
    }

    fn publish(&mut self, shared: &Resolvers, known: PodHoldings) {
        for problem in known.problems.difference(&self.problems) {
            tracing::warn!("{problem}");
        }
        self.problems = known.problems;
        shared.update_workloads(|workloads| {
            workloads.allocate(HoldingSource::Kubernetes, &known.allocations);
            if *workloads.pods != known.map {
                workloads.pods = Arc::new(known.map);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_never_had_a_kubelet_has_no_failure() {
        let status = PodResolverStatus::default();
        assert!(!status.failed(true));
        assert_eq!(status.last(), None);
        assert!(status.failed(false), "a socket that refuses is a failure, told once");
        assert!(!status.failed(true));
        status.succeeded(Nanoseconds(7));
        assert!(status.failed(true));
        assert_eq!(status.last(), Some((false, Some(Nanoseconds(7)))));
    }
}
