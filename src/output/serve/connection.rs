//! One connection: TLS if configured, then HTTP until the peer leaves, is too slow, or gives way to another.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Site;
use super::connections::{Activity, OpenConnection};
use super::listen::{BoxedStream, MetricNames};
use super::local::Ends;
use super::route::reply_to;
use super::tls::HTTP2;

/// Longest head of a request in HTTP/1, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// Longest list of headers in HTTP/2, in bytes.
const LONGEST_HEADER_LIST: u32 = 16 * 1024;

/// Simultaneous requests of an HTTP/2 client; a scraper sends one.
const MOST_STREAMS: u32 = 4;

#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) ends: Ends,
    pub(super) names: MetricNames,
}

/// State that the requests of a connection share; HTTP/2 requests may outlive it.
struct RequestContext {
    arrival: Arrival,
    activity: Arc<Activity>,
    site: Arc<Site>,
}

pub(super) async fn serve_connection(
    stream: BoxedStream,
    arrival: Arrival,
    connection: OpenConnection,
    site: Arc<Site>,
    shutdown: Watcher,
) {
    let activity = Arc::clone(&connection.activity);
    let context = RequestContext { arrival, activity, site: Arc::clone(&site) };
    tokio::select! {
        () = serve_stream(stream, Arc::new(context), shutdown) => {}
        () = connection.must_close(&site.limits) => {}
    }
}

async fn serve_stream(stream: BoxedStream, context: Arc<RequestContext>, shutdown: Watcher) {
    let security = context.site.access.current();
    let Some(tls) = &security.tls else { return serve_http(stream, false, context, shutdown).await };
    match tls.accept(stream).await {
        Ok(stream) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            serve_http(stream, is_http2, context, shutdown).await;
        }
        Err(error) => context.site.access.note_failed_handshake(context.arrival.ends, &error),
    }
}

async fn serve_http<S>(stream: S, is_http2: bool, context: Arc<RequestContext>, shutdown: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Timeouts are those of `Connections`.
    builder.http1().header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    builder.http2().max_concurrent_streams(MOST_STREAMS).max_header_list_size(LONGEST_HEADER_LIST);
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let service = service_fn(|request| respond(request, Arc::clone(&context)));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = shutdown.watch(connection).await {
        note_error(&*error, &context.site);
    }
}

async fn respond(
    mut request: Request<Incoming>,
    context: Arc<RequestContext>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let in_progress = context.activity.begin_response();
    let response = reply_to(&mut request, context.arrival, &context.site).await;
    context.site.served.server().requests.count(response.status().as_u16());
    Ok(response.map(|body| Full::new(in_progress.write(body))))
}

/// Counts responses that hyper sent itself, with the status that hyper chose.
fn note_error(error: &(dyn Error + Send + Sync + 'static), site: &Site) {
    let Some(error) = error.downcast_ref::<hyper::Error>() else { return };
    if error.is_parse_too_large() {
        site.served.server().requests.count(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16());
    } else if error.is_parse() {
        site.served.server().requests.count(StatusCode::BAD_REQUEST.as_u16());
    }
    tracing::debug!(%error, "a connection ended early");
}
