//! Limits the number of connections, and decides which one is closed for a new one.
//!
//! With a plain semaphore a few hundred slow peers would lock out every scraper. So a new connection waits a moment for a
//! free place, which in a burst of scrapers comes at once, or replaces the oldest one that is slow to send a request head
//! or to read a response. It is refused only if all others are being served or are idle between requests.
//!
//! One peer address may have a quarter of all connections; above that a new one replaces only slow ones of the same peer.
//! A loopback address does not identify a peer, so this limit does not apply to it.
//!
//! A response that is being read keeps its page in memory, and later responses keep other pages. So at most an eighth of
//! all connections may be slow readers; above that the oldest of them are closed.
//!
//! A closed connection counts until its task has ended, because it has its file descriptor until then.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::ServerLimits;
use super::timeouts::{ConnectionActivity, now};

/// The connections that a peer may always have: two scrapers and interactive use.
const LEAST_PER_PEER: usize = 4;

/// How often a waiting connection checks whether another one has become slow.
const RECHECK: Duration = Duration::from_millis(10);

/// The connections that are open.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    most: usize,
    most_per_peer: usize,
    most_slow_readers: usize,
    open: Mutex<OpenConnections>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    /// By number, so the oldest is first; with the peer, absent if the address does not identify one.
    by_number: BTreeMap<u64, (Option<IpAddr>, Arc<ConnectionActivity>)>,
}

/// An open connection; it counts until this is dropped, which must happen after its socket is closed.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) limit: Arc<ConnectionLimit>,
    number: u64,
}

/// Why a connection cannot be opened now.
#[derive(Debug, PartialEq, Eq)]
enum NoRoom {
    /// A place may become free soon.
    Yet,
    /// The peer has its maximum, and none of them is slow.
    ForThisPeer,
}

impl ConnectionLimit {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_per_peer: (most / 4).max(LEAST_PER_PEER),
            most_slow_readers: (most / 8).max(1),
            open: Mutex::default(),
            closed: Notify::new(),
        })
    }

    /// Counts a new connection if there is a place within that time; a peer that has its maximum is refused at once.
    pub(super) async fn open(self: &Arc<Self>, peer: IpAddr, longest: Duration) -> Option<OpenConnection> {
        let peer = network(peer);
        let opened = async {
            loop {
                match self.try_open(peer, now()) {
                    Ok(connection) => return Some(connection),
                    Err(NoRoom::ForThisPeer) => return None,
                    Err(NoRoom::Yet) => drop(timeout(RECHECK, self.closed.notified()).await),
                }
            }
        };
        timeout(longest, opened).await.ok().flatten()
    }

    /// Counts a new connection, or closes a slow one to free a place.
    fn try_open(self: &Arc<Self>, peer: Option<IpAddr>, now: Duration) -> Result<OpenConnection, NoRoom> {
        let mut open = self.connections();
        let is_own = |of: Option<IpAddr>| peer.is_some() && of == peer;
        let own = open.by_number.values().filter(|(of, _)| is_own(*of)).count();
        let only_own = own >= self.most_per_peer;
        if !only_own && open.by_number.len() < self.most {
            let (number, activity) = (open.next, Arc::new(ConnectionActivity::new()));
            open.next += 1;
            open.by_number.insert(number, (peer, Arc::clone(&activity)));
            return Ok(OpenConnection { activity, limit: Arc::clone(self), number });
        }
        let mut candidates = open.by_number.values().filter(|(of, _)| !only_own || is_own(*of));
        // A place becomes free soon if one is closing already.
        if candidates.clone().any(|(_, activity)| activity.is_evicted()) {
            return Err(NoRoom::Yet);
        }
        match candidates.find(|(_, activity)| activity.is_slow(now)) {
            Some((_, slow)) => slow.evict(),
            None if only_own => return Err(NoRoom::ForThisPeer),
            None => {}
        }
        Err(NoRoom::Yet)
    }

    /// Whether more than half of all connections are open: then idle ones are closed after their response.
    pub(super) fn is_scarce(&self) -> bool {
        self.connections().by_number.len() > self.most / 2
    }

    /// Closes the oldest slow readers when there are too many.
    fn evict_slow_readers(&self, now: Duration) {
        let open = self.connections();
        let is_slow =
            |activity: &ConnectionActivity| activity.slow_reader_from().is_some_and(|from| from <= now);
        let slow: Vec<_> =
            open.by_number.values().map(|(_, activity)| activity).filter(|one| is_slow(one)).collect();
        let surplus = slow.len().saturating_sub(self.most_slow_readers);
        slow.into_iter().take(surplus).for_each(|activity| activity.evict());
    }

    fn connections(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }
}

