//! One connection: TLS where it is configured, then hyper speaks HTTP on it until the peer leaves, is too slow, or has
//! to give way.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::Site;
use super::answer::{Answer, with};
use super::local::Ends;
use super::multiplex::Sending;
use super::patience::Patience;
use super::route::reply_to;
use super::run::stopped;
use super::seats::Seat;
use super::stream::Stream;
use super::tls::HTTP2;

/// Longest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// The same as HTTP/2 counts it.
const LONGEST_LIST: u32 = 16 * 1024;

/// Requests that a client of HTTP/2 may ask at once: a scraper asks one.
const MOST_STREAMS: u32 = 4;

/// A client of HTTP/2 that is asked to end its connection may take so long to read what it asked for.
const HONEST_LEAVING: Duration = Duration::from_secs(1);

/// Answers the requests of one connection until it ends.
pub(super) async fn converse(
    stream: Stream,
    ends: Ends,
    seat: Seat,
    site: Arc<Site>,
    mut shutdown: watch::Receiver<bool>,
) {
    let stream = Patience::new(stream, &seat, &site.limits);
    let security = site.access.current();
    let Some(tls) = &security.tls else {
        return speak(stream, ends, &seat, &site, shutdown).await;
    };
    // The deadline for a first request is also that for the handshake before it.
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = seat.turn.ousted() => return,
        () = stopped(&mut shutdown) => return,
    };
    match accepted {
        Ok(mut stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP2) => {
            stream.get_mut().0.multiplex();
            speak_http2(stream, ends, &seat, &site, shutdown).await;
        }
        Ok(stream) => speak(stream, ends, &seat, &site, shutdown).await,
        Err(error) => site.access.note_failed_handshake(ends, &error),
    }
}

/// Speaks HTTP/1 on a stream, whatever lies below it.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    ends: Ends,
    seat: &Seat,
    site: &Site,
    mut shutdown: watch::Receiver<bool>,
) {
    let service = service_fn(|request| reply(request, ends, seat, site));
    let mut builder = http1::Builder::new();
    // The deadlines are those of `Patience`.
    builder.header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let end = tokio::select! {
        end = connection.as_mut() => end,
        () = seat.turn.ousted() => return,
        () = stopped(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = end {
        note(&error, site);
    }
}

/// Speaks HTTP/2, on TLS alone.
async fn speak_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    ends: Ends,
    seat: &Seat,
    site: &Arc<Site>,
    mut shutdown: watch::Receiver<bool>,
) {
    let sending = Arc::new(Sending::default());
    let answered = Arc::new(Notify::new());
    let service = service_fn(|request| {
        // These may outlive the connection, so the seat is not theirs.
        let (turn, site, sending) = (Arc::clone(&seat.turn), Arc::clone(site), Arc::clone(&sending));
        let answered = Arc::clone(&answered);
        async move {
            turn.end_head();
            turn.be_active();
            let answer = reply_to(&request, ends, &site).await;
            site.requests.count(answer.status().as_u16());
            let (head, body) = answer.into_parts();
            // It is one piece, which is not copied.
            let Ok(body) = body.collect().await;
            turn.be_active();
            answered.notify_one();
            Ok::<_, Infallible>(Answer::from_parts(head, Full::new(sending.track(body.to_bytes()))))
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(MOST_STREAMS).max_header_list_size(LONGEST_LIST);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut must_end = pin!(async {
        tokio::select! {
            () = seat.turn.ousted() => (),
            () = sending.overdue(seat, site.limits.answer) => (),
        }
    });
    let end = tokio::select! {
        end = connection.as_mut() => Some(end),
        () = must_end.as_mut() => return,
        () = stopped(&mut shutdown) => None,
        () = scarce_after_answer(&answered, seat) => None,
    };
    let end = if let Some(end) = end {
        end
    } else {
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            end = connection => end,
            () = must_end => return,
            () = may_be_ousted(seat) => return,
        }
    };
    if let Err(error) = end {
        note(&error, site);
    }
}

/// Returns when a request has been answered and nobody may keep a seat between two requests.
async fn scarce_after_answer(answered: &Notify, seat: &Seat) {
    loop {
        answered.notified().await;
        if seat.is_scarce() {
            return;
        }
    }
}

/// Lets a connection that was asked to end give way to others: a peer may never agree to the end.
async fn may_be_ousted(seat: &Seat) {
    loop {
        sleep(HONEST_LEAVING).await;
        seat.turn.be_slow();
    }
}

async fn reply(
    request: Request<Incoming>,
    ends: Ends,
    seat: &Seat,
    site: &Site,
) -> Result<Answer, Infallible> {
    seat.turn.end_head();
    let answer = reply_to(&request, ends, site).await;
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
