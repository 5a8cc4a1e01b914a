//! Sends one request: connects, posts it and reads the response.
//!
//! Each request opens a connection of its own. At one push in several seconds that costs little, and a Collector that moved
//! behind its name is found.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request};
use tokio::time::timeout;
use tokio_rustls::rustls;

use super::connect::{connect, headers};
use super::reply::{accepted, status_message};
use super::{Accepted, Destination, grpc};
use crate::config::{OtlpCompression, OtlpProtocol};
use crate::runtime::http;

/// Largest response body that is read, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Largest request that is decompressed; what the sender made is smaller.
const MAX_REQUEST: u64 = 64 << 20;

/// The level of zstd: its own default, as tonic has it.
const ZSTD_LEVEL: i32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushFailure {
    #[error("{0}")]
    Setup(String),
    #[error("its host name cannot be resolved ({0}); correct its endpoint, or the node's DNS")]
    Unresolved(String),
    #[error("no connection ({0}); is a Collector listening there?")]
    Unreachable(String),
    #[error("no TLS connection ({0}); check ca_file, cert_file, and whether it speaks TLS on that port")]
    Tls(String),
    #[error("it is too busy ({status} {message}); give it more room or push less often")]
    Busy { status: String, message: String, retry_after: Option<Duration> },
    #[error("it failed ({status} {message}); look at its log")]
    Broken { status: String, message: String },
    #[error("it does not let the agent in ({status} {message}); {}", advice(.status))]
    Closed { status: String, message: String },
    #[error("it refused the request ({status} {message}); {}", refusal_advice(.status))]
    Refused { status: String, message: String },
    #[error(
        "the server there does not speak OTLP by this protocol; check the address and the port (usually 4318 for http/protobuf, \
         4317 for grpc)"
    )]
    NotOtlp,
    #[error("no answer within {} s; is it overloaded, or is the network cut?", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl PushFailure {
    /// The failure of a connection. With TLS 1.3 a server refuses a client's certificate only after the handshake.
    pub(super) fn of_connection(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        let cause = innermost.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let is_of_tls = cause.is_some_and(|cause| cause.is::<rustls::Error>());
        let text = innermost.to_string();
        if is_of_tls { Self::Tls(text) } else { Self::Unreachable(text) }
    }

    fn of_http(status: u16, message: String, retry_after: Option<Duration>) -> Self {
        let text = status.to_string();
        match status {
            408 | 429 | 502..=504 => Self::Busy { status: text, message, retry_after },
            300..=399 | 401 | 403..=405 | 407 => Self::Closed { status: text, message },
            400..=499 => Self::Refused { status: text, message },
            _ => Self::Broken { status: text, message },
        }
    }

    /// Adds what else may be the reason where requests are compressed by zstd.
    fn of_zstd(mut self) -> Self {
        if let Self::Refused { message, .. } | Self::Closed { message, .. } = &mut self {
            message.push_str("; if that is because of zstd, set its compression to gzip");
        }
        self
    }
}

fn refusal_advice(status: &str) -> &'static str {
    if status == "413" { "raise its limit to 1 MiB or more" } else { "look at its log" }
}

fn advice(status: &str) -> &'static str {
    match status {
        "401" | "403" | "407" | "Unauthenticated" | "PermissionDenied" => {
            "give the credentials that it requires (headers, header_files, cert_file)"
        }
        "Unimplemented" => "nothing accepts this signal there; enable its OTLP receiver",
        _ => {
            "nothing accepts OTLP at this path; correct its endpoint (for Prometheus: http://HOST:9090/api/v1/otlp) and \
             enable its OTLP receiver"
        }
    }
}

/// Compresses a request, as the spool keeps it. Level 1: higher ones take several times as long for a tenth less.
pub fn compress(request: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // A vector grows, so neither can fail.
    let _ = encoder.write_all(request);
    encoder.finish().unwrap_or_default().into()
}

pub(super) fn decompress(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    GzDecoder::new(body).take(MAX_REQUEST).read_to_end(&mut request)?;
    Ok(request)
}

pub async fn send(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let longest = destination.settings.timeout.duration();
    let sent = async {
        match destination.settings.protocol {
            OtlpProtocol::Http => post(destination, body).await,
            OtlpProtocol::Grpc => grpc::export(destination, &body).await,
        }
    };
    let outcome = timeout(longest, sent).await.unwrap_or(Err(PushFailure::TimedOut(longest)));
    match destination.settings.compression {
        OtlpCompression::Zstd => outcome.map_err(PushFailure::of_zstd),
        OtlpCompression::Gzip | OtlpCompression::None => outcome,
    }
}

async fn post(destination: &Destination, body: Bytes) -> Result<Accepted, PushFailure> {
    let request = request(destination, body)?;
    let stream = connect(destination).await?;
    let response = http::send(stream, request).await.map_err(|error| {
        if error.is_parse() { PushFailure::NotOtlp } else { PushFailure::of_connection(&error) }
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
    Err(PushFailure::of_http(status.as_u16(), message, retry_after))
}

fn request(destination: &Destination, body: Bytes) -> Result<Request<Full<Bytes>>, PushFailure> {
    let setup = |error: &dyn std::fmt::Display| PushFailure::Setup(format!("endpoint: {error}; correct it"));
    let (body, encoding) = match destination.settings.compression {
        OtlpCompression::Gzip => (Ok(body), Some("gzip")),
        OtlpCompression::Zstd => {
            let compress = |request: Vec<u8>| zstd::bulk::compress(&request, ZSTD_LEVEL);
            (decompress(&body).and_then(compress).map(Bytes::from), Some("zstd"))
        }
        OtlpCompression::None => (decompress(&body).map(Bytes::from), None),
    };
    let body = body.map_err(|error| setup(&error))?;
    let length = HeaderValue::from(body.len());
    let authority = HeaderValue::from_str(&destination.authority()).map_err(|error| setup(&error))?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = destination.path().parse().map_err(|error| setup(&error))?;
    let into = request.headers_mut();
    for (name, value) in headers(&destination.settings).map_err(PushFailure::Setup)? {
        into.insert(HeaderName::try_from(name).map_err(|error| setup(&error))?, value);
    }
    into.insert(HOST, authority);
    into.insert(USER_AGENT, HeaderValue::from_static(http::USER_AGENT));
    into.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // hyper omits it where there is no body.
    into.insert(CONTENT_LENGTH, length);
    into.insert(CONNECTION, HeaderValue::from_static("close"));
    if let Some(encoding) = encoding {
        into.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    Ok(request)
}

/// The pause that the destination asks for. The form with a date is ignored, since the wall clocks may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
