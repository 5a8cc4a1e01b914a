//! Who is connected, and who has to give way when all seats are taken.
//!
//! A plain limit would let a few hundred slow peers lock out every scraper. So a newcomer waits a moment for
//! a free seat, which in a rush of scrapers comes at once, or takes that of whoever came first of those slow to
//! finish the head of a request or to read their answer. Only when all others are being answered or wait between
//! requests is the newcomer turned away.
//!
//! One peer address may have a quarter of all seats, and beyond that only the seats of its own slow connections. On
//! loopback an address says nothing about who it is, so there is no such limit there.
//!
//! An answer that is still being read holds its page in memory, and a later answer holds another page. So at most an
//! eighth of all connections may be slow to read their answer; the oldest of more is closed.
//!
//! Whoever gives way holds a file descriptor until its connection is closed. The newcomer awaits that, so there
//! are never more connections than seats: a crowd that takes over all seats at once would need two for each.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// What a connection owes, and the news that it has to give way.
#[derive(Debug)]
pub(super) struct Turn {
    /// Absent where the address does not tell peers apart.
    peer: Option<IpAddr>,
    owes_head: AtomicBool,
    is_slow: AtomicBool,
    was_active: AtomicBool,
    ousted: Notify,
    closed: Notify,
    change: Arc<Notify>,
}

impl Turn {
    /// The end of a head is owed from now on.
    pub(super) fn begin_head(&self) {
        self.owes_head.store(true, Ordering::Relaxed);
    }

    /// The head has come.
    pub(super) fn end_head(&self) {
        self.owes_head.store(false, Ordering::Relaxed);
        self.is_slow.store(false, Ordering::Relaxed);
    }

    /// A request has come, or its answer is there to be written.
    pub(super) fn be_active(&self) {
        self.was_active.store(true, Ordering::Relaxed);
    }

    /// Whether either happened since this was last asked.
    pub(super) fn take_activity(&self) -> bool {
        self.was_active.swap(false, Ordering::Relaxed)
    }

    /// The answer has been written.
    pub(super) fn end_answer(&self) {
        self.is_slow.store(false, Ordering::Relaxed);
    }

    /// The head, or the reading of the answer, takes longer than for an honest scraper: it may have to give way.
    pub(super) fn be_slow(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
        self.change.notify_one();
    }

    /// Whether the end of a head is awaited.
    pub(super) fn owes_head(&self) -> bool {
        self.owes_head.load(Ordering::Relaxed)
    }

    /// Whether the end of a head, or of the reading of an answer, has been awaited for long.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    fn reads_slowly(&self) -> bool {
        self.is_slow() && !self.owes_head()
    }

    /// Returns when somebody else needs the seat.
    pub(super) async fn ousted(&self) {
        self.ousted.notified().await;
    }

    /// Returns once the connection is closed; for whoever gets its seat.
    async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// A peer may have so many seats however few there are: a scraper, its twin, and somebody who looks.
const LEAST_OF_PEER: usize = 4;

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    turns: BTreeMap<u64, Arc<Turn>>,
}

/// All seats.
#[derive(Debug)]
pub(super) struct Seats {
    limit: usize,
    /// For one peer address.
    most_of_peer: usize,
    /// For those who read their answers slowly.
    most_slow_readers: usize,
    taken: Mutex<Taken>,
    /// A seat is free, or somebody has become slow.
    change: Arc<Notify>,
}

/// A seat, free again when dropped, which has to come after its connection is.
#[derive(Debug)]
pub(super) struct Seat {
    /// What this connection owes.
    pub(super) turn: Arc<Turn>,
    number: u64,
    seats: Arc<Seats>,
}

