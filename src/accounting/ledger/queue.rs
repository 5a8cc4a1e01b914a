//! The queue between the tick loop, which never waits, and the ledger thread, which waits for the disk.
//!
//! A window replaces the raw spans from which it was settled. Their last holdings and energy counter are still passed to the
//! ledger; otherwise a restart would continue from an older counter and count the same joules twice. At most
//! [`LedgerQueue::WINDOWS`] windows wait per GPU; more are merged and counted, so memory is bounded and nothing is lost.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::merge::merge_best_pair;
use crate::accounting::batches::{
    ClosedWindow, Expected, GpuRegistration, LedgerBatch, OpenIncidents, OpenSpans, Resumed, SeenXids,
    StickyFaults, XidSums,
};
use crate::model::{Holder, HolderId, LONGEST_PAUSE, Microjoules, Span, Utc};

#[derive(Debug, Default)]
pub struct LedgerQueue {
    /// A panic of a thread that holds it leaves at worst a part of a batch, which the ledger refuses.
    waiting: Mutex<QueuedWork>,
    arrived: Condvar,
}

/// How far the ledger thread is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub windows: usize,
    /// Windows merged with one of another minute since the agent started; above 0 the account is coarse and its counters are
    /// behind.
    pub merged: u64,
}

#[derive(Debug, Default)]
struct QueuedWork {
    now: Utc,
    sync: bool,
    has_work: bool,
    closed: bool,
    holders: BTreeMap<HolderId, Holder>,
    gpus: BTreeMap<Arc<str>, GpuQueue>,
    pressure: Pressure,
}

#[derive(Debug, Default)]
struct GpuQueue {
    registration: Option<GpuRegistration>,
    expected: Option<Expected>,
    sticky_faults: Option<StickyFaults>,
    /// The last changes.
    incidents: Vec<OpenIncidents>,
    seen_xids: Vec<SeenXids>,
    xids: Option<XidSums>,
    closed: Vec<ClosedWindow>,
    resumed: Vec<Resumed>,
    spans: BTreeMap<Utc, Span>,
    /// The last span that a window replaced.
    replaced: Option<Span>,
    energy_counter: Option<Microjoules>,
}

impl LedgerQueue {
    /// Windows that may wait per GPU: one hour.
    pub const WINDOWS: usize = 240;

    /// Changes of incidents that may wait per GPU, and times of XIDs; of more the oldest are left out. Each change has all incidents
    /// that are open.
    const INCIDENTS: usize = 100;

    /// Adds a batch without waiting for the disk.
    pub fn offer(&self, batch: LedgerBatch) {
        self.waiting.lock().add_batch(batch);
        self.arrived.notify_one();
    }

    /// Ends waiting: no more batches will come.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.arrived.notify_one();
    }

    /// All work as one batch; waits for work up to `timeout`, and not at all once the queue is closed.
    pub fn wait_for_batch(&self, timeout: Duration) -> Option<LedgerBatch> {
        let mut waiting = self.waiting.lock();
        self.arrived.wait_while_for(&mut waiting, |waiting| !waiting.has_work && !waiting.closed, timeout);
        waiting.take_batch()
    }

    /// Puts back a batch whose commit may succeed later ([`super::Error::may_pass`]), before what has come since.
    pub fn put_back(&self, batch: LedgerBatch) {
        let mut waiting = self.waiting.lock();
        let since = waiting.take_batch();
        waiting.add_batch(batch);
        if let Some(since) = since {
            waiting.add_batch(since);
        }
    }

    pub fn pressure(&self) -> Pressure {
        let waiting = self.waiting.lock();
        let windows = waiting.gpus.values().map(|queue| queue.closed.len()).sum();
        Pressure { windows, ..waiting.pressure }
    }
}

