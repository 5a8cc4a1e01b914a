//! Affinity to processors, and topology between GPUs.
//!
//! The simulated host has two processors of 56 threads, each with the GPUs of half a baseboard; a rack's
//! tray has one processor for two GPUs.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlAffinityScope_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, listed};
use super::{Device, find, gpu_calls, handle, node_calls};
use crate::node::Gpu;

const THREADS: u32 = 56;
const BITS: u32 = c_ulong::BITS;
/// NVML_TOPOLOGY_INTERNAL, NODE, SYSTEM: on one device, below one processor, across processors.
const INTERNAL: nvmlGpuTopologyLevel_t = 0;
const NODE: nvmlGpuTopologyLevel_t = 40;
const SYSTEM: nvmlGpuTopologyLevel_t = 50;

gpu_calls! {
    fn nvmlDeviceGetCpuAffinity(at, words: c_uint, set: Out<c_ulong>) {
        threads(at.gpu, words, set)
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(at, words: c_uint, set: Out<c_ulong>, scope: nvmlAffinityScope_t) {
        if scope > 1 {
            return Err(INVALID_ARGUMENT);
        }
        threads(at.gpu, words, set)
    }

    fn nvmlDeviceGetMemoryAffinity(at, words: c_uint, set: Out<c_ulong>, scope: nvmlAffinityScope_t) {
        if scope > 1 {
            return Err(INVALID_ARGUMENT);
        }
        let socket = socket(at.gpu);
        bits(words, set, socket..socket + 1)
    }

    // Only where the GPU's memory is a NUMA node of its own.
    fn nvmlDeviceGetNumaNodeId(at, node: Out<c_uint>) {
        if !at.gpu.board.rack {
            return Err(NOT_SUPPORTED);
        }
        node.put(2 + at.gpu.slot * 8)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(at, other: nvmlDevice_t, level: Out<nvmlGpuTopologyLevel_t>) {
        level.put(ancestor(at.gpu, find(at.node, other)?.0))
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        at,
        level: nvmlGpuTopologyLevel_t,
        count: Out<c_uint>,
        devices: Out<nvmlDevice_t>
    ) {
        if !matches!(level, 0 | 10 | 20 | 30 | 40 | 50) {
            return Err(INVALID_ARGUMENT);
        }
        let near = at.node.gpus.iter().filter(|gpu| gpu.index != at.gpu.index);
        let near: Vec<_> =
            near.filter(|gpu| ancestor(at.gpu, gpu) <= level).map(|gpu| handle(gpu, None)).collect();
        listed(count, devices, &near)
    }

    fn nvmlDeviceGetP2PStatus(
        at,
        other: nvmlDevice_t,
        which: nvmlGpuP2PCapsIndex_t,
        status: Out<nvmlGpuP2PStatus_t>
    ) {
        let other = find(at.node, other)?.0;
        status.put(peer(at, other, which)?)
    }
}

node_calls! {
    fn nvmlSystemGetTopologyGpuSet(node, _, processor: c_uint, count: Out<c_uint>, devices: Out<nvmlDevice_t>) {
        let near = node.gpus.iter().filter(|gpu| socket(gpu) == processor / THREADS);
        listed(count, devices, &near.map(|gpu| handle(gpu, None)).collect::<Vec<_>>())
    }
}

fn socket(gpu: &Gpu) -> u32 {
    gpu.slot / if gpu.board.rack { 2 } else { 4 } % 2
}

fn threads(gpu: &Gpu, words: c_uint, set: Out<c_ulong>) -> Answer {
    let first = socket(gpu) * THREADS;
    bits(words, set, first..first + THREADS)
}

/// Writes a bit set into the caller's words; bits beyond them are dropped.
fn bits(words: c_uint, set: Out<c_ulong>, on: std::ops::Range<u32>) -> Answer {
    if words == 0 {
        return Err(INVALID_ARGUMENT);
    }
    (0..words).try_for_each(|word| {
        let bit = |place: u32| on.contains(&(word.saturating_mul(BITS).saturating_add(place)));
        let value = (0..BITS).filter(|place| bit(*place)).fold(0, |sum: c_ulong, place| sum | 1 << place);
        set.put_at(word as usize, value)
    })
}

fn ancestor(one: &Gpu, other: &Gpu) -> nvmlGpuTopologyLevel_t {
    match (one.index == other.index, socket(one) == socket(other)) {
        (true, _) => INTERNAL,
        (false, true) => NODE,
        (false, false) => SYSTEM,
    }
}

/// 0 OK, 2 GPU not supported, 5 not supported. Boards without NVLink use PCIe; consumer boards have no P2P.
fn peer(
    at: &Device<'_>,
    other: &Gpu,
    which: nvmlGpuP2PCapsIndex_t,
) -> Result<nvmlGpuP2PStatus_t, super::answer::Refused> {
    if at.gpu.index == other.index {
        return Err(INVALID_ARGUMENT);
    }
    let consumer = at.gpu.board.part.is_none() || other.board.part.is_none();
    // No MIG profile supports it.
    let whole = !at.gpu.divided && !other.divided;
    let linked = at.gpu.board.connected_links() > 0 && other.board.connected_links() > 0 && whole;
    match which {
        0 | 1 | 4 => Ok(if consumer || !whole { 2 } else { 0 }),
        2 | 3 => Ok(if linked { 0 } else { 5 }),
        _ => Err(INVALID_ARGUMENT),
    }
}
