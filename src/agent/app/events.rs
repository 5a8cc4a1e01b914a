//! Finds events in the snapshots of the tick loop, and logs them.

use std::sync::Arc;

use super::Shared;
use crate::model::snapshot::Snapshot;
use crate::model::{Nanoseconds, shown};
use crate::output::events::{ConfigReloads, Event, EventTracker, Severity};
use crate::runtime::clock::system_now;

/// The events since the last snapshot, which are logged and kept for readers.
pub(super) fn find_events(
    tracker: &mut EventTracker,
    lines: &mut EventLines,
    snapshot: &Arc<Snapshot>,
    shared: &Shared,
) -> Vec<Arc<Event>> {
    let reloads = &shared.reloads;
    let reloads = ConfigReloads { count: *reloads.count.borrow(), succeeded: reloads.succeeded() };
    let found = tracker.observe(snapshot, reloads);
    let told = shared.status.pages.events().record(found, snapshot.at.utc);
    let is_fast = shared.clock.is_fast();
    for event in &told {
        if let Some(left_out) = lines.admit(is_fast, system_now().boottime) {
            log_event(event, left_out);
        }
    }
    told
}

/// Limits the lines about events while time passes faster than real time: a demo at `--speed 60` has hours of events in a minute.
/// `/api/v1/events` has all of them.
#[derive(Debug, Default)]
pub(super) struct EventLines {
    last: Option<Nanoseconds>,
    left_out: u64,
}

impl EventLines {
    /// Whether the next event is logged, and how many were not since the last one. At a higher speed it is if no line was
    /// written within the last second of real time.
    fn admit(&mut self, is_fast: bool, now: Nanoseconds) -> Option<u64> {
        if is_fast && self.last.is_some_and(|last| now.0.saturating_sub(last.0) < Nanoseconds::SECOND.0) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

fn log_event(event: &Event, left_out: u64) {
    let (name, id, count, text) = (event.kind.name, event.id(), event.count, &event.text);
    let gpu = event.gpu.as_ref().map(|gpu| gpu.index);
    let uuid = event.gpu.as_ref().map(|gpu| &*gpu.uuid);
    let attributes = event.attributes.iter().map(|(name, text)| format!("{name}={text:?}"));
    let attributes = attributes.collect::<Vec<_>>().join(" ");
    let workloads = event.parties.iter().map(|party| shown(&party.workload)).collect::<Vec<_>>().join(" ");
    let left_out = Some(left_out).filter(|count| *count > 0);
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(event = name, id, gpu, uuid, count, attributes, workloads, left_out, "{text}")
        };
    }
    match event.severity {
        Severity::Info => log!(info),
        Severity::Warn => log!(warn),
        Severity::Error => log!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_higher_speed_a_line_a_second_says_how_many_were_left_out() {
        let tenth = |number: u64| Nanoseconds(number * 100_000_000);
        let mut lines = EventLines::default();
        let logged: Vec<Option<u64>> = (0..21).map(|number| lines.admit(true, tenth(number))).collect();
        let expected = |number| match number {
            0 => Some(0),
            10 | 20 => Some(9),
            _ => None,
        };
        assert_eq!(logged, (0..21).map(expected).collect::<Vec<_>>());
        assert_eq!(
            [0, 0].map(|_| lines.admit(false, tenth(20))),
            [Some(0); 2],
            "in real time each has its line"
        );
    }
}
