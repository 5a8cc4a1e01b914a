//! The kubelet of the simulated node: `List` and `GetAllocatableResources` of the pod-resources API on a unix socket, with
//! the same response as long as the demo runs.

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
use crate::kubelet::messages::{AllocatableResourcesResponse, EmptyRequest, ListPodResourcesResponse};
use crate::thread::Thread;

/// The responses of the kubelet.
#[derive(Clone, Debug)]
pub(super) struct Responses {
    pub(super) listed: ListPodResourcesResponse,
    pub(super) allocatable: AllocatableResourcesResponse,
}

/// Serves at that path until the process ends.
pub(super) fn start(socket: &Path, responses: Responses) -> Result<(), DemoError> {
    let listener = StdListener::bind(socket).map_err(file_error(socket))?;
    listener.set_nonblocking(true).map_err(file_error(socket))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(file_error(socket))?;
    Thread::start("kubelet", move || runtime.block_on(serve(listener, Arc::new(responses))))?;
    Ok(())
}

async fn serve(listener: StdListener, responses: Arc<Responses>) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        let responses = Arc::clone(&responses);
        tokio::spawn(async move {
            let service = service_fn(|request| respond(request, Arc::clone(&responses)));
            let connection = http2::Builder::new(TokioExecutor::new());
            // The client may leave before the response.
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    responses: Arc<Responses>,
) -> Result<hyper::Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        "/v1.PodResourcesLister/List" => send(request, responses.listed.clone()).await,
        "/v1.PodResourcesLister/GetAllocatableResources" => {
            send(request, responses.allocatable.clone()).await
        }
        _ => Status::unimplemented("the demo's kubelet does not have this method").into_http(),
    })
}

async fn send<M: prost::Message + Default + Clone + 'static>(
    request: hyper::Request<Incoming>,
    message: M,
) -> hyper::Response<Body> {
    Grpc::new(ProstCodec::<M, EmptyRequest>::default()).unary(Same(message), request).await
}

/// Responds to every request with the same message.
struct Same<M>(M);

impl<M: prost::Message + Clone> UnaryService<EmptyRequest> for Same<M> {
    type Response = M;
    type Future = Ready<Result<Response<M>, Status>>;

    fn call(&mut self, _: Request<EmptyRequest>) -> Self::Future {
        ready(Ok(Response::new(self.0.clone())))
    }
}
