//! Opens the sockets on which the server listens, TCP or in the file system, and accepts on them.
//!
//! `[::]` takes IPv4 too, whatever the host's default, unless an IPv4 address with the same port is listened
//! on as well; on a host without IPv6 it means `0.0.0.0`. An address that cannot be had is an error that says
//! what to do: an agent that cannot be scraped should not look as if it ran.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use listenfd::ListenFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};

use super::local::Ends;
use crate::config::ListenAddress;

/// Scrapers that may wait to be accepted; the kernel takes less where its own limit is lower.
const BACKLOG: i32 = 1024;

/// Bytes of answers that the kernel keeps for a connection; it counts twice as many, for its own records.
const SEND_BUFFER: usize = 128 * 1024;

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("listen {address}: {}", advice(.reason))]
pub struct Error {
    address: ListenAddress,
    #[source]
    reason: io::Error,
}

fn advice(reason: &io::Error) -> String {
    match reason.kind() {
        io::ErrorKind::AddrInUse => {
            "address already in use; another agent? choose another address with --listen".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; choose a port above 1023 with --listen".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has this address; choose another with --listen".to_owned()
        }
        _ => format!("{reason}; choose another address with --listen"),
    }
}

/// Listens on every address, or on none.
pub fn bind(addresses: &[ListenAddress]) -> Result<Vec<Listener>, Error> {
    addresses.iter().map(|address| listen(address, addresses)).collect()
}

/// The sockets on which systemd listens for this service.
///
/// # Errors
/// There is none, or one on which no connections can be accepted.
pub fn inherit() -> Result<Vec<Listener>, InheritError> {
    let mut given = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..given.len() {
        let tcp = given.take_tcp_listener(index);
        listeners.push(match tcp {
            Ok(Some(listener)) => {
                // As for our own sockets; without them it is served all the same.
                let _ = sockopt::set_tcp_nodelay(&listener, true);
                let _ = sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER);
                Listener::Tcp(listener)
            }
            _ => match given.take_unix_listener(index) {
                Ok(Some(listener)) => Listener::Unix(listener),
                _ => return Err(InheritError::Unusable(index)),
            },
        });
    }
    if listeners.is_empty() { Err(InheritError::Missing) } else { Ok(listeners) }
}

/// What systemd gave cannot be served on.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// There is no socket.
    #[error(
        "--web.systemd-socket: systemd gave no socket; start the service by its socket unit, or leave this out"
    )]
    Missing,
    /// A socket of another kind.
    #[error(
        "--web.systemd-socket: socket {0} is not a listening stream; give ListenStream= in the socket unit"
    )]
    Unusable(usize),
}

fn listen(address: &ListenAddress, all: &[ListenAddress]) -> Result<Listener, Error> {
    let failed = |reason: io::Error| Error { address: address.clone(), reason };
    match address {
        ListenAddress::Tcp(tcp) => listen_tcp(*tcp, all).map(Listener::Tcp).map_err(failed),
        ListenAddress::Unix(path) => listen_unix(path).map(Listener::Unix).map_err(failed),
    }
}

/// A socket in the file system for everybody on this host, as loopback is. One that nobody answers on is replaced.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket is there"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
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
    // A restart must not wait for the last agent's connections to time out.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // What is accepted inherits these: one call for all connections. The kernel would let a send buffer grow to
    // megabytes, and whoever reads slowly decides for how long it is kept.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// On an IP address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Listener {
    /// Where it listens, as it is written.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "unix socket".to_owned(), |path| format!("unix:{}", path.display()))
            }
        }
    }

    /// Its address and port, if it has them.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// The same on the I/O thread.
    pub(super) fn into_async(self) -> io::Result<AsyncListener> {
        Ok(match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                AsyncListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            Self::Unix(listener) => {
                listener.set_nonblocking(true)?;
                AsyncListener::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
        })
    }
}

/// A socket on which connections are accepted.
pub(super) enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// An accepted TCP connection, or one of a socket in the file system.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl Stream for tokio::net::TcpStream {}
impl Stream for tokio::net::UnixStream {}

/// An accepted connection.
pub(super) type BoxedStream = Box<dyn Stream>;

impl AsyncListener {
    pub(super) async fn accept(&self) -> io::Result<(BoxedStream, Ends)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let ends = Ends::Tcp { peer, local: stream.local_addr()? };
                Ok((Box::new(stream), ends))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), Ends::Unix)),
        }
    }
}

impl Ends {
    /// The address by which peers are told apart.
    pub(super) const fn peer(self) -> IpAddr {
        match self {
            Self::Tcp { peer, .. } => peer.ip(),
            Self::Unix => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn tcp(text: &str) -> ListenAddress {
        ListenAddress::Tcp(text.parse().unwrap())
    }

    fn listener(address: &str) -> TcpListener {
        match bind(&[tcp(address)]).unwrap().remove(0) {
            Listener::Tcp(listener) => listener,
            Listener::Unix(_) => unreachable!("an address with a port"),
        }
    }

    #[test]
    fn an_address_in_use_is_named_with_what_to_do() {
        let first = listener("127.0.0.1:0");
        let address = first.local_addr().unwrap();
        let error = bind(&[ListenAddress::Tcp(address)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "listen {address}: address already in use; another agent? choose another address with --listen"
            )
        );
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
    fn the_unspecified_ipv6_address_takes_ipv4_too() {
        let listener = listener("[::]:0");
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn the_last_segment_of_an_answer_waits_for_no_acknowledgement() {
        let listener = listener("127.0.0.1:0");
        listener.set_nonblocking(false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn what_the_kernel_keeps_of_an_answer_is_bounded() {
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
            assert_eq!(bind(&both).unwrap().len(), 2);
        }
    }

    #[test]
    fn a_socket_that_nobody_answers_on_is_replaced_and_anything_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(directory.path().join("web.sock"));
        let first = bind(std::slice::from_ref(&address)).unwrap();
        let error = bind(std::slice::from_ref(&address)).unwrap_err();
        assert!(error.to_string().contains("address already in use"), "{error}");
        drop(first);
        bind(&[address]).unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let error = bind(&[ListenAddress::Unix(file.clone())]).unwrap_err();
        assert!(error.to_string().contains("a file that is not a socket is there"), "{error}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
    }
}
