//! Parses addresses: listen addresses, the OTLP endpoint, the external URL. No name is resolved; `localhost` is 127.0.0.1.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;

use super::problem::Complaint;

/// The address of a receiver of OTLP. The default, without a host, stands for a missing address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    /// Host name or IP address; an IPv6 address keeps its brackets.
    pub host: String,
    pub port: u16,
    /// What stands before `/v1/metrics`: empty, or beginning with a slash and not ending with one. Where `is_whole`, the whole path.
    pub base: String,
    /// Whether `base` is the whole path of requests, to which nothing is added.
    pub is_whole: bool,
}

impl Endpoint {
    /// Parses a URL that requests go to as it is.
    pub(super) fn whole(text: &str) -> Result<Self, Complaint> {
        let endpoint: Self = text.parse()?;
        let base = text.parse::<Uri>().map_or_else(|_| String::new(), |uri| uri.path().to_owned());
        Ok(Self { base, is_whole: true, ..endpoint })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.base)
    }
}

/// Parses the base URL, `http://host:port/base`.
impl FromStr for Endpoint {
    type Err = Complaint;

    fn from_str(text: &str) -> Result<Self, Complaint> {
        let endpoint = Self::parse(text, "give http://host:port, such as http://127.0.0.1:4318")?;
        let base = endpoint.base.strip_suffix("/v1/metrics").unwrap_or(&endpoint.base);
        Ok(Self { base: base.trim_end_matches('/').to_owned(), ..endpoint })
    }
}

impl Endpoint {
    /// Parses `http://host:port/base`, or `https://host/base`.
    ///
    /// # Errors
    /// It is something else, with that remedy.
    pub fn parse(text: &str, remedy: &str) -> Result<Self, Complaint> {
        let complain = |wrong: &str| Complaint::about(text, wrong, remedy);
        let uri: Uri = text.parse().map_err(|_| complain("is not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(complain("does not begin with http:// or https://")),
        };
        no_password(&uri, remedy)?;
        if uri.query().is_some() || text.contains('#') {
            return Err(complain("goes on after the path"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| complain("has no host"))?;
        let given = uri.authority().is_some_and(|authority| authority.as_str().len() > host.len());
        let port = match uri.port_u16().filter(|port| *port > 0) {
            Some(port) => port,
            // Plain HTTP on port 80 is most likely a forgotten port.
            None if tls && !given => 443,
            None => return Err(complain("has no port")),
        };
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host: host.to_owned(), port, base, is_whole: false })
    }

    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
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
