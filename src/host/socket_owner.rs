//! The user at the other end of a TCP connection on loopback, from the kernel's lists of sockets in `/proc/net`.
//!
//! They are those of this process's network namespace, in which both ends of such a connection are. A socket that no process
//! has open any more is listed with user 0, so it counts as nobody's.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The user id of the process that opened the socket at `own`, which is connected to `other`; none if it is not found.
pub fn socket_owner(own: SocketAddr, other: SocketAddr) -> Option<u32> {
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
            assert_eq!(socket_owner(peer, accepted.local_addr().unwrap()), Some(own), "{address}");
            drop(client);
            // A program that another test is starting holds a copy of the socket until it is executed.
            let deadline = Instant::now() + Duration::from_secs(120);
            while socket_owner(peer, accepted.local_addr().unwrap()).is_some() {
                assert!(Instant::now() < deadline, "{address}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
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
