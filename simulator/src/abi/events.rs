//! Event sets: XIDs and MIG changes, delivered at their time.
//!
//! A set begins at its creation and remembers what it has delivered of the script, of each storm and of the
//! state file's changes. Nothing is queued, so a storm takes no memory; but a set that is 65 536 events of one
//! storm behind loses the oldest, and the loss is counted. Waiting is in real time, everything else in
//! simulated time.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::thread;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::answer::{Answer, NOT_SUPPORTED, TIMEOUT, UNINITIALIZED};
use super::buffers::Out;
use super::{gpu_calls, handle, node_calls};
use crate::channel::settled::{RunningStorm, What};
use crate::handles::{ClientEventSet, Cursor};
use crate::node::Node;
use crate::{clock, state};

const XID: c_ulonglong = 0x8;
const MIG_CHANGE: c_ulonglong = 0x100;
/// Single- and double-bit ECC errors, XIDs, MIG changes.
const SUPPORTED: c_ulonglong = 0x10B;
const STEP: u64 = 10_000_000;
/// The most events of a storm that a set may be behind.
const QUEUE: u64 = 65_536;
gpu_calls! {
    fn nvmlDeviceGetSupportedEventTypes(at, types: Out<c_ulonglong>) {
        types.put(SUPPORTED)
    }

    fn nvmlDeviceRegisterEvents(at, types: c_ulonglong, set: nvmlEventSet_t) {
        if types & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        at.node.event_sets.with(set.addr(), |set| *set.wanted.entry(at.gpu.slot).or_insert(0) |= types)
    }
}

node_calls! {
    fn nvmlEventSetCreate(node, now, set: Out<nvmlEventSet_t>) {
        set.pointer()?;
        let known = node.settled.next;
        let handle = node.event_sets.insert(ClientEventSet {
            wanted: BTreeMap::new(),
            created: now.elapsed,
            delivered: Cursor { at: now.elapsed, place: usize::MAX },
            storms: BTreeMap::new(),
            known,
            moments: known,
        });
        set.put(std::ptr::without_provenance_mut(handle))
    }

    fn nvmlEventSetFree(node, _, set: nvmlEventSet_t) {
        node.event_sets.remove(set.addr())
    }

    fn nvmlEventSetWait_v2(node, _, set: nvmlEventSet_t, data: Out<nvmlEventData_t>, milliseconds: c_uint) {
        wait(node, set, data, milliseconds)
    }

    fn nvmlEventSetWait(node, _, set: nvmlEventSet_t, data: Out<nvmlEventData_t>, milliseconds: c_uint) {
        wait(node, set, data, milliseconds)
    }
}

fn wait(node: &Node, set: nvmlEventSet_t, data: Out<nvmlEventData_t>, milliseconds: c_uint) -> Answer {
    data.pointer()?;
    let deadline = clock::host_boottime().saturating_add(u64::from(milliseconds) * 1_000_000);
    let sets = &node.event_sets;
    loop {
        // Meanwhile the state may have changed, or another thread may have shut the library down.
        let node = state::node()?;
        if !std::ptr::eq(sets, &raw const node.event_sets) {
            return Err(UNINITIALIZED);
        }
        let clock = node.clock.now();
        node.report(clock);
        if let Some(event) = sets.with(set.addr(), |set| next(&node, set, clock.elapsed))? {
            return data.put(event);
        }
        let now = clock::host_boottime();
        if now >= deadline {
            return Err(TIMEOUT);
        }
        thread::sleep(Duration::from_nanos(STEP.min(deadline - now)));
    }
}

/// An event that may be the next one of a set.
struct Candidate {
    at: u64,
    gpu: u32,
    kind: c_ulonglong,
    data: u64,
    source: EventSource,
}

enum EventSource {
    Script(Cursor),
    Storm { number: u64, delivered: u64 },
    Moment(u64),
}

/// The next event up to a time that a set wants; others are skipped.
fn next(node: &Node, set: &mut ClientEventSet, elapsed: u64) -> Option<nvmlEventData_t> {
    loop {
        let script = following(node, set.delivered).map(|(cursor, mishap)| Candidate {
            at: cursor.at,
            gpu: mishap.gpu,
            kind: XID,
            data: mishap.xid,
            source: EventSource::Script(cursor),
        });
        let storms = node.settled.storms.iter().filter_map(|running| of_storm(node, set, running, elapsed));
        let storms: Vec<Candidate> = storms.collect();
        let all = script.into_iter().chain(storms).chain(of_moment(node, set));
        let first = all.min_by_key(|candidate| candidate.at).filter(|first| first.at <= elapsed)?;
        match first.source {
            EventSource::Script(cursor) => set.delivered = cursor,
            EventSource::Storm { number, delivered } => drop(set.storms.insert(number, delivered)),
            EventSource::Moment(number) => set.moments = number + 1,
        }
        let wanted = set.wanted.get(&first.gpu).is_some_and(|types| types & first.kind != 0);
        if let Some(gpu) = node.in_slot(first.gpu).filter(|_| wanted) {
            return Some(nvmlEventData_t {
                device: handle(gpu, None),
                eventType: first.kind,
                eventData: first.data,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            });
        }
    }
}

/// The next event of a storm. Unwanted events, and those too far behind, are skipped at once.
fn of_storm(
    node: &Node,
    set: &mut ClientEventSet,
    running: &RunningStorm,
    elapsed: u64,
) -> Option<Candidate> {
    let seen = if running.number < set.known { running.fired(set.created) } else { 0 };
    let mut delivered = set.storms.get(&running.number).copied().unwrap_or(seen);
    let fired = running.fired(elapsed);
    let gpu = running.storm.gpu;
    let wanted = set.wanted.get(&gpu).is_some_and(|types| types & XID != 0) && node.in_slot(gpu).is_some();
    let behind = if wanted { QUEUE } else { 0 };
    if fired.saturating_sub(delivered) > behind {
        let lost = fired - behind - delivered;
        if wanted {
            node.report.dropped(lost);
        }
        delivered += lost;
        set.storms.insert(running.number, delivered);
    }
    let source = EventSource::Storm { number: running.number, delivered: delivered + 1 };
    let one = || Candidate { at: running.at(delivered), gpu, kind: XID, data: running.storm.xid, source };
    (delivered < fired).then(one)
}

fn of_moment(node: &Node, set: &ClientEventSet) -> Option<Candidate> {
    let moment = node.settled.moments.iter().find(|moment| moment.number >= set.moments)?;
    let (kind, data) = match moment.what {
        What::Xid(xid) => (XID, xid),
        What::MigChange => (MIG_CHANGE, 0),
    };
    Some(Candidate { at: moment.at, gpu: moment.gpu, kind, data, source: EventSource::Moment(moment.number) })
}

/// The next XID of the script after a place, in this cycle or the next.
fn following(node: &Node, after: Cursor) -> Option<(Cursor, &crate::node::Mishap)> {
    let cycle = after.at / node.cycle;
    (cycle..cycle + 2).find_map(|cycle| {
        node.mishaps.iter().enumerate().find_map(|(place, mishap)| {
            let cursor = Cursor { at: cycle * node.cycle + mishap.at, place };
            (cursor > after).then_some((cursor, mishap))
        })
    })
}
