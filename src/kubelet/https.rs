//! HTTPS GET with the service account of the agent's pod.
//!
//! In: an address, and the directory of the service account with `ca.crt` and `token`. Out: a response, or one reason why
//! there is none. The token is sent only to a server whose certificate that CA has signed, and is read anew for each
//! request, since it is replaced every hour.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::http::{self, HttpResponse};

/// Largest accepted answer: some 5 times that of a node with 250 pods.
const MOST_BYTES: usize = 32 << 20;

/// Largest file of a service account that is read.
const MOST_ACCOUNT_BYTES: u64 = 1 << 20;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// An address or a name, as it stands in the server's certificate.
    pub host: String,
    /// Its port.
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

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) problem: String,
    /// HTTP status of a refusal.
    pub(super) status: Option<StatusCode>,
}

impl Unanswered {
    pub(super) fn new(problem: impl ToString) -> Self {
        // Another server's words never break a line of the log.
        let problem: String = problem.to_string().chars().take(300).collect();
        Self { problem: problem.escape_debug().to_string(), status: None }
    }
}

/// A server that the service account may ask.
#[derive(Clone, Debug)]
pub(super) struct Https {
    address: Address,
    account: PathBuf,
}

impl Https {
    pub(super) fn new(address: Address, account: &Path) -> Self {
        Self { address, account: account.to_owned() }
    }

    /// The whole answer to a GET.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, Unanswered> {
        self.open(path).await?.read(MOST_BYTES).await.map_err(Unanswered::new)
    }

    /// The answer to a GET as soon as its body begins.
    pub(super) async fn open(&self, path: &str) -> Result<HttpResponse, Unanswered> {
        let Address { host, port } = &self.address;
        let name = ServerName::try_from(host.clone()).map_err(Unanswered::new)?;
        let connector = TlsConnector::from(Arc::new(self.trust()?));
        let request = self.request(path)?;
        let stream = TcpStream::connect((&**host, *port)).await.map_err(Unanswered::new)?;
        let stream = connector.connect(name, stream).await.map_err(Unanswered::new)?;
        let response = http::send(stream, request).await.map_err(Unanswered::new)?;
        let status = response.head.status;
        if status.is_success() {
            return Ok(response);
        }
        Err(Unanswered { status: Some(status), ..Unanswered::new(format!("it answers {status}")) })
    }

    fn trust(&self) -> Result<ClientConfig, Unanswered> {
        let path = self.account.join("ca.crt");
        let problem = |error: &dyn std::fmt::Display| Unanswered::new(format!("{}: {error}", path.display()));
        let text = read(&path)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| problem(&error))?;
            roots.add(certificate).map_err(|error| problem(&error))?;
        }
        if roots.is_empty() {
            return Err(problem(&"has no certificate"));
        }
        Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, Unanswered> {
        let token = read(&self.account.join("token"))?;
        let token = [b"Bearer ", token.trim_ascii()].concat();
        let mut token = HeaderValue::from_bytes(&token).map_err(Unanswered::new)?;
        token.set_sensitive(true);
        let authority = self.address.to_string();
        let authority = authority.strip_prefix("https://").unwrap_or(&authority);
        Request::get(path)
            .header(HOST, authority)
            .header(USER_AGENT, http::USER_AGENT)
            .header(ACCEPT, "application/json")
            .header(AUTHORIZATION, token)
            .body(Empty::new())
            .map_err(Unanswered::new)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Unanswered> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| Unanswered::new(format!("{}: {error}", path.display())))?;
    let read = file.take(MOST_ACCOUNT_BYTES).read_to_end(&mut text);
    read.map_err(|error| Unanswered::new(format!("{}: {error}", path.display())))?;
    Ok(text)
}
