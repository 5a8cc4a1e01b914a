//! One try: connect, post, read the verdict. No more than one connection and one reply are held at a time.
//!
//! A connection is made anew for each try: at one push in several seconds that costs little, and a Collector
//! that moved behind its name is found. A name is looked up by tokio's own thread for that; addresses are not.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

use super::reply::{accepted, status_message};
use super::{Accepted, Destination, Failure};

/// Longest reply that is read, in bytes.
const LONGEST_REPLY: usize = 1 << 20;
const PRODUCT: &str = concat!("gpumeter/", env!("CARGO_PKG_VERSION"));

/// Posts a batch once.
pub(super) async fn attempt(destination: &Destination, body: Bytes) -> Result<Accepted, Failure> {
    let addresses: Vec<SocketAddr> = lookup_host((destination.host.as_str(), destination.port))
        .await
        .map_err(|error| Failure::Unresolved(error.to_string()))?
        .collect();
    let stream =
        TcpStream::connect(&*addresses).await.map_err(|error| Failure::Unreachable(error.to_string()))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    // Dropping the set ends the connection, whichever way this function is left.
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // Its errors come back to whoever waits for the reply.
        let _ = connection.await;
    });
    exchange(&mut sender, request(destination, body)).await
}

async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Accepted, Failure> {
    let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
    let status = response.status();
    let retry_after = retry_after(&response);
    let body = Limited::new(response.into_body(), LONGEST_REPLY).collect().await;
    if status.is_success() {
        let body = body.map_err(|_| Failure::NotOtlp)?.to_bytes();
        return accepted(&body).ok_or(Failure::NotOtlp);
    }
    // The status says enough where the rest of the reply cannot be read.
    let message = body.map(|body| status_message(&body.to_bytes())).unwrap_or_default();
    Err(match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Failure::Busy { status: status.as_u16(), message, retry_after },
        _ => Failure::Refused { status: status.as_u16(), message },
    })
}

fn request(destination: &Destination, body: Bytes) -> Request<Full<Bytes>> {
    let length = HeaderValue::from(body.len());
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = destination.path.clone();
    let headers = request.headers_mut();
    headers.insert(HOST, destination.authority.clone());
    headers.insert(USER_AGENT, HeaderValue::from_static(PRODUCT));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // hyper leaves it out where there is no body.
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    request
}

/// Seconds only: the form with a date would need a wall clock, and ours may differ.
fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

fn broken(error: &hyper::Error) -> Failure {
    if error.is_parse() { Failure::NotOtlp } else { Failure::Unreachable(error.to_string()) }
}
