//! Counts, in points, what became of everything that was to be pushed: each point is sent, rejected or
//! dropped exactly once. The sender writes, the meter reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of the points for one destination since the start.
#[derive(Debug, Default)]
pub struct Tally {
    sent: AtomicU64,
    rejected: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    /// Points that the destination accepted.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Points that the destination refused.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Points that could not be delivered.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn count_sent(&self, points: u64) {
        self.sent.fetch_add(points, Ordering::Relaxed);
    }

    pub(super) fn count_rejected(&self, points: u64) {
        self.rejected.fetch_add(points, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, points: u64) {
        self.dropped.fetch_add(points, Ordering::Relaxed);
    }
}
