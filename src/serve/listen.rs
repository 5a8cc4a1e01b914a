//! Opens the sockets on which the server listens.
//!
//! `[::]` takes IPv4 too, whatever the host's default, unless an IPv4 address with the same port is listened
//! on as well; on a host without IPv6 it means `0.0.0.0`. An address that cannot be had is an error that says
//! what to do: an agent that cannot be scraped should not look as if it ran.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Scrapers that may wait to be accepted; the kernel takes less where its own limit is lower.
const BACKLOG: i32 = 1024;

/// Bytes of answers that the kernel keeps for a connection; it counts twice as many, for its own records.
const SEND_BUFFER: usize = 128 * 1024;

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("listen {address}: {}", advice(.reason))]
pub struct Error {
    address: SocketAddr,
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
pub fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Error> {
    addresses.iter().map(|&address| listen(address, addresses)).collect()
}

fn listen(address: SocketAddr, all: &[SocketAddr]) -> Result<TcpListener, Error> {
    let port = address.port();
    let dual = port == 0 || !all.iter().any(|other| other.is_ipv4() && other.port() == port);
    let opened = match open(address, dual) {
        Err(rustix::io::Errno::AFNOSUPPORT) if address.is_ipv6() && address.ip().is_unspecified() => {
            open((Ipv4Addr::UNSPECIFIED, port).into(), false)
        }
        opened => opened,
    };
    opened.map(TcpListener::from).map_err(|reason| Error { address, reason: reason.into() })
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_address_in_use_is_named_with_what_to_do() {
        let first = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = first[0].local_addr().unwrap();
        let error = bind(&[address]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "listen {address}: address already in use; another agent? choose another address with --listen"
            )
        );
    }

    #[test]
    fn an_address_of_another_host_is_named_with_what_to_do() {
        let error = bind(&["192.0.2.1:9855".parse().unwrap()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "listen 192.0.2.1:9855: no interface of this host has this address; choose another with --listen"
        );
    }

    #[test]
    fn the_unspecified_ipv6_address_takes_ipv4_too() {
        let listeners = bind(&["[::]:0".parse().unwrap()]).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn the_last_segment_of_an_answer_waits_for_no_acknowledgement() {
        let listener = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap().remove(0);
        listener.set_nonblocking(false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn what_the_kernel_keeps_of_an_answer_is_bounded() {
        let listener = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap().remove(0);
        listener.set_nonblocking(false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert_eq!(sockopt::socket_send_buffer_size(&accepted).unwrap(), 2 * SEND_BUFFER);
    }

    #[test]
    fn both_unspecified_addresses_may_share_a_port() {
        let port = bind(&["[::]:0".parse().unwrap()]).unwrap()[0].local_addr().unwrap().port();
        let both = [(Ipv4Addr::UNSPECIFIED, port).into(), format!("[::]:{port}").parse().unwrap()];
        // A host without IPv6 has but one unspecified address.
        if TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(bind(&both).unwrap().len(), 2);
        }
    }
}
