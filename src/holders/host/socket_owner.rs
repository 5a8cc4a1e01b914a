//! The user at the other end of a TCP connection on loopback.
//!
//! The kernel's socket diagnostics (sock_diag(7)) answer for one socket, in the same time however many there are. The lists in
//! `/proc/net` are not read where a kernel or a sandbox refuses them: with a hundred thousand sockets of one user each reading took
//! 0.2 s. The kernel may wait for other programs that ask, so no thread that must answer calls this. It knows the sockets of this
//! process's network namespace, in which both ends of such a connection are. A socket that no process has open any more has
//! user 0 there, so it counts as nobody's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// The user id of the process that opened the socket at `own`, which is connected to `other`; none if it is not found.
pub fn socket_owner(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    ask_kernel(own, other).ok().flatten()
}

/// Message types of netlink(7) and sock_diag(7).
const ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// A request whose answer is one message.
const REQUEST: u16 = 1;

/// Address families and protocol, as one byte each.
const INET: u8 = 2;
const INET6: u8 = 10;
const TCP: u8 = 6;

/// Bytes of a request: its header, and `inet_diag_req_v2`.
const REQUEST_BYTES: u32 = 16 + 56;

/// Asks the diagnostics; the owner is absent if no process has the socket open.
fn ask_kernel(own: SocketAddr, other: SocketAddr) -> rustix::io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    sendto(&socket, &encode_request(own, other), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    // The answer is there when the request has been sent.
    let mut answer = [0; 1024];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    decode_answer(answer.get(..length).unwrap_or_default(), own, other)
}

fn encode_request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let (from, to) = (own.ip().to_canonical(), other.ip().to_canonical());
    let mut request = Vec::new();
    // The header: length, type, flags, sequence and port id.
    request.extend(REQUEST_BYTES.to_ne_bytes());
    request.extend([SOCK_DIAG_BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    request.extend([0; 8]);
    // Without extensions, and in any state.
    request.extend([if from.is_ipv4() { INET } else { INET6 }, TCP, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    request.extend([own.port(), other.port()].map(u16::to_be_bytes).concat());
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => request.extend([address.octets(), [0; 4], [0; 4], [0; 4]].concat()),
            IpAddr::V6(address) => request.extend(address.octets()),
        }
    }
    // The loopback interface is number 1 in every namespace; a socket that is bound to it is not found without.
    request.extend(1_u32.to_ne_bytes());
    // No cookie.
    request.extend([0xff; 8]);
    request
}

/// The owner in an answer. The kernel finds a listening socket where that connection is gone.
fn decode_answer(answer: &[u8], own: SocketAddr, other: SocketAddr) -> rustix::io::Result<Option<u32>> {
    match field(answer, 4).map(u16::from_ne_bytes) {
        Some(SOCK_DIAG_BY_FAMILY) => {
            let socket = decode_socket(answer).ok_or(Errno::BADMSG)?;
            let wanted = [own, other].map(|end| (end.ip().to_canonical(), end.port()));
            Ok(socket.owner.filter(|_| socket.ends == wanted))
        }
        Some(ERROR) => {
            let number = field(answer, 16).map(i32::from_ne_bytes).ok_or(Errno::BADMSG)?;
            Err(Errno::from_raw_os_error(number.wrapping_neg()))
        }
        _ => Err(Errno::BADMSG),
    }
}

struct DiagnosedSocket {
    /// Its own address and port, and those that it is connected to.
    ends: [(IpAddr, u16); 2],
    /// Absent if no process has it open.
    owner: Option<u32>,
}

/// Reads an `inet_diag_msg` behind a header of 16 bytes.
fn decode_socket(answer: &[u8]) -> Option<DiagnosedSocket> {
    let [family] = field(answer, 16)?;
    let end = |port: usize, address: usize| {
        let address = match family {
            INET => IpAddr::V4(Ipv4Addr::from(field::<4>(answer, address)?)),
            INET6 => IpAddr::V6(Ipv6Addr::from(field::<16>(answer, address)?)).to_canonical(),
            _ => return None,
        };
        Some((address, u16::from_be_bytes(field(answer, port)?)))
    };
    let [uid, inode] = [field(answer, 80)?, field(answer, 84)?].map(u32::from_ne_bytes);
    Some(DiagnosedSocket { ends: [end(20, 24)?, end(22, 40)?], owner: (inode != 0).then_some(uid) })
}

fn field<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_client_of_a_connection_is_this_process_s_user_until_it_is_closed() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // A host may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = if address == "[::]:0" {
                Ipv4Addr::LOCALHOST.into()
            } else {
                listener.local_addr().unwrap().ip()
            };
            let Ok(client) = TcpStream::connect((to, port)) else { continue };
            let (accepted, peer) = listener.accept().unwrap();
            let local = accepted.local_addr().unwrap();
            assert_eq!(socket_owner(peer, local), Some(own), "{address}");
            drop(client);
            // A program that another test is starting holds a copy of the socket until it is executed.
            let deadline = Instant::now() + Duration::from_secs(120);
            while socket_owner(peer, local).is_some() {
                assert!(Instant::now() < deadline, "{address}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn the_kernel_answers_for_that_connection_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (own, user) = (client.local_addr().unwrap(), rustix::process::geteuid().as_raw());
        assert_eq!(ask_kernel(own, address), Ok(Some(user)));
        assert_eq!(ask_kernel(address, own), Ok(None), "no process has the other end before it is accepted");
        let nowhere = "127.0.0.1:1".parse().unwrap();
        assert_eq!(ask_kernel(nowhere, address), Err(Errno::NOENT));
        assert_eq!(ask_kernel(address, nowhere), Ok(None), "the listening socket is no end of it");
        assert_eq!(decode_answer(&[0; 15], own, address), Err(Errno::BADMSG));
    }
}
