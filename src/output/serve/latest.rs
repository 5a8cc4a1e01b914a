//! What the tick loop publishes for all readers: the latest snapshot with its pages, the last minutes and the latest events.
//! Readers leave one wish here: that snapshots have processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::output::events::EventLog;
use crate::output::render::{History, PublishedSnapshot};

/// For how many ticks snapshots have processes after somebody has looked at the live page.
const TICKS_WITH_PROCESSES: u32 = 30;

/// The latest published snapshot, and the last minutes; the tick loop writes them, other threads read them.
#[derive(Debug, Default)]
pub struct LatestSnapshot {
    latest: Mutex<Option<Arc<PublishedSnapshot>>>,
    history: Mutex<History>,
    events: EventLog,
    /// How many of the next snapshots are to have processes at every level.
    with_processes: AtomicU32,
}

impl LatestSnapshot {
    pub fn publish(&self, snapshot: Arc<PublishedSnapshot>) {
        self.history.lock().record(&snapshot.snapshot);
        let before = self.latest.lock().replace(snapshot);
        // Outside the lock, since dropping the last reference to a snapshot takes long.
        drop(before);
    }

    /// The latest snapshot, absent before the first tick.
    pub fn get(&self) -> Option<Arc<PublishedSnapshot>> {
        self.latest.lock().clone()
    }

    /// The last minutes; a copy, so that the tick loop never waits for a reader.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }

    pub const fn events(&self) -> &EventLog {
        &self.events
    }

    pub fn request_processes(&self) {
        self.with_processes.store(TICKS_WITH_PROCESSES, Ordering::Relaxed);
    }

    pub fn wants_processes(&self) -> bool {
        let count = |left: u32| left.checked_sub(1);
        self.with_processes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}
