//! PCIe: generations, widths, traffic, replays.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlPcieUtilCounter_t;

use super::answer::INVALID_ARGUMENT;
use super::buffers::Out;
use super::{Device, gpu_calls};
use crate::board::family;
use crate::condition::Traffic;
use crate::node::Gpu;
use crate::schedule::Totals;
use crate::surprise::Surprise;

/// NVML's number of the architecture.
const HOPPER: u32 = 9;
/// The time over which PCIe traffic is counted for a rate: 20 ms by the header.
const WINDOW: u64 = 20_000_000;
/// KB/s at rest; boards show 300 to 900.
const REST: u64 = 600;
/// KB/s added for 0.1 s in every 10 s: idle boards show 1.5 to 3.9 MB/s now and then.
const BURST_RATE: u64 = 2_400;
const BURST: u64 = 100_000_000;
const BURST_EVERY: u64 = 10_000_000_000;

/// Bytes over PCIe since elapsed 0, in both directions.
pub(super) fn traffic(gpu: &Gpu, elapsed: u64) -> Traffic {
    with_rest(gpu, at_rest(elapsed), &gpu.timeline.lifetime(elapsed))
}

/// Bytes over PCIe since the driver was last loaded.
pub(super) fn counted(gpu: &Gpu, elapsed: u64) -> Traffic {
    let rest = at_rest(elapsed) - at_rest(gpu.timeline.loaded(elapsed));
    with_rest(gpu, rest, &gpu.timeline.counted(elapsed))
}

/// Bytes in each direction that a board without work has transferred.
fn at_rest(elapsed: u64) -> u64 {
    let bursts = elapsed / BURST_EVERY * BURST + (elapsed % BURST_EVERY).min(BURST);
    elapsed / 1_000 * REST / 1_000 + bursts / 1_000 * BURST_RATE / 1_000
}

fn with_rest(gpu: &Gpu, rest: u64, totals: &Totals) -> Traffic {
    // Grace boards reach the host over C2C, and PCIe shows 0.
    if family::c2c_links(gpu.board) > 0 {
        return Traffic::default();
    }
    let all = totals.all();
    Traffic { sent: rest + all.pcie_tx, received: rest + all.pcie_rx }
}

/// Replays since the driver was last loaded; healthy boards have some from before the script.
pub(super) fn replays(at: &Device<'_>) -> u32 {
    let since = at.since_load();
    let scripted = u32::try_from(at.gpu.condition.replays(since)).unwrap_or(u32::MAX);
    scripted.saturating_add(if since.0 == 0 { at.gpu.replays } else { 0 })
}

/// Generation and width now.
fn current(at: &Device<'_>) -> (u32, u32) {
    let width = if at.gpu.surprise == Some(Surprise::NarrowLink) { 1 } else { at.gpu.board.pcie_width };
    let board = at.gpu.board;
    let generation = if at.meters().resting() { family::pcie_at_rest(board) } else { board.pcie_generation };
    at.gpu.condition.pcie((generation, width), at.now.elapsed)
}

gpu_calls! {
    fn nvmlDeviceGetPcieThroughput(at, counter: nvmlPcieUtilCounter_t, value: Out<c_uint>) {
        let before = traffic(at.gpu, at.now.elapsed.saturating_sub(WINDOW));
        let after = traffic(at.gpu, at.now.elapsed);
        let bytes = match counter {
            0 => after.sent - before.sent,
            1 => after.received - before.received,
            _ => return Err(INVALID_ARGUMENT),
        };
        // KB/s: bytes of 20 ms, times 50, over 1000.
        let (rate, grain) = (bytes / 20, grain(at));
        value.put(((rate + grain / 2) / grain * grain).try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetPcieReplayCounter(at, value: Out<c_uint>) {
        value.put(replays(at))
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(current(at).0)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(at.gpu.board.pcie_generation)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(at.gpu.board.pcie_device_generation)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(at, width: Out<c_uint>) {
        width.put(current(at).1)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(at, width: Out<c_uint>) {
        width.put(at.gpu.board.pcie_max_width)
    }

    fn nvmlDeviceGetPcieSpeed(at, speed: Out<c_uint>) {
        speed.put(megabits(current(at).0))
    }

    fn nvmlDeviceGetPcieLinkMaxSpeed(at, speed: Out<c_uint>) {
        // NVML_PCIE_LINK_MAX_SPEED_*: 1 is generation 1.
        speed.put(at.gpu.board.pcie_generation)
    }
}

/// The steps in KB/s in which older drivers report traffic; on Hopper all drivers report 1 KB/s.
fn grain(at: &Device<'_>) -> u64 {
    match at.node.driver_major() {
        _ if at.gpu.board.architecture == HOPPER => 1,
        ..550 => 1_000,
        550..580 => 50,
        _ => 1,
    }
}

/// Mbit/s of one lane.
fn megabits(generation: u32) -> c_uint {
    match generation {
        0 | 1 => 2_500,
        2 => 5_000,
        generation => 8_000_u32.checked_shl(generation - 3).unwrap_or(c_uint::MAX),
    }
}
