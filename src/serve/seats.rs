//! Who is connected, and who has to give way when all seats are taken.
//!
//! A plain limit would let a few hundred slow peers lock out every scraper. So a newcomer waits a moment for
//! a free seat, which in a rush of scrapers comes at once, or takes that of whoever came first of those slow to
//! finish the head of a request. Only when all others are being answered or wait between requests is the
//! newcomer turned away.
//!
//! Whoever gives way holds a file descriptor until its connection is closed. The newcomer awaits that, so there
//! are never more connections than seats: a crowd that takes over all seats at once would need two for each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// What a connection owes, and the news that it has to give way.
#[derive(Debug)]
pub(super) struct Turn {
    owes_head: AtomicBool,
    is_slow: AtomicBool,
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

    /// The head takes longer than that of an honest scraper: it may have to give way.
    pub(super) fn be_slow(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
        self.change.notify_one();
    }

    /// Whether the end of a head is awaited.
    pub(super) fn owes_head(&self) -> bool {
        self.owes_head.load(Ordering::Relaxed)
    }

    /// Whether it has been awaited for long.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
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

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    turns: BTreeMap<u64, Arc<Turn>>,
}

/// All seats.
#[derive(Debug)]
pub(super) struct Seats {
    limit: usize,
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
        Arc::new(Self { limit, taken: Mutex::default(), change: Arc::default() })
    }

    /// A seat, if there is one soon.
    pub(super) async fn take(self: &Arc<Self>, patience: Duration) -> Option<Seat> {
        let wait = async {
            loop {
                if let Some((seat, ousted)) = self.take_now() {
                    if let Some(turn) = ousted {
                        turn.closed().await;
                    }
                    return seat;
                }
                self.change.notified().await;
            }
        };
        timeout(patience, wait).await.ok()
    }

    /// A seat, if need be that of a slow connection, which is told, and named.
    fn take_now(self: &Arc<Self>) -> Option<(Seat, Option<Arc<Turn>>)> {
        let mut taken = self.taken();
        let mut ousted = None;
        if taken.turns.len() >= self.limit {
            let slow = taken.turns.iter().find(|(_, turn)| turn.is_slow()).map(|(number, _)| *number)?;
            ousted = taken.turns.remove(&slow).inspect(|turn| turn.ousted.notify_one());
        }
        let number = taken.next;
        taken.next += 1;
        let turn = Arc::new(Turn {
            owes_head: AtomicBool::new(true),
            is_slow: AtomicBool::new(false),
            ousted: Notify::new(),
            closed: Notify::new(),
            change: Arc::clone(&self.change),
        });
        taken.turns.insert(number, Arc::clone(&turn));
        drop(taken);
        Some((Seat { turn, number, seats: Arc::clone(self) }, ousted))
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
    use std::pin::pin;

    use super::*;

    /// A seat that was free.
    fn take(seats: &Arc<Seats>) -> Seat {
        let (seat, ousted) = seats.take_now().unwrap();
        assert!(ousted.is_none());
        seat
    }

    #[test]
    fn the_first_of_the_slow_gives_way() {
        let seats = Seats::new(3);
        let busy = take(&seats);
        busy.turn.end_head();
        let slow = take(&seats);
        let slower = take(&seats);
        assert!(seats.take_now().is_none(), "nobody is slow yet");
        slow.turn.be_slow();
        slower.turn.be_slow();
        let (_newcomer, ousted) = seats.take_now().unwrap();
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
        assert!(seats.take_now().is_none());
        drop(busy);
        assert!(seats.take_now().is_some());
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
        let mut newcomer = pin!(seats.take(Duration::from_secs(60)));
        assert!(timeout(Duration::ZERO, newcomer.as_mut()).await.is_err(), "two connections, one seat");
        slow.turn.ousted().await;
        assert!(timeout(Duration::ZERO, newcomer.as_mut()).await.is_err());
        drop(slow);
        assert!(newcomer.await.is_some());
    }
}
