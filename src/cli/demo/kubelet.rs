//! The kubelet of the simulated node: `List` and `GetAllocatableResources` of the pod-resources API on a unix socket, with
//! the pods that the scenario has at that moment.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::{DemoError, file_error};
use crate::holders::kubelet::messages::{
    AllocatableResourcesResponse, EmptyRequest, ListPodResourcesResponse, PodResources,
};
use crate::runtime::clock::ClockPage;
use crate::runtime::thread::Thread;

#[derive(Debug)]
pub(super) struct KubeletAnswers {
    pub(super) pods: Vec<ListedPod>,
    pub(super) allocatable: AllocatableResourcesResponse,
    pub(super) clock: Arc<ClockPage>,
    pub(super) cycle_seconds: f64,
}

/// A pod, and the seconds within a cycle between which it exists.
#[derive(Debug)]
pub(super) struct ListedPod {
    pub(super) resources: PodResources,
    pub(super) from: f64,
    pub(super) to: f64,
}

impl KubeletAnswers {
    fn listed(&self) -> ListPodResourcesResponse {
        let elapsed = self.clock.now().utc.since(self.clock.state().utc);
        let second = elapsed.duration().as_secs_f64() % self.cycle_seconds;
        let existing = self.pods.iter().filter(|pod| (pod.from..pod.to).contains(&second));
        ListPodResourcesResponse { pod_resources: existing.map(|pod| pod.resources.clone()).collect() }
    }
}

pub(super) fn start(socket: &Path, answers: KubeletAnswers) -> Result<(), DemoError> {
    let listener = StdListener::bind(socket).map_err(file_error(socket))?;
    listener.set_nonblocking(true).map_err(file_error(socket))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(file_error(socket))?;
    Thread::start("kubelet", move || runtime.block_on(serve(listener, Arc::new(answers))))?;
    Ok(())
}

async fn serve(listener: StdListener, answers: Arc<KubeletAnswers>) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            let service = service_fn(|request| respond(request, Arc::clone(&answers)));
            let connection = http2::Builder::new(TokioExecutor::new());
            // The client may leave before the response.
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    answers: Arc<KubeletAnswers>,
) -> Result<hyper::Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        "/v1.PodResourcesLister/List" => send(request, answers.listed()).await,
        "/v1.PodResourcesLister/GetAllocatableResources" => send(request, answers.allocatable.clone()).await,
        _ => Status::unimplemented("the demo's kubelet does not have this method").into_http(),
    })
}

async fn send<M: prost::Message + Default + Clone + 'static>(
    request: hyper::Request<Incoming>,
    message: M,
) -> hyper::Response<Body> {
    Grpc::new(ProstCodec::<M, EmptyRequest>::default()).unary(Same(message), request).await
}

struct Same<M>(M);

impl<M: prost::Message + Clone> UnaryService<EmptyRequest> for Same<M> {
    type Response = M;
    type Future = Ready<Result<Response<M>, Status>>;

    fn call(&mut self, _: Request<EmptyRequest>) -> Self::Future {
        ready(Ok(Response::new(self.0.clone())))
    }
}
