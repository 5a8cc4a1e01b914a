//! The XIDs of one GPU since the agent's start, from two sources that tell of the same ones.
//!
//! An XID usually comes twice, as an event and as a line in the kernel's log, within a fraction of a second.
//! While either source speaks of a code, and until both have been quiet about it for [`QUIET`], the larger of
//! the two counts is the count: events are exact where they exist, lines are rate-limited but know codes that
//! never become events. So nothing is counted twice, and a storm is counted by whoever counts it.

use std::collections::BTreeMap;

use crate::catalogue::xid::{Action, meaning};
use crate::model::{Nanoseconds, Utc, XidCount, XidSource};

/// No GPU has more kinds of XID than this; a driver that sends more sends garbage.
const MOST_CODES: usize = 64;

/// How long both sources are quiet about a code before what comes is new to both: far more than the fraction of a
/// second by which either lags, since a starved agent reads late.
const QUIET: Nanoseconds = Nanoseconds::from_seconds(30);

/// Counts by code and by action.
#[derive(Clone, Debug)]
pub(super) struct Xids {
    pub(super) codes: BTreeMap<u32, Code>,
    pub(super) actions: Vec<u64>,
}

/// One code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    pub(super) count: u64,
    pub(super) last: Utc,
    /// What each source has told since both were quiet.
    events: u64,
    lines: u64,
    heard: Nanoseconds,
}

impl Default for Xids {
    fn default() -> Self {
        Self { codes: BTreeMap::new(), actions: vec![0; Action::ALL.len()] }
    }
}

impl Xids {
    /// Counts XIDs, and says how many of them are new. The count by action is complete even when a flood of
    /// codes is not told apart; of such a flood only events count.
    pub(super) fn hear(&mut self, told: &XidCount) -> u64 {
        let full = self.codes.len() >= MOST_CODES && !self.codes.contains_key(&told.xid);
        let new = match (full, told.source) {
            (true, XidSource::Events) => told.count,
            (true, XidSource::KernelLog) => 0,
            (false, _) => self.codes.entry(told.xid).or_default().hear(told),
        };
        let (_, action) = meaning(told.xid);
        if let Some(position) = Action::ALL.iter().position(|other| *other == action) {
            self.actions[position] = self.actions[position].saturating_add(new);
        }
        new
    }
}

impl Code {
    fn hear(&mut self, told: &XidCount) -> u64 {
        let now = told.heard;
        if now.0.saturating_sub(self.heard.0) > QUIET.0 {
            (self.events, self.lines) = (0, 0);
        }
        self.heard = self.heard.max(now);
        self.last = self.last.max(told.last.utc);
        let before = self.events.max(self.lines);
        let source = match told.source {
            XidSource::Events => &mut self.events,
            XidSource::KernelLog => &mut self.lines,
        };
        *source = source.saturating_add(told.count);
        let new = self.events.max(self.lines) - before;
        self.count = self.count.saturating_add(new);
        new
    }
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
        let heard = Nanoseconds::from_seconds(second);
        XidCount { gpu, xid, source, gpu_instance, compute_instance, count, last, heard }
    }

    #[test]
    fn what_both_sources_tell_is_counted_once_whoever_is_first() {
        let mut xids = Xids::default();
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
        .map(|(source, xid, count, second)| xids.hear(&told(source, xid, count, second)))
        .collect();
        assert_eq!(new, [2, 0, 1, 1, 1, 0]);
        assert_eq!(xids.codes[&13].count, 4);
        assert_eq!(xids.codes[&13].last, Utc(101));
        assert_eq!(xids.actions.iter().sum::<u64>(), 5);
    }

    #[test]
    fn a_storm_is_counted_by_its_events_and_not_by_the_lines_that_the_log_let_through() {
        let mut xids = Xids::default();
        for second in 0..60 {
            xids.hear(&told(KernelLog, 13, 10, second));
            xids.hear(&told(Events, 13, 10_000, second));
        }
        assert_eq!(xids.codes[&13].count, 600_000);
    }

    #[test]
    fn a_flood_of_codes_is_bounded_and_its_actions_are_complete() {
        let mut xids = Xids::default();
        for code in 1_000..2_000 {
            xids.hear(&told(Events, code, 3, 1));
            xids.hear(&told(KernelLog, code, 3, 1));
        }
        assert_eq!(xids.codes.len(), MOST_CODES);
        assert_eq!(xids.actions.iter().sum::<u64>(), 3_000);
    }
}