impl Seats {
    /// That many seats.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            most_of_peer: (limit / 4).max(LEAST_OF_PEER),
            most_slow_readers: (limit / 8).max(1),
            taken: Mutex::default(),
            change: Arc::default(),
        })
    }

    /// A seat, if there is one soon; a peer that has as many as one may have does not keep others waiting.
    pub(super) async fn take(self: &Arc<Self>, peer: IpAddr, patience: Duration) -> Option<Seat> {
        let peer = network(peer);
        let wait = async {
            loop {
                if let Some((seat, ousted)) = self.take_now(peer) {
                    if let Some(turn) = ousted {
                        turn.closed().await;
                    }
                    return Some(seat);
                }
                if self.has_its_share(&self.taken(), peer) {
                    return None;
                }
                self.change.notified().await;
            }
        };
        timeout(patience, wait).await.ok().flatten()
    }

    /// A seat, if need be that of a slow connection, which is told, and named.
    fn take_now(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<(Seat, Option<Arc<Turn>>)> {
        let mut taken = self.taken();
        let mut ousted = None;
        let only_own = self.has_its_share(&taken, peer);
        if only_own || taken.turns.len() >= self.limit {
            let may_take = |turn: &Turn| turn.is_slow() && (!only_own || turn.peer == peer);
            let slow = taken.turns.iter().find(|(_, turn)| may_take(turn)).map(|(number, _)| *number)?;
            ousted = taken.turns.remove(&slow).inspect(|turn| turn.ousted.notify_one());
        }
        let number = taken.next;
        taken.next += 1;
        let turn = Arc::new(Turn {
            peer,
            owes_head: AtomicBool::new(true),
            is_slow: AtomicBool::new(false),
            was_active: AtomicBool::new(false),
            ousted: Notify::new(),
            closed: Notify::new(),
            change: Arc::clone(&self.change),
        });
        taken.turns.insert(number, Arc::clone(&turn));
        drop(taken);
        Some((Seat { turn, number, seats: Arc::clone(self) }, ousted))
    }

    /// Whether the peer has as many seats as one may have.
    fn has_its_share(&self, taken: &Taken, peer: Option<IpAddr>) -> bool {
        peer.is_some()
            && taken.turns.values().filter(|turn| turn.peer == peer).nth(self.most_of_peer - 1).is_some()
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whether more than half of all seats are taken: then nobody may keep one between two requests.
    pub(super) fn is_scarce(&self) -> bool {
        self.seats.taken().turns.len() > self.seats.limit / 2
    }

    /// The peer takes long to read its answer: it may have to give way, and the oldest such peers do at once when
    /// there are too many of them.
    pub(super) fn read_slowly(&self) {
        self.turn.be_slow();
        let taken = self.seats.taken();
        let slow: Vec<_> = taken.turns.values().filter(|turn| turn.reads_slowly()).collect();
        let too_many = slow.len().saturating_sub(self.seats.most_slow_readers);
        slow.into_iter().take(too_many).for_each(|turn| turn.ousted.notify_one());
    }
}

/// What tells peers apart: the address, of IPv6 the network, since a host has a whole one. Nothing on loopback.
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

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().turns.remove(&self.number);
        self.turn.closed.notify_one();
        self.seats.change.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A seat that was free.
    fn take(seats: &Arc<Seats>) -> Seat {
        take_as(seats, None)
    }

    fn take_as(seats: &Arc<Seats>, peer: Option<IpAddr>) -> Seat {
        let (seat, ousted) = seats.take_now(peer).unwrap();
        assert!(ousted.is_none());
        seat
    }

    /// Who may have to give way from now on, for not reading its answer.
    fn slow_reader(seats: &Arc<Seats>, peer: Option<IpAddr>) -> Seat {
        let seat = take_as(seats, peer);
        seat.turn.end_head();
        seat.read_slowly();
        seat
    }

    fn is_ousted(seat: &Seat) -> bool {
        let mut news = pin!(seat.turn.ousted());
        let is_ousted = news.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if is_ousted {
            seat.turn.ousted.notify_one();
        }
        is_ousted
    }

    #[test]
    fn a_peer_that_has_a_quarter_of_all_seats_gets_only_those_of_its_own_slow_connections() {
        let seats = Seats::new(32);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| network(address.parse().unwrap()));
        let stranger = slow_reader(&seats, other);
        let own: Vec<_> = (0..8).map(|_| take_as(&seats, one)).collect();
        assert!(seats.take_now(one).is_none());
        let _second = take_as(&seats, other);
        own[3].turn.be_slow();
        let (_ninth, ousted) = seats.take_now(one).unwrap();
        assert!(Arc::ptr_eq(&ousted.unwrap(), &own[3].turn));
        assert!(!is_ousted(&stranger));
        let local: Vec<_> = (0..16).map(|_| take(&seats)).collect();
        assert_eq!(local.len(), 16, "on loopback nobody is told from anybody else");
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
        let seats = Seats::new(4);
        let peer = "192.0.2.1".parse().unwrap();
        let own: Vec<_> = (0..4).map(|_| take_as(&seats, Some(peer))).collect();
        let mut fifth = pin!(seats.take(peer, Duration::from_secs(3_600)));
        assert!(matches!(timeout(Duration::ZERO, fifth.as_mut()).await, Ok(None)));
        drop(own);
        assert!(seats.take(peer, Duration::ZERO).await.is_some());
    }

    #[test]
    fn of_too_many_slow_readers_the_oldest_give_way_at_once() {
        let seats = Seats::new(16);
        let two = [slow_reader(&seats, None), slow_reader(&seats, None)];
        assert!(!two.iter().any(is_ousted), "an eighth");
        let _third = slow_reader(&seats, None);
        assert_eq!([is_ousted(&two[0]), is_ousted(&two[1])], [true, false]);
        let _fourth = slow_reader(&seats, None);
        assert!(is_ousted(&two[1]), "before the first has gone");
        two[1].turn.end_answer();
        assert!(!two[1].turn.is_slow());
    }

    #[test]
    fn the_first_of_the_slow_gives_way() {
        let seats = Seats::new(3);
        let busy = take(&seats);
        busy.turn.end_head();
        let slow = take(&seats);
        let slower = take(&seats);
        assert!(seats.take_now(None).is_none(), "nobody is slow yet");
        slow.turn.be_slow();
        slower.turn.be_slow();
        let (_newcomer, ousted) = seats.take_now(None).unwrap();
        assert!(Arc::ptr_eq(&ousted.unwrap(), &slow.turn));
        let left: Vec<_> = seats.taken().turns.keys().copied().collect();
        assert_eq!(left, [busy.number, slower.number, 3]);
        drop(slow);
        assert_eq!(seats.taken().turns.len(), 3);
    }

    #[test]
    fn there_is_no_seat_while_all_are_being_answered() {
        let seats = Seats::new(1);
        let busy = take(&seats);
        busy.turn.be_slow();
        busy.turn.end_head();
        assert!(seats.take_now(None).is_none());
        drop(busy);
        assert!(seats.take_now(None).is_some());
    }

    #[test]
    fn seats_are_scarce_when_more_than_half_are_taken() {
        let seats = Seats::new(2);
        let first = take(&seats);
        assert!(!first.is_scarce());
        let _second = take(&seats);
        assert!(first.is_scarce());
    }

    #[tokio::test]
    async fn a_seat_of_a_slow_one_is_had_when_that_connection_is_closed() {
        let seats = Seats::new(1);
        let slow = take(&seats);
        slow.turn.be_slow();
        let mut newcomer = pin!(seats.take(Ipv6Addr::LOCALHOST.into(), Duration::from_secs(60)));
        assert!(timeout(Duration::ZERO, newcomer.as_mut()).await.is_err(), "two connections, one seat");
        slow.turn.ousted().await;
        assert!(timeout(Duration::ZERO, newcomer.as_mut()).await.is_err());
        drop(slow);
        assert!(newcomer.await.is_some());
    }
}
