//! Finds events in the snapshots of the tick loop, and logs them.

use std::sync::Arc;

use super::Shared;
use crate::events::{ConfigReloads, Event, EventTracker, Severity};
use crate::model::shown;
use crate::model::snapshot::Snapshot;

/// The events since the last snapshot, which are logged and kept for readers.
pub(super) fn find_events(
    tracker: &mut EventTracker,
    snapshot: &Arc<Snapshot>,
    shared: &Shared,
) -> Vec<Arc<Event>> {
    let reloads = &shared.reloads;
    let reloads = ConfigReloads { count: *reloads.count.borrow(), succeeded: reloads.succeeded() };
    let found = tracker.observe(snapshot, reloads);
    let told = shared.pages.events().record(found, snapshot.at.utc);
    told.iter().for_each(|event| log_event(event));
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
