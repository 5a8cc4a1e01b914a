//! Sends one batch, trying again as OTLP has it: after a lost connection, and after 429, 502, 503 and 504.
//!
//! The body is encoded once and shared by all tries. Pauses double and are scattered, so that the agents of a
//! cluster do not come back in step to a Collector that has just recovered.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::attempt::attempt;
use super::{Accepted, Destination, PushLimits};

/// Why a batch was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushFailure {
    /// Its name has no address.
    #[error("its name cannot be resolved ({0}); correct otlp.endpoint, or the node's name service")]
    Unresolved(String),
    /// No connection, or one that broke before the reply.
    #[error("no connection ({0}); is a Collector listening there?")]
    Unreachable(String),
    /// It answered "try again" to every try.
    #[error("it is too busy ({status} {message}); give it more room or push less often")]
    Busy {
        /// The HTTP status.
        status: u16,
        /// Its own words.
        message: String,
        /// The pause that it asked for.
        retry_after: Option<Duration>,
    },
    /// It does not want this batch, now or later.
    #[error("it refused the batch ({status} {message}); {}", advice(*.status))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its own words.
        message: String,
    },
    /// What it said is no reply of OTLP over HTTP.
    #[error(
        "what answers there does not speak OTLP over HTTP; check the address and the port (4318; 4317 is gRPC)"
    )]
    NotOtlp,
    /// All tries together took too long.
    #[error("no answer within {} s; is it overloaded, or is the network cut?", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl PushFailure {
    /// Whether trying again may help.
    const fn is_passing(&self) -> bool {
        matches!(self, Self::Unresolved(_) | Self::Unreachable(_) | Self::Busy { .. })
    }
}

/// What to do about a refusal with that HTTP status.
const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "it wants credentials, which are not sent; push to a Collector on the node",
        404 | 405 => {
            "nothing takes OTLP at this path; correct otlp.endpoint (of Prometheus: http://HOST:9090/api/v1/otlp) and \
             switch its OTLP receiver on"
        }
        413 => "the request is larger than it allows; raise its limit",
        _ => "check the address and its log",
    }
}

/// Posts a request without points once, to find out whether the destination accepts OTLP.
pub async fn try_once(destination: &Destination) -> Result<Accepted, PushFailure> {
    let total = destination.limits.total;
    timeout(total, attempt(destination, Bytes::new())).await.unwrap_or(Err(PushFailure::TimedOut(total)))
}

/// Posts a batch until the destination has taken it, refused it, or exhausted the limits.
pub async fn send(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let total = destination.limits.total;
    timeout(total, persist(destination, body)).await.unwrap_or(Err(PushFailure::TimedOut(total)))
}

async fn persist(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let mut tried = 1;
    loop {
        match attempt(destination, body.clone()).await {
            Err(failure) if failure.is_passing() && tried < destination.limits.tries => {
                sleep(pause(&destination.limits, tried, &failure)).await;
            }
            outcome => return outcome,
        }
        tried += 1;
    }
}

/// How long to wait after that many tries.
fn pause(limits: &PushLimits, tried: u32, failure: &PushFailure) -> Duration {
    let doubled = limits.pause.saturating_mul(1_u32.checked_shl(tried - 1).unwrap_or(u32::MAX));
    let own = doubled.saturating_add(scatter(limits.pause)).min(limits.longest_pause);
    match failure {
        // It may ask for a longer pause, never for a shorter one.
        PushFailure::Busy { retry_after: Some(asked), .. } => own.max(*asked).min(limits.longest_pause),
        _ => own,
    }
}

/// A random time up to that. The standard library's hash seeds are random enough, and need no crate.
fn scatter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() >> 32;
    most.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_scatter_and_have_a_limit() {
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
