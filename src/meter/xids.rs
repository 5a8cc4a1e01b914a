//! The XIDs of one GPU over all time, from two sources that report the same errors.
//!
//! An XID usually comes twice, as an event and as a line in the kernel's log, within a fraction of a second.
//! While either source speaks of a code, and until both have been quiet about it for [`QUIET`], the larger of
//! the two counts is the count: events are exact where they exist, lines are rate-limited but know codes that
//! never become events. So nothing is counted twice, and a storm is counted by whoever counts it. What each source
//! has told is stored with the counts, so that an XID whose line comes after a restart of the agent is counted once.

use std::sync::Arc;

use crate::catalogue::xid::{self, Action};
use crate::ledger::{Anchor, XidSum, XidSums};
use crate::model::{Nanoseconds, Utc, XidCount, XidSource};

/// No GPU has more kinds of XID than this; a driver that sends more sends garbage.
const MOST_CODES: usize = 64;

/// How long both sources are quiet about a code before what comes is new to both: far more than the fraction of a
/// second by which either lags, since a starved agent reads late.
const QUIET: Nanoseconds = Nanoseconds::from_seconds(30);

/// How long counts wait to be shown until they are committed. A disk that hangs must not hide an XID; if the agent is
/// killed while it hangs, these counts are lost.
const PATIENCE: Nanoseconds = Nanoseconds::from_seconds(10);

/// Counts by code and by action.
#[derive(Clone, Debug)]
pub(super) struct Xids {
    counted: XidSums,
    /// What the ledger has committed, or what cannot wait for it.
    shown: XidSums,
    /// Whether the last change was not sent to the ledger.
    unsent: bool,
    /// Since when something that was counted is not shown.
    waiting: Option<Nanoseconds>,
}

impl Xids {
    /// A GPU that had none.
    pub(super) fn of(gpu: &Arc<str>) -> Self {
        let none = XidSums { gpu: Arc::clone(gpu), ..XidSums::default() };
        Self { counted: none.clone(), shown: none, unsent: false, waiting: None }
    }

    /// Counts XIDs, and says how many of them are new. The count by action is complete even when a flood of
    /// codes is not told apart; of such a flood only events count.
    pub(super) fn count_reported(&mut self, told: &XidCount) -> u64 {
        self.unsent = true;
        let codes = &mut self.counted.codes;
        let full = codes.len() >= MOST_CODES && !codes.contains_key(&told.xid);
        let new = match (full, told.source) {
            (true, XidSource::Events) => told.count,
            (true, XidSource::KernelLog) => 0,
            (false, _) => hear(codes.entry(told.xid).or_default(), told),
        };
        if new > 0 {
            let action = xid::find(told.xid).action;
            let count = self.counted.actions.entry(action.name().into()).or_default();
            *count = count.saturating_add(new);
        }
        new
    }

    /// What is shown.
    pub(super) const fn shown(&self) -> &XidSums {
        &self.shown
    }

    /// The shown counts by action, in the catalogue's order.
    pub(super) fn actions(&self) -> Vec<u64> {
        Action::ALL.iter().map(|action| self.shown.actions.get(action.name()).copied().unwrap_or(0)).collect()
    }

    /// Goes on from what was counted before the agent's start.
    pub(super) fn recover(&mut self, stored: &XidSums) {
        self.counted = stored.clone();
        self.shown = stored.clone();
    }

    /// Goes on without what an earlier agent counted: a ledger that is opened late comes after counters were shown from
    /// 0, and adding its counts to them would look like new errors.
    pub(super) fn start_at(&mut self, at: Utc) {
        self.counted.since = Some(at);
        self.shown.since = Some(at);
        self.unsent = true;
    }

    /// Begins again at 0: the GPU is not expected any more.
    pub(super) fn forget(&mut self, at: Utc) {
        let since = Some(at);
        self.counted = XidSums { gpu: Arc::clone(&self.counted.gpu), since, ..XidSums::default() };
        self.unsent = true;
    }

    /// The ledger has committed this.
    pub(super) fn acknowledge(&mut self, stored: &XidSums) {
        if stored.age() >= self.shown.age() {
            self.shown = stored.clone();
        }
        if self.shown == self.counted {
            self.waiting = None;
        }
    }

    /// Shows what may be shown; returns the sums that the ledger has to store, if any.
    pub(super) fn publish(&mut self, now: Nanoseconds, has_ledger: bool) -> Option<XidSums> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent {
            self.waiting.get_or_insert(now);
        }
        let overdue = self.waiting.is_some_and(|since| now.0.saturating_sub(since.0) >= PATIENCE.0);
        if overdue || (unsent && !has_ledger) {
            self.shown = self.counted.clone();
            self.waiting = None;
        }
        (unsent && has_ledger).then(|| self.counted.clone())
    }

    /// The account's time in this boot is fixed.
    pub(super) fn apply_anchor(&mut self, anchor: &Anchor) {
        for sums in [&mut self.counted, &mut self.shown] {
            sums.since = sums.since.map(|since| anchor.moved(since));
        }
    }
}

/// Counts what a source reported of a code; returns how many of these the other source has not reported.
fn hear(code: &mut XidSum, told: &XidCount) -> u64 {
    let now = told.received_at;
    if now.0.saturating_sub(code.last_reported.0) > QUIET.0 {
        (code.events, code.lines) = (0, 0);
    }
    code.last_reported = code.last_reported.max(now);
    let before = code.events.max(code.lines);
    let source = match told.source {
        XidSource::Events => &mut code.events,
        XidSource::KernelLog => &mut code.lines,
    };
    *source = source.saturating_add(told.count);
    let new = code.events.max(code.lines) - before;
    code.count = code.count.saturating_add(new);
    if new > 0 {
        // A later report of an XID that is counted does not change its time.
        code.last = code.last.max(told.last.utc);
    }
    new
}

