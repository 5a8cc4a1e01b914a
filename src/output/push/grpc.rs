//! Sends a request by gRPC.

use std::error::Error as _;

use bytes::{Buf, BufMut, Bytes};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataKey, MetadataValue};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::connect::{connect, headers};
use super::reply::{accepted, line, retry_delay};
use super::send::decompress;
use super::{Accepted, Destination, PushFailure};
use crate::config::OtlpCompression;
use crate::runtime::http;

/// Passes encoded messages on as they are.
#[derive(Clone, Copy, Debug, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

pub(super) async fn export(destination: &Destination, body: &[u8]) -> Result<Accepted, PushFailure> {
    let setup = |error: &dyn std::fmt::Display| PushFailure::Setup(format!("endpoint: {error}; correct it"));
    let unreachable = |error: tonic::transport::Error| PushFailure::of_connection(&error);
    let mut request = Request::new(Bytes::from(decompress(body).map_err(|error| setup(&error))?));
    for (name, value) in headers(&destination.settings).map_err(PushFailure::Setup)? {
        let name: AsciiMetadataKey = name.parse().map_err(|error| setup(&error))?;
        let mut value = MetadataValue::try_from(value.as_bytes()).map_err(|error| setup(&error))?;
        value.set_sensitive(true);
        request.metadata_mut().insert(name, value);
    }
    let path: PathAndQuery = destination.path().parse().map_err(|error| setup(&error))?;
    let stream = connect(destination).await?;
    // The stream is made here, with TLS where there is some; the scheme is only what the server is told.
    let scheme = if destination.settings.endpoint.tls { "https" } else { "http" };
    let authority = destination.authority();
    let origin = format!("{scheme}://{authority}").parse().map_err(|error| setup(&error))?;
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .and_then(|endpoint| endpoint.origin(origin).user_agent(http::USER_AGENT))
        .map_err(unreachable)?;
    let mut stream = Some(TokioIo::new(stream));
    let once = tower::service_fn(move |_| {
        let stream = stream.take().ok_or(std::io::ErrorKind::ConnectionReset);
        async move { stream.map_err(std::io::Error::from) }
    });
    let channel = endpoint.connect_with_connector(once).await.map_err(unreachable)?;
    let mut client = Grpc::new(channel);
    let encoding = match destination.settings.compression {
        OtlpCompression::Gzip => Some(CompressionEncoding::Gzip),
        OtlpCompression::Zstd => Some(CompressionEncoding::Zstd),
        OtlpCompression::None => None,
    };
    if let Some(encoding) = encoding {
        // The Collector answers compressed requests with compressed responses.
        client = client.send_compressed(encoding).accept_compressed(encoding);
    }
    client.ready().await.map_err(unreachable)?;
    match client.unary(request, path, BytesCodec).await {
        Ok(response) => accepted(response.get_ref()).ok_or(PushFailure::NotOtlp),
        Err(status) => Err(failure(&status)),
    }
}

fn failure(answer: &Status) -> PushFailure {
    let (status, message) = (format!("{:?}", answer.code()), line(answer.message().as_bytes()));
    if let Some(cause) = answer.source() {
        return PushFailure::of_connection(cause);
    }
    let retry_after = retry_delay(answer.details());
    // By the table of OTLP's specification. Without a delay RESOURCE_EXHAUSTED is a request that is too large, which would fail
    // again. INTERNAL and UNKNOWN, which are final there, may be a proxy's.
    match answer.code() {
        Code::ResourceExhausted if retry_after.is_none() => PushFailure::Refused { status, message },
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Cancelled
        | Code::OutOfRange
        | Code::DataLoss => PushFailure::Busy { status, message, retry_after },
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            PushFailure::Closed { status, message }
        }
        Code::Internal | Code::Unknown | Code::Ok => PushFailure::Broken { status, message },
        Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition => {
            PushFailure::Refused { status, message }
        }
    }
}
