//! Identity of a GPU: names, numbers, places, and modes that never change.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_t, nvmlBusType_t, nvmlComputeMode_t, nvmlDevice_t, nvmlDeviceArchitecture_t,
    nvmlDriverModel_t, nvmlEnableState_t, nvmlGpuVirtualizationMode_t, nvmlInforomObject_t, nvmlPciInfo_t,
    nvmlUUID_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use super::buffers::{Out, array, expect_version, text};
use super::{Device, device_calls, gpu_calls, handle, node_calls};
use crate::surprise::Surprise;

node_calls! {
    fn nvmlDeviceGetHandleByUUIDV(node, _, uuid: Out<nvmlUUID_t>, device: Out<nvmlDevice_t>) {
        expect_version::<nvmlUUID_t>(uuid.version()?, 1)?;
        let asked = uuid.get()?;
        // The types differ in which member of the union is set.
        let matches: Box<dyn Fn(&str) -> bool> = match asked.type_ {
            // SAFETY: the caller says that it set this member, and any bytes are characters.
            1 => { let text = unsafe { asked.value.str_ }; Box::new(move |known| array::<41>(known) == text) }
            // SAFETY: as above.
            2 => { let bytes = unsafe { asked.value.bytes }; Box::new(move |known| binary(known) == bytes) }
            _ => return Err(INVALID_ARGUMENT),
        };
        for gpu in &node.gpus {
            if matches(&gpu.uuid) {
                return device.put(handle(gpu, None));
            }
            if let Some(position) = gpu.instances.iter().position(|instance| matches(&instance.uuid)) {
                return device.put(handle(gpu, Some(position)));
            }
        }
        Err(NOT_FOUND)
    }
}

