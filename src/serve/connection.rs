//! One connection: TLS if configured, then HTTP until the peer leaves, is too slow, or is replaced by another.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONNECTION;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::Site;
use super::accept::stopped;
use super::connection_limit::{ConnectionLimit, OpenConnection};
use super::listen::{BoxedStream, MetricNames};
use super::local::Ends;
use super::response::with;
use super::route::reply_to;
use super::timeouts::{ConnectionActivity, ObservedStream};
use super::tls::HTTP2;

/// Longest head of a request in HTTP/1, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// Longest list of headers in HTTP/2, in bytes.
const LONGEST_HEADER_LIST: u32 = 16 * 1024;

/// Simultaneous requests of an HTTP/2 client; a scraper sends one.
const MOST_STREAMS: u32 = 4;

/// Where a connection comes from, and by which listener.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) ends: Ends,
    /// The names of the metrics at `/metrics` of that listener.
    pub(super) names: MetricNames,
}

/// State that the requests of a connection share; HTTP/2 requests may outlive it.
struct RequestContext {
    arrival: Arrival,
    activity: Arc<ConnectionActivity>,
    limit: Arc<ConnectionLimit>,
    site: Arc<Site>,
    is_http2: bool,
}

/// Serves one connection until it ends.
pub(super) async fn serve_connection(
    stream: BoxedStream,
    arrival: Arrival,
    connection: OpenConnection,
    site: Arc<Site>,
    shutdown: watch::Receiver<bool>,
) {
    let context = RequestContext {
        arrival,
        activity: Arc::clone(&connection.activity),
        limit: Arc::clone(&connection.limit),
        site: Arc::clone(&site),
        is_http2: false,
    };
    let stream = ObservedStream { stream, activity: Arc::clone(&connection.activity) };
    // The limit for the first head includes the TLS handshake.
    tokio::select! {
        () = serve_stream(stream, context, shutdown) => {}
        () = connection.must_close(&site.limits) => {}
    }
}

async fn serve_stream(
    stream: ObservedStream,
    mut context: RequestContext,
    mut shutdown: watch::Receiver<bool>,
) {
    let security = context.site.access.current();
    let Some(tls) = &security.tls else { return serve_http(stream, context, shutdown).await };
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = stopped(&mut shutdown) => return,
    };
    match accepted {
        Ok(stream) => {
            context.is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            serve_http(stream, context, shutdown).await;
        }
        Err(error) => context.site.access.note_failed_handshake(context.arrival.ends, &error),
    }
}

async fn serve_http<S>(stream: S, context: RequestContext, mut shutdown: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Timeouts are those of `ConnectionActivity`.
    builder.http1().header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    builder.http2().max_concurrent_streams(MOST_STREAMS).max_header_list_size(LONGEST_HEADER_LIST);
    let builder = if context.is_http2 {
        context.activity.multiplex();
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    let context = Arc::new(context);
    let service = service_fn(|request| respond(request, Arc::clone(&context)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let end = tokio::select! {
        end = connection.as_mut() => end,
        () = stopped(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = context.activity.close_requested.notified() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = end {
        note_error(&*error, &context.site);
    }
}

async fn respond(
    request: Request<Incoming>,
    context: Arc<RequestContext>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let in_progress = context.activity.begin_request();
    let mut response = reply_to(&request, context.arrival, &context.site).await;
    context.site.requests.count(response.status().as_u16());
    if context.limit.is_scarce() {
        if context.is_http2 {
            context.activity.request_close();
        } else {
            response = with(response, CONNECTION, "close");
        }
    }
    Ok(response.map(|body| Full::new(in_progress.send(body))))
}

/// Counts responses that hyper sent itself, with the status that hyper chose.
fn note_error(error: &(dyn Error + Send + Sync + 'static), site: &Site) {
    let Some(error) = error.downcast_ref::<hyper::Error>() else { return };
    if error.is_parse_too_large() {
        site.requests.count(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16());
    } else if error.is_parse() {
        site.requests.count(StatusCode::BAD_REQUEST.as_u16());
    }
    tracing::debug!(%error, "a connection ended early");
}
