//! Opens the TCP and Unix sockets on which the server listens, and accepts on them.
//!
//! `[::]` also accepts IPv4, whatever the host's default, unless an IPv4 address with the same port is configured too; on a
//! host without IPv6 it means `0.0.0.0`.
//!
//! An address that this host does not have ends the start, since that is a mistake. One that cannot be bound for another
//! reason is tried again for ever: any user of the node may take a free port, as during an upgrade, and the account must go
//! on. Until then the agent is not ready.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};

use super::local::Ends;
use super::security::Security;
use crate::config::ListenAddress;

/// Connections that may wait to be accepted, unless the kernel's own limit is lower.
const BACKLOG: i32 = 1024;

/// The send buffer of a connection in bytes; the kernel doubles it for its bookkeeping.
const SEND_BUFFER: usize = 128 * 1024;

#[derive(Debug, thiserror::Error)]
#[error("listen {address}: {}", advice(.reason, .names.option(), .activated))]
pub struct Error {
    address: ListenAddress,
    names: MetricNames,
    #[source]
    reason: io::Error,
    /// The addresses on which systemd listens for this service.
    activated: Arc<[String]>,
}

impl Error {
    /// Whether the address can never be bound on this host as it is.
    fn is_mistake(&self) -> bool {
        let without_family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
        self.reason.kind() == io::ErrorKind::AddrNotAvailable
            || self.reason.raw_os_error() == Some(without_family)
    }
}

/// What is wrong, and what to do; `option` is that of the command line which gives the address.
fn advice(reason: &io::Error, option: &str, activated: &[String]) -> String {
    match reason.kind() {
        io::ErrorKind::AddrInUse if !activated.is_empty() => format!(
            "address already in use; systemd listens on {} for this service by its socket unit (gpumeter.socket): add \
             --web.systemd-socket to ExecStart=, or disable that unit",
            activated.join(" and ")
        ),
        io::ErrorKind::AddrInUse => {
            format!("address already in use, perhaps by another agent; choose another address with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("permission denied; choose a port above 1023 with {option}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("no interface of this host has this address; choose another with {option}")
        }
        _ => format!("{reason}; choose another address with {option}"),
    }
}

#[derive(Debug, Default)]
pub struct BoundListeners {
    pub listeners: Vec<Listener>,
    pub unbound: Vec<UnboundAddress>,
}

/// Listens on all addresses that can be bound now; `/metrics` has those names there.
///
/// # Errors
/// An address is not one of this host.
pub fn bind(addresses: &[ListenAddress], names: MetricNames) -> Result<BoundListeners, Error> {
    let mut bound = BoundListeners::default();
    // The agent's own descriptors of these sockets are closed again; systemd goes on listening.
    let activated: Arc<[String]> = inherit().unwrap_or_default().iter().map(Listener::address).collect();
    for address in addresses {
        match listen(address, addresses) {
            Ok(socket) => bound.listeners.push(Listener { socket, names }),
            Err(reason) => {
                let activated = Arc::clone(&activated);
                let error = Error { address: address.clone(), names, reason, activated };
                if error.is_mistake() {
                    return Err(error);
                }
                bound.unbound.push(UnboundAddress { error, all: addresses.into() });
            }
        }
    }
    Ok(bound)
}

#[derive(Debug)]
pub struct UnboundAddress {
    pub error: Error,
    all: Arc<[ListenAddress]>,
}

/// The time between two tries.
const RETRY: Duration = Duration::from_millis(500);

/// How many failures there are between two log lines: ten minutes.
const LOG_EVERY: u32 = 1_200;

impl UnboundAddress {
    /// Tries until it listens; meanwhile the address is among the missing ones.
    pub async fn listen(self, missing: &MissingListeners) -> Listener {
        let Self { mut error, all } = self;
        let mut failures = 0_u32;
        loop {
            if failures.is_multiple_of(LOG_EVERY) {
                tracing::error!(
                    "{error}. Nobody can scrape the agent there, and it is not ready; the account goes on, and it tries again \
                     until it listens"
                );
            }
            failures = failures.wrapping_add(1);
            missing.insert(&error);
            tokio::time::sleep(RETRY).await;
            match listen(&error.address, &all) {
                Ok(socket) => {
                    missing.remove(&error.address);
                    return Listener { socket, names: error.names };
                }
                Err(reason) => error.reason = reason,
            }
        }
    }
}

/// The addresses on which the server does not listen yet, with the reasons.
#[derive(Debug, Default)]
pub struct MissingListeners(Mutex<BTreeMap<String, String>>);

impl MissingListeners {
    pub fn insert(&self, error: &Error) {
        self.0.lock().insert(error.address.to_string(), error.to_string());
    }

    fn remove(&self, address: &ListenAddress) {
        self.0.lock().remove(&address.to_string());
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    pub fn reason(&self) -> Option<String> {
        let reasons: Vec<String> = self.0.lock().values().cloned().collect();
        (!reasons.is_empty()).then(|| format!("not ready: {}", reasons.join("; ")))
    }
}

/// The sockets on which systemd listens for this service; none where its socket unit is not active.
///
/// # Errors
/// One cannot accept connections.
pub fn inherit() -> Result<Vec<Listener>, InheritError> {
    let mut given = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..given.len() {
        let tcp = given.take_tcp_listener(index);
        let socket = match tcp {
            Ok(Some(listener)) => {
                // The same options as for our own sockets; the server also works without them.
                let _ = sockopt::set_tcp_nodelay(&listener, true);
                let _ = sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER);
                ListeningSocket::Tcp(listener)
            }
            _ => match given.take_unix_listener(index) {
                Ok(Some(listener)) => ListeningSocket::Unix(listener),
                _ => return Err(InheritError(index)),
            },
        };
        listeners.push(Listener { socket, names: MetricNames::Native });
    }
    Ok(listeners)
}

/// A socket of systemd is of another kind.
#[derive(Debug, thiserror::Error)]
#[error("--web.systemd-socket: socket {0} is not a listening stream; give ListenStream= in the socket unit")]
pub struct InheritError(usize);

fn listen(address: &ListenAddress, all: &[ListenAddress]) -> io::Result<ListeningSocket> {
    match address {
        ListenAddress::Tcp(tcp) => listen_tcp(*tcp, all).map(ListeningSocket::Tcp),
        ListenAddress::Unix(path) => listen_unix(path).map(ListeningSocket::Unix),
    }
}

/// A Unix socket that every user of this host may use, as with loopback. A stale socket file is replaced.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket is there"));
        }
        Ok(_) if is_listening(path) => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Whether a process listens on a Unix socket; one that accepts nothing does not block the caller.
