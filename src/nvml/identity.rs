//! What a GPU says of itself: names, versions, and where it sits.
//!
//! Asked once per plan. What a GPU does not say is "" or none; what it says for form only, as slot 0 outside of
//! a rack, is not passed on.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::calls;
use super::door::{Door, Handle, ask};
use super::inventory::{name, pci_bus_id, read_text, text};
use super::probe::link_count;
use crate::catalogue::MOST_LINKS;
use crate::model::{Absence, FabricPlace, GpuIdentity, Platform, Rejection};

/// What the GPU says of itself, and whether that was all it can say.
pub(super) fn identity(door: &mut Door, device: Handle, mig: bool) -> (GpuIdentity, bool) {
    let Handle(raw) = device;
    let mut whole = true;
    let mut rejected = 0;
    let mut said = |text: Result<Arc<str>, Absence>| {
        whole &= text.as_ref().err().is_none_or(|absence| absence.is_permanent());
        rejected += u64::from(text == Err(Absence::Rejected));
        text.unwrap_or_default()
    };
    let identity = GpuIdentity {
        model: said(name(door, device)),
        serial: said(text(|buffer, length| ask!(door, nvmlDeviceGetSerial(raw, buffer, length)))),
        board_part: said(text(|buffer, length| {
            ask!(door, nvmlDeviceGetBoardPartNumber(raw, buffer, length))
        })),
        pci_bus_id: said(pci_bus_id(door, device)),
        minor_number: said(minor_number(door, device)),
        architecture: said(architecture(door, device)),
        compute_capability: said(compute_capability(door, device)),
        vbios_version: said(text(|buffer, length| {
            ask!(door, nvmlDeviceGetVbiosVersion(raw, buffer, length))
        })),
        driver_version: said(text(|buffer, length| ask!(door, nvmlSystemGetDriverVersion(buffer, length)))),
        cuda_version: said(cuda_version(door)),
        mig,
        mig_slices: None,
        platform: None,
        fabric: None,
        via: Arc::default(),
    };
    door.reject(Rejection::OutOfRange, rejected);
    let (platform, placed) = platform(door, device);
    let (fabric, settled) = fabric(door, device);
    (GpuIdentity { platform, fabric, ..identity }, whole && placed && settled)
}

fn minor_number(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let mut minor: c_uint = 0;
    ask!(door, nvmlDeviceGetMinorNumber(device, &raw mut minor))?;
    // Linux keeps them in 20 bits.
    if minor < 1 << 20 { Ok(minor.to_string().into()) } else { Err(Absence::Rejected) }
}

/// NVML's names by number, from Kepler on; what is newer is shown as its number.
const ARCHITECTURES: [&str; 9] =
    ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];

fn architecture(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let mut number: c_uint = 0;
    ask!(door, nvmlDeviceGetArchitecture(device, &raw mut number))?;
    if number == sys::NVML_DEVICE_ARCH_UNKNOWN {
        return Err(Absence::NotSupported);
    }
    let place =
        number.checked_sub(sys::NVML_DEVICE_ARCH_KEPLER).and_then(|place| usize::try_from(place).ok());
    match place.and_then(|place| ARCHITECTURES.get(place)) {
        Some(name) => Ok(Arc::from(*name)),
        None if number < 100 => Ok(number.to_string().into()),
        None => Err(Absence::Rejected),
    }
}

fn compute_capability(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    ask!(door, nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor))?;
    if (1..100).contains(&major) && (0..100).contains(&minor) {
        Ok(format!("{major}.{minor}").into())
    } else {
        Err(Absence::Rejected)
    }
}

/// 13010 to 13.1.
fn cuda_version(door: &mut Door) -> Result<Arc<str>, Absence> {
    let mut version: c_int = 0;
    ask!(door, nvmlSystemGetCudaDriverVersion_v2(&raw mut version))?;
    if (1_000..100_000).contains(&version) {
        Ok(format!("{}.{}", version / 1_000, version % 1_000 / 10).into())
    } else {
        Err(Absence::Rejected)
    }
}

/// Where the GPU sits, and whether that is for good. Boards outside of a rack answer slot 0, tray 0, host 1 for
/// form; only with a chassis' serial number are these believed. Boards that stand alone answer module 1; only one
/// with NVLinks is a module.
fn platform(door: &mut Door, device: Handle) -> (Option<Platform>, bool) {
    let Handle(raw) = device;
    let settled = |absence: Option<Absence>| absence.is_none_or(Absence::is_permanent);
    let mut module: c_uint = 0;
    let asked = ask!(door, nvmlDeviceGetModuleId(raw, &raw mut module)).map_err(Absence::from);
    let asked = asked.and(if module == c_uint::MAX { Err(Absence::Rejected) } else { Ok(()) });
    let module = asked.is_ok().then_some(module);
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut info: sys::nvmlPlatformInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = u32::try_from(size_of::<sys::nvmlPlatformInfo_v2_t>()).unwrap_or(0) | (2 << 24);
    let told = ask!(door, nvmlDeviceGetPlatformInfo(raw, &raw mut info)).map_err(Absence::from);
    let told = told.and_then(|()| chassis(&info));
    let whole = settled(asked.err()) && settled(told.as_ref().err().copied());
    if let Ok(chassis_serial) = told
        && !chassis_serial.is_empty()
    {
        let platform = Platform {
            chassis_serial,
            slot: info.slotNumber.to_string().into(),
            tray: info.trayIndex.to_string().into(),
            host_id: info.hostId.to_string().into(),
            module_id: module.unwrap_or_else(|| info.moduleId.into()).to_string().into(),
        };
        return (Some(platform), whole);
    }
    let links = link_count(door, device);
    let module = module.filter(|_| links.is_ok_and(|links| (1..=MOST_LINKS.into()).contains(&links)));
    let platform =
        module.map(|module| Platform { module_id: module.to_string().into(), ..Platform::default() });
    (platform, whole && settled(links.err()))
}

/// The chassis' serial number, which may fill its place to the end.
fn chassis(info: &sys::nvmlPlatformInfo_v2_t) -> Result<Arc<str>, Absence> {
    let mut text = [0; 17];
    for (place, byte) in text.iter_mut().zip(info.chassisSerialNumber) {
        *place = byte.cast_signed();
    }
    read_text(&text)
}

/// The fabric that the GPU belongs to, and whether that is settled.
fn fabric(door: &mut Door, device: Handle) -> (Option<FabricPlace>, bool) {
    match calls::fabric(door, device) {
        // All ones are no number, and no UUID.
        Ok(fabric) if fabric.clique == c_uint::MAX || fabric.cluster == [u8::MAX; 16] => (None, false),
        Ok(fabric) if fabric.is_complete() => {
            let cluster = if fabric.cluster == [0; 16] { Arc::from("") } else { uuid_text(fabric.cluster) };
            (Some(FabricPlace { cluster_uuid: cluster, clique: fabric.clique.to_string().into() }), true)
        }
        Ok(_) => (None, false),
        Err(absence) => (None, absence.is_permanent()),
    }
}

/// 16 bytes as 8-4-4-4-12 hexadecimal digits.
fn uuid_text(bytes: [u8; 16]) -> Arc<str> {
    let mut text = String::with_capacity(36);
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_written_as_uuids_are() {
        let bytes = std::array::from_fn(|place| u8::try_from(place * 17).unwrap_or(0));
        assert_eq!(&*uuid_text(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
