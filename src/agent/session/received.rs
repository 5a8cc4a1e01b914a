//! XIDs and notices that were received since the last tick, and hints to samplers that a GPU has changed.
//!
//! XIDs are counted by kind, and the number of kinds is bounded, so a storm of XIDs needs no more memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::nvml::{DriverEvent, DriverEventKind};
use crate::meter::NoticeCount;
use crate::model::catalogue::xid;
use crate::model::{GpuName, Nanoseconds, Notice, Stamp, Sxid, SxidCount, Utc, XidCount, XidSource};
use crate::runtime::clock::system_now;

/// Kinds of XID that are counted apart between two ticks; a node of 16 GPUs in MIG has fewer.
const MAX_KINDS: usize = 1_024;

#[derive(Default)]
pub(crate) struct Received(Mutex<ReceivedState>);

#[derive(Default)]
struct ReceivedState {
    xids: BTreeMap<XidKind, (u64, Stamp, Nanoseconds)>,
    sxids: BTreeMap<Sxid, (u64, Utc)>,
    notices: BTreeMap<(Arc<str>, Notice), u64>,
    hints: BTreeMap<Arc<str>, Hint>,
    kernel_log: Option<bool>,
    dropped_xids: u64,
    overwritten: u64,
}

/// What XIDs must share to be counted as one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct XidKind {
    pub(crate) source: XidSource,
    pub(crate) gpu: GpuName,
    pub(crate) xid: u32,
    pub(crate) gpu_instance: Option<u32>,
    pub(crate) compute_instance: Option<u32>,
}

/// What a sampler should do at its next tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// Make a new plan, since the GPU has other MIG instances.
    pub(crate) mig_changed: bool,
    /// Read all tiers, since an event happened that slow readings explain.
    pub(crate) read_all: bool,
}

/// Events of one drain of a source.
#[derive(Default)]
pub(crate) struct EventBatch {
    pub(crate) xids: BTreeMap<XidKind, u64>,
    sxids: BTreeMap<Sxid, u64>,
    notices: BTreeMap<(Arc<str>, Notice), u64>,
}

impl EventBatch {
    pub(crate) fn event(&mut self, event: DriverEvent) {
        match event.kind {
            DriverEventKind::Xid { xid, gpu_instance, compute_instance } => {
                let gpu = GpuName::Uuid(event.uuid);
                let source = XidSource::Events;
                self.xid(XidKind { source, gpu, xid, gpu_instance, compute_instance });
            }
            DriverEventKind::Notice(notice) => *self.notices.entry((event.uuid, notice)).or_default() += 1,
        }
    }

    pub(crate) fn xid(&mut self, kind: XidKind) {
        *self.xids.entry(kind).or_default() += 1;
    }

    pub(crate) fn sxid(&mut self, sxid: Sxid) {
        *self.sxids.entry(sxid).or_default() += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.xids.is_empty() && self.sxids.is_empty() && self.notices.is_empty()
    }
}

impl Received {
    pub(crate) fn add(&self, batch: EventBatch, now: Stamp) {
        let received = system_now().boottime;
        let mut state = self.0.lock();
        for (kind, count) in batch.xids {
            if let GpuName::Uuid(uuid) = &kind.gpu
                && !matches!(xid::find(kind.xid).class, xid::Class::Application | xid::Class::Information)
            {
                state.hints.entry(Arc::clone(uuid)).or_default().read_all = true;
            }
            if state.xids.len() >= MAX_KINDS && !state.xids.contains_key(&kind) {
                state.dropped_xids = state.dropped_xids.saturating_add(count);
                continue;
            }
            let seen = state.xids.entry(kind).or_insert((0, now, received));
            *seen = (seen.0.saturating_add(count), now, received);
        }
        for (sxid, count) in batch.sxids {
            if state.sxids.len() >= MAX_KINDS && !state.sxids.contains_key(&sxid) {
                continue;
            }
            let seen = state.sxids.entry(sxid).or_insert((0, now.utc));
            *seen = (seen.0.saturating_add(count), now.utc);
        }
        for ((uuid, notice), count) in batch.notices {
            let hint = state.hints.entry(Arc::clone(&uuid)).or_default();
            match notice {
                Notice::MigChanged => hint.mig_changed = true,
                _ => hint.read_all = true,
            }
            *state.notices.entry((uuid, notice)).or_default() += count;
        }
    }

