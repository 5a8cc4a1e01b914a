//! Sends requests to a running agent over HTTP, with TLS and a user if configured.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig};

use super::Failure;
use crate::config::{Complaint, Endpoint};
use crate::runtime::file;
use crate::runtime::http::{self, HttpResponse, Pem};

/// How long the agent may take; it cancels a bill after 5 s itself.
const TIMEOUT: Duration = Duration::from_secs(10);

const MOST_BYTES: usize = 1 << 30;

/// The running agent, and the credentials for it.
#[derive(Args, Debug)]
pub(super) struct RunningAgent {
    /// URL of the running agent, with the path where a proxy has one for it.
    #[arg(long, default_value = Self::DEFAULT_URL, value_name = "URL")]
    pub(super) url: String,
    /// CA certificate, as PEM, that verifies the agent's certificate, instead of the CAs that this machine trusts.
    #[arg(long = "web.ca-file", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Client certificate with its private key in one PEM file.
    #[arg(long = "web.cert-file", value_name = "FILE")]
    cert_file: Option<PathBuf>,
    /// User name, if the agent has web.users.
    #[arg(long = "web.user", requires = "web_password_file", value_name = "NAME")]
    web_user: Option<String>,
    /// File with the password of that user.
    #[arg(long = "web.password-file", requires = "web_user", value_name = "FILE")]
    web_password_file: Option<PathBuf>,
}

impl RunningAgent {
    pub(super) const DEFAULT_URL: &str = crate::agent::app::DEFAULT_PAGE;

    pub(super) fn is_reachable(&self) -> bool {
        parse_url(&self.url).is_ok_and(|agent| std::net::TcpStream::connect(agent.authority()).is_ok())
    }

    pub(super) fn get(&self, path: &str) -> Result<String, Failure> {
        self.ask(path, None)
    }

    /// The answer to a request, which is a POST where it has a body of JSON.
    pub(super) fn ask(&self, path: &str, json: Option<String>) -> Result<String, Failure> {
        let url = &self.url;
        let wrong = |problem: &dyn Display| Failure::wrong(format!("{url}: {problem}"));
        let agent = parse_url(url).map_err(|problem| Failure::wrong(format!("--url {problem}")))?;
        let config = agent.tls.then(|| self.tls()).transpose()?;
        let request = self.request(&agent, path, json)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let exchange = async { timeout(TIMEOUT, exchange(&agent, config, request)).await };
        let answered = runtime.map_err(|error| wrong(&error))?.block_on(exchange);
        let (status, body) = answered
            .unwrap_or_else(|_| {
                Err(format!("no response within {} s; is the agent running?", TIMEOUT.as_secs()))
            })
            .map_err(|problem| wrong(&problem))?;
        match error_of(&body) {
            _ if status == StatusCode::OK => Ok(body),
            Some(error) if status == StatusCode::UNAUTHORIZED => {
                Err(Failure::wrong(format!("{url}: {error}: --web.user and --web.password-file")))
            }
            Some(error) if status != StatusCode::NOT_FOUND => Err(Failure::wrong(format!("{url}: {error}"))),
            // An agent serves all paths that are requested here, and its errors are JSON.
            _ => Err(Failure::wrong(format!(
                "{url}: this is not a gpumeter agent: it returned status {} for {path}; check host and port",
                status.as_u16()
            ))),
        }
    }

    fn request(
        &self,
        agent: &Endpoint,
        path: &str,
        json: Option<String>,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let method = if json.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", agent.base))
            .header(HOST, agent.authority())
            .header(USER_AGENT, http::USER_AGENT)
            .header(CONNECTION, "close");
        if let (Some(user), Some(file)) = (&self.web_user, &self.web_password_file) {
            let password = file::read_text(file).map_err(|error| {
                Failure::wrong(format!("--web.password-file {}: {error}", file.display()))
            })?;
            let credentials = format!("{user}:{}", password.trim_end_matches(['\r', '\n']));
            request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(credentials)));
        }
        if json.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::from(json.unwrap_or_default()))
            .map_err(|error| Failure::wrong(format!("{}: {error}", self.url)))
    }

    fn tls(&self) -> Result<ClientConfig, Failure> {
        let read = |option, path: &PathBuf| Pem::read_argument(option, path).map_err(Failure::wrong);
        let ca = self.ca_file.as_ref().map(|path| read("--web.ca-file", path)).transpose()?;
        let identity = self.cert_file.as_ref().map(|path| read("--web.cert-file", path)).transpose()?;
        let identity = identity.as_ref().map(|pem| (pem, pem));
        http::client_config(ca.as_ref(), identity).map_err(Failure::wrong)
    }
}