impl OpenConnection {
    /// Returns when the connection must be closed: the peer is too slow, or another one needs its place.
    pub(super) async fn must_close(&self, limits: &ServerLimits) {
        loop {
            let now = now();
            let deadline = self.activity.deadline(limits);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            let slow_from = self.activity.slow_reader_from();
            if slow_from.is_some_and(|from| from <= now) {
                self.limit.evict_slow_readers(now);
            }
            let wake = deadline.into_iter().chain(slow_from.filter(|from| *from > now)).min();
            let changed = self.activity.changed.notified();
            match wake {
                Some(wake) => drop(timeout(wake - now, changed).await),
                None => changed.await,
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.limit.connections().by_number.remove(&self.number);
        self.limit.closed.notify_one();
    }
}

/// What identifies a peer: the IPv4 address, or the IPv6 /64 network, of which one host can use all addresses; nothing on
/// loopback.
pub(super) fn network(peer: IpAddr) -> Option<IpAddr> {
    match peer.to_canonical() {
        peer if peer.is_loopback() => None,
        IpAddr::V6(peer) => {
            let [a, b, c, d, ..] = peer.segments();
            Some(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
        }
        peer => Some(peer),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::pin::pin;

    use hyper::body::Bytes;

    use super::*;

    const LATER: Duration = Duration::from_secs(2);

    fn open(limit: &Arc<ConnectionLimit>, peer: Option<IpAddr>) -> OpenConnection {
        limit.try_open(peer, now()).unwrap()
    }

    /// A connection whose peer does not read its response, and the response.
    fn slow_reader(limit: &Arc<ConnectionLimit>, peer: Option<IpAddr>) -> (OpenConnection, Bytes) {
        let connection = open(limit, peer);
        let body = connection.activity.begin_request().send(Bytes::from_static(b"page"));
        (connection, body)
    }

    #[test]
    fn a_peer_that_has_a_quarter_of_all_connections_replaces_only_its_own_slow_ones() {
        let limit = ConnectionLimit::new(32);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| network(address.parse().unwrap()));
        let stranger = slow_reader(&limit, other);
        let own: Vec<_> = (0..8).map(|_| open(&limit, one)).collect();
        for connection in &own[1..] {
            drop(connection.activity.begin_request());
        }
        drop(own[0].activity.begin_request());
        assert_eq!(limit.try_open(one, now() + LATER).unwrap_err(), NoRoom::ForThisPeer);
        let _second = open(&limit, other);
        let _unread = own[3].activity.begin_request().send(Bytes::new());
        assert_eq!(limit.try_open(one, now() + LATER).unwrap_err(), NoRoom::Yet);
        assert!(own[3].activity.is_evicted() && !stranger.0.activity.is_evicted());
        let local: Vec<_> = (0..16).map(|_| open(&limit, None)).collect();
        assert_eq!(local.len(), 16, "loopback has no limit per peer");
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer_and_loopback_is_none() {
        let of = |address: &str| network(address.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff::8"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(["127.0.0.2", "::1", "::ffff:127.0.0.1"].map(of), [None; 3]);
    }

    #[tokio::test]
    async fn a_peer_beyond_its_share_is_refused_at_once_and_keeps_nobody_waiting() {
        let limit = ConnectionLimit::new(4);
        let peer = "192.0.2.1".parse().unwrap();
        let own: Vec<_> = (0..4).map(|_| open(&limit, Some(peer))).collect();
        own.iter().for_each(|connection| drop(connection.activity.begin_request()));
        let mut fifth = pin!(limit.open(peer, Duration::from_secs(3_600)));
        assert!(matches!(timeout(Duration::ZERO, fifth.as_mut()).await, Ok(None)));
        drop(own);
        assert!(limit.open(peer, Duration::ZERO).await.is_some());
    }

    #[test]
    fn of_too_many_slow_readers_the_oldest_are_closed_at_once() {
        let limit = ConnectionLimit::new(16);
        let [first, second, third] = [(); 3].map(|()| slow_reader(&limit, None));
        limit.evict_slow_readers(now());
        assert!(!first.0.activity.is_evicted(), "nobody is slow yet");
        limit.evict_slow_readers(now() + LATER);
        assert_eq!(
            [&first, &second, &third].map(|(connection, _)| connection.activity.is_evicted()),
            [true, false, false]
        );
        drop(second.1);
        assert!(!second.0.activity.is_slow(now() + LATER), "it has read its response");
    }

    #[test]
    fn the_oldest_slow_connection_is_replaced() {
        let limit = ConnectionLimit::new(3);
        let [busy, slow, slower] = [(); 3].map(|()| open(&limit, None));
        let _request = busy.activity.begin_request();
        assert_eq!(limit.try_open(None, now()).unwrap_err(), NoRoom::Yet);
        assert!(!slow.activity.is_evicted(), "nobody is slow yet");
        for _ in 0..2 {
            assert_eq!(limit.try_open(None, now() + LATER).unwrap_err(), NoRoom::Yet);
        }
        assert_eq!([&busy, &slow, &slower].map(|one| one.activity.is_evicted()), [false, true, false]);
        drop(slow);
        open(&limit, None);
    }

    #[test]
    fn connections_are_scarce_when_more_than_half_are_open() {
        let limit = ConnectionLimit::new(2);
        let _first = open(&limit, None);
        assert!(!limit.is_scarce());
        let _second = open(&limit, None);
        assert!(limit.is_scarce());
    }

    #[tokio::test]
    async fn a_slow_connection_counts_until_it_is_closed() {
        let limit = ConnectionLimit::new(1);
        let slow = slow_reader(&limit, None).0;
        slow.activity.evict();
        slow.must_close(&ServerLimits::default()).await;
        let mut next = pin!(limit.open(Ipv6Addr::LOCALHOST.into(), Duration::from_secs(60)));
        assert!(timeout(Duration::ZERO, next.as_mut()).await.is_err(), "two connections, room for one");
        drop(slow);
        assert!(next.await.is_some());
    }
}
