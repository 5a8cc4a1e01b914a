//! Sends one batch: connects, posts it and reads the response, and tries again where OTLP says so.
//!
//! Each try opens a connection of its own. At one push in several seconds that costs little, and a Collector that moved
//! behind its name is found. Pauses double and have a random part, so that the agents of a cluster do not return together
//! to a Collector that has just recovered.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, StatusCode};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::reply::{accepted, status_message};
use super::{Accepted, Destination, PushLimits};
use crate::http;

/// Largest response body that is read, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Why a batch was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and their fields")]
pub enum PushFailure {
    #[error("its host name cannot be resolved ({0}); correct otlp.endpoint, or the node's DNS")]
    Unresolved(String),
    #[error("no connection ({0}); is a Collector listening there?")]
    Unreachable(String),
    #[error("it is too busy ({status} {message}); give it more room or push less often")]
    Busy {
        status: u16,
        message: String,
        /// The pause that it asked for.
        retry_after: Option<Duration>,
    },
    #[error("it refused the batch ({status} {message}); {}", advice(*.status))]
    Refused { status: u16, message: String },
    #[error(
        "the server there does not speak OTLP over HTTP; check the address and the port (4318; 4317 is gRPC)"
    )]
    NotOtlp,
    #[error("no answer within {} s; is it overloaded, or is the network cut?", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl PushFailure {
    /// Whether another try may succeed.
    const fn is_passing(&self) -> bool {
        matches!(self, Self::Unresolved(_) | Self::Unreachable(_) | Self::Busy { .. })
    }
}

/// What to do about an HTTP status that refuses a batch.
const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "it requires credentials, which are not sent; push to a Collector on the node",
        404 | 405 => {
            "nothing accepts OTLP at this path; correct otlp.endpoint (for Prometheus: http://HOST:9090/api/v1/otlp) and \
             enable its OTLP receiver"
        }
        413 => "the request is larger than it allows; raise its limit",
        _ => "check the address and its log",
    }
}

/// Posts a batch until the destination has accepted or refused it, or its limits are exhausted.
pub async fn send(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let total = destination.limits.total;
    timeout(total, send_with_retries(destination, body)).await.unwrap_or(Err(PushFailure::TimedOut(total)))
}

async fn send_with_retries(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let mut tried = 1;
    loop {
        match post(destination, body.clone()).await {
            Err(failure) if failure.is_passing() && tried < destination.limits.tries => {
                sleep(pause(&destination.limits, tried, &failure)).await;
            }
            outcome => return outcome,
        }
        tried += 1;
    }
}

/// Posts a batch once.
async fn post(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let addresses: Vec<SocketAddr> = lookup_host((destination.host.as_str(), destination.port))
        .await
        .map_err(|error| PushFailure::Unresolved(error.to_string()))?
        .collect();
    let stream =
        TcpStream::connect(&*addresses).await.map_err(|error| PushFailure::Unreachable(error.to_string()))?;
    let response = http::send(stream, request(destination, body)).await.map_err(|error| {
        if error.is_parse() { PushFailure::NotOtlp } else { PushFailure::Unreachable(error.to_string()) }
    })?;
    let status = response.head.status;
    let retry_after = retry_after(&response.head.headers);
    let body = response.read(MAX_RESPONSE).await;
    if status.is_success() {
        let body = body.map_err(|_| PushFailure::NotOtlp)?;
        return accepted(&body).ok_or(PushFailure::NotOtlp);
    }
    // A refusal is reported even if its body cannot be read.
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
    // hyper omits it where there is no body.
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    request
}

/// The pause that the destination asks for. The form with a date is ignored, since the wall clocks may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Pause after that many tries.
fn pause(limits: &PushLimits, tried: u32, failure: &PushFailure) -> Duration {
    let doubled = limits.pause.saturating_mul(1_u32.checked_shl(tried - 1).unwrap_or(u32::MAX));
    let own = doubled.saturating_add(random_time(limits.pause)).min(limits.longest_pause);
    match failure {
        // A destination may ask for a longer pause, never for a shorter one.
        PushFailure::Busy { retry_after: Some(asked), .. } => own.max(*asked).min(limits.longest_pause),
        _ => own,
    }
}

/// A random time up to `max`. The standard library's hash seeds are random enough, and need no crate.
fn random_time(max: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() >> 32;
    max.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_are_random_and_have_a_limit() {
        let limits = PushLimits::default();
        let lost = PushFailure::Unreachable(String::new());
        for tried in 1..=3 {
            let least = Duration::from_millis(100 << (tried - 1));
            let pause = pause(&limits, tried, &lost);
            assert!((least..=least + limits.pause).contains(&pause), "{tried} {pause:?}");
        }
        assert_eq!(pause(&limits, 400, &lost), limits.longest_pause);
    }

    #[test]
    fn a_destination_may_ask_for_a_longer_pause_within_reason() {
        let limits = PushLimits::default();
        let asked = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            pause(&limits, 1, &PushFailure::Busy { status: 429, message: String::new(), retry_after })
        };
        assert!(asked(0) >= limits.pause);
        assert_eq!(asked(2), Duration::from_secs(2));
        assert_eq!(asked(86_400), limits.longest_pause);
    }
}
