//! The pods of the node from the first of three sources that answers.
//!
//! The kubelet's Pods API (1.37) needs no network and no rights beyond its socket; `nodes/pods` of the kubelet needs a
//! service account with that right; the API server, where the kubelet refuses, the right to watch pods. A source that
//! fails is asked again after a pause that doubles; one that is missing or refuses, after the longest pause.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::StatusCode;

use super::https::{Address, Https, Unanswered};
use super::pod::{Pod, PodList};
use super::watch::PodWatch;
use super::{Error, KubeletSocket};

/// How long a source may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The longest time between two attempts at a source that fails.
const LONGEST: Duration = Duration::from_secs(60);

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

/// Where the sources are.
#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
    /// Socket of the kubelet's Pods API.
    pub pods_socket: Option<PathBuf>,
    /// Directory of the service account; without a token in it only the socket is asked.
    pub account: PathBuf,
    /// Where the kubelet serves HTTPS.
    pub kubelet: Option<Address>,
    /// The API server.
    pub api_server: Option<Address>,
    /// The name that the node has at the API server.
    pub node: Option<String>,
}

/// The sources in the order in which they are asked.
#[derive(Debug)]
pub struct PodSources {
    runtime: tokio::runtime::Runtime,
    /// The service account's token, without which only the socket is asked.
    token: PathBuf,
    sources: Vec<SourceState>,
    /// The source that answered last.
    current: Option<PodSource>,
}

#[derive(Debug)]
struct SourceState {
    is: PodSource,
    asks: Asks,
    /// Why it did not answer the last time.
    problem: Option<String>,
    pause: Duration,
    /// When to ask again, after a failure.
    next: Duration,
}

#[derive(Debug)]
enum Asks {
    Socket(KubeletSocket),
    Kubelet(Https),
    ApiServer(Box<PodWatch>),
}

/// Why a source did not answer, and whether that may pass soon.
struct SourceFailure {
    problem: String,
    may_pass: bool,
}

impl PodSources {
    /// Sets up the configured sources; sends nothing yet.
    pub fn new(settings: &SourceSettings) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut sources = Vec::new();
        let mut add = |is, asks| {
            let (pause, next) = (Duration::ZERO, Duration::ZERO);
            sources.push(SourceState { is, asks, problem: None, pause, next });
        };
        if let Some(socket) = &settings.pods_socket {
            let socket = KubeletSocket::new(socket).map_err(std::io::Error::other)?;
            add(PodSource::PodsApi, Asks::Socket(socket));
        }
        let account: &Path = &settings.account;
        if let Some(kubelet) = &settings.kubelet {
            add(PodSource::Kubelet, Asks::Kubelet(Https::new(kubelet.clone(), account)));
        }
        if let (Some(server), Some(node)) = (&settings.api_server, &settings.node) {
            let watch = PodWatch::new(Https::new(server.clone(), account), node);
            add(PodSource::ApiServer, Asks::ApiServer(Box::new(watch)));
        }
        Ok(Self { runtime, token: account.join("token"), sources, current: None })
    }

    /// The pods of the node from the first source that answers; none where none does. `now` is any clock that never goes
    /// back.
    pub fn refresh(&mut self, now: Duration) -> Option<Vec<Pod>> {
        let Self { runtime, token, sources, current } = self;
        let may_sign_in = token.exists();
        for source in sources.iter_mut().filter(|source| may_sign_in || source.is == PodSource::PodsApi) {
            if source.problem.is_some() && now < source.next {
                continue;
            }
            match source.asks.pods(runtime) {
                Ok(pods) => {
                    (source.problem, source.pause) = (None, Duration::ZERO);
                    *current = Some(source.is);
                    return Some(pods);
                }
                Err(SourceFailure { problem, may_pass }) => {
                    let pause = if may_pass { source.pause * 2 } else { LONGEST };
                    source.pause = pause.clamp(Duration::from_secs(1), LONGEST);
                    source.next = now + source.pause;
                    source.problem = Some(problem);
                }
            }
        }
        *current = None;
        None
    }

    /// The source that answered last; none if none did.
    pub const fn current(&self) -> Option<PodSource> {
        self.current
    }

    /// The configured sources that did not answer, with the reason, in the order in which they are asked.
    pub fn problems(&self) -> impl Iterator<Item = (PodSource, &str)> {
        self.sources.iter().filter_map(|source| Some((source.is, source.problem.as_deref()?)))
    }
}

impl Asks {
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
                let list: PodList = serde_json::from_slice(&body).map_err(Unanswered::new)?;
                Ok(list.items)
            }),
            Self::ApiServer(watch) => within_timeout(runtime, watch.refresh()),
        }
    }
}

fn within_timeout(
    runtime: &tokio::runtime::Runtime,
    answer: impl Future<Output = Result<Vec<Pod>, Unanswered>>,
) -> Result<Vec<Pod>, SourceFailure> {
    let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, answer).await });
    let answer =
        answer.unwrap_or_else(|_| Err(Unanswered::new(format!("no answer within {} s", TIMEOUT.as_secs()))));
    answer.map_err(|Unanswered { problem, status }| {
        let is_refusal =
            matches!(status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND));
        let advice = if is_refusal { "; grant the agent's service account that right" } else { "" };
        SourceFailure { problem: format!("{problem}{advice}"), may_pass: !is_refusal }
    })
}