impl QueuedWork {
    fn add_batch(&mut self, batch: LedgerBatch) {
        self.has_work = true;
        self.now = self.now.max(batch.now);
        self.sync |= batch.sync;
        for registration in batch.registrations {
            let queue = self.gpu(&registration.gpu.uuid);
            match &mut queue.registration {
                Some(first) => first.update(registration),
                none => *none = Some(registration),
            }
        }
        for expected in batch.expected {
            let queue = self.gpu(&expected.gpu);
            queue.expected = Some(expected);
        }
        for faults in batch.sticky_faults {
            let queue = self.gpu(&faults.gpu);
            queue.sticky_faults = Some(faults);
        }
        for open in batch.incidents {
            let incidents = &mut self.gpu(&open.gpu).incidents;
            incidents.push(open);
            incidents.drain(..incidents.len().saturating_sub(LedgerQueue::INCIDENTS));
        }
        for seen in batch.seen_xids {
            self.gpu(&seen.gpu).add_seen_xids(seen);
        }
        for sums in batch.xids {
            let queue = self.gpu(&sums.gpu);
            queue.xids = Some(sums);
        }
        self.holders.extend(batch.holders.into_iter().map(|holder| (holder.id.clone(), holder)));
        for closed in batch.closed {
            let queue = self.gpus.entry(Arc::clone(&closed.gpu)).or_default();
            queue.drop_settled_spans(closed.settlement.to);
            queue.closed.push(closed);
            while queue.closed.len() > LedgerQueue::WINDOWS {
                let Some(is_coarse) = merge_best_pair(&mut queue.closed) else { break };
                self.pressure.merged += u64::from(is_coarse);
            }
        }
        for resumed in batch.resumed {
            let queue = self.gpu(&resumed.gpu);
            // Nothing continues from before.
            (queue.replaced, queue.energy_counter) = (None, None);
            queue.resumed.push(resumed);
        }
        for open in batch.open {
            let queue = self.gpu(&open.gpu);
            queue.spans.extend(open.spans.into_iter().map(|span| (span.from, span)));
            queue.energy_counter = open.energy_counter.or(queue.energy_counter);
        }
    }

    fn gpu(&mut self, uuid: &Arc<str>) -> &mut GpuQueue {
        self.gpus.entry(Arc::clone(uuid)).or_default()
    }

    fn take_batch(&mut self) -> Option<LedgerBatch> {
        if !take(&mut self.has_work) {
            return None;
        }
        let mut batch = self.take_common();
        for (gpu, queue) in take(&mut self.gpus) {
            queue.add_to(gpu, &mut batch);
        }
        Some(batch)
    }

    /// What is not of one GPU.
    fn take_common(&mut self) -> LedgerBatch {
        let (now, sync) = (self.now, take(&mut self.sync));
        let holders = take(&mut self.holders).into_values().collect();
        LedgerBatch { now, sync, holders, ..LedgerBatch::default() }
    }
}

/// The batch of each GPU, by UUID; each has all holders.
pub(super) fn split_by_gpu(batch: LedgerBatch) -> BTreeMap<Arc<str>, LedgerBatch> {
    let mut work = QueuedWork::default();
    work.add_batch(batch);
    let common = work.take_common();
    let part = |(gpu, queue): (Arc<str>, GpuQueue)| {
        let mut part = common.clone();
        queue.add_to(Arc::clone(&gpu), &mut part);
        (gpu, part)
    };
    work.gpus.into_iter().map(part).collect()
}

impl GpuQueue {
    fn add_to(self, gpu: Arc<str>, batch: &mut LedgerBatch) {
        batch.registrations.extend(self.registration);
        batch.expected.extend(self.expected);
        batch.sticky_faults.extend(self.sticky_faults);
        batch.incidents.extend(self.incidents);
        batch.seen_xids.extend(self.seen_xids);
        batch.xids.extend(self.xids);
        batch.closed.extend(self.closed);
        batch.resumed.extend(self.resumed);
        let mut spans: Vec<Span> = self.spans.into_values().collect();
        if spans.is_empty() {
            // The ledger takes only the last holdings from a span that is already settled.
            spans.extend(self.replaced);
        }
        if !spans.is_empty() || self.energy_counter.is_some() {
            batch.open.push(OpenSpans { gpu, spans, energy_counter: self.energy_counter });
        }
    }

    /// Adds XIDs to those of their code, so that a storm of them costs no memory.
    fn add_seen_xids(&mut self, seen: SeenXids) {
        match self.seen_xids.iter_mut().rfind(|known| known.code == seen.code) {
            Some(last) if seen.from.since(last.to) < LONGEST_PAUSE => last.to = last.to.max(seen.to),
            _ => self.seen_xids.push(seen),
        }
        self.seen_xids.drain(..self.seen_xids.len().saturating_sub(LedgerQueue::INCIDENTS));
    }