#[cfg(test)]
mod tests {
    use XidSource::{Events, KernelLog};

    use super::*;
    use crate::model::{GpuName, Stamp};

    fn told(source: XidSource, xid: u32, count: u64, second: u64) -> XidCount {
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
    fn an_xid_whose_line_comes_after_a_restart_is_counted_once_and_the_next_one_again() {
        let mut before = fresh();
        before.count_reported(&told(Events, 79, 1, 100));
        let stored = before.publish(NOW, LEDGER).unwrap();
        let mut after = fresh();
        after.recover(&stored);
        assert_eq!(after.count_reported(&told(KernelLog, 79, 1, 101)), 0);
        assert_eq!(after.count_reported(&told(Events, 79, 1, 200)), 1);
        assert_eq!(after.count_reported(&told(KernelLog, 79, 1, 200)), 0);
        assert_eq!(after.counted.codes[&79].count, 2);
        assert_eq!(after.counted.actions.values().sum::<u64>(), 2);
    }

    #[test]
    fn counts_are_shown_once_they_are_committed_or_after_ten_seconds() {
        let mut xids = fresh();
        let total = |xids: &Xids| xids.actions().iter().sum::<u64>();
        xids.count_reported(&told(Events, 79, 1, 1));
        let first = xids.publish(NOW, LEDGER).unwrap();
        assert_eq!((total(&xids), xids.publish(NOW, LEDGER)), (0, None));
        xids.acknowledge(&first);
        assert_eq!(total(&xids), 1);
        xids.count_reported(&told(Events, 79, 1, 2));
        xids.publish(NOW, LEDGER).unwrap();
        assert_eq!(total(&xids), 1);
        xids.publish(NOW + PATIENCE, LEDGER);
        assert_eq!(total(&xids), 2);
        // The ledger goes on where it was; what is shown does not go back.
        xids.acknowledge(&first);
        assert_eq!(total(&xids), 2);
    }

    #[test]
    fn without_a_ledger_counts_are_shown_at_once() {
        let mut xids = fresh();
        xids.count_reported(&told(Events, 79, 1, 1));
        assert_eq!(xids.publish(NOW, false), None);
        assert_eq!(xids.shown().codes[&79].count, 1);
    }

    #[test]
    fn counts_that_were_shown_before_a_late_opening_go_on_under_a_start_of_their_own() {
        let mut xids = fresh();
        xids.count_reported(&told(Events, 79, 1, 5));
        xids.publish(NOW, false);
        xids.start_at(Utc(9));
        let sums = xids.publish(NOW, LEDGER).unwrap();
        assert_eq!((sums.codes[&79].count, sums.since), (1, Some(Utc(9))));
        assert_eq!(xids.shown(), &sums);
    }

    #[test]
    fn a_forgotten_gpu_begins_again_at_0_with_a_start_of_its_own() {
        let mut xids = fresh();
        xids.count_reported(&told(Events, 79, 1, 1));
        let old = xids.publish(NOW, LEDGER).unwrap();
        xids.forget(Utc(7));
        let new = xids.publish(NOW, LEDGER).unwrap();
        for stored in [&old, &new, &old] {
            xids.acknowledge(stored);
        }
        assert_eq!((xids.shown().since, xids.shown().codes.len()), (Some(Utc(7)), 0));
    }

    #[test]
    fn what_both_sources_tell_is_counted_once_whoever_is_first() {
        let mut xids = Xids::of(&"GPU-1".into());
        let new: Vec<u64> = [
            (Events, 13, 2, 1),
            (KernelLog, 13, 2, 1),
            // The next one, and only the log has it.
            (KernelLog, 13, 1, 5),
            (KernelLog, 62, 1, 6),
            // Long after: both tell again.
            (KernelLog, 13, 1, 100),
            (Events, 13, 1, 101),
        ]
        .into_iter()
        .map(|(source, xid, count, second)| xids.count_reported(&told(source, xid, count, second)))
        .collect();
        assert_eq!(new, [2, 0, 1, 1, 1, 0]);
        assert_eq!(xids.counted.codes[&13].count, 4);
        assert_eq!(xids.counted.codes[&13].last, Utc(100), "when it was first told");
        assert_eq!(xids.counted.actions.values().sum::<u64>(), 5);
    }

    #[test]
    fn a_storm_is_counted_by_its_events_and_not_by_the_lines_that_the_log_let_through() {
        let mut xids = Xids::of(&"GPU-1".into());
        for second in 0..60 {
            xids.count_reported(&told(KernelLog, 13, 10, second));
            xids.count_reported(&told(Events, 13, 10_000, second));
        }
        assert_eq!(xids.counted.codes[&13].count, 600_000);
    }

    #[test]
    fn a_flood_of_codes_is_bounded_and_its_actions_are_complete() {
        let mut xids = Xids::of(&"GPU-1".into());
        for code in 1_000..2_000 {
            xids.count_reported(&told(Events, code, 3, 1));
            xids.count_reported(&told(KernelLog, code, 3, 1));
        }
        assert_eq!(xids.counted.codes.len(), MOST_CODES);
        assert_eq!(xids.counted.actions.values().sum::<u64>(), 3_000);
    }
}
