//! Clients of the kubelet and the API server: which containers were assigned which devices, which pods there are, and which
//! devices a pod may only watch.
//!
//! [`KubeletSocket`] calls the kubelet's gRPC APIs, [`PodSources`] reads pods from the first source that responds. Every call
//! opens a connection of its own, so that a restarted kubelet is found again, and blocks its caller until its timeout at most.

mod claims;
mod https;
pub mod messages;
pub mod pod;
mod sources;

pub use claims::{ClaimName, ClaimReader, ClaimedDevice};
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

/// Timeout of a call; the kubelet responds within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest accepted response in bytes: some 20 times that of a node with 250 pods.
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Error)]
pub enum Error {
    #[error(
        "{socket} does not exist; in a container mount there {} of the kubelet's root directory on the host (--root-dir; \
         that of k0s and MicroK8s is not /var/lib/kubelet)",
        directory_name(socket)
    )]
    Missing { socket: String },
    #[error("{socket}: permission denied; run the agent as root")]
    Refused { socket: String },
    #[error("{socket}: {problem}; check whether the kubelet is running")]
    Unreachable { socket: String, problem: String },
    #[error("{socket}: no response within {} s; look at the kubelet's log", TIMEOUT.as_secs())]
    TimedOut { socket: String },
    #[error("{socket}: this kubelet does not have {method}; it needs Kubernetes {since} or newer")]
    Unsupported {
        socket: String,
        method: &'static str,
        /// First version of Kubernetes with it.
        since: &'static str,
    },
    #[error(
        "{socket}: the answer to {method} has more than {} MiB, the most that is read: some 20 times what 250 pods need; see \
         how many pods and devices the node has, and whether the kubelet itself listens there",
        MAX_BYTES >> 20
    )]
    TooLong { socket: String, method: &'static str },
    #[error("{socket}: {method} failed: {code}: {message}; look at the kubelet's log")]
    Failed { socket: String, method: &'static str, code: Code, message: String },
    #[error("no client for the kubelet: {0}")]
    Client(#[from] std::io::Error),
}

fn directory_name(socket: &str) -> String {
    let directory = Path::new(socket).parent().and_then(Path::file_name);
    directory.unwrap_or_default().to_string_lossy().into_owned()
}

/// Client of a gRPC API of the kubelet on a socket: the pod-resources API or the Pods API.
#[derive(Debug)]
pub struct KubeletSocket {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

#[derive(Clone, Copy, Debug)]
struct GrpcMethod {
    name: &'static str,
    path: &'static str,
    /// First version of Kubernetes with it.
    since: &'static str,
}

impl KubeletSocket {
    /// A client of the API on that socket; it connects at each call.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// Whether the directory of the socket exists, as it does on a node of Kubernetes.
    pub fn has_directory(&self) -> bool {
        self.socket.parent().is_some_and(Path::is_dir)
    }

    pub fn list(&self) -> Result<ListPodResourcesResponse, Error> {
        self.call(GrpcMethod { name: "List", path: "/v1.PodResourcesLister/List", since: "1.20" })
    }

    pub fn allocatable(&self) -> Result<AllocatableResourcesResponse, Error> {
        self.call(GrpcMethod {
            name: "GetAllocatableResources",
            path: "/v1.PodResourcesLister/GetAllocatableResources",
            since: "1.23",
        })
    }

    /// The pods of the node, from the Pods API. Pods that cannot be decoded are left out.
    pub fn pods(&self) -> Result<Vec<Pod>, Error> {
        let method = GrpcMethod { name: "ListPods", path: "/v1alpha1.Pods/ListPods", since: "1.37" };
        let response: ListPodsResponse = self.call(method)?;
        Ok(response.pods.iter().filter_map(|pod| Pod::decode(&**pod).ok()).collect())
    }

    fn call<M: prost::Message + Default + Send + Sync + 'static>(
        &self,
        method: GrpcMethod,
    ) -> Result<M, Error> {
        let unreachable = |error| self.unreachable(&error);
        let response = async {
            let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display()));
            let channel = endpoint.map_err(unreachable)?.connect().await.map_err(unreachable)?;
            let mut client = Grpc::new(channel).max_decoding_message_size(MAX_BYTES);
            client.ready().await.map_err(unreachable)?;
            let codec = ProstCodec::<EmptyRequest, M>::default();
            let path = PathAndQuery::from_static(method.path);
            let response = client.unary(Request::new(EmptyRequest {}), path, codec).await;
            response.map(tonic::Response::into_inner).map_err(|status| self.failed(method, &status))
        };
        let response = async { tokio::time::timeout(TIMEOUT, response).await };
        let timed_out = |_| Err(Error::TimedOut { socket: self.socket.display().to_string() });
        self.runtime.block_on(response).unwrap_or_else(timed_out)
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
            // This client's own error.
            Code::OutOfRange if status.message().contains("decoded message length too large") => {
                Error::TooLong { socket, method }
            }
            code => {
                // Another process may own the socket; its text must not break a log line.
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
    const LIST: &[u8] = include_bytes!("../../../tests/fixtures/kubelet/list.bin");

    #[test]
    fn a_response_encoded_by_kubernetes_own_code_is_read() {
        let response = ListPodResourcesResponse::decode(LIST).unwrap();
        let pod = &response.pod_resources[0];
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
