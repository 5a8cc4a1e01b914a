//! The identity of a GPU: names, versions and location, read once per plan. What a GPU does not report is "" or
//! none; placeholders such as slot 0 outside of a rack are left out.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::calls;
use super::driver_api::{DriverApi, Handle, call};
use super::inventory::{name, pci_bus_id, read_text, text};
use super::probe::link_count;
use crate::model::catalogue::MOST_LINKS;
use crate::model::{Absence, FabricPlace, GpuIdentity, Platform, Rejection};

/// The GPU's identity, and whether it is complete.
pub(super) fn identity(api: &mut DriverApi, device: Handle, mig: bool) -> (GpuIdentity, bool) {
    let Handle(raw) = device;
    let mut whole = true;
    let mut rejected = 0;
    let mut text_or_empty = |text: Result<Arc<str>, Absence>| {
        whole &= text.as_ref().err().is_none_or(|absence| absence.is_permanent());
        rejected += u64::from(text == Err(Absence::Rejected));
        text.unwrap_or_default()
    };
    let identity = GpuIdentity {
        model: text_or_empty(name(api, device)),
        serial: text_or_empty(text(|buffer, length| call!(api, nvmlDeviceGetSerial(raw, buffer, length)))),
        board_part: text_or_empty(text(|buffer, length| {
            call!(api, nvmlDeviceGetBoardPartNumber(raw, buffer, length))
        })),
        pci_bus_id: text_or_empty(pci_bus_id(api, device)),
        minor_number: text_or_empty(minor_number(api, device)),
        architecture: text_or_empty(architecture(api, device)),
        compute_capability: text_or_empty(compute_capability(api, device)),
        vbios_version: text_or_empty(text(|buffer, length| {
            call!(api, nvmlDeviceGetVbiosVersion(raw, buffer, length))
        })),
        driver_version: text_or_empty(text(|buffer, length| {
            call!(api, nvmlSystemGetDriverVersion(buffer, length))
        })),
        cuda_version: text_or_empty(cuda_version(api)),
        mig,
        memory: None,
        mig_slices: None,
        platform: None,
        nvlinks: 0,
        fabric: None,
        via: Arc::default(),
    };
    api.reject(Rejection::OutOfRange, rejected);
    let (platform, platform_is_final) = platform(api, device);
    let (fabric, is_final) = fabric(api, device);
    (GpuIdentity { platform, fabric, ..identity }, whole && platform_is_final && is_final)
}

fn minor_number(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let mut minor: c_uint = 0;
    call!(api, nvmlDeviceGetMinorNumber(device, &raw mut minor))?;
    // Linux has 20 bits for minor numbers.
    if minor < 1 << 20 { Ok(minor.to_string().into()) } else { Err(Absence::Rejected) }
}

/// NVML's names by number, from Kepler on; newer ones are shown as their number.
const ARCHITECTURES: [&str; 9] =
    ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];

fn architecture(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let mut number: c_uint = 0;
    call!(api, nvmlDeviceGetArchitecture(device, &raw mut number))?;
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

fn compute_capability(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    call!(api, nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor))?;
    if (1..100).contains(&major) && (0..100).contains(&minor) {
        Ok(format!("{major}.{minor}").into())
    } else {
        Err(Absence::Rejected)
    }
}

/// Converts 13010 to 13.1.
fn cuda_version(api: &mut DriverApi) -> Result<Arc<str>, Absence> {
    let mut version: c_int = 0;
    call!(api, nvmlSystemGetCudaDriverVersion_v2(&raw mut version))?;
    if (1_000..100_000).contains(&version) {
        Ok(format!("{}.{}", version / 1_000, version % 1_000 / 10).into())
    } else {
        Err(Absence::Rejected)
    }
}

/// The GPU's location, and whether it is final. Boards outside of a rack report slot 0, tray 0, host 1, so these
/// are used only with a chassis serial number. Boards that stand alone report module 1, so the module is used
/// only with NVLinks.
fn platform(api: &mut DriverApi, device: Handle) -> (Option<Platform>, bool) {
    let Handle(raw) = device;
    let is_final = |absence: Option<Absence>| absence.is_none_or(Absence::is_permanent);
    let mut module: c_uint = 0;
    let module_read = call!(api, nvmlDeviceGetModuleId(raw, &raw mut module)).map_err(Absence::from);
    let module_read = module_read.and(if module == c_uint::MAX { Err(Absence::Rejected) } else { Ok(()) });
    let module = module_read.is_ok().then_some(module);
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut info: sys::nvmlPlatformInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = calls::version::<sys::nvmlPlatformInfo_v2_t>(2);
    let chassis_read = call!(api, nvmlDeviceGetPlatformInfo(raw, &raw mut info)).map_err(Absence::from);
    let chassis_read = chassis_read.and_then(|()| chassis(&info));
    let whole = is_final(module_read.err()) && is_final(chassis_read.as_ref().err().copied());
    if let Ok(chassis_serial) = chassis_read
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
    let links = link_count(api, device);
    let module = module.filter(|_| links.is_ok_and(|links| (1..=MOST_LINKS.into()).contains(&links)));
    let platform =
        module.map(|module| Platform { module_id: module.to_string().into(), ..Platform::default() });
    (platform, whole && is_final(links.err()))
}

/// The chassis serial number, which may fill its place to the end.
fn chassis(info: &sys::nvmlPlatformInfo_v2_t) -> Result<Arc<str>, Absence> {
    let mut text = [0; 17];
    for (place, byte) in text.iter_mut().zip(info.chassisSerialNumber) {
        *place = byte.cast_signed();
    }
    read_text(&text)
}

/// The NVLink fabric of the GPU, and whether it is final.
fn fabric(api: &mut DriverApi, device: Handle) -> (Option<FabricPlace>, bool) {
    match calls::fabric(api, device) {
        // All ones mean "no value" in both.
        Ok(fabric) if fabric.clique == c_uint::MAX || fabric.cluster == [u8::MAX; 16] => (None, false),
        Ok(fabric) if fabric.is_complete() => {
            let cluster = if fabric.cluster == [0; 16] { Arc::from("") } else { uuid_text(fabric.cluster) };
            (Some(FabricPlace { cluster_uuid: cluster, clique: fabric.clique.to_string().into() }), true)
        }
        Ok(_) => (None, false),
        Err(absence) => (None, absence.is_permanent()),
    }
}

/// Writes 16 bytes as 8-4-4-4-12 hexadecimal digits.
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
