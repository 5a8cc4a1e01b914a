//! One HTTP/1 request on a connection of its own: for the kubelet, Docker, the push and the command line.
//!
//! In: a connected stream and a request. Out: the response, or why there is none. It sets no limit on time; callers do.

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::http::response::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// The value of the `User-Agent` header.
pub const USER_AGENT: &str = concat!("gpumeter/", env!("CARGO_PKG_VERSION"));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response whose body may still come.
#[derive(Debug)]
pub struct HttpResponse {
    /// Status and headers.
    pub head: Parts,
    /// What follows them.
    pub body: Incoming,
    /// Ends the connection when it is dropped.
    _connection: JoinSet<()>,
}

impl HttpResponse {
    /// The whole body, if it is not longer than that.
    ///
    /// # Errors
    /// The connection broke, or the body is longer.
    pub async fn read(self, most_bytes: usize) -> Result<Bytes, BoxError> {
        Ok(Limited::new(self.body, most_bytes).collect().await?.to_bytes())
    }
}

/// Sends a request; returns as soon as the head of the response is there.
///
/// # Errors
/// The connection broke, or the peer does not speak HTTP.
pub async fn send<S, B>(stream: S, request: Request<B>) -> Result<HttpResponse, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // Its errors come back to whoever waits for the response.
        let _ = connection.await;
    });
    let (head, body) = Response::into_parts(sender.send_request(request).await?);
    Ok(HttpResponse { head, body, _connection: driver })
}