    /// Stores whether the kernel log can be read, and counts its records that were overwritten unread.
    pub(crate) fn kernel_log(&self, readable: bool, overrun: u64) {
        let mut state = self.0.lock();
        state.kernel_log = Some(readable);
        state.overwritten = state.overwritten.saturating_add(overrun);
    }

    pub(crate) fn take(&self) -> (Vec<XidCount>, Vec<NoticeCount>) {
        let mut state = self.0.lock();
        let (xids, notices) = (std::mem::take(&mut state.xids), std::mem::take(&mut state.notices));
        drop(state);
        let xids = xids.into_iter().map(|(kind, (count, last, received_at))| {
            let XidKind { source, gpu, xid, gpu_instance, compute_instance } = kind;
            XidCount { gpu, xid, source, gpu_instance, compute_instance, count, last, received_at }
        });
        let notices = notices.into_iter().map(|((uuid, notice), count)| NoticeCount { uuid, notice, count });
        (xids.collect(), notices.collect())
    }

    pub(crate) fn take_sxids(&self) -> Vec<SxidCount> {
        let sxids = std::mem::take(&mut self.0.lock().sxids);
        sxids.into_iter().map(|(sxid, (count, last))| SxidCount { sxid, count, last }).collect()
    }

    pub(crate) fn take_hint(&self, uuid: &str) -> Hint {
        self.0.lock().hints.remove(uuid).unwrap_or_default()
    }

    /// Whether the kernel log can be read, none before the first try; its records that were overwritten unread; XIDs of
    /// kinds beyond the limit.
    pub(crate) fn losses(&self) -> (Option<bool>, u64, u64) {
        let state = self.0.lock();
        (state.kernel_log, state.overwritten, state.dropped_xids)
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
        let received = Received::default();
        for _ in 0..3 {
            let mut batch = EventBatch::default();
            (0..10_000).for_each(|_| batch.event(event("GPU-1", xid(13))));
            received.add(batch, Stamp::default());
        }
        let (xids, _) = received.take();
        assert_eq!(xids.iter().map(|kind| kind.count).collect::<Vec<_>>(), [30_000]);
        assert!(received.take().0.is_empty());
    }

    #[test]
    fn a_flood_of_kinds_is_bounded_and_counted() {
        let received = Received::default();
        let mut batch = EventBatch::default();
        (0..5_000).for_each(|code| batch.event(event("GPU-1", xid(code))));
        received.add(batch, Stamp::default());
        assert_eq!(received.take().0.len(), MAX_KINDS);
        assert_eq!(received.losses(), (None, 0, 5_000 - 1_024));
    }

    #[test]
    fn a_sampler_is_told_to_plan_again_or_to_read_all_tiers() {
        let received = Received::default();
        let mut batch = EventBatch::default();
        batch.event(event("GPU-1", DriverEventKind::Notice(Notice::MigChanged)));
        batch.event(event("GPU-2", xid(48)));
        batch.event(event("GPU-3", xid(13)));
        received.add(batch, Stamp::default());
        assert_eq!(received.take_hint("GPU-1"), Hint { mig_changed: true, read_all: false });
        assert_eq!(received.take_hint("GPU-1"), Hint::default(), "kind once");
        assert_eq!(received.take_hint("GPU-2"), Hint { mig_changed: false, read_all: true });
        assert_eq!(received.take_hint("GPU-3"), Hint::default());
    }
}
