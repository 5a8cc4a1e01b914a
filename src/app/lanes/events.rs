//! What the driver tells by itself, for all GPUs, and how much of it is logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{LOOK_AGAIN, count, lock};
use crate::app::Shared;
use crate::app::heard::{Batch, Kind};
use crate::catalogue::xid;
use crate::clock::system_now;
use crate::model::{Absence, GpuName, Nanoseconds, Stamp};
use crate::nvml::{CallSlot, EventSet, EventWait, Library};

/// How often it is asked whether the session goes on.
const LOOK: Duration = Duration::from_millis(200);

/// An event set; none where the driver has none, and when the session ends, which is asked a few times a second.
pub(super) fn event_set(
    library: &Arc<Library>,
    slot: &CallSlot,
    shared: &Shared,
    mut goes_on: impl FnMut() -> bool,
) -> Option<EventSet> {
    let mut pause = || {
        let again = shared.clock.now().boottime + LOOK_AGAIN;
        while shared.clock.now().boottime < again && goes_on() {
            shared.stop.wait(LOOK);
        }
        goes_on()
    };
    let mut told = None;
    loop {
        match EventSet::new(library, slot.clone(), shared.clock.clone()) {
            Ok(events) => return Some(events),
            Err(absence) => {
                count(shared, "events".into(), absence.reason());
                if told.replace(absence) != Some(absence) {
                    tracing::warn!(reason = absence.reason(), "XIDs cannot be heard from the driver");
                }
                if absence.is_permanent() || !pause() {
                    return None;
                }
            }
        }
    }
}

/// Hears events for as long as the session goes on, which is asked a few times a second.
pub(super) fn listen(mut events: EventSet, shared: &Shared, mut goes_on: impl FnMut() -> bool) {
    let mut again = shared.clock.now().boottime;
    let (mut refused, mut told) = (Vec::new(), Refusals::default());
    let mut crier = Crier::default();
    while goes_on() {
        let now = shared.clock.now().boottime;
        if now >= again {
            again = now + LOOK_AGAIN;
            lock(shared).unheard.append(&mut refused);
        }
        let unheard = std::mem::take(&mut lock(shared).unheard);
        for gpu in unheard {
            let Err(absence) = events.register(&gpu) else {
                told.forget(&gpu.id.uuid);
                continue;
            };
            count(shared, "events".into(), absence.reason());
            if told.is_new(&gpu.id.uuid, absence) {
                tracing::warn!(uuid = %gpu.id.uuid, reason = absence.reason(), "a GPU's XIDs cannot be heard");
            }
            if !absence.is_permanent() {
                refused.push(gpu);
            }
        }
        if events.is_empty() {
            shared.stop.wait(LOOK);
            continue;
        }
        let mut batch = Batch::default();
        let outcome = drain(
            |wait| events.wait(wait),
            &mut batch,
            |absence| {
                count(shared, "events".into(), absence.reason());
            },
        );
        if !batch.is_empty() {
            crier.hear(&batch);
            // One lock and one look at the clock for all that came at once.
            shared.heard.add(batch, events.now());
        }
        crier.tell(system_now());
        if let Err(absence) = outcome {
            count(shared, "events".into(), absence.reason());
            // An event set that fails at once would spin.
            shared.stop.wait(Duration::from_secs(1));
        }
    }
    events.free();
}

/// Waits a fifth of a second for the first event and takes those behind it, as many as a stop may wait for.
/// Events that cannot be told apart are counted one by one, and do not hide those behind them.
fn drain(
    mut next: impl FnMut(u32) -> Result<EventWait, Absence>,
    batch: &mut Batch,
    mut nameless: impl FnMut(Absence),
) -> Result<(), Absence> {
    const WAIT_MILLISECONDS: u32 = 200;
    const MOST: usize = 4_096;
    let mut wait = WAIT_MILLISECONDS;
    for _ in 0..MOST {
        match next(wait)? {
            EventWait::Event(event) => batch.event(event),
            EventWait::Ignored => {}
            EventWait::Unidentified(absence) => nameless(absence),
            EventWait::Timeout => break,
        }
        wait = 0;
    }
    Ok(())
}

/// What was last told the log of a GPU that cannot be heard: the same again is counted, not told.
#[derive(Default)]
struct Refusals(BTreeMap<Arc<str>, Absence>);

impl Refusals {
    fn is_new(&mut self, uuid: &str, absence: Absence) -> bool {
        self.0.insert(uuid.into(), absence) != Some(absence)
    }

