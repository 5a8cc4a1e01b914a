//! Clients of the kubelet and the API server: which containers were assigned which devices, and which pods there are.
//!
//! In: paths of the kubelet's sockets ([`KubeletSocket`]), addresses and a service account ([`PodSources`]). Out: what
//! they answer, or one reason why they did not. Every call opens a connection of its own, so that a kubelet that was
//! restarted is found again; only the watch at the API server stays open. It does not know which GPU a device id means, and
//! starts no thread: a call blocks its caller until its timeout at most.

mod https;
pub mod messages;
pub mod pod;
mod sources;
mod watch;

pub use https::Address;
pub use sources::{PodSource, PodSources, SourceSettings};

use std::error::Error as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use prost::Message as _;
use thiserror::Error;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use messages::{AllocatableResourcesResponse, EmptyRequest, ListPodResourcesResponse, ListPodsResponse};
use pod::Pod;

/// How long a call may take; the kubelet answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest accepted answer: some 20 times that of a node with 250 pods.
const MOST_BYTES: usize = 16 << 20;

/// Why the kubelet did not answer.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no socket: this node has no kubelet, or its directory is not mounted.
    #[error("{socket} does not exist; in a container mount {directory} of the host there", directory = parent(socket))]
    Missing {
        /// Path of the socket.
        socket: String,
    },
    /// The socket belongs to root.
    #[error("{socket}: permission denied; run the agent as root")]
    Refused {
        /// Path of the socket.
        socket: String,
    },
    /// Nobody listens on it, or it cannot be used.
    #[error("{socket}: {problem}; look whether the kubelet runs")]
    Unreachable {
        /// Path of the socket.
        socket: String,
        /// Why.
        problem: String,
    },
    /// No answer within the timeout.
    #[error("{socket}: no answer within {} s; look at the kubelet's log", TIMEOUT.as_secs())]
    TimedOut {
        /// Path of the socket.
        socket: String,
    },
    /// The kubelet does not offer the method, or not any more.
    #[error("{socket}: this kubelet does not offer {method}; it needs Kubernetes {since} or newer")]
    Unsupported {
        /// Path of the socket.
        socket: String,
        /// Name of the method.
        method: &'static str,
        /// The first version that offers it.
        since: &'static str,
    },
    /// The kubelet answered with an error.
    #[error("{socket}: {method} failed: {code}: {message}; look at the kubelet's log")]
    Failed {
        /// Path of the socket.
        socket: String,
        /// Name of the method.
        method: &'static str,
        /// gRPC status.
        code: Code,
        /// The kubelet's words.
        message: String,
    },
    /// The client itself could not be set up.
    #[error("no client for the kubelet: {0}")]
    Client(#[from] std::io::Error),
}

fn parent(socket: &str) -> String {
    Path::new(socket).parent().unwrap_or(Path::new("/")).display().to_string()
}

/// A gRPC API of the kubelet behind one socket: the pod-resources API or the Pods API.
#[derive(Debug)]
pub struct KubeletSocket {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

/// A method of one of the APIs.
#[derive(Clone, Copy, Debug)]
struct GrpcMethod {
    name: &'static str,
    path: &'static str,
    /// The first version of Kubernetes that offers it.
    since: &'static str,
}

impl KubeletSocket {
    /// A client of the API behind that socket; it connects with each call.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// The devices of every container on the node.
    pub fn list(&self) -> Result<ListPodResourcesResponse, Error> {
        self.call(GrpcMethod { name: "List", path: "/v1.PodResourcesLister/List", since: "1.20" })
    }

    /// Every device that the kubelet may assign.
    pub fn allocatable(&self) -> Result<AllocatableResourcesResponse, Error> {
        self.call(GrpcMethod {
            name: "GetAllocatableResources",
            path: "/v1.PodResourcesLister/GetAllocatableResources",
            since: "1.23",
        })
    }

    /// The pods of the node, by the Pods API; what is no pod is left out.
    pub fn pods(&self) -> Result<Vec<Pod>, Error> {
        let method = GrpcMethod { name: "ListPods", path: "/v1alpha1.Pods/ListPods", since: "1.37" };
        let answer: ListPodsResponse = self.call(method)?;
        Ok(answer.pods.iter().filter_map(|pod| Pod::decode(&**pod).ok()).collect())
    }

    fn call<M: prost::Message + Default + Send + Sync + 'static>(
        &self,
        method: GrpcMethod,
    ) -> Result<M, Error> {
        let answer = async { tokio::time::timeout(TIMEOUT, self.ask(method)).await };
        let socket = || self.socket.display().to_string();
        self.runtime.block_on(answer).unwrap_or_else(|_| Err(Error::TimedOut { socket: socket() }))
    }

    async fn ask<M: prost::Message + Default + Send + Sync + 'static>(
        &self,
        method: GrpcMethod,
    ) -> Result<M, Error> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display()));
        let channel = match endpoint {
            Ok(endpoint) => endpoint.connect().await.map_err(|error| self.unreachable(&error))?,
            Err(error) => return Err(self.unreachable(&error)),
        };
        let mut client = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
        let ready = client.ready().await;
        ready.map_err(|error| self.unreachable(&error))?;
        let codec = ProstCodec::<EmptyRequest, M>::default();
        let path = PathAndQuery::from_static(method.path);
        let answer = client.unary(Request::new(EmptyRequest {}), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(method, &status))
    }

    fn unreachable(&self, error: &tonic::transport::Error) -> Error {
        let socket = self.socket.display().to_string();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
        let mut problem = error.to_string();
        while let Some(inner) = cause {
            problem = inner.to_string();
            match inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                Some(ErrorKind::NotFound) => return Error::Missing { socket },
                Some(ErrorKind::PermissionDenied) => return Error::Refused { socket },
                _ => cause = inner.source(),
            }
        }
        Error::Unreachable { socket, problem }
    }

    fn failed(&self, method: GrpcMethod, status: &Status) -> Error {
        let GrpcMethod { name: method, since, .. } = method;
        let socket = self.socket.display().to_string();
        match status.code() {
            Code::Unimplemented => Error::Unsupported { socket, method, since },
            code => {
                // Another process may sit behind the socket: no text of its breaks a line of the log.
                let message = status.message().chars().take(200).collect::<String>();
                Error::Failed { socket, method, code, message: message.escape_debug().to_string() }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use prost::Message;

    use super::messages::{ContainerDevices, ListPodResourcesResponse};

    /// Encoded by the Go code that Kubernetes publishes for the API (see the README beside it).
    const LIST: &[u8] = include_bytes!("../../tests/fixtures/kubelet/list.bin");

    #[test]
    fn an_answer_that_kubernetes_own_code_encoded_is_read() {
        let answer = ListPodResourcesResponse::decode(LIST).unwrap();
        let pod = &answer.pod_resources[0];
        assert_eq!((&*pod.namespace, &*pod.name), ("ml", "train-0"));
        let container = &pod.containers[0];
        assert_eq!(container.name, "main");
        let devices = |resource: &str, ids: &[&str]| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(container.devices, [devices("nvidia.com/gpu", &["GPU-a", "GPU-b"])]);
        let claim = &container.dynamic_resources[0];
        assert_eq!((&*claim.claim_namespace, &*claim.claim_name), ("ml", "claim"));
        let device = &claim.claim_resources[0];
        let names = (&*device.driver_name, &*device.pool_name, &*device.device_name);
        assert_eq!(names, ("gpu.nvidia.com", "node-1", "gpu-0"));
    }
}