async fn exchange(
    agent: &Endpoint,
    config: Option<ClientConfig>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, String), String> {
    let stream = TcpStream::connect(agent.authority())
        .await
        .map_err(|error| format!("{error}; is the agent running?"))?;
    let response = match config {
        None => http::send(stream, request).await,
        Some(config) => {
            let name = agent.host.trim_matches(['[', ']']);
            let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
            http::send(stream.map_err(|error| tls_problem(&error, &agent.host))?, request).await
        }
    };
    let response: HttpResponse = response.map_err(|error| match error.is_parse() {
        true => "the response is not HTTP; write https:// if the agent serves TLS".to_owned(),
        false => error.to_string(),
    })?;
    let status = response.head.status;
    let body = response.read(MOST_BYTES).await.map_err(|error| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn tls_problem(error: &std::io::Error, host: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(problem)) = inner else {
        return match inner {
            Some(rustls::Error::InvalidMessage(_)) => {
                format!("{error}: the response is not TLS; write http:// if the agent serves no TLS")
            }
            _ => error.to_string(),
        };
    };
    match problem {
        CertificateError::UnknownIssuer => "the certificate is signed by no CA that is trusted here; give that CA with \
             --web.ca-file FILE, or the certificate itself if it is self-signed"
            .to_owned(),
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the certificate is that of a CA (a self-signed one by openssl is, if not told otherwise), which no server may \
             present; make one with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE` and give it with \
             --web.ca-file FILE"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate is not valid for {host}; write --url with a name that is in it")
        }
        other => format!("the certificate is refused: {other}"),
    }
}

/// The address of an agent; `http://` may be left out, and so may the port of https behind a proxy.
fn parse_url(url: &str) -> Result<Endpoint, Complaint> {
    let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    Endpoint::parse(&full, "write it like http://127.0.0.1:9855")
}

/// The error message in a response of the agent; absent if the body is not its JSON.
fn error_of(body: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(json.get("error")?.as_str()?.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_taken_from_its_json() {
        let error = error_of("{\"error\":\"from: \\\"x\\\" is not a valid time\"}\n");
        assert_eq!(error.as_deref(), Some("from: \"x\" is not a valid time"));
        assert_eq!((error_of("Bad Gateway\n"), error_of("[1]")), (None, None));
    }

    #[test]
    fn an_agents_address_may_lack_the_scheme_and_have_a_path() {
        for (url, is_tls, host, prefix) in [
            ("http://localhost:9855", false, "localhost:9855", ""),
            ("localhost:9855", false, "localhost:9855", ""),
            ("http://localhost:9855/", false, "localhost:9855", ""),
            ("[::1]:9855", false, "[::1]:9855", ""),
            ("https://node:9855", true, "node:9855", ""),
            ("localhost:80/nodes/7/", false, "localhost:80", "/nodes/7"),
            ("https://gpus.example.com/nodes/7", true, "gpus.example.com:443", "/nodes/7"),
        ] {
            let agent = parse_url(url).unwrap();
            assert_eq!((agent.tls, &*agent.authority(), &*agent.base), (is_tls, host, prefix), "{url}");
        }
        for (url, problem) in [
            ("localhost", "has no port"),
            ("http://localhost", "has no port"),
            ("http://[::1]", "has no port"),
            ("http://localhost:99999", "has no port"),
            ("ftp://localhost:9855", "does not begin with http"),
            ("localhost:9855/metrics?x=1", "goes on after the path"),
            ("https://localhost:99999", "has no port"),
        ] {
            assert!(parse_url(url).is_err_and(|complaint| complaint.0.contains(problem)), "{url}");
        }
    }
}
