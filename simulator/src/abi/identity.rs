//! What a GPU is: names, numbers, places, and the modes that do not change.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_t, nvmlComputeMode_t, nvmlDeviceArchitecture_t, nvmlDriverModel_t, nvmlEnableState_t,
    nvmlPciInfo_t,
};

use super::answer::{Answer, NOT_SUPPORTED};
use super::buffers::{Out, array, text};
use super::{Device, device_calls, gpu_calls};

/// NVML_BRAND_NVIDIA: data-centre boards since Ampere.
const BRAND: nvmlBrandType_t = 14;

device_calls! {
    fn nvmlDeviceGetName(at, name: Out<c_char>, length: c_uint) {
        let board = at.gpu.board.name;
        match at.instance {
            None => text(name, length, board),
            Some(instance) => {
                // The mark of simulation stays at the end, where clients look for it.
                let plain = board.trim_end_matches(" (simulated)");
                text(name, length, &format!("{plain} MIG {} (simulated)", instance.profile.name))
            }
        }
    }

    fn nvmlDeviceGetUUID(at, uuid: Out<c_char>, length: c_uint) {
        text(uuid, length, at.instance.map_or(&at.gpu.uuid, |instance| &instance.uuid))
    }

    fn nvmlDeviceGetArchitecture(at, architecture: Out<nvmlDeviceArchitecture_t>) {
        architecture.put(at.gpu.board.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(at, major: Out<c_int>, minor: Out<c_int>) {
        let (first, second) = at.gpu.board.compute_capability;
        minor.pointer()?;
        major.put(first)?;
        minor.put(second)
    }

    fn nvmlDeviceGetPciInfo_v3(at, pci: Out<nvmlPciInfo_t>) {
        pci.put(place(at))
    }

    fn nvmlDeviceGetPciInfo_v2(at, pci: Out<nvmlPciInfo_t>) {
        pci.put(place(at))
    }

    fn nvmlDeviceGetPciInfo(at, pci: Out<nvmlPciInfo_t>) {
        pci.put(place(at))
    }

    fn nvmlDeviceGetBrand(_, brand: Out<nvmlBrandType_t>) {
        brand.put(BRAND)
    }
}

gpu_calls! {
    fn nvmlDeviceGetIndex(at, index: Out<c_uint>) {
        index.put(at.gpu.index)
    }

    fn nvmlDeviceGetMinorNumber(at, minor: Out<c_uint>) {
        minor.put(at.gpu.index)
    }

    fn nvmlDeviceGetSerial(at, serial: Out<c_char>, length: c_uint) {
        text(serial, length, &at.gpu.serial)
    }

    fn nvmlDeviceGetVbiosVersion(at, version: Out<c_char>, length: c_uint) {
        text(version, length, at.gpu.board.vbios)
    }

    fn nvmlDeviceGetBoardPartNumber(at, part: Out<c_char>, length: c_uint) {
        text(part, length, at.gpu.board.part)
    }

    fn nvmlDeviceGetBoardId(at, board: Out<c_uint>) {
        board.put(at.gpu.domain << 16 | at.gpu.bus << 8)
    }

    fn nvmlDeviceGetMultiGpuBoard(at, several: Out<c_uint>) {
        let _ = at;
        several.put(0)
    }

    fn nvmlDeviceGetModuleId(at, module: Out<c_uint>) {
        module.put(at.gpu.module)
    }

    fn nvmlDeviceGetNumGpuCores(at, cores: Out<c_uint>) {
        cores.put(at.gpu.board.cores)
    }

    fn nvmlDeviceGetMemoryBusWidth(at, bits: Out<c_uint>) {
        bits.put(at.gpu.board.memory_bus_bits)
    }

    fn nvmlDeviceGetGspFirmwareVersion(at, version: Out<c_char>) {
        // No length is passed: the header promises 64 bytes.
        text(version, 64, &at.node.driver_version)
    }

    fn nvmlDeviceGetPersistenceMode(at, mode: Out<nvmlEnableState_t>) {
        let _ = at;
        mode.put(1)
    }

    // Default, or one process alone.
    fn nvmlDeviceGetComputeMode(at, mode: Out<nvmlComputeMode_t>) {
        mode.put(if at.gpu.condition.use_of.exclusive { 3 } else { 0 })
    }

    // Enabled on headless server boards too, while no display is active.
    fn nvmlDeviceGetDisplayMode(at, mode: Out<nvmlEnableState_t>) {
        let _ = at;
        mode.put(1)
    }

    fn nvmlDeviceGetDisplayActive(at, active: Out<nvmlEnableState_t>) {
        let _ = at;
        active.put(0)
    }

    fn nvmlDeviceGetDriverModel(at, current: Out<nvmlDriverModel_t>, pending: Out<nvmlDriverModel_t>) {
        windows_only(at, current, pending)
    }

    fn nvmlDeviceGetDriverModel_v2(at, current: Out<nvmlDriverModel_t>, pending: Out<nvmlDriverModel_t>) {
        windows_only(at, current, pending)
    }
}

fn windows_only(_: &Device<'_>, _: Out<nvmlDriverModel_t>, _: Out<nvmlDriverModel_t>) -> Answer {
    Err(NOT_SUPPORTED)
}

fn place(at: &Device<'_>) -> nvmlPciInfo_t {
    let (domain, bus) = (at.gpu.domain, at.gpu.bus);
    nvmlPciInfo_t {
        busIdLegacy: array(&format!("{domain:04X}:{bus:02X}:00.0")),
        domain,
        bus,
        device: 0,
        pciDeviceId: at.gpu.board.pci_device,
        pciSubSystemId: at.gpu.board.pci_subsystem,
        busId: array(&format!("{domain:08X}:{bus:02X}:00.0")),
    }
}
