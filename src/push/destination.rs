//! The address to which points are pushed.
//!
//! As in the OTLP specification it is a base to which `/v1/metrics` is added, unless it ends with that.

use std::fmt;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;

use super::{PushLimits, Tally};

const PATH: &str = "/v1/metrics";

/// An address to which nothing can be pushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("push to {url:?}: {reason}")]
pub struct BadDestination {
    url: String,
    reason: String,
}

/// A receiver of OTLP over HTTP, and the counts of the points for it.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Limits on the tries to send a batch.
    pub limits: PushLimits,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: Uri,
    /// The value of the `Host` header.
    pub(super) authority: HeaderValue,
    name: Arc<str>,
    tally: Arc<Tally>,
}

impl Destination {
    /// Parses an address such as `http://localhost:4318`; the default port is 80, as in any URL.
    pub fn parse(url: &str) -> Result<Self, BadDestination> {
        Self::read(url).map_err(|reason| BadDestination { url: without_secret(url), reason })
    }

    fn read(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{error}; write http://HOST:4318"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("TLS is not supported; push to a Collector on the node, by http".to_owned());
            }
            _ => return Err("it is not an http address; write http://HOST:4318".to_owned()),
        }
        let authority = uri.authority().ok_or("it names no host; write http://HOST:4318")?;
        if authority.as_str().contains('@') {
            return Err("users and passwords are not sent without TLS; remove them".to_owned());
        }
        if uri.query().is_some() {
            return Err("an OTLP address has no query; remove what follows the question mark".to_owned());
        }
        let host = authority.host();
        if host.is_empty() {
            return Err("it names no host; write http://HOST:4318".to_owned());
        }
        let base = uri.path().trim_end_matches('/');
        let path = format!("{}{PATH}", base.strip_suffix(PATH).unwrap_or(base));
        Ok(Self {
            limits: PushLimits::default(),
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: port(authority.as_str(), host)?,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?,
            name: format!("http://{authority}{path}").into(),
            path: path.parse().map_err(|error| format!("{error}; write http://HOST:4318"))?,
            tally: Arc::default(),
        })
    }

    /// The complete address, as a label value.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Counts of the points for it.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}

/// The port after the host. hyper treats a port above 65535 as none.
fn port(authority: &str, host: &str) -> Result<u16, String> {
    match authority.strip_prefix(host).and_then(|rest| rest.strip_prefix(':')) {
        None => Ok(80),
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{port:?} is no port; give one from 1 to 65535")),
        },
    }
}

/// The address without user and password, for the log.
fn without_secret(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        _ => url.to_owned(),
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, u16, String) {
        let destination = Destination::parse(url).unwrap();
        (destination.host, destination.port, destination.path.to_string())
    }

    #[test]
    fn an_address_is_a_base_to_which_the_path_of_metrics_is_added() {
        let expect = |host: &str, port, path: &str| (host.to_owned(), port, path.to_owned());
        assert_eq!(parts("http://localhost:4318"), expect("localhost", 4318, "/v1/metrics"));
        assert_eq!(parts("http://c/"), expect("c", 80, "/v1/metrics"));
        assert_eq!(parts("http://[::1]:4318/v1/metrics"), expect("::1", 4318, "/v1/metrics"));
        assert_eq!(parts("http://p:9090/api/v1/otlp/"), expect("p", 9090, "/api/v1/otlp/v1/metrics"));
    }

    #[test]
    fn a_bad_address_is_refused_with_what_to_write() {
        let error = |url| Destination::parse(url).unwrap_err().to_string();
        assert_eq!(
            error("https://c:4318"),
            r#"push to "https://c:4318": TLS is not supported; push to a Collector on the node, by http"#
        );
        assert!(error("c:4318").contains("write http://HOST:4318"), "{}", error("c:4318"));
        assert!(error("").contains("write http://HOST:4318"));
        assert!(error("http://").contains("write http://HOST:4318"));
        assert!(error("http://c:70000").contains("no port"));
        assert!(error("http://c:0").contains("no port"));
        assert!(error("http://c:4318/?a=b").contains("remove what follows"));
        let secret = error("http://ann:hunter2@c:4318");
        assert!(secret.contains("remove them") && !secret.contains("hunter2"), "{secret}");
    }
}
