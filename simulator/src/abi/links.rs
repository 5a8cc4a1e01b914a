//! NVLink: states, traffic and errors, link by link.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEnableState_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t, nvmlNvLinkErrorCounter_t,
    nvmlPciInfo_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, array};
use super::{Device, gpu_calls};
use crate::board::family;
use crate::channel::incidents::LinkErrorKind;
use crate::condition::Traffic;

/// NVML_NVLINK_CAP_SLI_BRIDGE, which links of server boards lack.
const SLI_BRIDGE: nvmlNvLinkCapability_t = 4;
/// NVML_NVLINK_DEVICE_TYPE_GPU.
const GPU: nvmlIntNvLinkDeviceType_t = 0;
/// NVML_NVLINK_DEVICE_TYPE_SWITCH.
const SWITCH: nvmlIntNvLinkDeviceType_t = 2;

/// What each link has carried since the driver was loaded, in bytes.
pub(super) fn counted(at: &Device<'_>) -> Vec<Traffic> {
    at.gpu.condition.links.counted(&at.gpu.timeline, at.now.elapsed)
}

/// Errors of a link, or of all, since the driver was loaded.
pub(super) fn errors(at: &Device<'_>, kind: LinkErrorKind, link: Option<u32>) -> u64 {
    at.gpu.condition.links.errors(kind, link, at.since_load())
}

pub(super) fn up(at: &Device<'_>, link: u32) -> bool {
    at.gpu.condition.links.up(link, at.now.elapsed)
}

gpu_calls! {
    fn nvmlDeviceGetNvLinkState(at, link: c_uint, active: Out<nvmlEnableState_t>) {
        linked(at, link)?;
        active.put(up(at, link).into())
    }

    fn nvmlDeviceGetNvLinkVersion(at, link: c_uint, version: Out<c_uint>) {
        linked(at, link)?;
        version.put(at.gpu.board.nvlink_version)
    }

    fn nvmlDeviceGetNvLinkCapability(at, link: c_uint, which: nvmlNvLinkCapability_t, result: Out<c_uint>) {
        linked(at, link)?;
        if which > 5 {
            return Err(INVALID_ARGUMENT);
        }
        result.put(c_uint::from(which != SLI_BRIDGE && up(at, link)))
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        at,
        link: c_uint,
        which: nvmlNvLinkErrorCounter_t,
        value: Out<c_ulonglong>
    ) {
        linked(at, link)?;
        // By NVML's change log driver 565 removed it for Blackwell.
        if family::counts_packets(at.gpu.board) {
            return Err(NOT_SUPPORTED);
        }
        let kind = match which {
            0 => LinkErrorKind::Replay,
            1 => LinkErrorKind::Recovery,
            2 => LinkErrorKind::CrcFlit,
            3 => LinkErrorKind::CrcData,
            4 => LinkErrorKind::EccData,
            _ => return Err(INVALID_ARGUMENT),
        };
        value.put(errors(at, kind, Some(link)))
    }

    // The links of an HGX baseboard end at switches, those of a bridge at a GPU; one that is down has no other end.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(at, link: c_uint, kind: Out<nvmlIntNvLinkDeviceType_t>) {
        connected(at, link)?;
        kind.put(if at.gpu.board.bridged.is_some() { GPU } else { SWITCH })
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(at, link: c_uint, pci: Out<nvmlPciInfo_t>) {
        connected(at, link)?;
        let bus = link % 4 + 5;
        pci.put(nvmlPciInfo_t {
            busIdLegacy: array(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus,
            device: 0,
            pciDeviceId: if at.gpu.board.bridged.is_some() { at.gpu.board.pci_device } else { 0x22A3_10DE },
            pciSubSystemId: 0,
            busId: array(&format!("00000000:{bus:02X}:00.0")),
        })
    }
}

fn connected(at: &Device<'_>, link: c_uint) -> Answer {
    linked(at, link)?;
    if up(at, link) { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// Fails for a link that does not exist; MIG mode has none.
fn linked(at: &Device<'_>, link: c_uint) -> Answer {
    at.undivided()?;
    match at.gpu.board.nvlinks {
        0 => Err(NOT_SUPPORTED),
        links if link < links => Ok(()),
        _ => Err(INVALID_ARGUMENT),
    }
}
