//! The pods of one node from the API server: a list, and then a watch of its changes.
//!
//! The API server keeps the watch's connection open and sends one line of JSON per change. Lines wait in the socket's
//! buffers until the next [`PodWatch::refresh`] reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::https::{HttpsClient, RequestFailure};
use super::pod::{ObjectMeta, Pod, PodList};
use crate::http::HttpResponse;

/// Longest accepted line in bytes; an object of the API server has at most 1.5 MiB.
const MAX_LINE: usize = 4 << 20;

/// How long a refresh waits for the next frame.
const FRAME_TIMEOUT: Duration = Duration::from_millis(20);

/// Most frames that one refresh reads.
const MAX_FRAMES: usize = 4_096;

/// The pods of a node, kept up to date by a watch.
#[derive(Debug)]
pub(super) struct PodWatch {
    server: HttpsClient,
    /// Path and query of the node's pods.
    selector: String,
    /// By UID.
    pods: BTreeMap<String, Pod>,
    /// Resource version up to which changes are applied.
    version: String,
    stream: Option<WatchStream>,
}

/// An open watch.
#[derive(Debug)]
struct WatchStream {
    response: HttpResponse,
    /// Begin of a line that is not complete yet.
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
    pub(super) fn new(server: HttpsClient, node: &str) -> Self {
        let node = utf8_percent_encode(node, ENCODED);
        let selector = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        Self { server, selector, pods: BTreeMap::new(), version: String::new(), stream: None }
    }

    /// The pods now.
    pub(super) async fn refresh(&mut self) -> Result<Vec<Pod>, RequestFailure> {
        if self.stream.is_none() {
            self.start().await?;
        }
        if let Some(stream) = self.stream.take() {
            self.follow(stream).await?;
        }
        Ok(self.pods.values().cloned().collect())
    }

    /// Starts a watch from the last version, or from a new list if the server no longer has that version.
    async fn start(&mut self) -> Result<(), RequestFailure> {
        if !self.version.is_empty() {
            match self.open().await {
                Err(RequestFailure { status: Some(StatusCode::GONE), .. }) => {}
                opened => return opened,
            }
        }
        let body = self.server.get(&self.selector).await?;
        let list: PodList = serde_json::from_slice(&body).map_err(RequestFailure::new)?;
        self.version = list.metadata.resource_version;
        self.pods = list
            .items
            .into_iter()
            .filter_map(|pod| Some((pod.metadata.as_ref()?.uid.clone(), pod)))
            .collect();
        self.open().await
    }

    async fn open(&mut self) -> Result<(), RequestFailure> {
        let Self { selector, version, .. } = self;
        let path = format!(
            "{selector}&watch=true&allowWatchBookmarks=true&timeoutSeconds=1800&resourceVersion={version}"
        );
        let response = self.server.open(&path).await?;
        self.stream = Some(WatchStream { response, line: Vec::new() });
        Ok(())
    }

    /// Applies the changes that have arrived, and keeps the stream unless it has ended.
    async fn follow(&mut self, mut stream: WatchStream) -> Result<(), RequestFailure> {
        for _ in 0..MAX_FRAMES {
            let Ok(frame) = tokio::time::timeout(FRAME_TIMEOUT, stream.response.body.frame()).await else {
                break;
            };
            // The server ends a watch now and then; the next refresh starts one from the last version.
            let Some(Ok(frame)) = frame else { return Ok(()) };
            let Ok(data) = frame.into_data() else { continue };
            stream.line.extend_from_slice(&data);
            while let Some(end) = stream.line.iter().position(|byte| *byte == b'\n') {
                let rest = stream.line.split_off(end + 1);
                let line = std::mem::replace(&mut stream.line, rest);
                if let Err(error) = self.apply(&line) {
                    self.version.clear();
                    return Err(error);
                }
            }
            if stream.line.len() > MAX_LINE {
                self.version.clear();
                return Err(RequestFailure::new("the watch sent a line of more than 4 MiB"));
            }
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn apply(&mut self, line: &[u8]) -> Result<(), RequestFailure> {
        let event: WatchEvent<'_> = serde_json::from_slice(line).map_err(RequestFailure::new)?;
        if event.kind == "ERROR" {
            // Usually 410: the version is too old to continue from.
            return Err(RequestFailure::new(format!("the watch ended: {}", event.object)));
        }
        let pod: Pod = serde_json::from_str(event.object.get()).map_err(RequestFailure::new)?;
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

/// What the name of a node in a query is not: a letter, a digit, `-`, `.` or `_`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
