//! Receives the driver's events of all GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::received::EventBatch;
use super::{DriverSessions, POLL_INTERVAL, RETRY_INTERVAL, count_error};
use crate::driver::nvml::{CallSlot, EventSet, EventWait, Library};
use crate::model::Absence;

/// Opens an event set; none where the driver has none, and when the session ends.
pub(crate) fn event_set(
    library: &Arc<Library>,
    slot: &CallSlot,
    shared: &DriverSessions,
    mut is_to_continue: impl FnMut() -> bool,
) -> Option<EventSet> {
    let mut pause = || {
        let again = shared.clock.now().boottime + RETRY_INTERVAL;
        while shared.clock.now().boottime < again && is_to_continue() {
            shared.stop.wait(POLL_INTERVAL);
        }
        is_to_continue()
    };
    let mut logged = None;
    loop {
        match EventSet::new(library, slot.clone(), shared.clock.clone()) {
            Ok(events) => return Some(events),
            Err(absence) => {
                count_error(shared, "events".into(), absence.reason());
                if logged.replace(absence) != Some(absence) {
                    tracing::warn!(reason = absence.reason(), "XIDs cannot be received from the driver");
                }
                if absence.is_permanent() || !pause() {
                    return None;
                }
            }
        }
    }
}

pub(crate) fn listen(
    mut events: EventSet,
    shared: &DriverSessions,
    mut is_to_continue: impl FnMut() -> bool,
) {
    let mut again = shared.clock.now().boottime;
    let mut refused = Vec::new();
    // The last logged refusal of each GPU: one that repeats is only counted.
    let mut logged = BTreeMap::new();
    while is_to_continue() {
        let now = shared.clock.now().boottime;
        if now >= again {
            again = now + RETRY_INTERVAL;
            shared.samplers.lock().unregistered.append(&mut refused);
        }
        let unregistered = std::mem::take(&mut shared.samplers.lock().unregistered);
        for gpu in unregistered {
            let Err(absence) = events.register(&gpu) else {
                logged.remove(&gpu.id.uuid);
                continue;
            };
            count_error(shared, "events".into(), absence.reason());
            if logged.insert(Arc::clone(&gpu.id.uuid), absence) != Some(absence) {
                tracing::warn!(uuid = %gpu.id.uuid, reason = absence.reason(), "the XIDs of a GPU cannot be received");
            }
            if !absence.is_permanent() {
                refused.push(gpu);
            }
        }
        if events.is_empty() {
            shared.stop.wait(POLL_INTERVAL);
            continue;
        }
        let mut batch = EventBatch::default();
        let outcome = drain(
            |wait| events.wait(wait),
            &mut batch,
            |absence| {
                count_error(shared, "events".into(), absence.reason());
            },
        );
        if !batch.is_empty() {
            // One lock and one clock reading for the whole batch.
            shared.received.add(batch, events.now());
        }
        if let Err(absence) = outcome {
            count_error(shared, "events".into(), absence.reason());
            // An event set that fails at once would spin.
            shared.stop.wait(Duration::from_secs(1));
        }
    }
    events.free();
}

/// Waits a fifth of a second for the first event and takes those queued behind it, up to a limit, so that a stop does not
/// wait long. An event whose GPU cannot be identified is skipped.
fn drain(
    mut next: impl FnMut(u32) -> Result<EventWait, Absence>,
    batch: &mut EventBatch,
    mut unidentified: impl FnMut(Absence),
) -> Result<(), Absence> {
    const WAIT_MILLISECONDS: u32 = 200;
    const MAX_EVENTS: usize = 4_096;
    let mut wait = WAIT_MILLISECONDS;
    for _ in 0..MAX_EVENTS {
        match next(wait)? {
            EventWait::Event(event) => batch.event(event),
            EventWait::Ignored => {}
            EventWait::Unidentified(absence) => unidentified(absence),
            EventWait::Timeout => break,
        }
        wait = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_gpu_without_a_name_does_not_hide_those_behind_it() {
        let event = EventWait::Event(crate::driver::nvml::DriverEvent {
            uuid: "GPU-1".into(),
            kind: crate::driver::nvml::DriverEventKind::Xid {
                xid: 79,
                gpu_instance: None,
                compute_instance: None,
            },
        });
        let mut waiting =
            vec![EventWait::Timeout, event, EventWait::Ignored, EventWait::Unidentified(Absence::Lost)];
        let (mut batch, mut unidentified) = (EventBatch::default(), Vec::new());
        let next = |_| waiting.pop().ok_or(Absence::Failed);
        assert_eq!(drain(next, &mut batch, |absence| unidentified.push(absence)), Ok(()));
        assert_eq!((batch.xids.len(), unidentified), (1, vec![Absence::Lost]));
    }
}
