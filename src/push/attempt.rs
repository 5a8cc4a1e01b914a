//! One try: connect, post, read the verdict. No more than one connection and one reply are held at a time.
//!
//! A connection is made anew for each try: at one push in several seconds that costs little, and a Collector
//! that moved behind its name is found. A name is looked up by tokio's own thread for that; addresses are not.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, StatusCode};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};

use super::reply::{accepted, status_message};
use super::{Accepted, Destination, PushFailure};
use crate::http;

/// Longest reply that is read, in bytes.
const LONGEST_REPLY: usize = 1 << 20;

/// Posts a batch once.
pub(super) async fn attempt(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let addresses: Vec<SocketAddr> = lookup_host((destination.host.as_str(), destination.port))
        .await
        .map_err(|error| PushFailure::Unresolved(error.to_string()))?
        .collect();
    let stream =
        TcpStream::connect(&*addresses).await.map_err(|error| PushFailure::Unreachable(error.to_string()))?;
    let response = http::send(stream, request(destination, body)).await.map_err(|error| broken(&error))?;
    let status = response.head.status;
    let retry_after = retry_after(&response.head.headers);
    let body = response.read(LONGEST_REPLY).await;
    if status.is_success() {
        let body = body.map_err(|_| PushFailure::NotOtlp)?;
        return accepted(&body).ok_or(PushFailure::NotOtlp);
    }
    // The status says enough where the rest of the reply cannot be read.
    let message = body.map(|body| status_message(&body)).unwrap_or_default();
    Err(match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => PushFailure::Busy { status: status.as_u16(), message, retry_after },
        _ => PushFailure::Refused { status: status.as_u16(), message },
    })
}

fn request(destination: &Destination, body: Bytes) -> Request<Full<Bytes>> {
    let length = HeaderValue::from(body.len());
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = destination.path.clone();
    let headers = request.headers_mut();
    headers.insert(HOST, destination.authority.clone());
    headers.insert(USER_AGENT, HeaderValue::from_static(http::USER_AGENT));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // hyper leaves it out where there is no body.
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    request
}

/// Seconds only: the form with a date would need a wall clock, and ours may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

fn broken(error: &hyper::Error) -> PushFailure {
    if error.is_parse() { PushFailure::NotOtlp } else { PushFailure::Unreachable(error.to_string()) }
}