device_calls! {
    fn nvmlDeviceGetName(at, name: Out<c_char>, length: c_uint) {
        let board = at.gpu.board.name;
        match at.instance {
            None => text(name, length, board),
            Some(instance) => {
                // The suffix stays at the end, where clients look for it.
                let plain = board.trim_end_matches(" (simulated)");
                text(name, length, &format!("{plain} MIG {} (simulated)", instance.name()))
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

    fn nvmlDeviceGetBrand(at, brand: Out<nvmlBrandType_t>) {
        brand.put(at.gpu.board.brand)
    }
}

gpu_calls! {
    fn nvmlDeviceGetIndex(at, index: Out<c_uint>) {
        index.put(at.gpu.index)
    }

    fn nvmlDeviceGetMinorNumber(at, minor: Out<c_uint>) {
        minor.put(at.gpu.minor)
    }

    fn nvmlDeviceGetSerial(at, serial: Out<c_char>, length: c_uint) {
        // Consumer boards have neither serial nor part.
        at.gpu.board.part.ok_or(NOT_SUPPORTED)?;
        text(serial, length, &at.gpu.serial)
    }

    fn nvmlDeviceGetVbiosVersion(at, version: Out<c_char>, length: c_uint) {
        text(version, length, at.gpu.board.vbios)
    }

    fn nvmlDeviceGetBoardPartNumber(at, part: Out<c_char>, length: c_uint) {
        text(part, length, at.gpu.board.part.ok_or(NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetBoardId(at, board: Out<c_uint>) {
        board.put(at.gpu.domain << 16 | at.gpu.bus << 8)
    }

    fn nvmlDeviceGetMultiGpuBoard(at, several: Out<c_uint>) {
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
        if !at.gpu.board.gsp {
            return Err(NOT_SUPPORTED);
        }
        // No length is passed: the header promises 64 bytes.
        text(version, 64, &at.node.driver_version)
    }

    fn nvmlDeviceGetGspFirmwareMode(at, on: Out<c_uint>, default: Out<c_uint>) {
        default.pointer()?;
        on.put(at.gpu.board.gsp.into())?;
        default.put(at.gpu.board.gsp.into())
    }

    fn nvmlDeviceGetInforomImageVersion(at, version: Out<c_char>, length: c_uint) {
        text(version, length, &image(at))
    }

    fn nvmlDeviceGetInforomVersion(at, object: nvmlInforomObject_t, version: Out<c_char>, length: c_uint) {
        // OEM, ECC.
        let (oem, ecc) = match at.gpu.board.architecture {
            ..7 => ("1.1", "5.0"),
            7 => ("2.0", "6.16"),
            _ => ("2.1", "7.16"),
        };
        match object {
            0 => text(version, length, oem),
            1 if at.gpu.board.part.is_some() => text(version, length, ecc),
            // Power, and the ECC object of boards without ECC.
            1..=3 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn nvmlDeviceGetInforomConfigurationChecksum(at, checksum: Out<c_uint>) {
        let folded = image(at).bytes().fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(byte));
        checksum.put(folded)
    }

    // Only success: the inforom is valid.
    fn nvmlDeviceValidateInforom(at) {
        Ok(())
    }

    // Only these boards answer.
    fn nvmlDeviceGetLastBBXFlushTime(at, stamp: Out<c_ulonglong>, took: Out<c_ulong>) {
        if !matches!(at.gpu.board.profile, "a100" | "a100-40" | "h100" | "gb200") {
            return Err(NOT_SUPPORTED);
        }
        took.pointer()?;
        stamp.put(at.now.utc.saturating_sub(at.now.elapsed) / 1_000)?;
        took.put(1_843)
    }

    fn nvmlDeviceGetIrqNum(at, number: Out<c_uint>) {
        number.put(130 + at.gpu.slot)
    }

    fn nvmlDeviceGetBusType(at, kind: Out<nvmlBusType_t>) {
        kind.put(2)
    }

    fn nvmlDeviceGetVirtualizationMode(at, mode: Out<nvmlGpuVirtualizationMode_t>) {
        mode.put(0)
    }

    fn nvmlDeviceOnSameBoard(at, other: nvmlDevice_t, same: Out<c_int>) {
        let (other, _) = super::find(at.node, other)?;
        let board = at.gpu.index == other.index || at.gpu.board.rack && at.gpu.serial == other.serial;
        same.put(board.into())
    }

    fn nvmlDeviceGetPersistenceMode(at, mode: Out<nvmlEnableState_t>) {
        mode.put((at.gpu.surprise != Some(Surprise::PersistenceOff)).into())
    }

    // Default, or exclusive process.
    fn nvmlDeviceGetComputeMode(at, mode: Out<nvmlComputeMode_t>) {
        mode.put(if at.gpu.condition.use_of.exclusive { 3 } else { 0 })
    }

    // Enabled on headless server boards too, while no display is active.
    fn nvmlDeviceGetDisplayMode(at, mode: Out<nvmlEnableState_t>) {
        mode.put(1)
    }

    fn nvmlDeviceGetDisplayActive(at, active: Out<nvmlEnableState_t>) {
        active.put(0)
    }

    fn nvmlDeviceGetDriverModel(at, current: Out<nvmlDriverModel_t>, pending: Out<nvmlDriverModel_t>) {
        windows_only(at, current, pending)
    }

    fn nvmlDeviceGetDriverModel_v2(at, current: Out<nvmlDriverModel_t>, pending: Out<nvmlDriverModel_t>) {
        windows_only(at, current, pending)
    }
}

/// The sixteen bytes of a UUID's text.
fn binary(uuid: &str) -> [c_uchar; 16] {
    let mut digits = uuid.chars().skip(4).filter_map(|letter| letter.to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let (high, low) = (digits.next().unwrap_or(0), digits.next().unwrap_or(0));
        *byte = c_uchar::try_from(high << 4 | low).unwrap_or(0);
    }
    bytes
}

/// The version of the inforom image, derived from the part number: `G520.0200.00.05`.
fn image(at: &Device<'_>) -> String {
    let mut parts = at.gpu.board.part.unwrap_or("0-2G002-0000-000").split('-');
    let family = parts.nth(1).unwrap_or_default().trim_start_matches('2').trim_start_matches('5');
    format!("{family}.{}.00.05", parts.next().unwrap_or_default())
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
