//! What was heard of GPUs, between those who hear it and the pulse: XIDs counted by kind, notices, and hints to
//! lanes that something has changed.
//!
//! A storm makes a number grow, not a list: what is kept is bounded by kinds, and by how many are kept at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::catalogue::xid;
use crate::clock::system_now;
use crate::meter::NoticeCount;
use crate::model::{GpuName, Nanoseconds, Notice, Stamp, XidCount, XidSource};
use crate::nvml::{DriverEvent, DriverEventKind};

/// Kinds of XID that are kept apart between two pulses; a node of 16 GPUs in MIG has fewer.
const MOST_KINDS: usize = 1_024;

/// What the pulse and the lanes take from here.
#[derive(Default)]
pub(super) struct Heard(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    xids: BTreeMap<Kind, (u64, Stamp, Nanoseconds)>,
    notices: BTreeMap<(Arc<str>, Notice), u64>,
    hints: BTreeMap<Arc<str>, Hint>,
    kernel_log: Option<bool>,
    refused: u64,
    overrun: u64,
}

/// What XIDs must share to be counted as one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) source: XidSource,
    pub(super) gpu: GpuName,
    pub(super) xid: u32,
    pub(super) gpu_instance: Option<u32>,
    pub(super) compute_instance: Option<u32>,
}

/// What a lane should do at its next tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hint {
    /// The GPU was cut anew: the plan is of another shape.
    pub(super) recut: bool,
    /// Something happened that slow readings tell more of.
    pub(super) ask_all: bool,
}

/// What came within one drain of a source, before it is shared.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) xids: BTreeMap<Kind, u64>,
    notices: BTreeMap<(Arc<str>, Notice), u64>,
}

impl Batch {
    /// Counts an event of the driver.
    pub(super) fn event(&mut self, event: DriverEvent) {
        match event.kind {
            DriverEventKind::Xid { xid, gpu_instance, compute_instance } => {
                let gpu = GpuName::Uuid(event.uuid);
                let source = XidSource::Events;
                self.xid(Kind { source, gpu, xid, gpu_instance, compute_instance });
            }
            DriverEventKind::Notice(notice) => *self.notices.entry((event.uuid, notice)).or_default() += 1,
        }
    }

    /// Counts an XID.
    pub(super) fn xid(&mut self, kind: Kind) {
        *self.xids.entry(kind).or_default() += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.xids.is_empty() && self.notices.is_empty()
    }
}

impl Heard {
    /// Adds what came until `now`.
    pub(super) fn add(&self, batch: Batch, now: Stamp) {
        let heard = system_now().boottime;
        let mut shelf = self.lock();
        for (kind, count) in batch.xids {
            if let GpuName::Uuid(uuid) = &kind.gpu
                && !matches!(xid::meaning(kind.xid).0, xid::Class::Application | xid::Class::Information)
            {
                shelf.hints.entry(Arc::clone(uuid)).or_default().ask_all = true;
            }
            if shelf.xids.len() >= MOST_KINDS && !shelf.xids.contains_key(&kind) {
                shelf.refused = shelf.refused.saturating_add(count);
                continue;
            }
            let seen = shelf.xids.entry(kind).or_insert((0, now, heard));
            *seen = (seen.0.saturating_add(count), now, heard);
        }
        for ((uuid, notice), count) in batch.notices {
            let hint = shelf.hints.entry(Arc::clone(&uuid)).or_default();
            match notice {
                Notice::MigChanged => hint.recut = true,
                _ => hint.ask_all = true,
            }
            *shelf.notices.entry((uuid, notice)).or_default() += count;
        }
    }

    /// Says whether the kernel's log can be read, and how many of its records were overwritten unread.
    pub(super) fn kernel_log(&self, readable: bool, overrun: u64) {
        let mut shelf = self.lock();
        shelf.kernel_log = Some(readable);
        shelf.overrun = shelf.overrun.saturating_add(overrun);
    }

    /// XIDs and notices since the last look.
    pub(super) fn take(&self) -> (Vec<XidCount>, Vec<NoticeCount>) {
        let mut shelf = self.lock();
        let (xids, notices) = (std::mem::take(&mut shelf.xids), std::mem::take(&mut shelf.notices));
        drop(shelf);
        let xids = xids.into_iter().map(|(kind, (count, last, heard))| {
            let Kind { source, gpu, xid, gpu_instance, compute_instance } = kind;
            XidCount { gpu, xid, source, gpu_instance, compute_instance, count, last, heard }
        });
        let notices = notices.into_iter().map(|((uuid, notice), count)| NoticeCount { uuid, notice, count });
        (xids.collect(), notices.collect())
    }

    /// What the lane of a GPU should do at its next tick.
    pub(super) fn take_hint(&self, uuid: &str) -> Hint {
        self.lock().hints.remove(uuid).unwrap_or_default()
    }

    /// Whether the kernel's log can be read, once tried; records overwritten; XIDs of kinds beyond those kept.
    pub(super) fn losses(&self) -> (Option<bool>, u64, u64) {
        let shelf = self.lock();
        (shelf.kernel_log, shelf.overrun, shelf.refused)
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uuid: &str, kind: DriverEventKind) -> DriverEvent {
        DriverEvent { uuid: uuid.into(), kind }
    }

    fn xid(xid: u32) -> DriverEventKind {
        DriverEventKind::Xid { xid, gpu_instance: None, compute_instance: None }
    }

    #[test]
    fn a_storm_is_one_number() {
        let heard = Heard::default();
        for _ in 0..3 {
            let mut batch = Batch::default();
            (0..10_000).for_each(|_| batch.event(event("GPU-1", xid(13))));
            heard.add(batch, Stamp::default());
        }
        let (xids, _) = heard.take();
        assert_eq!(xids.iter().map(|told| told.count).collect::<Vec<_>>(), [30_000]);
        assert!(heard.take().0.is_empty());
    }

    #[test]
    fn a_flood_of_kinds_is_bounded_and_counted() {
        let heard = Heard::default();
        let mut batch = Batch::default();
        (0..5_000).for_each(|code| batch.event(event("GPU-1", xid(code))));
        heard.add(batch, Stamp::default());
        assert_eq!(heard.take().0.len(), MOST_KINDS);
        assert_eq!(heard.losses(), (None, 0, 5_000 - 1_024));
    }

    #[test]
    fn a_lane_hears_of_a_reshape_and_of_what_slow_readings_tell_more_of() {
        let heard = Heard::default();
        let mut batch = Batch::default();
        batch.event(event("GPU-1", DriverEventKind::Notice(Notice::MigChanged)));
        batch.event(event("GPU-2", xid(48)));
        batch.event(event("GPU-3", xid(13)));
        heard.add(batch, Stamp::default());
        assert_eq!(heard.take_hint("GPU-1"), Hint { recut: true, ask_all: false });
        assert_eq!(heard.take_hint("GPU-1"), Hint::default(), "told once");
        assert_eq!(heard.take_hint("GPU-2"), Hint { recut: false, ask_all: true });
        assert_eq!(heard.take_hint("GPU-3"), Hint::default());
    }
}