fn is_listening(path: &Path) -> bool {
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    matches!(connect(), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

fn listen_tcp(address: SocketAddr, all: &[ListenAddress]) -> io::Result<TcpListener> {
    let port = address.port();
    let is_ipv4 = |other: &ListenAddress| matches!(other, ListenAddress::Tcp(other) if other.is_ipv4() && other.port() == port);
    let dual = port == 0 || !all.iter().any(is_ipv4);
    let opened = match open(address, dual) {
        Err(rustix::io::Errno::AFNOSUPPORT) if address.is_ipv6() && address.ip().is_unspecified() => {
            open((Ipv4Addr::UNSPECIFIED, port).into(), false)
        }
        opened => opened,
    };
    opened.map(TcpListener::from).map_err(Into::into)
}

/// A listening socket that does not block and is not inherited.
fn open(address: SocketAddr, dual: bool) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !dual)?;
    }
    // A restart must not wait until the connections of the last agent time out.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted connections inherit these options. Without a limit the kernel lets a send buffer grow to megabytes, and a
    // slow reader would keep it.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The names of the metrics at `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricNames {
    Native,
    Dcgm,
}

impl MetricNames {
    const fn option(self) -> &'static str {
        match self {
            Self::Native => "--listen",
            Self::Dcgm => "--dcgm-listen",
        }
    }
}

#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    pub(super) names: MetricNames,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn address(&self) -> String {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            ListeningSocket::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "unix socket".to_owned(), |path| format!("unix:{}", path.display()))
            }
        }
    }

    pub fn log(&self, security: &Security) {
        let address = self.address();
        tracing::info!(%address, tls = security.has_tls(), users = security.user_count(), "listening");
    }

    /// The URL of the live page here, on this machine; none on a socket file, and where metrics have dcgm-exporter's names.
    pub fn page_url(&self, security: &Security) -> Option<String> {
        let mut address = self.socket_address().filter(|_| self.names == MetricNames::Native)?;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let scheme = if security.has_tls() { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }

    pub fn socket_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => listener.local_addr().ok(),
            ListeningSocket::Unix(_) => None,
        }
    }

    pub(super) fn into_async(self) -> io::Result<AsyncListener> {
        Ok(match self.socket {
            ListeningSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                AsyncListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            ListeningSocket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                AsyncListener::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
        })
    }
}

pub(super) enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl Stream for tokio::net::TcpStream {}
impl Stream for tokio::net::UnixStream {}

