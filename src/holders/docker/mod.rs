//! Client of Docker's API, which Docker and Podman serve on a unix socket: names and images of running containers.
//!
//! Access to such a socket amounts to root on the node. It is used only where the configuration names it, and only for the
//! one `GET` of this file. Every call opens a connection of its own and blocks its caller until its timeout at most.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use serde::Deserialize;
use thiserror::Error;
use tokio::net::UnixStream;

use crate::runtime::http;

/// Timeout of a call; Docker responds within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest accepted response in bytes: some 2 KiB for each of 4,000 containers.
const MAX_BYTES: usize = 8 << 20;

/// Longest accepted name of a container or an image, in bytes.
const MAX_NAME: usize = 255;

/// Without a version in the path, each daemon uses its newest one.
const LIST: &str = "/containers/json";

#[derive(Debug, Error)]
pub enum Error {
    #[error(
        "{socket} does not exist; check whether the runtime is running, and in a container mount the socket there"
    )]
    Missing { socket: String },
    #[error("{socket}: permission denied; run the agent as root, or in the socket's group")]
    Refused { socket: String },
    #[error("{socket}: {problem}; check whether the runtime is running")]
    Unreachable { socket: String, problem: String },
    #[error("{socket}: no response within {} s; look at the runtime's log", TIMEOUT.as_secs())]
    TimedOut { socket: String },
    #[error("{socket}: GET {LIST} returned {status}; look at the runtime's log")]
    Failed { socket: String, status: StatusCode },
    #[error(
        "{socket}: the response to GET {LIST} is no list of containers: {problem}; does Docker or Podman serve it?"
    )]
    Malformed { socket: String, problem: String },
    #[error("no client for the runtime: {0}")]
    Client(#[from] std::io::Error),
}

/// Description of a container; a field is empty where the runtime does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDescription {
    pub name: String,
    /// Its image, as named when the container was created.
    pub image: String,
}

pub type ContainerDescriptions = BTreeMap<String, ContainerDescription>;

#[derive(Deserialize)]
struct ListedContainer {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names")]
    names: Option<Vec<String>>,
    #[serde(rename = "Image")]
    image: Option<String>,
}

#[derive(Debug)]
pub struct DockerClient {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl DockerClient {
    /// A client of the API on that socket; it connects at each call.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    pub fn containers(&self) -> Result<ContainerDescriptions, Error> {
        let response = async { tokio::time::timeout(TIMEOUT, self.request()).await };
        let timed_out = |_| Err(Error::TimedOut { socket: self.socket() });
        let body = self.runtime.block_on(response).unwrap_or_else(timed_out)?;
        parse(&body).map_err(|problem| Error::Malformed { socket: self.socket(), problem })
    }

    async fn request(&self) -> Result<Bytes, Error> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unconnected(&error))?;
        let request = Request::get(LIST)
            .header(HOST, "localhost")
            .header(USER_AGENT, http::USER_AGENT)
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new());
        let request = request.map_err(|error| self.unreachable(error.to_string()))?;
        let response = http::send(stream, request).await;
        let response = response.map_err(|error| self.unreachable(error.to_string()))?;
        if response.head.status != StatusCode::OK {
            return Err(Error::Failed { socket: self.socket(), status: response.head.status });
        }
        let body = response.read(MAX_BYTES).await;
        body.map_err(|error| Error::Malformed { socket: self.socket(), problem: error.to_string() })
    }

    fn socket(&self) -> String {
        self.socket.display().to_string()
    }

    fn unconnected(&self, error: &std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::NotFound => Error::Missing { socket: self.socket() },
            ErrorKind::PermissionDenied => Error::Refused { socket: self.socket() },
            _ => self.unreachable(error.to_string()),
        }
    }

    fn unreachable(&self, problem: String) -> Error {
        Error::Unreachable { socket: self.socket(), problem }
    }
}

/// Containers by id. One without an id that a cgroup can have is left out; a name that cannot be printed is empty.
fn parse(body: &[u8]) -> Result<ContainerDescriptions, String> {
    let listed: Vec<ListedContainer> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let is_id = |id: &str| id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let known = listed.into_iter().filter(|container| is_id(&container.id));
    Ok(known
        .map(|ListedContainer { id, names, image }| {
            // Docker puts `/` before names; the names after the first are links from other containers.
            let name = names.into_iter().flatten().next().unwrap_or_default();
            let name = printable(name.strip_prefix('/').unwrap_or(&name));
            let image = printable(&image.unwrap_or_default());
            (id, ContainerDescription { name, image })
        })
        .collect())
}

fn printable(text: &str) -> String {
    let is_name = text.len() <= MAX_NAME && !text.contains(char::is_control);
    if is_name { text.to_owned() } else { String::new() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    #[test]
    fn names_and_images_are_read_as_docker_and_podman_list_them() {
        let listed = format!(
            r#"[{{"Id":"{ID}","Names":["/trainer"],"Image":"registry.example/ml/train:7","ImageID":"sha256:0",
                  "State":"running","Labels":{{"a":"b"}},"NetworkSettings":null}},
                {{"Id":"{}","Names":["pod-infra"],"Image":null}},
                {{"Id":"{}","Names":null}},
                {{"Id":"short","Names":["/x"],"Image":"y"}}]"#,
            ID.replace("2b18", "2b19"),
            ID.replace("2b18", "2b20"),
        );
        let containers = parse(listed.as_bytes()).unwrap();
        let described: Vec<_> = containers.values().map(|one| (&*one.name, &*one.image)).collect();
        assert_eq!(described, [("trainer", "registry.example/ml/train:7"), ("pod-infra", ""), ("", "")]);
        assert_eq!(containers.keys().next().map(String::as_str), Some(ID));
    }

    #[test]
    fn what_cannot_be_a_name_is_none_and_what_is_no_list_is_refused() {
        let long = "a".repeat(MAX_NAME + 1);
        for name in [long.as_str(), r"/a\nb", r"/\u0000"] {
            let listed = format!(r#"[{{"Id":"{ID}","Names":["{name}"],"Image":"i"}}]"#);
            let known = parse(listed.as_bytes()).unwrap();
            assert_eq!(known[ID], ContainerDescription { name: String::new(), image: "i".into() }, "{name}");
        }
        for garbage in
            ["", "{}", "null", "[1]", "<html>", r#"{"message":"no such endpoint"}"#, "[{\"Id\":7}]"]
        {
            assert!(parse(garbage.as_bytes()).is_err(), "{garbage}");
        }
    }

    proptest! {
        #[test]
        fn any_response_is_parsed_without_a_panic(text in "\\[(\\{\"Id\":\"\\PC{0,9}\",?(\"Names\":\\PC{0,9})?\\},?){0,3}\\]") {
            if let Ok(containers) = parse(text.as_bytes()) {
                prop_assert!(containers.keys().all(|id| id.len() == 64));
            }
        }
    }
}
