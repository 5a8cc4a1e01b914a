//! Finds the GPUs of the driver and their names.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::Library;
use super::driver_api::{CallError, CallSlot, DriverApi, Handle, NOT_FOUND, call};
use crate::model::{Absence, GpuId};
use crate::runtime::clock::Clock;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    pub id: GpuId,
    /// The PCI bus id as the driver writes it; "" if it does not return it.
    pub bus: Arc<str>,
}

/// No node has more; a larger count is garbage.
const MOST: c_uint = 256;

pub fn count(library: &Arc<Library>, slot: &CallSlot, clock: &Clock) -> Result<u32, Absence> {
    let mut api = DriverApi::new(Arc::clone(library), slot.clone(), clock.clone());
    let mut count: c_uint = 0;
    call!(api, nvmlDeviceGetCount_v2(&raw mut count))?;
    if count > MOST { Err(Absence::Rejected) } else { Ok(count) }
}

/// The GPU at an index below the count. One call per GPU, so that one that hangs or fails does not affect the
/// others.
pub fn find(library: &Arc<Library>, index: u32, slot: &CallSlot, clock: &Clock) -> Result<FoundGpu, Absence> {
    let mut api = DriverApi::new(Arc::clone(library), slot.clone(), clock.clone());
    let mut device = std::ptr::null_mut();
    call!(api, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device))?;
    let uuid = uuid(&mut api, Handle(device))?;
    let bus = pci_bus_id(&mut api, Handle(device)).unwrap_or_default();
    Ok(FoundGpu { id: GpuId { index, uuid }, bus })
}

/// The driver's version; "" if it is not reported.
pub fn driver_version(library: &Arc<Library>, clock: &Clock) -> Arc<str> {
    let mut api = DriverApi::new(Arc::clone(library), CallSlot::default(), clock.clone());
    text(|buffer, length| call!(api, nvmlSystemGetDriverVersion(buffer, length))).unwrap_or_default()
}

/// A handle for a GPU. By bus id if possible: by UUID the driver visits all GPUs and may return "lost" if any of
/// them has fallen off the bus (NVML header).
pub(super) fn handle(api: &mut DriverApi, found: &FoundGpu) -> Result<Handle, Absence> {
    let mut device = std::ptr::null_mut();
    let mut answer = Err(CallError::NoSymbol);
    if !found.bus.is_empty() {
        let bus = c_text(&found.bus);
        answer = call!(api, nvmlDeviceGetHandleByPciBusId_v2(bus.as_ptr().cast(), &raw mut device));
    }
    let by_uuid = answer == Err(CallError::NoSymbol);
    if by_uuid {
        let uuid = c_text(&found.id.uuid);
        answer = call!(api, nvmlDeviceGetHandleByUUID(uuid.as_ptr().cast(), &raw mut device));
    }
    // A known GPU that is not found is lost.
    let lost =
        |error: CallError| if error == CallError::Code(NOT_FOUND) { Absence::Lost } else { error.into() };
    answer.map_err(lost)?;
    // Another board in the same slot is another GPU.
    if by_uuid || uuid(api, Handle(device))? == found.id.uuid {
        Ok(Handle(device))
    } else {
        Err(Absence::Lost)
    }
}

fn c_text(text: &str) -> Vec<u8> {
    text.bytes().filter(|byte| *byte != 0).chain([0]).collect()
}

/// Whether MIG is on; none if the GPU does not support it.
pub(super) fn mig_mode(api: &mut DriverApi, Handle(device): Handle) -> Result<Option<bool>, Absence> {
    let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
    let answer = call!(api, nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending));
    match answer.map_err(Absence::from) {
        // An unknown mode cannot be billed.
        Ok(()) if current > 1 => Err(Absence::Rejected),
        Ok(()) => Ok(Some(current == 1)),
        Err(absence) if absence.is_permanent() => Ok(None),
        Err(absence) => Err(absence),
    }
}

pub(super) fn uuid(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let uuid = text(|buffer, length| call!(api, nvmlDeviceGetUUID(device, buffer, length)))?;
    if uuid.is_empty() || uuid.contains(' ') { Err(Absence::Rejected) } else { Ok(uuid) }
}

pub(super) fn name(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    text(|buffer, length| call!(api, nvmlDeviceGetName(device, buffer, length)))
}

pub(super) fn pci_bus_id(api: &mut DriverApi, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    // SAFETY: the structure is integers and characters, for all of which zero is a value.
    let mut pci: sys::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    call!(api, nvmlDeviceGetPciInfo_v3(device, &raw mut pci))?;
    let bus = read_text(&pci.busId)?;
    let is_one = bus.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    if is_one { Ok(bus) } else { Err(Absence::Rejected) }
}

const TEXT: usize = 96;

pub(super) fn text(
    read: impl FnOnce(*mut c_char, c_uint) -> Result<(), CallError>,
) -> Result<Arc<str>, Absence> {
    let mut buffer: [c_char; TEXT] = [0; TEXT];
    read(buffer.as_mut_ptr(), TEXT as c_uint)?;
    read_text(&buffer)
}

/// Reads a C string of the driver, which writes printable ASCII. Anything else is garbage, and so is a text that
/// fills its buffer, which is longer than the longest text.
pub(super) fn read_text(buffer: &[c_char]) -> Result<Arc<str>, Absence> {
    let bytes = buffer.iter().map(|byte| byte.to_ne_bytes()[0]);
    let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let is_printable = text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    match str::from_utf8(&text) {
        Ok(text) if is_printable && text.len() < buffer.len() => Ok(text.into()),
        _ => Err(Absence::Rejected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Arc<str>, Absence> {
        read_text(&bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<_>>())
    }

    #[test]
    fn a_text_ends_at_its_end() {
        assert_eq!(read(b"NVIDIA L4\0garbage"), Ok("NVIDIA L4".into()));
        assert_eq!(read(b"\0"), Ok("".into()));
    }

    #[test]
    fn what_has_no_end_or_cannot_be_printed_is_no_text() {
        for garbage in
            [&b"NVIDIA L4"[..], b"", b"L4\xFF\0", b"L4\n\0", b"L4\x1B[2J\0", "L4\u{202E}\0".as_bytes()]
        {
            assert_eq!(read(garbage), Err(Absence::Rejected), "{garbage:?}");
        }
    }
}
