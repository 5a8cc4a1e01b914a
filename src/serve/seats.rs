//! Who is connected, and who has to give way when all seats are taken.
//!
//! A plain limit would let a few hundred slow peers lock out every scraper. So a newcomer takes the seat of
//! whoever came first of those that have not finished the head of a request; only when all others are being
//! answered or wait between requests is the newcomer turned away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Whether a connection owes the head of a request, and the news that it has to give way.
#[derive(Debug)]
pub(super) struct Turn {
    owes_head: AtomicBool,
    ousted: Notify,
}

impl Turn {
    /// The turn of a new connection: it owes its first head.
    pub(super) fn new() -> Self {
        Self { owes_head: AtomicBool::new(true), ousted: Notify::new() }
    }

    /// A request has begun to arrive, or has arrived.
    pub(super) fn set_owes_head(&self, owes: bool) {
        self.owes_head.store(owes, Ordering::Relaxed);
    }

    /// Whether the end of a head is awaited.
    pub(super) fn owes_head(&self) -> bool {
        self.owes_head.load(Ordering::Relaxed)
    }

    /// Returns when somebody else needs the seat.
    pub(super) async fn ousted(&self) {
        self.ousted.notified().await;
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
}

/// A seat, free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    /// Whose turn it is on this connection.
    pub(super) turn: Arc<Turn>,
    number: u64,
    seats: Arc<Seats>,
}

impl Seats {
    /// That many seats.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// A seat, if need be that of a connection that owes a head.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken();
        if taken.turns.len() >= self.limit {
            let slow = taken.turns.iter().find(|(_, turn)| turn.owes_head()).map(|(number, _)| *number)?;
            if let Some(turn) = taken.turns.remove(&slow) {
                turn.ousted.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let turn = Arc::new(Turn::new());
        taken.turns.insert(number, Arc::clone(&turn));
        drop(taken);
        Some(Seat { turn, number, seats: Arc::clone(self) })
    }

    /// Whether more than half are taken: then nobody may keep one between two requests.
    pub(super) fn are_scarce(&self) -> bool {
        self.taken().turns.len() > self.limit / 2
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whether more than half of all seats are taken.
    pub(super) fn is_scarce(&self) -> bool {
        self.seats.are_scarce()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().turns.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_that_owe_a_head_gives_way() {
        let seats = Seats::new(3);
        let busy = seats.take().unwrap();
        busy.turn.set_owes_head(false);
        let slow = seats.take().unwrap();
        let slower = seats.take().unwrap();
        let _newcomer = seats.take().unwrap();
        let left: Vec<_> = seats.taken().turns.keys().copied().collect();
        assert_eq!(left, [busy.number, slower.number, 3]);
        drop(slow);
        assert_eq!(seats.taken().turns.len(), 3);
    }

    #[test]
    fn there_is_no_seat_while_all_are_being_answered() {
        let seats = Seats::new(1);
        let busy = seats.take().unwrap();
        busy.turn.set_owes_head(false);
        assert!(seats.take().is_none());
        drop(busy);
        assert!(seats.take().is_some());
    }

    #[test]
    fn seats_are_scarce_when_more_than_half_are_taken() {
        let seats = Seats::new(2);
        let _first = seats.take().unwrap();
        assert!(!seats.are_scarce());
        let _second = seats.take().unwrap();
        assert!(seats.are_scarce());
    }
}
