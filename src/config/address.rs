//! Parses addresses: listen addresses, the OTLP endpoint, the external URL. No name is resolved; `localhost` is 127.0.0.1.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;

use super::problem::Complaint;

/// The address of an OTLP collector with plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or IP address; an IPv6 address keeps its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Parses the base URL, `http://host:port`.
impl FromStr for Endpoint {
    type Err = Complaint;

    fn from_str(text: &str) -> Result<Self, Complaint> {
        let remedy = "give http://host:port, such as http://127.0.0.1:4318";
        let complain = |wrong: &str| Complaint::about(text, wrong, remedy);
        let uri: Uri = text.parse().map_err(|_| complain("is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                let remedy = "TLS to the collector comes in a later version: give http://host:port of a collector \
                              on this node or in a trusted network";
                return Err(Complaint::about(text, "asks for TLS", remedy));
            }
            _ => return Err(complain("does not begin with http://")),
        }
        no_password(&uri, remedy)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(complain("goes on after the port (/v1/metrics is added by itself)"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| complain("has no host"))?;
        let port = uri.port_u16().filter(|port| *port > 0).ok_or_else(|| complain("has no port"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// On an IP address with a port.
    Tcp(SocketAddr),
    /// On a Unix socket.
    Unix(PathBuf),
}

/// Parses an IP address with a port, or a path; a port alone means every address, as with Prometheus' exporters.
impl FromStr for ListenAddress {
    type Err = Complaint;

    fn from_str(text: &str) -> Result<Self, Complaint> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = super::values::path(path).map_err(|_| {
                Complaint::about(
                    text,
                    "has no absolute path",
                    "give unix:/path, such as unix:/run/gpumeter/web.sock",
                )
            })?;
            return Ok(Self::Unix(path));
        }
        let full = match text.strip_prefix("localhost") {
            Some(port) => format!("127.0.0.1{port}"),
            None if text.starts_with(':') => format!("[::]{text}"),
            None => text.to_owned(),
        };
        full.parse().map(Self::Tcp).map_err(|_| {
            let remedy = "give IP:port, such as 127.0.0.1:9855, or \":9855\" for all interfaces";
            Complaint::about(text, "is not an IP address with a port", remedy)
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A URL to which the path of a page is added; without a slash at its end.
pub(crate) fn external_url(text: &str) -> Result<String, Complaint> {
    let remedy = "give a URL such as https://gpu-node-7.example.com or http://10.0.0.7:9855/gpumeter";
    let complain = |wrong: &str| Complaint::about(text, wrong, remedy);
    let uri: Uri = text.parse().map_err(|_| complain("is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(complain("does not begin with http:// or https://"));
    }
    no_password(&uri, remedy)?;
    if uri.query().is_some() || text.contains('#') {
        return Err(complain("goes on after the path"));
    }
    match uri.host() {
        Some("") | None => Err(complain("has no host")),
        Some(_) => Ok(text.trim_end_matches('/').to_owned()),
    }
}

/// Refuses credentials before `@`; the complaint does not quote them, since it goes to logs.
fn no_password(uri: &Uri, remedy: &str) -> Result<(), Complaint> {
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err(Complaint(format!("carries a user or a password, which has no place here; {remedy}")))
        }
        _ => Ok(()),
    }
}
