//! The user at the other end of a TCP connection on loopback.
//!
//! The kernel's socket diagnostics (sock_diag(7)) answer for one socket, in the same time however many there are. A kernel
//! without them, or a sandbox that refuses netlink, has the lists of all sockets in `/proc/net`, whose reading takes 0.2 s where
//! a user has opened a hundred thousand. Either may wait for other programs that ask, so no thread that must answer calls this.
//! Both know the sockets of this process's network namespace, in which both ends of such a connection are. A socket that no
//! process has open any more has user 0 there, so it counts as nobody's.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

#[derive(Debug, Default)]
pub struct SocketOwners {
    /// Whether the diagnostics have found a socket. Until then "no such socket" may mean that the kernel has none for TCP.
    have_diagnostics: bool,
}

impl SocketOwners {
    /// The user id of the process that opened the socket at `own`, which is connected to `other`; none if it is not found.
    pub fn owner(&mut self, own: SocketAddr, other: SocketAddr) -> Option<u32> {
        match ask_kernel(own, other) {
            Ok(owner) => {
                self.have_diagnostics = true;
                owner
            }
            Err(Errno::NOENT) if self.have_diagnostics => None,
            Err(_) => search_lists(own, other),
        }
    }
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

/// A request for one socket by its addresses.
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

/// A socket as the diagnostics describe it.
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

/// The bytes at an offset of a message.
fn field<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..at + N)?.try_into().ok()
}

fn search_lists(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    // A client may reach an IPv4 address through a socket of either family.
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().find_map(|path| {
        let lines = BufReader::new(File::open(path).ok()?).lines();
        lines.map_while(Result::ok).find_map(|line| owner_in_line(&line, own, other))
    })
}

/// The owner of the socket in a line, if it is that connection and still open.
fn owner_in_line(line: &str, own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let mut words = line.split_ascii_whitespace();
    let (local, remote) = (words.nth(1)?, words.next()?);
    let is = |text: &str, address: SocketAddr| {
        parse_address(text) == Some((address.ip().to_canonical(), address.port()))
    };
    if !is(local, own) || !is(remote, other) {
        return None;
    }
    // After the state: queues, timer, retransmissions.
    let uid = words.nth(4)?.parse().ok()?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    (inode != 0).then_some(uid)
}

/// An address as the kernel prints it: words of 32 bits in the order of this machine's memory, then the port.
fn parse_address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
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
            let mut owners = SocketOwners::default();
            let mut owner = || [owners.owner(peer, local), search_lists(peer, local)];
            assert_eq!(owner(), [Some(own); 2], "{address}");
            drop(client);
            // A program that another test is starting holds a copy of the socket until it is executed.
            let deadline = Instant::now() + Duration::from_secs(120);
            while owner() != [None; 2] {
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

    #[test]
    fn the_owner_is_read_from_its_line_alone() {
        let [own, other] = ["127.0.0.1:40000", "127.0.0.1:9855"].map(|address| address.parse().unwrap());
        let line = |uid: u32, inode: u64| {
            let (own, other) = (u32::from_ne_bytes([127, 0, 0, 1]), u32::from_ne_bytes([127, 0, 0, 1]));
            format!(
                "  7: {own:08X}:9C40 {other:08X}:267F 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} 1"
            )
        };
        assert_eq!(owner_in_line(&line(1000, 5), own, other), Some(1000));
        assert_eq!(owner_in_line(&line(0, 0), own, other), None, "no process has it open");
        assert_eq!(owner_in_line(&line(1000, 5), other, own), None, "the other end");
        for broken in ["", "  sl  local_address rem_address   st", "7: x y 01", "7: 0100007F:9C40"] {
            assert_eq!(owner_in_line(broken, own, other), None, "{broken}");
        }
    }
}
