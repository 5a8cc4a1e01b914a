//! Event sets: the script's critical errors, when their time has come.
//!
//! A set remembers what it has delivered; it begins at its creation. Waiting is in real time, the script in
//! simulated time.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, TIMEOUT, UNINITIALIZED};
use super::buffers::Out;
use super::{gpu_calls, handle, node_calls};
use crate::clock;
use crate::node::Node;
use crate::state::{self, lock};

const XID: c_ulonglong = 0x8;
/// Single- and double-bit ECC errors, XIDs, MIG changes.
const SUPPORTED: c_ulonglong = 0x10B;
const STEP: u64 = 10_000_000;
/// Event sets are numbers, not addresses.
const SET_MARK: usize = 0x6576_0000_0000;

/// The event sets of all clients.
#[derive(Default)]
pub(crate) struct EventSets(Mutex<Sets>);

#[derive(Default)]
struct Sets {
    given: usize,
    sets: BTreeMap<usize, Set>,
}

struct Set {
    /// Event types by GPU.
    wanted: BTreeMap<u32, c_ulonglong>,
    delivered: Cursor,
}

/// A place in the endless script: the time, and how many mishaps of that time are behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    at: u64,
    place: usize,
}

impl EventSets {
    fn with<T>(&self, set: nvmlEventSet_t, change: impl FnOnce(&mut Set) -> T) -> Result<T, Refused> {
        lock(&self.0).sets.get_mut(&set.addr()).map(change).ok_or(INVALID_ARGUMENT)
    }
}

gpu_calls! {
    fn nvmlDeviceGetSupportedEventTypes(at, types: Out<c_ulonglong>) {
        let _ = at;
        types.put(SUPPORTED)
    }

    fn nvmlDeviceRegisterEvents(at, types: c_ulonglong, set: nvmlEventSet_t) {
        if types & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        at.node.event_sets.with(set, |set| *set.wanted.entry(at.gpu.index).or_insert(0) |= types)
    }
}

node_calls! {
    fn nvmlEventSetCreate(node, now, set: Out<nvmlEventSet_t>) {
        set.pointer()?;
        let mut sets = lock(&node.event_sets.0);
        sets.given += 1;
        let number = SET_MARK | sets.given;
        let delivered = Cursor { at: now.elapsed, place: usize::MAX };
        sets.sets.insert(number, Set { wanted: BTreeMap::new(), delivered });
        set.put(std::ptr::without_provenance_mut(number))
    }

    fn nvmlEventSetFree(node, _, set: nvmlEventSet_t) {
        lock(&node.event_sets.0).sets.remove(&set.addr()).map(|_| ()).ok_or(INVALID_ARGUMENT)
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
    loop {
        let elapsed = node.clock.now().elapsed;
        if let Some(event) = node.event_sets.with(set, |set| next(node, set, elapsed))? {
            return data.put(event);
        }
        let now = clock::host_boottime();
        if now >= deadline {
            return Err(TIMEOUT);
        }
        thread::sleep(Duration::from_nanos(STEP.min(deadline - now)));
        // Another thread may have shut the library down meanwhile.
        state::node().map_err(|_| UNINITIALIZED)?;
    }
}

/// The next event up to a time that a set wants; what it does not want is passed over.
fn next(node: &Node, set: &mut Set, elapsed: u64) -> Option<nvmlEventData_t> {
    loop {
        let (cursor, mishap) = following(node, set.delivered)?;
        if cursor.at > elapsed {
            return None;
        }
        set.delivered = cursor;
        let gpu = node.gpus.get(mishap.gpu as usize)?;
        if set.wanted.get(&mishap.gpu).is_some_and(|types| types & XID != 0) {
            return Some(nvmlEventData_t {
                device: handle(gpu, None),
                eventType: XID,
                eventData: mishap.xid,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            });
        }
    }
}

/// The mishap after a place in the script, in this cycle or the next.
fn following(node: &Node, after: Cursor) -> Option<(Cursor, &crate::node::Mishap)> {
    let cycle = after.at / node.cycle;
    (cycle..cycle + 2).find_map(|cycle| {
        node.mishaps.iter().enumerate().find_map(|(place, mishap)| {
            let cursor = Cursor { at: cycle * node.cycle + mishap.at, place };
            (cursor > after).then_some((cursor, mishap))
        })
    })
}
