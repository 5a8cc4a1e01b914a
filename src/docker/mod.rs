//! Client of Docker's API on a unix socket, which Docker and Podman serve: the names and images of running containers.
//!
//! In: the path of the socket. Out: what it lists, or one reason why it did not. Whoever may connect to such a socket is as
//! good as root on the node, so it is asked only where the configuration names it, and only by the one `GET` of this file.
//! Every call opens a connection of its own and blocks its caller until its timeout at most.

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

use crate::http;

/// How long a call may take; Docker answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest accepted answer: some 2 KiB for each of 4,000 containers.
const MOST_BYTES: usize = 8 << 20;

/// Longest accepted name of a container or an image.
const LONGEST_NAME: usize = 255;

/// A path without a version: each daemon answers by its newest one.
const LIST: &str = "/containers/json";

/// Why the containers could not be listed.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no socket: no runtime runs, or its directory is not mounted.
    #[error(
        "{socket} does not exist; look whether the runtime runs, and in a container mount the socket there"
    )]
    Missing {
        /// Path of the socket.
        socket: String,
    },
    /// The socket belongs to root or its group.
    #[error("{socket}: permission denied; run the agent as root, or in the socket's group")]
    Refused {
        /// Path of the socket.
        socket: String,
    },
    /// Nobody listens on it, or the connection broke.
    #[error("{socket}: {problem}; look whether the runtime runs")]
    Unreachable {
        /// Path of the socket.
        socket: String,
        /// Why.
        problem: String,
    },
    /// No answer within the timeout.
    #[error("{socket}: no answer within {} s; look at the runtime's log", TIMEOUT.as_secs())]
    TimedOut {
        /// Path of the socket.
        socket: String,
    },
    /// The runtime answered with an error.
    #[error("{socket}: GET {LIST} was answered with {status}; look at the runtime's log")]
    Failed {
        /// Path of the socket.
        socket: String,
        /// HTTP status.
        status: StatusCode,
    },
    /// The answer is no list of containers.
    #[error(
        "{socket}: the answer to GET {LIST} is no list of containers: {problem}; does Docker or Podman serve it?"
    )]
    Malformed {
        /// Path of the socket.
        socket: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The client itself could not be set up.
    #[error("no client for the runtime: {0}")]
    Client(#[from] std::io::Error),
}

/// What a runtime says of a container beside its id; empty where it does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDescription {
    /// Its name.
    pub name: String,
    /// The image that it was made of, as whoever made it named it.
    pub image: String,
}

/// The running containers of a runtime, by id.
pub type ContainerDescriptions = BTreeMap<String, ContainerDescription>;

/// A container as the API lists it.
#[derive(Deserialize)]
struct ListedContainer {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names")]
    names: Option<Vec<String>>,
    #[serde(rename = "Image")]
    image: Option<String>,
}

/// Docker's API behind one socket.
#[derive(Debug)]
pub struct DockerClient {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl DockerClient {
    /// A client; it connects with each call.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// The containers that run.
    pub fn containers(&self) -> Result<ContainerDescriptions, Error> {
        let answer = async { tokio::time::timeout(TIMEOUT, self.ask()).await };
        let timed_out = |_| Err(Error::TimedOut { socket: self.socket() });
        let body = self.runtime.block_on(answer).unwrap_or_else(timed_out)?;
        parse(&body).map_err(|problem| Error::Malformed { socket: self.socket(), problem })
    }

    async fn ask(&self) -> Result<Bytes, Error> {
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
        let body = response.read(MOST_BYTES).await;
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

/// A container without an id that a cgroup can have is left out; a name that cannot be printed is none.
fn parse(body: &[u8]) -> Result<ContainerDescriptions, String> {
    let listed: Vec<ListedContainer> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let is_id = |id: &str| id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let known = listed.into_iter().filter(|container| is_id(&container.id));
    Ok(known
        .map(|ListedContainer { id, names, image }| {
            // Docker puts `/` before names; names behind further ones are links to other containers.
            let name = names.into_iter().flatten().next().unwrap_or_default();
            let name = printable(name.strip_prefix('/').unwrap_or(&name));
            let image = printable(&image.unwrap_or_default());
            (id, ContainerDescription { name, image })
        })
        .collect())
}

fn printable(text: &str) -> String {
    let is_name = text.len() <= LONGEST_NAME && !text.contains(char::is_control);
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
        let said: Vec<_> = containers.values().map(|one| (&*one.name, &*one.image)).collect();
        assert_eq!(said, [("trainer", "registry.example/ml/train:7"), ("pod-infra", ""), ("", "")]);
        assert_eq!(containers.keys().next().map(String::as_str), Some(ID));
    }

    #[test]
    fn what_cannot_be_a_name_is_none_and_what_is_no_list_is_refused() {
        let long = "a".repeat(LONGEST_NAME + 1);
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
        fn any_answer_is_parsed_without_a_panic(text in "\\[(\\{\"Id\":\"\\PC{0,9}\",?(\"Names\":\\PC{0,9})?\\},?){0,3}\\]") {
            if let Ok(containers) = parse(text.as_bytes()) {
                prop_assert!(containers.keys().all(|id| id.len() == 64));
            }
        }
    }
}
