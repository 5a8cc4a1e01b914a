//! The XIDs of one GPU over all time, from two sources that report the same errors.
//!
//! An XID usually arrives twice within a fraction of a second, as an event and as a line of the kernel's log. Events are
//! exact; lines are rate-limited, but have codes that never become events. So per code, until both sources have been quiet
//! for [`QUIET`], the larger of their counts is the count. The counts of both sources are stored, so that an XID whose line
//! arrives after a restart of the agent is counted once.

use std::sync::Arc;

use crate::accounting::batches::{XidSum, XidSums};
use crate::model::catalogue::xid::{self, Action};
use crate::model::{Nanoseconds, Utc, XidCount, XidSource};

/// No GPU has more codes; a driver that sends more sends garbage.
const MOST_CODES: usize = 64;

/// How long both sources must be quiet about a code before counting restarts: far longer than either lags, since an agent
/// without processor time reads late.
const QUIET: Nanoseconds = Nanoseconds::from_seconds(30);

/// How long counts wait for their commit before they are published without it, since a disk that hangs must not hide an
/// XID. If the agent is killed while it hangs, these counts are lost.
const COMMIT_TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(10);

/// Counts by code and by action.
#[derive(Clone, Debug)]
pub(super) struct Xids {
    counted: XidSums,
    /// Those that are committed, or waited too long for it.
    pub(super) published: XidSums,
    unsent: bool,
    /// Since when counts wait to be published.
    waiting: Option<Nanoseconds>,
}

impl Xids {
    pub(super) fn of(gpu: &Arc<str>) -> Self {
        let none = XidSums { gpu: Arc::clone(gpu), ..XidSums::default() };
        Self { counted: none.clone(), published: none, unsent: false, waiting: None }
    }

    /// Counts XIDs; returns how many of them the other source has not reported. Above [`MOST_CODES`] codes only events
    /// count, and only by action.
    pub(super) fn count_reported(&mut self, reported: &XidCount) -> u64 {
        self.unsent = true;
        let codes = &mut self.counted.codes;
        let full = codes.len() >= MOST_CODES && !codes.contains_key(&reported.xid);
        let new = match (full, reported.source) {
            (true, XidSource::Events) => reported.count,
            (true, XidSource::KernelLog) => 0,
            (false, _) => count_code(codes.entry(reported.xid).or_default(), reported),
        };
        if new > 0 {
            let action = xid::find(reported.xid).action;
            let count = self.counted.actions.entry(action.name().into()).or_default();
            *count = count.saturating_add(new);
        }
        new
    }

    pub(super) fn has_code(&self, code: u32) -> bool {
        self.counted.codes.contains_key(&code)
    }

    /// The published counts by action, in the catalogue's order.
    pub(super) fn actions(&self) -> Vec<u64> {
        Action::ALL
            .iter()
            .map(|action| self.published.actions.get(action.name()).copied().unwrap_or(0))
            .collect()
    }

    pub(super) fn recover(&mut self, stored: &XidSums) {
        self.counted = stored.clone();
        self.published = stored.clone();
    }

    /// Gives the counts a start time of their own, in a ledger that was opened late: the counters were already published
    /// from 0, and adding the ledger's counts would look like new errors.
    pub(super) fn start_at(&mut self, at: Utc) {
        self.counted.since = Some(at);
        self.published.since = Some(at);
        self.unsent = true;
    }

    /// Restarts at 0, since the operator removed the GPU from the inventory.
    pub(super) fn forget(&mut self, at: Utc) {
        let since = Some(at);
        self.counted = XidSums { gpu: Arc::clone(&self.counted.gpu), since, ..XidSums::default() };
        self.unsent = true;
    }

    pub(super) fn acknowledge(&mut self, stored: &XidSums) {
        if stored.version() >= self.published.version() {
            self.published = stored.clone();
        }
        if self.published == self.counted {
            self.waiting = None;
        }
    }

    /// Publishes the counts that may be published; returns those that the ledger must store, if any.
    pub(super) fn publish(&mut self, now: Nanoseconds, has_ledger: bool) -> Option<XidSums> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent {
            self.waiting.get_or_insert(now);
        }
        let overdue = self.waiting.is_some_and(|since| now.0.saturating_sub(since.0) >= COMMIT_TIMEOUT.0);
        if overdue || (unsent && !has_ledger) {
            self.published = self.counted.clone();
            self.waiting = None;
        }
        (unsent && has_ledger).then(|| self.counted.clone())
    }
}

/// Counts what a source reported of a code; returns how many of these the other source has not reported.
fn count_code(code: &mut XidSum, reported: &XidCount) -> u64 {
    let now = reported.received_at;
    if now.0.saturating_sub(code.last_reported.0) > QUIET.0 {
        (code.events, code.lines) = (0, 0);
    }
    code.last_reported = code.last_reported.max(now);
    let before = code.events.max(code.lines);
    let source = match reported.source {
        XidSource::Events => &mut code.events,
        XidSource::KernelLog => &mut code.lines,
    };
    *source = source.saturating_add(reported.count);
    let new = code.events.max(code.lines) - before;
    code.count = code.count.saturating_add(new);
    if new > 0 {
        // A later report of an XID that is counted does not change its time.
        code.last = code.last.max(reported.last.utc);
        code.gpu_instance = reported.gpu_instance;
    } else {
        code.gpu_instance = code.gpu_instance.or(reported.gpu_instance);
    }
    new
}

#[cfg(test)]
mod tests {
    use XidSource::{Events, KernelLog};

    use super::*;
    use crate::model::{GpuName, Stamp};

