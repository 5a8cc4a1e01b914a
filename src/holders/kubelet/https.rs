//! HTTPS GET with the service account of the agent's pod.
//!
//! The account's directory has the files `ca.crt` and `token`. The token is sent only to a server whose certificate that CA
//! has signed, and is read for each request, since Kubernetes replaces it every hour.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::runtime::http::{self, Pem};

const TIMEOUT: Duration = Duration::from_secs(3);

/// Largest accepted response in bytes: some 5 times that of a node with 250 pods.
const MAX_BYTES: usize = 32 << 20;

/// What error messages call the directory with the credentials.
const ACCOUNT: &str = "service account";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address or name, as in the server's certificate.
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(host)) => write!(f, "https://[{host}]:{}", self.port),
            _ => write!(f, "https://{}:{}", self.host, self.port),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestFailure {
    pub(super) problem: String,
    /// HTTP status, if the server refused the request.
    pub(super) status: Option<StatusCode>,
}

impl RequestFailure {
    pub(super) fn new(problem: impl ToString) -> Self {
        // Another server's text must not break a log line.
        let problem: String = problem.to_string().chars().take(300).collect();
        Self { problem: problem.escape_debug().to_string(), status: None }
    }
}

#[derive(Debug)]
pub(super) struct HttpsClient {
    address: Address,
    account: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl HttpsClient {
    pub(super) fn new(address: Address, account: &Path) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { address, account: account.to_owned(), runtime })
    }

    /// Whether there is a token of the service account, without which no request is made.
    pub(super) fn has_token(&self) -> bool {
        self.account.join("token").exists()
    }

    pub(super) fn get(&self, path: &str) -> Result<Bytes, RequestFailure> {
        let response = async { tokio::time::timeout(TIMEOUT, self.respond(path)).await };
        let timed_out = |_| Err(RequestFailure::new(format!("no response within {} s", TIMEOUT.as_secs())));
        self.runtime.block_on(response).unwrap_or_else(timed_out)
    }

    async fn respond(&self, path: &str) -> Result<Bytes, RequestFailure> {
        let Address { host, port } = &self.address;
        let name = ServerName::try_from(host.clone()).map_err(RequestFailure::new)?;
        let connector = TlsConnector::from(Arc::new(self.tls().map_err(RequestFailure::new)?));
        let request = self.request(path)?;
        let stream = TcpStream::connect((&**host, *port)).await.map_err(RequestFailure::new)?;
        let stream = connector.connect(name, stream).await.map_err(RequestFailure::new)?;
        let response = http::send(stream, request).await.map_err(RequestFailure::new)?;
        let status = response.head.status;
        if status.is_success() {
            return response.read(MAX_BYTES).await.map_err(RequestFailure::new);
        }
        Err(RequestFailure { status: Some(status), ..RequestFailure::new(format!("it returned {status}")) })
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        http::client_config(Some(&Pem::read(ACCOUNT, &self.account.join("ca.crt"))?), None)
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, RequestFailure> {
        let token = http::read_file(ACCOUNT, &self.account.join("token")).map_err(RequestFailure::new)?;
        let token = [b"Bearer ", token.trim_ascii()].concat();
        let mut token = HeaderValue::from_bytes(&token).map_err(RequestFailure::new)?;
        token.set_sensitive(true);
        let authority = self.address.to_string();
        let authority = authority.strip_prefix("https://").unwrap_or(&authority);
        Request::get(path)
            .header(HOST, authority)
            .header(USER_AGENT, http::USER_AGENT)
            .header(ACCEPT, "application/json")
            .header(AUTHORIZATION, token)
            .body(Empty::new())
            .map_err(RequestFailure::new)
    }
}