    fn forget(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }
}

/// Tells the log of XIDs: at once while they are few, at most [`Crier::LINES`] lines a second in a storm.
#[derive(Default)]
struct Crier {
    untold: BTreeMap<Kind, u64>,
    /// When it last spoke, in the system's time.
    spoke: Option<Stamp>,
    /// XIDs of kinds that were too many to be kept apart.
    others: u64,
}

impl Crier {
    const LINES: usize = 10;
    const MOST_KINDS: usize = 256;

    fn hear(&mut self, batch: &Batch) {
        for (kind, count) in &batch.xids {
            if self.untold.len() < Self::MOST_KINDS || self.untold.contains_key(kind) {
                *self.untold.entry(kind.clone()).or_default() += count;
            } else {
                self.others += count;
            }
        }
    }

    fn tell(&mut self, now: Stamp) {
        for line in self.lines(now) {
            tracing::warn!("{line}");
        }
    }

    /// The lines that are due: the most frequent kinds, the last line for what is left.
    fn lines(&mut self, now: Stamp) -> Vec<String> {
        let since = self.spoke.map(|spoke| now.since(spoke));
        if self.untold.is_empty() || since.is_some_and(|since| since < Nanoseconds::SECOND) {
            return Vec::new();
        }
        self.spoke = Some(now);
        let mut kinds: Vec<_> = std::mem::take(&mut self.untold).into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named = if kinds.len() > Self::LINES { Self::LINES - 1 } else { kinds.len() };
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

fn line(kind: &Kind, count: u64) -> String {
    let gpu = match &kind.gpu {
        GpuName::Uuid(uuid) => uuid.to_string(),
        GpuName::Pci(at) => format!("at {:04x}:{:02x}:{:02x}", at.domain, at.bus, at.device),
    };
    let instance = kind.gpu_instance.map(|id| format!(", GPU instance {id}")).unwrap_or_default();
    let (code, action) = (kind.xid, xid::meaning(kind.xid).1.name());
    let often = if count == 1 { String::new() } else { format!(", {count} times") };
    format!("XID {code} on {gpu}{instance}{often}: {} ({action})", xid::text(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::XidSource;

    fn batch(kinds: u32, count: usize) -> Batch {
        let mut batch = Batch::default();
        for xid in 1..=kinds {
            for _ in 0..count {
                batch.xid(Kind {
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
        let (mut batch, mut nameless) = (Batch::default(), Vec::new());
        let next = |_| waiting.pop().ok_or(Absence::Failed);
        assert_eq!(drain(next, &mut batch, |absence| nameless.push(absence)), Ok(()));
        assert_eq!((batch.xids.len(), nameless), (1, vec![Absence::Lost]));
    }

    #[test]
    fn a_refusal_is_told_once_and_again_when_it_is_another() {
        let mut told = Refusals::default();
        let refusals = [Absence::Failed, Absence::Failed, Absence::Lost, Absence::Lost];
        assert_eq!(refusals.map(|absence| told.is_new("GPU-1", absence)), [true, false, true, false]);
        assert!(told.is_new("GPU-2", Absence::Lost), "another GPU");
        told.forget("GPU-1");
        assert!(told.is_new("GPU-1", Absence::Lost), "it could be heard in between");
    }

    #[test]
    fn a_single_xid_is_told_at_once() {
        let mut crier = Crier::default();
        crier.hear(&batch(1, 1));
        assert_eq!(crier.lines(at(0)).len(), 1);
        assert!(crier.lines(at(5_000)).is_empty());
    }

    #[test]
    fn a_storm_is_told_in_ten_lines_a_second_and_no_xid_is_left_out() {
        let mut crier = Crier::default();
        let mut told = Vec::new();
        for tenth in 0..100 {
            crier.hear(&batch(300, 3));
            let lines = crier.lines(at(tenth * 100));
            assert!(lines.len() <= Crier::LINES, "{lines:?}");
            told.extend(lines);
        }
        assert!(told.len() <= 10 * Crier::LINES, "{}", told.len());
        let number = |line: &String| {
            let (_, tail) = line.split_once(", ").unwrap_or(("", line));
            tail.split(' ').next().and_then(|word| word.parse::<u64>().ok())
        };
        let untold: u64 = crier.untold.values().sum::<u64>() + crier.others;
        assert_eq!(told.iter().filter_map(number).sum::<u64>() + untold, 100 * 900);
    }
}
