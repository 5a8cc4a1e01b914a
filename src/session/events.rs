//! Receives the driver's events of all GPUs, and logs XIDs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::received::{EventBatch, XidKind};
use super::{DriverSessions, POLL_INTERVAL, RETRY_INTERVAL, count_error, lock};
use crate::catalogue::xid;
use crate::clock::system_now;
use crate::model::{Absence, GpuName, Nanoseconds, Stamp};
use crate::nvml::{CallSlot, EventSet, EventWait, Library};

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

/// Receives events until the session ends.
pub(crate) fn listen(
    mut events: EventSet,
    shared: &DriverSessions,
    mut is_to_continue: impl FnMut() -> bool,
) {
    let mut again = shared.clock.now().boottime;
    let mut refused = Vec::new();
    // The last logged refusal of each GPU: one that repeats is only counted.
    let mut logged = BTreeMap::new();
    let mut xid_log = XidLog::default();
    while is_to_continue() {
        let now = shared.clock.now().boottime;
        if now >= again {
            again = now + RETRY_INTERVAL;
            lock(shared).unregistered.append(&mut refused);
        }
        let unregistered = std::mem::take(&mut lock(shared).unregistered);
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
            xid_log.add(&batch);
            // One lock and one clock reading for the whole batch.
            shared.received.add(batch, events.now());
        }
        xid_log.write(system_now());
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

/// Logs XIDs: at once while they are few, at most [`XidLog::MAX_LINES`] lines a second in a storm.
#[derive(Default)]
struct XidLog {
    unlogged: BTreeMap<XidKind, u64>,
    /// When it last wrote lines, in the system's time.
    last_written: Option<Stamp>,
    /// XIDs of kinds beyond the limit.
    others: u64,
}

impl XidLog {
    const MAX_LINES: usize = 10;
    const MAX_KINDS: usize = 256;

    fn add(&mut self, batch: &EventBatch) {
        for (kind, count) in &batch.xids {
            if self.unlogged.len() < Self::MAX_KINDS || self.unlogged.contains_key(kind) {
                *self.unlogged.entry(kind.clone()).or_default() += count;
            } else {
                self.others += count;
            }
        }
    }

    fn write(&mut self, now: Stamp) {
        for line in self.lines(now) {
            tracing::warn!("{line}");
        }
    }

    /// The lines that are due: the most frequent kinds, then one line for the rest.
    fn lines(&mut self, now: Stamp) -> Vec<String> {
        let since = self.last_written.map(|last| now.since(last));
        if self.unlogged.is_empty() || since.is_some_and(|since| since < Nanoseconds::SECOND) {
            return Vec::new();
        }
        self.last_written = Some(now);
        let mut kinds: Vec<_> = std::mem::take(&mut self.unlogged).into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named = if kinds.len() > Self::MAX_LINES { Self::MAX_LINES - 1 } else { kinds.len() };
        let mut lines: Vec<String> =
            kinds.iter().take(named).map(|(kind, count)| line(kind, *count)).collect();
        let rest: u64 = kinds.iter().skip(named).map(|(_, count)| count).sum();
        let rest = rest + std::mem::take(&mut self.others);
        if rest > 0 {
            lines.push(format!("{rest} more XIDs of {} other kinds", kinds.len() - named));
        }
        lines
    }
}

fn line(kind: &XidKind, count: u64) -> String {
    let gpu = match &kind.gpu {
        GpuName::Uuid(uuid) => uuid.to_string(),
        GpuName::Pci(at) => format!("at {:04x}:{:02x}:{:02x}", at.domain, at.bus, at.device),
    };
    let instance = kind.gpu_instance.map(|id| format!(", GPU instance {id}")).unwrap_or_default();
    let xid::Xid { code, action, text, .. } = xid::find(kind.xid);
    let action = action.name();
    let often = if count == 1 { String::new() } else { format!(", {count} times") };
    format!("XID {code} on {gpu}{instance}{often}: {text} ({action})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::XidSource;

    fn batch(kinds: u32, count: usize) -> EventBatch {
        let mut batch = EventBatch::default();
        for xid in 1..=kinds {
            for _ in 0..count {
                batch.xid(XidKind {
                    source: XidSource::Events,
                    gpu: GpuName::Uuid("GPU-1".into()),
                    xid,
                    gpu_instance: None,
                    compute_instance: None,
                });
            }
        }
        batch
    }

    fn at(milliseconds: u64) -> Stamp {
        Stamp { boottime: Nanoseconds(milliseconds * 1_000_000), ..Stamp::default() }
    }

    #[test]
    fn an_event_of_a_gpu_without_a_name_does_not_hide_those_behind_it() {
        let event = EventWait::Event(crate::nvml::DriverEvent {
            uuid: "GPU-1".into(),
            kind: crate::nvml::DriverEventKind::Xid { xid: 79, gpu_instance: None, compute_instance: None },
        });
        let mut waiting =
            vec![EventWait::Timeout, event, EventWait::Ignored, EventWait::Unidentified(Absence::Lost)];
        let (mut batch, mut unidentified) = (EventBatch::default(), Vec::new());
        let next = |_| waiting.pop().ok_or(Absence::Failed);
        assert_eq!(drain(next, &mut batch, |absence| unidentified.push(absence)), Ok(()));
        assert_eq!((batch.xids.len(), unidentified), (1, vec![Absence::Lost]));
    }

    #[test]
    fn a_single_xid_is_told_at_once() {
        let mut xid_log = XidLog::default();
        xid_log.add(&batch(1, 1));
        assert_eq!(xid_log.lines(at(0)).len(), 1);
        assert!(xid_log.lines(at(5_000)).is_empty());
    }

    #[test]
    fn a_storm_is_told_in_ten_lines_a_second_and_no_xid_is_left_out() {
        let mut xid_log = XidLog::default();
        let mut told = Vec::new();
        for tenth in 0..100 {
            xid_log.add(&batch(300, 3));
            let lines = xid_log.lines(at(tenth * 100));
            assert!(lines.len() <= XidLog::MAX_LINES, "{lines:?}");
            told.extend(lines);
        }
        assert!(told.len() <= 10 * XidLog::MAX_LINES, "{}", told.len());
        let number = |line: &String| {
            let (_, tail) = line.split_once(", ").unwrap_or(("", line));
            tail.split(' ').next().and_then(|word| word.parse::<u64>().ok())
        };
        let unlogged: u64 = xid_log.unlogged.values().sum::<u64>() + xid_log.others;
        assert_eq!(told.iter().filter_map(number).sum::<u64>() + unlogged, 100 * 900);
    }
}
