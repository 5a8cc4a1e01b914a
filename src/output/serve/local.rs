//! While no users are configured, only clients on this host may read more than metrics.
//!
//! Both ends of the connection must be loopback addresses. That is not enough: by DNS rebinding a web page in a browser on
//! this host could reach the agent, so the Host header must also be a loopback name. A reverse proxy on this host forwards
//! requests of other hosts, so forwarded requests are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::Request;
use hyper::header::HOST;
use tokio::sync::{mpsc, oneshot};

use super::response::Refusal;

#[derive(Clone, Copy, Debug)]
pub enum Ends {
    Tcp {
        peer: SocketAddr,
        local: SocketAddr,
    },
    /// A Unix socket, which only processes of this host can open, and browsers cannot.
    Unix {
        /// The client's user id, if the kernel reports it.
        uid: Option<u32>,
    },
}

/// A request to the thread that finds whose connections on loopback are.
pub struct OwnerRequest {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Receives the client's user id, if it is found; closed when nothing waits for it any more.
    pub reply: oneshot::Sender<Option<u32>>,
}

/// The refusal while too many requests wait for the owners of their connections.
const BUSY: Refusal =
    Refusal::Busy("too many requests of this host wait for the owner of their connection; try again soon");

impl Ends {
    /// The client's user id, if it is found.
    pub(super) async fn user(self, owners: &mpsc::Sender<OwnerRequest>) -> Result<Option<u32>, Refusal> {
        let (peer, local) = match self {
            Self::Unix { uid } => return Ok(uid),
            Self::Tcp { peer, local } => (peer, local),
        };
        let (reply, answer) = oneshot::channel();
        owners.try_send(OwnerRequest { peer, local, reply }).map_err(|_| BUSY)?;
        answer.await.map_err(|_| BUSY)
    }
}

const OF_PROXIES: [&str; 5] = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];

/// Whether a request is from this host, or why not.
pub(super) fn check_origin<B>(request: &Request<B>, ends: Ends) -> Result<(), &'static str> {
    if OF_PROXIES.iter().any(|name| request.headers().contains_key(*name)) {
        return Err(
            "this request came through a proxy, so its client is unknown; configure web.users, or do not use the proxy",
        );
    }
    let Ends::Tcp { peer, local } = ends else { return Ok(()) };
    if !is_loopback(peer.ip()) || !is_loopback(local.ip()) {
        return Err("this page is served on loopback only; use 127.0.0.1 or [::1] on the host itself");
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = match (hosts.next(), hosts.next(), authority) {
        (Some(host), None, _) => host.to_str().unwrap_or_default(),
        // HTTP/2 has it in place of the header.
        (None, None, Some(authority)) => authority,
        _ => return Err("this page is served on loopback only; send one Host header, e.g. localhost"),
    };
    // A full URL in the request line takes precedence over the header, so both must be loopback names.
    if !is_loopback_name(host) || !authority.is_none_or(is_loopback_name) {
        return Err(
            "this page is served on loopback only; the Host header must be localhost, 127.0.0.1 or [::1]",
        );
    }
    Ok(())
}

fn is_loopback(address: IpAddr) -> bool {
    // A socket on [::] sees IPv4 peers as ::ffff:127.0.0.1.
    address.to_canonical().is_loopback()
}

/// Whether this names the host itself, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let (is_name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            (address.parse().is_ok_and(|address: Ipv6Addr| is_loopback(address.into())), port)
        }
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            let is_address = name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
            (is_address || name.eq_ignore_ascii_case("localhost"), port)
        }
    };
    is_name && (port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn ask(uri: &str, hosts: &[&str], peer: &str, local: &str) -> Result<(), &'static str> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let ends = Ends::Tcp { peer: peer.parse().unwrap(), local: local.parse().unwrap() };
        check_origin(&request.body(()).unwrap(), ends)
    }

    #[test]
    fn only_names_of_this_host_are_loopback_names() {
        for name in ["localhost", "LocalHost:9855", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:9855"] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in [
            "",
            "localhost.evil.example",
            "evil.example",
            "localhost:",
            "localhost:port",
            "127.0.0.1.evil.example",
            "128.0.0.1",
            "::1",
            "[::1",
            "[::2]:9855",
            "[::1]9855",
            "localhost@evil.example",
        ] {
            assert!(!is_loopback_name(name), "{name}");
        }
    }

    #[test]
    fn both_ends_must_be_loopback() {
        let local = "127.0.0.1:9855";
        assert!(ask("/", &["localhost"], "127.0.0.1:5", local).is_ok());
        assert!(ask("/", &["localhost"], "[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:9855").is_ok());
        assert!(ask("/", &["localhost"], "10.0.0.1:5", local).is_err());
        assert!(ask("/", &["localhost"], "127.0.0.1:5", "10.0.0.2:9855").is_err());
    }

    #[test]
    fn a_forwarded_request_is_refused_even_on_a_unix_socket() {
        for header in ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"] {
            let request = Request::builder().uri("/").header(HOST, "localhost").header(header, "").body(());
            let local = "127.0.0.1:5".parse().unwrap();
            for ends in [Ends::Tcp { peer: local, local }, Ends::Unix { uid: None }] {
                let refused = check_origin(request.as_ref().unwrap(), ends).unwrap_err();
                assert!(refused.contains("web.users"), "{header}: {refused}");
            }
        }
    }

    #[test]
    fn a_name_that_is_not_a_loopback_name_is_refused() {
        let refused = |uri, hosts| ask(uri, hosts, "127.0.0.1:5", "127.0.0.1:9855").is_err();
        assert!(refused("/", &["rebind.evil.example"]));
        assert!(refused("/", &[]));
        assert!(refused("/", &["localhost", "rebind.evil.example"]));
        assert!(refused("http://rebind.evil.example/", &["localhost"]));
    }
}
