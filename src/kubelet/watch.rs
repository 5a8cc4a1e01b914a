//! The pods of one node at the API server: a list, and then only what changes.
//!
//! The API server keeps the connection of a watch open and sends a line of JSON per change. Nothing reads it between two
//! rounds: what has come meanwhile waits in the socket's buffers and is read by the next [`PodWatch::refresh`].

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::https::{Https, Unanswered};
use super::pod::{ObjectMeta, Pod, PodList};
use crate::http::HttpResponse;

/// Longest line that is accepted; an object of the API server has at most 1.5 MiB.
const LONGEST_LINE: usize = 4 << 20;

/// How long to wait for more of what has come already.
const SETTLED: Duration = Duration::from_millis(20);

/// The most pieces that one refresh reads; the rest waits for the next.
const MOST_PIECES: usize = 4_096;

/// Pods of a node, followed.
#[derive(Debug)]
pub(super) struct PodWatch {
    server: Https,
    /// Selects the pods of the node.
    selector: String,
    /// By UID.
    pods: BTreeMap<String, Pod>,
    /// Version up to which changes are known.
    version: String,
    stream: Option<WatchStream>,
}

/// An open watch.
#[derive(Debug)]
struct WatchStream {
    response: HttpResponse,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl PodWatch {
    pub(super) fn new(server: Https, node: &str) -> Self {
        let node: String = node.bytes().map(percent_encoded).collect();
        let selector = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        Self { server, selector, pods: BTreeMap::new(), version: String::new(), stream: None }
    }

    /// The pods as of now.
    pub(super) async fn refresh(&mut self) -> Result<Vec<Pod>, Unanswered> {
        if self.stream.is_none() {
            self.begin().await?;
        }
        if let Some(stream) = self.stream.take() {
            self.follow(stream).await?;
        }
        Ok(self.pods.values().cloned().collect())
    }

    /// Goes on from the last known version, or from a list where that is not possible any more.
    async fn begin(&mut self) -> Result<(), Unanswered> {
        if !self.version.is_empty() {
            match self.open().await {
                Err(Unanswered { status: Some(StatusCode::GONE), .. }) => {}
                opened => return opened,
            }
        }
        let body = self.server.get(&self.selector).await?;
        let list: PodList = serde_json::from_slice(&body).map_err(Unanswered::new)?;
        self.version = list.metadata.resource_version;
        self.pods = list.items.into_iter().filter_map(|pod| Some((pod.meta()?.uid.clone(), pod))).collect();
        self.open().await
    }

    async fn open(&mut self) -> Result<(), Unanswered> {
        let Self { selector, version, .. } = self;
        let path = format!(
            "{selector}&watch=true&allowWatchBookmarks=true&timeoutSeconds=1800&resourceVersion={version}"
        );
        let response = self.server.open(&path).await?;
        self.stream = Some(WatchStream { response, line: Vec::new() });
        Ok(())
    }

    /// Reads what has come, and keeps the stream unless it has ended.
    async fn follow(&mut self, mut stream: WatchStream) -> Result<(), Unanswered> {
        for _ in 0..MOST_PIECES {
            let Ok(frame) = tokio::time::timeout(SETTLED, stream.response.body.frame()).await else { break };
            // The server ends a watch now and then; the next refresh goes on from the version known.
            let Some(Ok(frame)) = frame else { return Ok(()) };
            let Ok(piece) = frame.into_data() else { continue };
            stream.line.extend_from_slice(&piece);
            while let Some(end) = stream.line.iter().position(|byte| *byte == b'\n') {
                let rest = stream.line.split_off(end + 1);
                let line = std::mem::replace(&mut stream.line, rest);
                if let Err(error) = self.apply(&line) {
                    self.version.clear();
                    return Err(error);
                }
            }
            if stream.line.len() > LONGEST_LINE {
                self.version.clear();
                return Err(Unanswered::new("the watch sends a line that does not end"));
            }
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn apply(&mut self, line: &[u8]) -> Result<(), Unanswered> {
        let event: WatchEvent<'_> = serde_json::from_slice(line).map_err(Unanswered::new)?;
        if event.kind == "ERROR" {
            // Most often 410: what is known is too old to go on from.
            return Err(Unanswered::new(format!("the watch ended: {}", event.object)));
        }
        let pod: Pod = serde_json::from_str(event.object.get()).map_err(Unanswered::new)?;
        let Some(ObjectMeta { uid, resource_version, .. }) = pod.metadata.clone() else { return Ok(()) };
        self.version = resource_version;
        match &*event.kind {
            "ADDED" | "MODIFIED" => drop(self.pods.insert(uid, pod)),
            "DELETED" => drop(self.pods.remove(&uid)),
            _ => {}
        }
        Ok(())
    }
}

fn percent_encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}
