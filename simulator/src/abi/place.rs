//! Where a board is and what it is joined to: PCI, rack, NVLink fabric, the processor beside it.

use std::ffi::c_uchar;

use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlDeviceAddressingMode_t, nvmlDeviceCapabilities_t, nvmlEnableState_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t, nvmlPciInfoExt_t,
    nvmlPdi_t, nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused, VERSION_MISMATCH};
use super::buffers::{Out, array, expect_version};
use super::{Device, gpu_calls, node_calls};
use crate::board::{Fabric, Platform};
use crate::node::Gpu;
use crate::schedule::hash;

/// NVML_GPU_FABRIC_STATE_COMPLETED.
const COMPLETED: c_uchar = 3;
/// A board in no rack answers so.
const NOWHERE: Platform = Platform { chassis: "", slot: 0, tray: 0, host: 1, switch: false };

gpu_calls! {
    fn nvmlDeviceGetPciInfoExt(at, pci: Out<nvmlPciInfoExt_t>) {
        let version = pci.get()?.version;
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

    // The number burnt into the chip.
    fn nvmlDeviceGetPdi(at, pdi: Out<nvmlPdi_t>) {
        let version = pdi.get()?.version;
        expect_version::<nvmlPdi_t>(version, 1)?;
        pdi.put(nvmlPdi_t { version, value: at.gpu.uuid.bytes().fold(0, |sum, byte| hash(sum ^ u64::from(byte))) })
    }

    fn nvmlDeviceGetAddressingMode(at, mode: Out<nvmlDeviceAddressingMode_t>) {
        let version = mode.get()?.version;
        expect_version::<nvmlDeviceAddressingMode_t>(version, 1)?;
        // Address translation by the processor beside it, or none.
        mode.put(nvmlDeviceAddressingMode_t { version, value: if at.gpu.board.rack { 2 } else { 0 } })
    }

    // Extended memory is disabled on every board seen.
    fn nvmlDeviceGetCapabilities(at, capabilities: Out<nvmlDeviceCapabilities_t>) {
        let _ = at;
        let version = capabilities.get()?.version;
        expect_version::<nvmlDeviceCapabilities_t>(version, 1)?;
        capabilities.put(nvmlDeviceCapabilities_t { version, capMask: 0 })
    }

    fn nvmlDeviceGetC2cModeInfoV(at, info: Out<nvmlC2cModeInfo_v1_t>) {
        let enabled = at.gpu.board.c2c.ok_or(NOT_SUPPORTED)?;
        info.put(nvmlC2cModeInfo_v1_t { isC2cEnabled: enabled.into() })
    }

    fn nvmlDeviceGetGpuFabricInfo(at, info: Out<nvmlGpuFabricInfo_t>) {
        let Fabric { clique, .. } = fabric(at)?;
        info.put(nvmlGpuFabricInfo_t { clusterUuid: cluster(at), status: 0, cliqueId: clique, state: COMPLETED })
    }

    fn nvmlDeviceGetGpuFabricInfoV(at, info: Out<nvmlGpuFabricInfo_v3_t>) {
        // The shorter one begins alike; only its own length may be touched.
        let short = Out::at(info.pointer()?.cast::<nvmlGpuFabricInfo_v2_t>());
        let version = short.get()?.version;
        let Fabric { clique, health, .. } = fabric(at)?;
        if expect_version::<nvmlGpuFabricInfo_v2_t>(version, 2).is_ok() {
            return short.put(nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: cluster(at),
                status: 0,
                cliqueId: clique,
                state: COMPLETED,
                healthMask: health,
            });
        }
        expect_version::<nvmlGpuFabricInfo_v3_t>(version, 3)?;
        info.put(nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: cluster(at),
            status: 0,
            cliqueId: clique,
            state: COMPLETED,
            healthMask: health,
            // Not told, or healthy.
            healthSummary: (health != 0).into(),
        })
    }

    fn nvmlDeviceGetPlatformInfo(at, info: Out<nvmlPlatformInfo_v2_t>) {
        let Platform { chassis, slot, tray, host, switch } = at.gpu.board.platform.unwrap_or(NOWHERE);
        let module = c_uchar::try_from(at.gpu.module).unwrap_or(0);
        let first = Out::at(info.pointer()?.cast::<nvmlPlatformInfo_v1_t>());
        let version = first.get()?.version;
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
    // Nothing is being taken out of service; asked by place, since a drained GPU has no handle.
    fn nvmlDeviceQueryDrainState(node, _, pci: Out<nvmlPciInfo_t>, draining: Out<nvmlEnableState_t>) {
        let asked = pci.get()?;
        let known = |gpu: &&Gpu| gpu.domain == asked.domain && gpu.bus == asked.bus && asked.device == 0;
        node.gpus.iter().find(known).ok_or(INVALID_ARGUMENT)?;
        draining.put(0)
    }
}

/// A single GPU of a baseboard is in no fabric; in MIG mode it still is.
fn fabric(at: &Device<'_>) -> Result<Fabric, Refused> {
    let alone = at.node.gpus.len() == 1;
    at.gpu.board.fabric.filter(|_| !alone).ok_or(NOT_SUPPORTED)
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
