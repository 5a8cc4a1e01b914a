//! The pods of the node from the first of three sources that responds.
//!
//! The kubelet's Pods API (1.37) needs no network and no permission beyond its socket. `nodes/pods` of the kubelet needs a
//! service account with that permission, and the API server one that may watch pods. A source that fails is tried again
//! after a pause that doubles; one that is missing or refuses, after the longest pause.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::StatusCode;

use super::https::{Address, HttpsClient, RequestFailure};
use super::pod::{Pod, PodList};
use super::watch::PodWatch;
use super::{Error, KubeletSocket};

/// Timeout of a source.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Longest pause between two tries of a source that fails.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A source of the node's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
    /// A watch at the API server.
    ApiServer,
}

impl std::fmt::Display for PodSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PodsApi => "the kubelet's Pods API",
            Self::Kubelet => "nodes/pods of the kubelet",
            Self::ApiServer => "the API server",
        })
    }
}

/// The configured sources.
#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
    /// Socket of the kubelet's Pods API.
    pub pods_socket: Option<PathBuf>,
    /// Directory of the service account; without a token in it only the socket is used.
    pub account: PathBuf,
    /// HTTPS address of the kubelet.
    pub kubelet: Option<Address>,
    /// Address of the API server.
    pub api_server: Option<Address>,
    /// Name of the node at the API server.
    pub node: Option<String>,
}

/// The sources in the order in which they are tried.
#[derive(Debug)]
pub struct PodSources {
    runtime: tokio::runtime::Runtime,
    /// Path of the service account's token, without which only the socket is used.
    token: PathBuf,
    sources: Vec<SourceState>,
    /// The source that responded last.
    current: Option<PodSource>,
}

#[derive(Debug)]
struct SourceState {
    source: PodSource,
    client: SourceClient,
    /// Why the last try failed.
    problem: Option<String>,
    pause: Duration,
    /// Time of the next try after a failure.
    next: Duration,
}

#[derive(Debug)]
enum SourceClient {
    Socket(KubeletSocket),
    Kubelet(HttpsClient),
    ApiServer(Box<PodWatch>),
}

/// Why a source did not respond.
struct SourceFailure {
    problem: String,
    /// Whether a try after a short pause may succeed.
    may_pass: bool,
}

impl PodSources {
    /// Creates the clients of the configured sources, without a request.
    pub fn new(settings: &SourceSettings) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut sources = Vec::new();
        let mut add = |source, client| {
            let (pause, next) = (Duration::ZERO, Duration::ZERO);
            sources.push(SourceState { source, client, problem: None, pause, next });
        };
        if let Some(socket) = &settings.pods_socket {
            let socket = KubeletSocket::new(socket).map_err(std::io::Error::other)?;
            add(PodSource::PodsApi, SourceClient::Socket(socket));
        }
        let account: &Path = &settings.account;
        if let Some(kubelet) = &settings.kubelet {
            add(PodSource::Kubelet, SourceClient::Kubelet(HttpsClient::new(kubelet.clone(), account)));
        }
        if let (Some(server), Some(node)) = (&settings.api_server, &settings.node) {
            let watch = PodWatch::new(HttpsClient::new(server.clone(), account), node);
            add(PodSource::ApiServer, SourceClient::ApiServer(Box::new(watch)));
        }
        Ok(Self { runtime, token: account.join("token"), sources, current: None })
    }

    /// The pods of the node from the first source that responds, if any. `now` is any clock that never goes back.
    pub fn refresh(&mut self, now: Duration) -> Option<Vec<Pod>> {
        let Self { runtime, token, sources, current } = self;
        let has_token = token.exists();
        for source in sources.iter_mut().filter(|source| has_token || source.source == PodSource::PodsApi) {
            if source.problem.is_some() && now < source.next {
                continue;
            }
            match source.client.pods(runtime) {
                Ok(pods) => {
                    (source.problem, source.pause) = (None, Duration::ZERO);
                    *current = Some(source.source);
                    return Some(pods);
                }
                Err(SourceFailure { problem, may_pass }) => {
                    let pause = if may_pass { source.pause * 2 } else { MAX_PAUSE };
                    source.pause = pause.clamp(Duration::from_secs(1), MAX_PAUSE);
                    source.next = now + source.pause;
                    source.problem = Some(problem);
                }
            }
        }
        *current = None;
        None
    }

    /// The source that responded last; none if none did.
    pub const fn current(&self) -> Option<PodSource> {
        self.current
    }

    /// The configured sources that did not respond, with the reason, in the order in which they are tried.
    pub fn problems(&self) -> impl Iterator<Item = (PodSource, &str)> {
        self.sources.iter().filter_map(|source| Some((source.source, source.problem.as_deref()?)))
    }
}

impl SourceClient {
    fn pods(&mut self, runtime: &tokio::runtime::Runtime) -> Result<Vec<Pod>, SourceFailure> {
        match self {
            Self::Socket(socket) => socket.pods().map_err(|error| SourceFailure {
                may_pass: !matches!(
                    error,
                    Error::Missing { .. } | Error::Refused { .. } | Error::Unsupported { .. }
                ),
                problem: error.to_string(),
            }),
            Self::Kubelet(kubelet) => within_timeout(runtime, async {
                let body = kubelet.get("/pods").await?;
                let list: PodList = serde_json::from_slice(&body).map_err(RequestFailure::new)?;
                Ok(list.items)
            }),
            Self::ApiServer(watch) => within_timeout(runtime, watch.refresh()),
        }
    }
}

fn within_timeout(
    runtime: &tokio::runtime::Runtime,
    response: impl Future<Output = Result<Vec<Pod>, RequestFailure>>,
) -> Result<Vec<Pod>, SourceFailure> {
    let response = runtime.block_on(async { tokio::time::timeout(TIMEOUT, response).await });
    let timed_out = |_| Err(RequestFailure::new(format!("no response within {} s", TIMEOUT.as_secs())));
    response.unwrap_or_else(timed_out).map_err(|RequestFailure { problem, status }| {
        let is_refusal =
            matches!(status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND));
        let advice = if is_refusal { "; grant the agent's service account that permission" } else { "" };
        SourceFailure { problem: format!("{problem}{advice}"), may_pass: !is_refusal }
    })
}
