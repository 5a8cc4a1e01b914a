//! The pods of the node from the first of two sources that responds.
//!
//! The kubelet's Pods API (1.37) needs no network and no permission beyond its socket. `nodes/pods` of the kubelet (1.33)
//! needs a service account with that permission. A source that fails is tried again after a pause that doubles.

use std::path::PathBuf;

use hyper::StatusCode;

use super::KubeletSocket;
use super::https::{Address, HttpsClient, RequestFailure};
use super::pod::{Pod, PodList};
use crate::model::Nanoseconds;
use crate::runtime::clock::Backoff;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
}

impl std::fmt::Display for PodSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PodsApi => "the kubelet's Pods API",
            Self::Kubelet => "nodes/pods of the kubelet",
        })
    }
}

#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
    pub pods_socket: Option<PathBuf>,
    /// Directory of the service account; without a token in it only the socket is used.
    pub account: PathBuf,
    pub kubelet: Option<Address>,
    /// Address of the API server, which is asked for resource claims.
    pub api_server: Option<Address>,
}

/// The sources in the order in which they are tried.
#[derive(Debug)]
pub struct PodSources {
    sources: Vec<SourceState>,
    /// The source that responded last.
    current: Option<PodSource>,
}

#[derive(Debug)]
struct SourceState {
    source: PodSource,
    client: SourceClient,
    problem: Option<String>,
    schedule: Backoff,
}

#[derive(Debug)]
enum SourceClient {
    Socket(KubeletSocket),
    Kubelet(HttpsClient),
}

impl PodSources {
    /// Creates the clients of the configured sources, without a request.
    pub fn new(settings: &SourceSettings) -> std::io::Result<Self> {
        let mut sources = Vec::new();
        let mut add = |source, client| {
            sources.push(SourceState { source, client, problem: None, schedule: Backoff::default() });
        };
        if let Some(socket) = &settings.pods_socket {
            let socket = KubeletSocket::new(socket).map_err(std::io::Error::other)?;
            add(PodSource::PodsApi, SourceClient::Socket(socket));
        }
        if let Some(kubelet) = &settings.kubelet {
            let kubelet = HttpsClient::new(kubelet.clone(), &settings.account)?;
            add(PodSource::Kubelet, SourceClient::Kubelet(kubelet));
        }
        Ok(Self { sources, current: None })
    }

    /// The pods of the node from the first source that responds, if any. `now` is any clock that never goes back.
    pub fn refresh(&mut self, now: Nanoseconds) -> Option<Vec<Pod>> {
        let Self { sources, current } = self;
        for source in sources.iter_mut().filter(|source| source.client.may_ask()) {
            if !source.schedule.is_due(now) {
                continue;
            }
            match source.client.pods() {
                Ok(pods) => {
                    source.problem = None;
                    source.schedule.succeed(now, Nanoseconds(0));
                    *current = Some(source.source);
                    return Some(pods);
                }
                Err(problem) => {
                    source.schedule.fail(now);
                    source.problem = Some(problem);
                }
            }
        }
        *current = None;
        None
    }

    pub const fn current(&self) -> Option<PodSource> {
        self.current
    }

    /// The configured sources that did not respond, with the reason, in the order in which they are tried.
    pub fn problems(&self) -> impl Iterator<Item = (PodSource, &str)> {
        self.sources.iter().filter_map(|source| Some((source.source, source.problem.as_deref()?)))
    }
}

impl SourceClient {
    /// Whether it has the credentials that it needs.
    fn may_ask(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Kubelet(kubelet) => kubelet.has_token(),
        }
    }

    fn pods(&self) -> Result<Vec<Pod>, String> {
        let kubelet = match self {
            Self::Socket(socket) => return socket.pods().map_err(|error| error.to_string()),
            Self::Kubelet(kubelet) => kubelet,
        };
        let body = kubelet.get("/pods").map_err(|RequestFailure { problem, status }| match status {
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                format!("{problem}; grant the agent's service account that permission")
            }
            _ => problem,
        })?;
        let list = serde_json::from_slice::<PodList>(&body);
        list.map(|list| list.items).map_err(|error| RequestFailure::new(error).problem)
    }
}