    fn reported(source: XidSource, xid: u32, count: u64, second: u64) -> XidCount {
        let (gpu_instance, compute_instance) = (None, None);
        let gpu = GpuName::Uuid("GPU-1".into());
        let last = Stamp { utc: Utc(second), ..Stamp::default() };
        let received_at = Nanoseconds::from_seconds(second);
        XidCount { gpu, xid, source, gpu_instance, compute_instance, count, last, received_at }
    }

    const LEDGER: bool = true;
    const NOW: Nanoseconds = Nanoseconds::from_seconds(1_000);

    fn fresh() -> Xids {
        Xids::of(&"GPU-1".into())
    }

    #[test]
    fn an_xid_whose_line_arrives_after_a_restart_is_counted_once() {
        let mut before = fresh();
        before.count_reported(&reported(Events, 79, 1, 100));
        let stored = before.publish(NOW, LEDGER).unwrap();
        let mut after = fresh();
        after.recover(&stored);
        assert_eq!(after.count_reported(&reported(KernelLog, 79, 1, 101)), 0);
        assert_eq!(after.count_reported(&reported(Events, 79, 1, 200)), 1);
        assert_eq!(after.count_reported(&reported(KernelLog, 79, 1, 200)), 0);
        assert_eq!(after.counted.codes[&79].count, 2);
        assert_eq!(after.counted.actions.values().sum::<u64>(), 2);
    }

    #[test]
    fn counts_are_published_when_they_are_committed_or_after_ten_seconds() {
        let mut xids = fresh();
        let total = |xids: &Xids| xids.actions().iter().sum::<u64>();
        xids.count_reported(&reported(Events, 79, 1, 1));
        let first = xids.publish(NOW, LEDGER).unwrap();
        assert_eq!((total(&xids), xids.publish(NOW, LEDGER)), (0, None));
        xids.acknowledge(&first);
        assert_eq!(total(&xids), 1);
        xids.count_reported(&reported(Events, 79, 1, 2));
        xids.publish(NOW, LEDGER).unwrap();
        assert_eq!(total(&xids), 1);
        xids.publish(NOW + COMMIT_TIMEOUT, LEDGER);
        assert_eq!(total(&xids), 2);
        // A late commit does not take published counts back.
        xids.acknowledge(&first);
        assert_eq!(total(&xids), 2);
    }

    #[test]
    fn without_a_ledger_counts_are_published_at_once() {
        let mut xids = fresh();
        xids.count_reported(&reported(Events, 79, 1, 1));
        assert_eq!(xids.publish(NOW, false), None);
        assert_eq!(xids.published.codes[&79].count, 1);
    }

    #[test]
    fn counts_that_were_published_before_a_late_opening_continue_under_a_start_time_of_their_own() {
        let mut xids = fresh();
        xids.count_reported(&reported(Events, 79, 1, 5));
        xids.publish(NOW, false);
        xids.start_at(Utc(9));
        let sums = xids.publish(NOW, LEDGER).unwrap();
        assert_eq!((sums.codes[&79].count, sums.since), (1, Some(Utc(9))));
        assert_eq!(xids.published, sums);
    }

    #[test]
    fn a_forgotten_gpu_restarts_at_0_with_a_new_start_time() {
        let mut xids = fresh();
        xids.count_reported(&reported(Events, 79, 1, 1));
        let old = xids.publish(NOW, LEDGER).unwrap();
        xids.forget(Utc(7));
        let new = xids.publish(NOW, LEDGER).unwrap();
        for stored in [&old, &new, &old] {
            xids.acknowledge(stored);
        }
        assert_eq!((xids.published.since, xids.published.codes.len()), (Some(Utc(7)), 0));
    }

    #[test]
    fn an_xid_from_both_sources_is_counted_once_whichever_is_first() {
        let mut xids = Xids::of(&"GPU-1".into());
        let new: Vec<u64> = [
            (Events, 13, 2, 1),
            (KernelLog, 13, 2, 1),
            // The next one, and only the log has it.
            (KernelLog, 13, 1, 5),
            (KernelLog, 62, 1, 6),
            // Long after: both report again.
            (KernelLog, 13, 1, 100),
            (Events, 13, 1, 101),
        ]
        .into_iter()
        .map(|(source, xid, count, second)| xids.count_reported(&reported(source, xid, count, second)))
        .collect();
        assert_eq!(new, [2, 0, 1, 1, 1, 0]);
        assert_eq!(xids.counted.codes[&13].count, 4);
        assert_eq!(xids.counted.codes[&13].last, Utc(100), "when it was first reported");
        assert_eq!(xids.counted.actions.values().sum::<u64>(), 5);
    }

    #[test]
    fn a_storm_is_counted_by_its_events_and_not_by_rate_limited_lines() {
        let mut xids = Xids::of(&"GPU-1".into());
        for second in 0..60 {
            xids.count_reported(&reported(KernelLog, 13, 10, second));
            xids.count_reported(&reported(Events, 13, 10_000, second));
        }
        assert_eq!(xids.counted.codes[&13].count, 600_000);
    }

    #[test]
    fn codes_are_bounded_and_actions_count_all() {
        let mut xids = Xids::of(&"GPU-1".into());
        for code in 1_000..2_000 {
            xids.count_reported(&reported(Events, code, 3, 1));
            xids.count_reported(&reported(KernelLog, code, 3, 1));
        }
        assert_eq!(xids.counted.codes.len(), MOST_CODES);
        assert_eq!(xids.counted.actions.values().sum::<u64>(), 3_000);
    }
}
