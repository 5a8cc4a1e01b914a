//! A board's place and connections: PCI, rack, NVLink fabric, C2C.

use std::ffi::{c_uchar, c_uint};
use std::mem::offset_of;

use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlDeviceAddressingMode_t, nvmlDeviceCapabilities_t, nvmlEnableState_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t, nvmlPciInfoExt_t,
    nvmlPdi_t, nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t, nvmlReturn_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, VERSION_MISMATCH};
use super::buffers::{Out, array, expect_version};
use super::{Device, gpu_calls, node_calls};
use crate::board::{Fabric, RackPlace, family};
use crate::channel::incidents::Trouble;
use crate::node::Gpu;
use crate::schedule::hash;
use crate::surprise::Surprise;

/// NVML_GPU_FABRIC_STATE_IN_PROGRESS, NOT_SUPPORTED and COMPLETED.
const IN_PROGRESS: c_uchar = 2;
const UNSUPPORTED: c_uchar = 0;
const COMPLETED: c_uchar = 3;
/// NVML_ERROR_INSUFFICIENT_RESOURCES.
const TOO_FEW: nvmlReturn_t = 23;
/// The answer of a board outside a rack.
const NOWHERE: RackPlace = RackPlace { chassis: "", slot: 0, tray: 0, host: 1, switch: false };

gpu_calls! {
    fn nvmlDeviceGetPciInfoExt(at, pci: Out<nvmlPciInfoExt_t>) {
        let version = pci.version()?;
        expect_version::<nvmlPciInfoExt_t>(version, 1)?;
        let (domain, bus) = (at.gpu.domain, at.gpu.bus);
        pci.put(nvmlPciInfoExt_t {
            version,
            domain,
            bus,
            device: 0,
            pciDeviceId: at.gpu.board.pci_device,
            pciSubSystemId: at.gpu.board.pci_subsystem,
            // A 3D controller; boards that can drive displays are VGA controllers.
            baseClass: 3,
            subClass: if at.gpu.board.encoder && at.gpu.board.fan.is_some() { 0 } else { 2 },
            busId: array(&format!("{domain:08X}:{bus:02X}:00.0")),
        })
    }

    // The unique number of the chip.
    fn nvmlDeviceGetPdi(at, pdi: Out<nvmlPdi_t>) {
        let version = pdi.version()?;
        expect_version::<nvmlPdi_t>(version, 1)?;
        pdi.put(nvmlPdi_t { version, value: at.gpu.uuid.bytes().fold(0, |sum, byte| hash(sum ^ u64::from(byte))) })
    }

    fn nvmlDeviceGetAddressingMode(at, mode: Out<nvmlDeviceAddressingMode_t>) {
        let version = mode.version()?;
        expect_version::<nvmlDeviceAddressingMode_t>(version, 1)?;
        let value = family::addressing(at.gpu.board);
        mode.put(nvmlDeviceAddressingMode_t { version, value })
    }

    // Extended memory is disabled in all captures.
    fn nvmlDeviceGetCapabilities(at, capabilities: Out<nvmlDeviceCapabilities_t>) {
        let version = capabilities.version()?;
        expect_version::<nvmlDeviceCapabilities_t>(version, 1)?;
        capabilities.put(nvmlDeviceCapabilities_t { version, capMask: 0 })
    }

    fn nvmlDeviceGetC2cModeInfoV(at, info: Out<nvmlC2cModeInfo_v1_t>) {
        let enabled = at.gpu.board.c2c.ok_or(NOT_SUPPORTED)?;
        info.put(nvmlC2cModeInfo_v1_t { isC2cEnabled: enabled.into() })
    }

    fn nvmlDeviceGetGpuFabricInfo(at, info: Out<nvmlGpuFabricInfo_t>) {
        info.pointer()?;
        let Registered { clique, state, status, .. } = registered(at)?;
        info.put(nvmlGpuFabricInfo_t { clusterUuid: cluster(at), status, cliqueId: clique, state })?;
        whole_word(info, offset_of!(nvmlGpuFabricInfo_t, state), state)
    }

    fn nvmlDeviceGetGpuFabricInfoV(at, info: Out<nvmlGpuFabricInfo_v3_t>) {
        // Version 2 is a prefix of version 3; only its own length may be touched.
        let short = Out::at(info.pointer()?.cast::<nvmlGpuFabricInfo_v2_t>());
        let version = short.version()?;
        let Registered { clique, state, status, health } = registered(at)?;
        if expect_version::<nvmlGpuFabricInfo_v2_t>(version, 2).is_ok() {
            short.put(nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: cluster(at),
                status,
                cliqueId: clique,
                state,
                healthMask: health,
            })?;
            return whole_word(short, offset_of!(nvmlGpuFabricInfo_v2_t, state), state);
        }
        expect_version::<nvmlGpuFabricInfo_v3_t>(version, 3)?;
        info.put(nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: cluster(at),
            status,
            cliqueId: clique,
            state,
            healthMask: health,
            healthSummary: summary(at.gpu.board.fabric, health),
        })?;
        whole_word(info, offset_of!(nvmlGpuFabricInfo_v3_t, state), state)
    }

    fn nvmlDeviceGetPlatformInfo(at, info: Out<nvmlPlatformInfo_v2_t>) {
        let RackPlace { chassis, slot, tray, host, switch } = at.gpu.board.platform.unwrap_or(NOWHERE);
        let module = c_uchar::try_from(at.gpu.module).unwrap_or(0);
        let first = Out::at(info.pointer()?.cast::<nvmlPlatformInfo_v1_t>());
        let version = first.version()?;
        if expect_version::<nvmlPlatformInfo_v1_t>(version, 1).is_ok() {
            return first.put(nvmlPlatformInfo_v1_t {
                version,
                ibGuid: [0; 16],
                rackGuid: serial(chassis),
                chassisPhysicalSlotNumber: slot,
                computeSlotIndex: tray,
                nodeIndex: host,
                peerType: switch.into(),
                moduleId: module,
            });
        }
        if expect_version::<nvmlPlatformInfo_v2_t>(version, 2).is_err() {
            return Err(VERSION_MISMATCH);
        }
        info.put(nvmlPlatformInfo_v2_t {
            version,
            ibGuid: [0; 16],
            chassisSerialNumber: serial(chassis),
            slotNumber: slot,
            trayIndex: tray,
            hostId: host,
            peerType: switch.into(),
            moduleId: module,
        })
    }
}

