//! HTTP client: TLS, and one HTTP/1 request on a connection of its own. Callers set the time limit.

mod tls;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::http::response::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

pub use tls::{Pem, client_config, read_file};

pub const USER_AGENT: &str = concat!("gpumeter/", env!("CARGO_PKG_VERSION"));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response whose body may not have arrived yet.
#[derive(Debug)]
pub struct HttpResponse {
    pub head: Parts,
    pub body: Incoming,
    /// The connection's task, which ends when this is dropped.
    _connection: JoinSet<()>,
}

impl HttpResponse {
    /// The whole body.
    ///
    /// # Errors
    /// The connection broke, or the body has more than `max_bytes`.
    pub async fn read(self, max_bytes: usize) -> Result<Bytes, BoxError> {
        let body = Limited::new(self.body, max_bytes).collect().await;
        let explain = |error: BoxError| match error.is::<LengthLimitError>() {
            true => format!("the answer has more than {} MiB, the most that is read", max_bytes >> 20).into(),
            false => error,
        };
        Ok(body.map_err(explain)?.to_bytes())
    }
}

/// Sends a request, and returns as soon as the head of the response has arrived.
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
        // Its errors are also returned to the caller that waits for the response.
        let _ = connection.await;
    });
    let (head, body) = Response::into_parts(sender.send_request(request).await?);
    Ok(HttpResponse { head, body, _connection: driver })
}