    fn drop_settled_spans(&mut self, end: Utc) {
        let open = self.spans.split_off(&end);
        let settled = std::mem::replace(&mut self.spans, open);
        // A span that straddles the end comes again as its rest.
        let newest = settled.into_values().next_back().filter(|span| span.to <= end);
        self.replaced = newest.or(self.replaced.take());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::{
        ActivitySource, Amounts, Bytes, GpuId, Grade, Method, Microjoules, Parts, Row, Settlement, SlotId,
        SlotState, Use,
    };

    const SECOND: u64 = 1_000_000_000;
    const NOW: Duration = Duration::ZERO;

    fn window(from: u64, holder: &str, within: u64) -> LedgerBatch {
        let length = 15 * SECOND;
        let row = Row {
            slot: SlotId::default(),
            holder: HolderId::new(holder),
            amounts: Amounts {
                parts: Parts { within, idle: length - within, ..Parts::default() },
                used: Use { within, ..Use::default() },
                energy_static: Microjoules(1),
                energy_dynamic: Microjoules(2),
                memory_byte_seconds: 3,
                energy_waiting: Microjoules(1),
                measured: within,
                memory_peak: 4,
            },
            grade: Grade::Measured,
            method: Method::Observed,
            source: ActivitySource::Gpm,
            granted_by: None,
        };
        let settlement = Settlement {
            from: Utc(from * SECOND),
            to: Utc(from * SECOND + length),
            rows: vec![row],
            carry: BTreeMap::new(),
            weights: BTreeMap::new(),
            flags: Vec::new(),
            ..Settlement::default()
        };
        let closed = vec![ClosedWindow { gpu: "GPU-0".into(), settlement, coarse: false }];
        LedgerBatch { now: Utc((from + 15) * SECOND), closed, ..LedgerBatch::default() }
    }

    fn spans(seconds: std::ops::Range<u64>) -> LedgerBatch {
        let span = |from| Span::empty(Utc(from * SECOND), Utc((from + 1) * SECOND), SlotState::Unobserved);
        let now = Utc(seconds.end * SECOND);
        let open =
            OpenSpans { gpu: "GPU-0".into(), spans: seconds.map(span).collect(), energy_counter: None };
        LedgerBatch { now, open: vec![open], ..LedgerBatch::default() }
    }

    fn starts(batch: &LedgerBatch) -> Vec<u64> {
        batch.open.iter().flat_map(|open| &open.spans).map(|span| span.from.0 / SECOND).collect()
    }

    #[test]
    fn closing_the_queue_ends_the_wait_at_once() {
        let queue = LedgerQueue::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| queue.wait_for_batch(Duration::from_secs(600)));
            queue.close();
            assert_eq!(waiter.join().unwrap(), None);
        });
        queue.offer(LedgerBatch { sync: true, ..LedgerBatch::default() });
        assert!(queue.wait_for_batch(NOW).is_some(), "a batch offered after the close is not lost");
    }

    #[test]
    fn an_empty_queue_gives_nothing() {
        assert_eq!(LedgerQueue::default().wait_for_batch(NOW), None);
    }

    #[test]
    fn a_window_replaces_the_spans_it_was_settled_from() {
        let queue = LedgerQueue::default();
        queue.offer(spans(0..5));
        queue.offer(spans(5..17));
        queue.offer(window(0, "user:a", 5));
        let batch = queue.wait_for_batch(NOW).unwrap();
        assert_eq!(starts(&batch), [15, 16]);
        assert_eq!((batch.closed.len(), batch.now), (1, Utc(17 * SECOND)));
        assert_eq!(queue.wait_for_batch(NOW), None);
    }

    #[test]
    fn a_batch_that_is_put_back_comes_before_what_has_come_since() {
        let queue = LedgerQueue::default();
        queue.offer(spans(0..5));
        let failed = queue.wait_for_batch(NOW).unwrap();
        queue.offer(spans(5..17));
        queue.offer(window(0, "user:a", 5));
        queue.put_back(failed);
        queue.offer(window(15, "user:a", 5));
        let batch = queue.wait_for_batch(NOW).unwrap();
        // All are replaced; the last one has the last holdings.
        assert_eq!(starts(&batch), [16]);
        let from: Vec<u64> = batch.closed.iter().map(|closed| closed.settlement.from.0 / SECOND).collect();
        assert_eq!(from, [0, 15]);
    }

    #[test]
    fn spans_that_a_window_replaced_leave_their_counter_and_the_holdings_at_their_end() {
        let queue = LedgerQueue::default();
        let mut seen = spans(0..15);
        seen.open[0].energy_counter = Some(Microjoules(42));
        queue.offer(seen.clone());
        queue.offer(window(0, "user:a", 5));
        let batch = queue.wait_for_batch(NOW).unwrap();
        assert_eq!((starts(&batch), batch.open[0].energy_counter), (vec![14], Some(Microjoules(42))));
        // Nor do they get lost when the commit fails.
        queue.put_back(batch);
        queue.offer(window(15, "user:a", 5));
        let batch = queue.wait_for_batch(NOW).unwrap();
        assert_eq!((starts(&batch), batch.open[0].energy_counter), (vec![14], Some(Microjoules(42))));
        // A counter may come without any span.
        seen.open[0].spans.clear();
        queue.offer(seen);
        assert_eq!(queue.wait_for_batch(NOW).unwrap().open[0].energy_counter, Some(Microjoules(42)));
    }

    #[test]
    fn a_later_registration_adds_model_and_memory_that_the_first_lacked() {
        let queue = LedgerQueue::default();
        let registration = |model: &str, memory: Option<u64>, at| {
            let (gpu, memory) = (GpuId { index: 0, uuid: "GPU-0".into() }, memory.map(Bytes));
            let registrations = vec![GpuRegistration { gpu, model: model.into(), memory, at: Utc(at) }];
            queue.offer(LedgerBatch { registrations, ..LedgerBatch::default() });
        };
        registration("", None, 1);
        registration("NVIDIA H100", Some(80 << 30), 2);
        registration("", None, 3);
        let batch = queue.wait_for_batch(NOW).unwrap();
        assert_eq!((&*batch.registrations[0].model, batch.registrations[0].at), ("NVIDIA H100", Utc(1)));
        assert_eq!(batch.registrations[0].memory, Some(Bytes(80 << 30)));
    }

    /// Offers `windows` windows, checks that they continue each other, and sums what was within.
    fn stuck(queue: &LedgerQueue, windows: u64, holder: impl Fn(u64) -> &'static str) -> (LedgerBatch, u64) {
        for index in 0..windows {
            queue.offer(window(index * 15, holder(index), index));
        }
        let batch = queue.wait_for_batch(NOW).unwrap();
        let mut at = Utc(0);
        let mut within = 0;
        for closed in &batch.closed {
            assert_eq!(closed.settlement.from, at);
            at = closed.settlement.to;
            within += closed.settlement.rows.iter().map(|row| row.amounts.parts.within).sum::<u64>();
        }
        assert_eq!(at, Utc(windows * 15 * SECOND));
        assert!(batch.closed.len() <= LedgerQueue::WINDOWS);
        (batch, within)
    }

    #[test]
    fn a_disk_that_hangs_for_hours_costs_no_memory_and_loses_nothing() {
        let queue = LedgerQueue::default();
        let (batch, within) = stuck(&queue, 900, |_| "user:a");
        assert_eq!(within, (0..900).sum::<u64>());
        assert!(batch.closed.iter().all(|closed| !closed.coarse));
        assert_eq!(queue.pressure().merged, 0);
        let (batch, within) = stuck(&queue, 2000, |_| "user:a");
        assert_eq!(within, (0..2000).sum::<u64>());
        assert!(batch.closed.iter().any(|closed| closed.coarse));
        assert!(queue.pressure().merged > 0);
        let other = |index: u64| if (index / 4).is_multiple_of(2) { "user:a" } else { "user:b" };
        let (_, within) = stuck(&LedgerQueue::default(), 2000, other);
        assert_eq!(within, (0..2000).sum::<u64>());
    }
}
