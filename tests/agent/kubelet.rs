//! A fake kubelet: a gRPC server of the pod-resources API and the Pods API on a unix socket, with faults, and the
//! directories in which a kubelet keeps logs of pods.

use std::future::Ready;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gpumeter::holders::kubelet::messages::{
    AllocatableResourcesResponse, ContainerDevices, ContainerResources, EmptyRequest,
    ListPodResourcesResponse, ListPodsResponse, PodResources,
};
use gpumeter::holders::kubelet::pod::Pod;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// The answers of the kubelet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) pods: Vec<PodResources>,
    /// Every device that may be assigned; without it the method is not implemented.
    pub(crate) allocatable: Option<Vec<ContainerDevices>>,
    /// Pods of the Pods API; without them the method is not implemented.
    pub(crate) described: Option<Vec<Value>>,
    pub(crate) fault: Option<Fault>,
    /// How often `List` was called.
    pub(crate) lists: u64,
}

/// A fault of the kubelet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Accepts requests and answers none while the fault lasts.
    BlackHole,
    /// Answers with an error.
    Error(Code),
    /// Closes each connection at once.
    Hangup,
}

/// A running kubelet, which stops when it is dropped.
pub(crate) struct Kubelet {
    answers: Arc<Mutex<Answers>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Kubelet {
    /// Serves at that path.
    pub(crate) fn start(socket: &Path, answers: Answers) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = StdListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let answers = Arc::new(Mutex::new(answers));
        let theirs = Arc::clone(&answers);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                tokio::select! { () = serve(listener, theirs) => {}, _ = stopped => {} }
            });
        });
        Self { answers, stop: Some(stop), thread: Some(thread), socket: socket.to_owned() }
    }

    /// Changes the answers from now on.
    pub(crate) fn answer(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }

    /// How often `List` was called.
    pub(crate) fn lists(&self) -> u64 {
        self.answers.lock().unwrap().lists
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        // The directory may be removed already.
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn serve(listener: UnixListener, answers: Arc<Mutex<Answers>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if let Some(Fault::Hangup) = answers.lock().unwrap().fault {
            continue;
        }
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            let service = service_fn(|request| respond(request, Arc::clone(&answers)));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // The client may have disconnected.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    answers: Arc<Mutex<Answers>>,
) -> Result<hyper::Response<tonic::body::Body>, std::convert::Infallible> {
    let method = request.uri().path().to_owned();
    let Answers { pods, allocatable, described, fault, .. } = {
        let mut answers = answers.lock().unwrap();
        answers.lists += u64::from(method == "/v1.PodResourcesLister/List");
        answers.clone()
    };
    while let Some(Fault::BlackHole) = { answers.lock().unwrap().fault } {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let failure = match fault {
        Some(Fault::Error(code)) => Some(Status::new(code, "rate limit\nexceeded")),
        _ => None,
    };
    Ok(match &*method {
        "/v1.PodResourcesLister/List" => {
            unary(request, failure, Some(ListPodResourcesResponse { pod_resources: pods })).await
        }
        "/v1.PodResourcesLister/GetAllocatableResources" => {
            unary(request, failure, allocatable.map(|devices| AllocatableResourcesResponse { devices })).await
        }
        "/v1alpha1.Pods/ListPods" => {
            let encoded = |pod: &Value| Pod::deserialize(pod).unwrap().encode_to_vec().into();
            let answer = described.map(|pods| ListPodsResponse { pods: pods.iter().map(encoded).collect() });
            unary(request, failure, answer).await
        }
        _ => Status::unimplemented("unknown method").into_http(),
    })
}

async fn unary<M: prost::Message + Default + Clone + 'static>(
    request: hyper::Request<Incoming>,
    failure: Option<Status>,
    answer: Option<M>,
) -> hyper::Response<tonic::body::Body> {
    struct Answer<M>(Result<M, Status>);
    impl<M: prost::Message + Clone> UnaryService<EmptyRequest> for Answer<M> {
        type Response = M;
        type Future = Ready<Result<Response<M>, Status>>;

        fn call(&mut self, _: Request<EmptyRequest>) -> Self::Future {
            std::future::ready(self.0.clone().map(Response::new))
        }
    }
    let answer = failure.map_or_else(|| answer.ok_or_else(|| Status::unimplemented("unknown method")), Err);
    Grpc::new(ProstCodec::<M, EmptyRequest>::default()).unary(Answer(answer), request).await
}

/// A pod of one container with devices of one resource.
pub(crate) fn pod(namespace: &str, name: &str, container: &str, devices: &[&str]) -> PodResources {
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![ContainerResources {
            name: container.to_owned(),
            devices: vec![gpus(devices)],
            dynamic_resources: Vec::new(),
        }],
    }
}

/// Devices of `nvidia.com/gpu`.
pub(crate) fn gpus(devices: &[&str]) -> ContainerDevices {
    ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: devices.iter().map(|id| (*id).to_owned()).collect(),
    }
}

/// Makes the log directories of a container under the host's root, as a kubelet does when it starts it.
pub(crate) fn log(root: &Path, (namespace, pod, uid): (&str, &str, &str), (container, id): (&str, &str)) {
    let directory = format!("var/log/pods/{namespace}_{pod}_{uid}/{container}");
    std::fs::create_dir_all(root.join(&directory)).unwrap();
    std::fs::create_dir_all(root.join("var/log/containers")).unwrap();
    let link = root.join(format!("var/log/containers/{pod}_{namespace}_{container}-{id}.log"));
    symlink(format!("/{directory}/0.log"), link).unwrap();
}
