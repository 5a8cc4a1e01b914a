//! The queue between the tick loop, which never waits, and the thread with the spool.
//!
//! When it is full, because the disk does not answer, the oldest request is dropped.

use std::collections::VecDeque;

use opentelemetry::trace::SpanContext;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Signal;
use crate::model::Utc;

const MOST_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushBatch {
    pub signal: Signal,
    /// The time of its snapshot.
    pub at: Utc,
    pub body: Vec<u8>,
    pub points: u64,
    /// The span of its tick.
    pub cause: SpanContext,
}

#[derive(Debug, Default)]
struct WaitingBatches {
    batches: VecDeque<PushBatch>,
    closed: bool,
}

/// Requests on their way from the tick loop to the spool.
#[derive(Debug, Default)]
pub struct PushQueue {
    waiting: Mutex<WaitingBatches>,
    news: Notify,
}

impl PushQueue {
    /// Adds a request at the end; returns those that were dropped to make room.
    pub fn put(&self, batch: PushBatch) -> Vec<PushBatch> {
        let mut waiting = self.waiting.lock();
        let mut dropped = Vec::new();
        if waiting.closed {
            return vec![batch];
        }
        let length =
            |batches: &VecDeque<PushBatch>| -> usize { batches.iter().map(|one| one.body.len()).sum() };
        while length(&waiting.batches) + batch.body.len() > MOST_BYTES {
            match waiting.batches.pop_front() {
                Some(oldest) => dropped.push(oldest),
                None => break,
            }
        }
        waiting.batches.push_back(batch);
        drop(waiting);
        self.news.notify_one();
        dropped
    }

    /// Waits for the oldest request; none when the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<PushBatch> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if let Some(batch) = waiting.batches.pop_front() {
                    return Some(batch);
                }
                if waiting.closed {
                    return None;
                }
            }
            self.news.notified().await;
        }
    }

    /// Closes the queue; requests added later are dropped.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.news.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn batch(points: u64, length: usize) -> PushBatch {
        PushBatch {
            signal: Signal::Metrics,
            at: Utc(0),
            body: vec![0; length],
            points,
            cause: SpanContext::NONE,
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_full_queue_drops_its_oldest_request() {
        let queue = PushQueue::default();
        assert_eq!(queue.put(batch(1, MOST_BYTES / 2)), []);
        assert_eq!(queue.put(batch(20, MOST_BYTES / 2)), []);
        assert_eq!(queue.put(batch(300, 1)), [batch(1, MOST_BYTES / 2)]);
        assert_eq!(block_on(queue.next()).unwrap().points, 20);
        assert_eq!(block_on(queue.next()).unwrap().points, 300);
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_takes_nothing() {
        let queue = PushQueue::default();
        queue.put(batch(1, 1));
        queue.close();
        assert_eq!(queue.put(batch(20, 1)), [batch(20, 1)]);
        assert_eq!(block_on(queue.next()), Some(batch(1, 1)));
        assert_eq!(block_on(queue.next()), None);
    }
}
