//! Finds events in the snapshots of the tick loop, and logs them.

use std::sync::Arc;

use super::Shared;
use crate::model::shown;
use crate::model::snapshot::Snapshot;
use crate::output::events::{ConfigReloads, Event, EventTracker, Severity};

/// The events since the last snapshot, which are kept for readers, and logged where time is real: a demo at `--speed 60` has hours
/// of events in a minute, all of which `/api/v1/events` has.
pub(super) fn find_events(
    tracker: &mut EventTracker,
    snapshot: &Arc<Snapshot>,
    shared: &Shared,
) -> Vec<Arc<Event>> {
    let reloads = &shared.reloads;
    let reloads = ConfigReloads { count: *reloads.count.borrow(), succeeded: reloads.succeeded() };
    let found = tracker.observe(snapshot, reloads);
    let told = shared.status.pages.events().record(found, snapshot.at.utc);
    if !shared.clock.is_fast() {
        told.iter().for_each(|event| log_event(event));
    }
    told
}

fn log_event(event: &Event) {
    let (name, id, count, text) = (event.kind.name, event.id(), event.count, &event.text);
    let gpu = event.gpu.as_ref().map(|gpu| gpu.index);
    let uuid = event.gpu.as_ref().map(|gpu| &*gpu.uuid);
    let attributes = event.attributes.iter().map(|(name, text)| format!("{name}={text:?}"));
    let attributes = attributes.collect::<Vec<_>>().join(" ");
    let workloads = event.parties.iter().map(|party| shown(&party.workload)).collect::<Vec<_>>().join(" ");
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(event = name, id, gpu, uuid, count, attributes, workloads, "{text}")
        };
    }
    match event.severity {
        Severity::Info => log!(info),
        Severity::Warn => log!(warn),
        Severity::Error => log!(error),
    }
}
