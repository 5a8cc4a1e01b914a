//! PCIe and NVLink: widths, generations, traffic.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEnableState_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t, nvmlNvLinkErrorCounter_t,
    nvmlPciInfo_t, nvmlPcieUtilCounter_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, array};
use super::{Device, gpu_calls};
use crate::schedule::{Timeline, Work};
use crate::surprise::Surprise;

/// How long PCIe traffic is counted for a rate: 20 ms, says the header.
const PCIE_WINDOW: u64 = 20_000_000;
/// KB/s at rest; boards show 300 to 900.
const PCIE_REST: u64 = 600;

/// KB/s more for a tenth of a second in every ten.
const BURST_RATE: u64 = 2_400;
const BURST: u64 = 100_000_000;
const BURST_EVERY: u64 = 10_000_000_000;

/// Bytes since elapsed 0.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// PCIe: input is read while the GPU is busy (1.5 GB/s), results go out (0.3 GB/s).
pub(super) fn pcie(timeline: &Timeline, elapsed: u64) -> Traffic {
    let busy = timeline.totals(elapsed).busy;
    // At rest too there is a burst now and then: boards show 1.5 to 3.9 MB/s.
    let bursts = elapsed / BURST_EVERY * BURST + (elapsed % BURST_EVERY).min(BURST);
    let rest = elapsed / 1_000 * PCIE_REST / 1_000 + bursts / 1_000 * BURST_RATE / 1_000;
    Traffic { sent: rest + busy / 10 * 3, received: rest + busy / 10 * 15 }
}

/// NVLink: while tensor cores compute, gradients pass at 80 GB/s in each direction.
pub(super) fn nvlink(timeline: &Timeline, elapsed: u64) -> Traffic {
    let mut tensor = 0;
    for Work { tensor: of_engine, .. } in timeline.totals(elapsed).engines {
        tensor += of_engine;
    }
    Traffic { sent: tensor * 80, received: tensor * 80 }
}

/// The part of a sum that one of several links carries; the parts add up.
pub(super) fn of_link(sum: u64, link: u32, links: u32) -> u64 {
    let links = u64::from(links.max(1));
    sum / links + u64::from(u64::from(link) < sum % links)
}

gpu_calls! {
    fn nvmlDeviceGetPcieThroughput(at, counter: nvmlPcieUtilCounter_t, value: Out<c_uint>) {
        let before = pcie(&at.gpu.timeline, at.now.elapsed.saturating_sub(PCIE_WINDOW));
        let after = pcie(&at.gpu.timeline, at.now.elapsed);
        let bytes = match counter {
            0 => after.sent - before.sent,
            1 => after.received - before.received,
            _ => return Err(INVALID_ARGUMENT),
        };
        // KB/s: bytes of 20 ms, times 50, over 1000.
        value.put((bytes / 20).try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetPcieReplayCounter(at, value: Out<c_uint>) {
        value.put(at.gpu.replays)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(at.gpu.board.pcie_generation)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(at.gpu.board.pcie_generation)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(at, generation: Out<c_uint>) {
        generation.put(at.gpu.board.pcie_device_generation)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(at, width: Out<c_uint>) {
        width.put(if at.gpu.surprise == Some(Surprise::NarrowLink) { 1 } else { at.gpu.board.pcie_width })
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(at, width: Out<c_uint>) {
        width.put(at.gpu.board.pcie_max_width)
    }

    fn nvmlDeviceGetPcieSpeed(at, speed: Out<c_uint>) {
        speed.put(pcie_megabits(at))
    }

    fn nvmlDeviceGetPcieLinkMaxSpeed(at, speed: Out<c_uint>) {
        // NVML_PCIE_LINK_MAX_SPEED_*: 1 is generation 1.
        speed.put(at.gpu.board.pcie_generation)
    }

    fn nvmlDeviceGetNvLinkState(at, link: c_uint, active: Out<nvmlEnableState_t>) {
        linked(at, link)?;
        active.put(1)
    }

    fn nvmlDeviceGetNvLinkVersion(at, link: c_uint, version: Out<c_uint>) {
        linked(at, link)?;
        version.put(at.gpu.board.nvlink_version)
    }

    fn nvmlDeviceGetNvLinkCapability(at, link: c_uint, which: nvmlNvLinkCapability_t, result: Out<c_uint>) {
        linked(at, link)?;
        result.put(c_uint::from(which != 4))
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        at,
        link: c_uint,
        which: nvmlNvLinkErrorCounter_t,
        value: Out<c_ulonglong>
    ) {
        linked(at, link)?;
        if which > 4 {
            return Err(INVALID_ARGUMENT);
        }
        value.put(0)
    }

    // The links of an HGX baseboard end at switches.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(at, link: c_uint, kind: Out<nvmlIntNvLinkDeviceType_t>) {
        linked(at, link)?;
        kind.put(2)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(at, link: c_uint, pci: Out<nvmlPciInfo_t>) {
        linked(at, link)?;
        let bus = link % 4 + 5;
        pci.put(nvmlPciInfo_t {
            busIdLegacy: array(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus,
            device: 0,
            pciDeviceId: 0x22A3_10DE,
            pciSubSystemId: 0,
            busId: array(&format!("00000000:{bus:02X}:00.0")),
        })
    }
}

/// Refuses a link that is not there; in MIG mode there are none.
fn linked(at: &Device<'_>, link: c_uint) -> Answer {
    at.undivided()?;
    match at.gpu.board.nvlinks {
        0 => Err(NOT_SUPPORTED),
        links if link < links => Ok(()),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Mbit/s of one lane.
fn pcie_megabits(at: &Device<'_>) -> c_uint {
    match at.gpu.board.pcie_generation {
        1 => 2_500,
        2 => 5_000,
        generation => 8_000 << (generation - 3),
    }
}
