//! One connection: hyper speaks HTTP on it until the peer leaves, is too slow, or has to give way.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::Site;
use super::answer::{Answer, with};
use super::local::Ends;
use super::patience::Patience;
use super::route::route;
use super::run::stopped;
use super::seats::Seat;

/// Longest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// Answers the requests of one connection until it ends.
pub(super) async fn converse(
    stream: TcpStream,
    ends: Ends,
    seat: Seat,
    site: Arc<Site>,
    mut shutdown: watch::Receiver<bool>,
) {
    let io = TokioIo::new(Patience::new(stream, &seat, &site.limits));
    let service = service_fn(|request| reply(request, ends, &seat, &site));
    let mut builder = Builder::new();
    // The deadlines are those of `Patience`.
    builder.header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    let mut connection = pin!(builder.serve_connection(io, service));
    let end = tokio::select! {
        end = connection.as_mut() => end,
        () = seat.turn.ousted() => return,
        () = stopped(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = end {
        note(&error, &site);
    }
}

async fn reply(
    request: Request<Incoming>,
    ends: Ends,
    seat: &Seat,
    site: &Site,
) -> Result<Answer, Infallible> {
    seat.turn.end_head();
    let answer = route(&request, ends, site).await;
    site.requests.count(answer.status().as_u16());
    Ok(if seat.is_scarce() { with(answer, CONNECTION, "close") } else { answer })
}

/// Counts what hyper answered without asking us, in hyper's own choice of status.
fn note(error: &hyper::Error, site: &Site) {
    if error.is_parse_too_large() {
        site.requests.count(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16());
    } else if error.is_parse() {
        site.requests.count(StatusCode::BAD_REQUEST.as_u16());
    }
    tracing::debug!(%error, "a connection ended early");
}