pub(super) type BoxedStream = Box<dyn Stream>;

impl AsyncListener {
    pub(super) async fn accept(&self) -> io::Result<(BoxedStream, Ends)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let ends = Ends::Tcp { peer, local: stream.local_addr()? };
                Ok((Box::new(stream), ends))
            }
            Self::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Box::new(stream), Ends::Unix { uid }))
            }
        }
    }
}

impl Ends {
    pub(super) const fn peer(self) -> IpAddr {
        match self {
            Self::Tcp { peer, .. } => peer.ip(),
            Self::Unix { .. } => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn bind(addresses: &[ListenAddress]) -> Result<BoundListeners, Error> {
        super::bind(addresses, MetricNames::Native)
    }

    fn tcp(text: &str) -> ListenAddress {
        ListenAddress::Tcp(text.parse().unwrap())
    }

    fn listener(address: &str) -> TcpListener {
        match bind(&[tcp(address)]).unwrap().listeners.remove(0).socket {
            ListeningSocket::Tcp(listener) => listener,
            ListeningSocket::Unix(_) => unreachable!("an address with a port"),
        }
    }

    #[test]
    fn an_address_in_use_is_named_with_what_to_do() {
        let first = listener("127.0.0.1:0");
        let address = first.local_addr().unwrap();
        let bound = bind(&[ListenAddress::Tcp(address), tcp("127.0.0.1:0")]).unwrap();
        assert_eq!(bound.listeners.len(), 1, "the other address is not affected");
        assert_eq!(
            bound.unbound[0].error.to_string(),
            format!(
                "listen {address}: address already in use, perhaps by another agent; choose another address with --listen"
            )
        );
    }

    #[tokio::test]
    async fn an_address_in_use_is_tried_again_until_it_is_free() {
        let first = listener("127.0.0.1:0");
        let address = ListenAddress::Tcp(first.local_addr().unwrap());
        let unbound = bind(std::slice::from_ref(&address)).unwrap().unbound.remove(0);
        let missing = MissingListeners::default();
        let mut listening = std::pin::pin!(unbound.listen(&missing));
        assert!(tokio::time::timeout(RETRY * 2, listening.as_mut()).await.is_err());
        let reason = missing.reason().unwrap();
        assert!(reason.starts_with("not ready: listen 127.0.0.1:") && reason.contains("in use"), "{reason}");
        drop(first);
        let listening = tokio::time::timeout(Duration::from_secs(60), listening).await.unwrap();
        assert_eq!(listening.socket_address().map(ListenAddress::Tcp), Some(address));
        assert_eq!((missing.count(), missing.reason()), (0, None));
    }

    #[test]
    fn an_address_of_another_host_is_named_with_what_to_do() {
        let error = bind(&[tcp("192.0.2.1:9855")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "listen 192.0.2.1:9855: no interface of this host has this address; choose another with --listen"
        );
    }

    #[test]
    fn the_unspecified_ipv6_address_accepts_ipv4_too() {
        let listener = listener("[::]:0");
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn the_last_segment_of_a_response_does_not_wait_for_an_acknowledgement() {
        let listener = listener("127.0.0.1:0");
        listener.set_nonblocking(false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn the_send_buffer_of_a_connection_is_limited() {
        let listener = listener("127.0.0.1:0");
        listener.set_nonblocking(false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert_eq!(sockopt::socket_send_buffer_size(&accepted).unwrap(), 2 * SEND_BUFFER);
    }

    #[test]
    fn both_unspecified_addresses_may_share_a_port() {
        let port = listener("[::]:0").local_addr().unwrap().port();
        let both = [tcp(&format!("0.0.0.0:{port}")), tcp(&format!("[::]:{port}"))];
        // A host without IPv6 has but one unspecified address.
        if TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(bind(&both).unwrap().listeners.len(), 2);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(directory.path().join("web.sock"));
        let first = bind(std::slice::from_ref(&address)).unwrap();
        let error = &bind(std::slice::from_ref(&address)).unwrap().unbound[0].error;
        assert!(error.to_string().contains("address already in use"), "{error}");
        // A child that another test is starting has a copy until it executes, which would go on listening.
        let ListeningSocket::Unix(socket) = &first.listeners[0].socket else { unreachable!("a path") };
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
        drop(first);
        assert_eq!(bind(&[address]).unwrap().listeners.len(), 1);
        let file = directory.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let error = &bind(&[ListenAddress::Unix(file.clone())]).unwrap().unbound[0].error;
        assert!(error.to_string().contains("a file that is not a socket is there"), "{error}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
    }
}
