//! Answers that an HTTP/2 connection is sending.
//!
//! A client of HTTP/2 says by windows of its own how much of an answer it takes, so one that takes nothing leaves
//! nothing to be written, and the deadlines of the stream below never come. Each answer is therefore counted from its
//! beginning until its last byte has been handed to the stream.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::sleep;

use super::seats::Seat;

/// How often answers are looked at: as long as an honest client may take to read one.
const LOOK: Duration = Duration::from_secs(1);

/// The answers of one connection.
#[derive(Debug, Default)]
pub(super) struct Sending(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// A body that counts as being sent until it is dropped.
struct Tracked {
    body: Bytes,
    number: u64,
    sending: Arc<Sending>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.sending.numbers().open.remove(&self.number);
    }
}

impl Sending {
    /// The same body, counted.
    pub(super) fn track(self: &Arc<Self>, body: Bytes) -> Bytes {
        let mut numbers = self.numbers();
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        drop(numbers);
        Bytes::from_owner(Tracked { body, number, sending: Arc::clone(self) })
    }

    /// Returns when an answer is still being sent after that long.
    pub(super) async fn overdue(&self, seat: &Seat, limit: Duration) {
        let (mut seen, mut waited) = (0, Duration::ZERO);
        loop {
            sleep(LOOK.min(limit)).await;
            let (oldest, next) = {
                let numbers = self.numbers();
                (numbers.open.first().copied(), numbers.next)
            };
            // One that was there at the last look.
            if oldest.is_some_and(|oldest| oldest < seen) {
                seat.read_slowly();
                waited += LOOK;
                if waited >= limit {
                    return;
                }
            } else {
                if !waited.is_zero() {
                    seat.turn.end_answer();
                }
                (seen, waited) = (next, Duration::ZERO);
            }
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
