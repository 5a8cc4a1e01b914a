//! The queue between the tick loop, which never waits, and the sender.
//!
//! When it is full the oldest batch is dropped: of a gauge the latest value matters most, and sums are cumulative, so a
//! later point replaces a lost one.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Tally;

/// An encoded `ExportMetricsServiceRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushBatch {
    /// The message.
    pub body: Bytes,
    /// Number of data points in it.
    pub points: u64,
}

#[derive(Debug, Default)]
struct WaitingBatches {
    batches: VecDeque<PushBatch>,
    closed: bool,
}

/// Batches on their way from the tick loop to the sender.
#[derive(Debug)]
pub struct PushQueue {
    length: usize,
    waiting: Mutex<WaitingBatches>,
    news: Notify,
    tally: Arc<Tally>,
}

impl PushQueue {
    /// A queue of 1 to 4 batches, which counts dropped points in `tally`. Other lengths are clamped to that range.
    pub fn new(length: usize, tally: Arc<Tally>) -> Self {
        Self { length: length.clamp(1, 4), waiting: Mutex::default(), news: Notify::new(), tally }
    }

    /// Adds a batch at the end, and drops the oldest one if the queue is full.
    pub fn put(&self, batch: PushBatch) {
        let mut waiting = self.waiting();
        let dropped = if waiting.closed {
            Some(batch)
        } else {
            let oldest = (waiting.batches.len() >= self.length).then(|| waiting.batches.pop_front());
            waiting.batches.push_back(batch);
            oldest.flatten()
        };
        drop(waiting);
        if let Some(dropped) = dropped {
            self.tally.dropped.fetch_add(dropped.points, Ordering::Relaxed);
        }
        self.news.notify_one();
    }

    /// Waits for the oldest batch; none when the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<PushBatch> {
        loop {
            {
                let mut waiting = self.waiting();
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

    /// Closes the queue; batches added later are dropped.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.news.notify_one();
    }

    /// Drops what is left.
    pub(super) fn clear(&self) {
        let points = self.waiting().batches.drain(..).map(|batch| batch.points).sum();
        self.tally.dropped.fetch_add(points, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingBatches> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn batch(points: u64) -> PushBatch {
        PushBatch { body: Bytes::new(), points }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_full_queue_drops_its_oldest_batch_and_counts_the_points() {
        let tally = Arc::new(Tally::default());
        let queue = PushQueue::new(2, Arc::clone(&tally));
        for points in [1, 20, 300] {
            queue.put(batch(points));
        }
        assert_eq!(tally.counts().dropped, 1);
        assert_eq!(block_on(queue.next()), Some(batch(20)));
        assert_eq!(block_on(queue.next()), Some(batch(300)));
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_takes_nothing() {
        let tally = Arc::new(Tally::default());
        let queue = PushQueue::new(9, Arc::clone(&tally));
        queue.put(batch(1));
        queue.close();
        queue.put(batch(20));
        assert_eq!(block_on(queue.next()), Some(batch(1)));
        assert_eq!(block_on(queue.next()), None);
        assert_eq!(tally.counts().dropped, 20);
    }

    #[test]
    fn clearing_counts_every_point_that_is_left() {
        let tally = Arc::new(Tally::default());
        let queue = PushQueue::new(4, Arc::clone(&tally));
        queue.put(batch(1));
        queue.put(batch(20));
        queue.clear();
        assert_eq!(tally.counts().dropped, 21);
    }
}
