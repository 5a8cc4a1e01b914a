//! Between the pulse, which never waits, and the ledger thread, which waits for the disk.
//!
//! Raw spans are a latest-wins slot: a window that is handed over replaces the spans it was settled from.
//! Windows queue, at most [`Queue::WINDOWS`] per GPU; beyond that neighbours are added together and
//! counted, so memory is flat and nothing is lost. It knows no SQLite.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::batch::{Batch, Closed, Open, Sight};
use super::merge::{Fit, shorten};
use crate::model::{Holder, HolderId, Microjoules, Span, Utc};

/// What waits for the ledger thread.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

/// How far the ledger thread is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Windows that wait.
    pub windows: usize,
    /// Windows that were added to their neighbour in the same minute; costs nothing.
    pub joined: u64,
    /// Windows that were added to one with equal holdings, since the agent started; above 0 the account
    /// is coarse and its counters are behind.
    pub merged: u64,
    /// Windows that were added to one with other holdings, for want of a better.
    pub forced: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    now: Utc,
    sync: bool,
    any: bool,
    sights: BTreeMap<Arc<str>, Sight>,
    holders: BTreeMap<HolderId, Holder>,
    gpus: BTreeMap<Arc<str>, Line>,
    pressure: Pressure,
}

/// What waits of one GPU.
#[derive(Debug, Default)]
struct Line {
    closed: Vec<Closed>,
    spans: BTreeMap<Utc, Span>,
    energy_counter: Option<Microjoules>,
}

impl Queue {
    /// One hour of windows.
    pub const WINDOWS: usize = 240;

    /// Adds a batch; never waits for the disk.
    pub fn offer(&self, batch: Batch) {
        self.lock().absorb(batch);
        self.arrived.notify_one();
    }

    /// All that waits, as one batch; waits for it up to `patience`.
    pub fn take(&self, patience: Duration) -> Option<Batch> {
        let waiting = self.lock();
        let (mut waiting, _) = self
            .arrived
            .wait_timeout_while(waiting, patience, |waiting| !waiting.any)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.drain()
    }

    /// Returns a batch that could not be committed, before all that has come since.
    pub fn put_back(&self, batch: Batch) {
        let mut waiting = self.lock();
        let since = waiting.drain();
        waiting.absorb(batch);
        if let Some(since) = since {
            waiting.absorb(since);
        }
    }

    /// How far the ledger thread is behind.
    pub fn pressure(&self) -> Pressure {
        let waiting = self.lock();
        let windows = waiting.gpus.values().map(|line| line.closed.len()).sum();
        Pressure { windows, ..waiting.pressure }
    }

    /// A panic elsewhere leaves at worst a batch half absorbed, which the ledger would refuse.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn absorb(&mut self, batch: Batch) {
        self.any = true;
        self.now = self.now.max(batch.now);
        self.sync |= batch.sync;
        for sight in batch.sights {
            self.sights.entry(Arc::clone(&sight.gpu.uuid)).or_insert(sight);
        }
        for holder in batch.holders {
            self.holders.insert(holder.id.clone(), holder);
        }
        for closed in batch.closed {
            let line = self.gpus.entry(Arc::clone(&closed.gpu)).or_default();
            line.spans.retain(|from, _| *from >= closed.settlement.to);
            line.closed.push(closed);
            while line.closed.len() > Queue::WINDOWS {
                match shorten(&mut line.closed) {
                    Some(Fit::Minute) => self.pressure.joined += 1,
                    Some(Fit::Equal) => self.pressure.merged += 1,
                    Some(Fit::Forced) => self.pressure.forced += 1,
                    None => break,
                }
            }
        }
        for open in batch.open {
            let line = self.gpus.entry(Arc::clone(&open.gpu)).or_default();
            line.spans.extend(open.spans.into_iter().map(|span| (span.from, span)));
            line.energy_counter = open.energy_counter;
        }
    }

    fn drain(&mut self) -> Option<Batch> {
        if !std::mem::take(&mut self.any) {
            return None;
        }
        let mut batch = Batch {
            now: self.now,
            sights: std::mem::take(&mut self.sights).into_values().collect(),
            holders: std::mem::take(&mut self.holders).into_values().collect(),
            sync: std::mem::take(&mut self.sync),
            ..Batch::default()
        };
        for (gpu, line) in std::mem::take(&mut self.gpus) {
            batch.closed.extend(line.closed);
            if !line.spans.is_empty() {
                let spans = line.spans.into_values().collect();
                batch.open.push(Open { gpu, spans, energy_counter: line.energy_counter });
            }
        }
        Some(batch)
    }
}
