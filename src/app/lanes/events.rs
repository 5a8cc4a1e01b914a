//! The XIDs that the driver tells of, for all GPUs.

use std::sync::Arc;
use std::time::Duration;

use super::{LOOK_AGAIN, count, lock};
use crate::app::Shared;
use crate::nvml::{CallSlot, Events, Library};

/// How often it is asked whether the session goes on.
const LOOK: Duration = Duration::from_millis(200);

/// An event set; none where the driver has none, and when the session ends, which is asked a few times a second.
pub(super) fn event_set(
    library: &Arc<Library>,
    slot: &CallSlot,
    shared: &Shared,
    mut goes_on: impl FnMut() -> bool,
) -> Option<Events> {
    let mut pause = || {
        let again = shared.clock.now().boottime + LOOK_AGAIN;
        while shared.clock.now().boottime < again && goes_on() {
            shared.stop.wait(LOOK);
        }
        goes_on()
    };
    loop {
        match Events::new(library, slot.clone(), shared.clock.clone()) {
            Ok(events) => return Some(events),
            Err(absence) => {
                count(shared, "events".into(), absence.reason());
                tracing::warn!(reason = absence.reason(), "XIDs cannot be heard from the driver");
                if absence.is_permanent() || !pause() {
                    return None;
                }
            }
        }
    }
}

/// Hears events for as long as the session goes on, which is asked a few times a second.
pub(super) fn listen(mut events: Events, shared: &Shared, mut goes_on: impl FnMut() -> bool) {
    let mut again = shared.clock.now().boottime;
    let mut refused = Vec::new();
    while goes_on() {
        let now = shared.clock.now().boottime;
        if now >= again {
            again = now + LOOK_AGAIN;
            lock(shared).unheard.append(&mut refused);
        }
        let unheard = std::mem::take(&mut lock(shared).unheard);
        for gpu in unheard {
            let Err(absence) = events.register(&gpu) else { continue };
            count(shared, "events".into(), absence.reason());
            tracing::warn!(uuid = %gpu.id.uuid, reason = absence.reason(), "a GPU's XIDs cannot be heard");
            if !absence.is_permanent() {
                refused.push(gpu);
            }
        }
        if events.is_empty() {
            shared.stop.wait(LOOK);
            continue;
        }
        match events.wait() {
            Ok(Some(event)) => {
                tracing::warn!(uuid = %event.uuid, xid = event.xid, "XID");
                lock(shared).xids.push(event);
            }
            Ok(None) => {}
            Err(absence) => {
                count(shared, "events".into(), absence.reason());
                // An event set that fails at once would spin.
                shared.stop.wait(Duration::from_secs(1));
            }
        }
    }
    events.free();
}