node_calls! {
    // No GPU is drained. The argument is a PCI place, since a drained GPU has no handle.
    fn nvmlDeviceQueryDrainState(node, _, pci: Out<nvmlPciInfo_t>, draining: Out<nvmlEnableState_t>) {
        let asked = pci.get()?;
        let known = |gpu: &&Gpu| gpu.domain == asked.domain && gpu.bus == asked.bus && asked.device == 0;
        node.gpus.iter().find(known).ok_or(INVALID_ARGUMENT)?;
        draining.put(0)
    }
}

/// NVML's summary of a mask: 0 not supported, 1 healthy, 2 unhealthy.
fn summary(fabric: Option<Fabric>, mask: u32) -> c_uchar {
    match fabric {
        _ if mask == 0 => 0,
        Some(Fabric { health, .. }) if health == mask => 1,
        _ => 2,
    }
}

/// The mask of a GPU that is well, with a trouble in place of the part that says that all is well. Boards that
/// report no health go on doing so.
fn spoil(mask: u32, trouble: Trouble) -> u32 {
    let (shift, part) = match trouble {
        _ if mask == 0 => return 0,
        Trouble::InProgress => return mask,
        Trouble::DegradedBandwidth => (0, 1),
        Trouble::RouteRecovery => (2, 1),
        Trouble::RouteUnhealthy => (4, 1),
        Trouble::AccessTimeout => (6, 1),
        // No partition.
        Trouble::Misconfigured => (8, 4),
    };
    let width = if shift == 8 { 15 } else { 3 };
    (mask & !(width << shift)) | (part << shift)
}

/// A GPU's registration with the fabric.
struct Registered {
    clique: u32,
    state: c_uchar,
    status: nvmlReturn_t,
    health: u32,
}

/// The registration; MIG mode and single GPUs have one too.
fn registered(at: &Device<'_>) -> Result<Registered, Refused> {
    let Fabric { clique, health, .. } = at.gpu.board.fabric.ok_or(NOT_SUPPORTED)?;
    let troubles: Vec<Trouble> = at.gpu.condition.fabric_troubles(at.now.elapsed).collect();
    let health = troubles.iter().fold(health, |mask, trouble| spoil(mask, *trouble));
    if troubles.contains(&Trouble::InProgress) {
        return Ok(Registered { clique, state: IN_PROGRESS, status: 0, health: 0 });
    }
    Ok(match at.gpu.surprise {
        Some(Surprise::FabricNotSupported) => {
            Registered { clique: 0, state: UNSUPPORTED, status: 0, health: 0 }
        }
        Some(Surprise::FabricInsufficient) => {
            Registered { clique, state: COMPLETED, status: TOO_FEW, health }
        }
        _ => Registered { clique, state: COMPLETED, status: 0, health },
    })
}

/// Writes the four bytes at the state's place: it is one byte, but some clients (nvidia-ml-py) read four.
fn whole_word<T>(info: Out<T>, offset: usize, state: c_uchar) -> Answer {
    let first = info.pointer()?.cast::<c_uchar>().wrapping_add(offset);
    Out::at(first.cast::<c_uint>()).put(state.into())
}

fn cluster(at: &Device<'_>) -> [c_uchar; 16] {
    let mut uuid = [0; 16];
    if at.gpu.board.fabric.is_some_and(|fabric| fabric.cluster) {
        let (high, low) = (hash(0xFAB), hash(0xFAC));
        for (place, byte) in uuid.iter_mut().zip(high.to_be_bytes().into_iter().chain(low.to_be_bytes())) {
            *place = byte;
        }
    }
    uuid
}

fn serial(text: &str) -> [c_uchar; 16] {
    let mut field = [0; 16];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    field
}
