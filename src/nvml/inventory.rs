//! Which GPUs there are, and what each says of itself.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::Library;
use super::door::{CallSlot, Door, Handle, NOT_FOUND, Refusal, ask};
use crate::clock::Clock;
use crate::model::{Absence, GpuId};

/// A GPU that the driver counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index and UUID.
    pub id: GpuId,
    /// The PCI bus id; "" where the driver does not tell.
    bus: Arc<str>,
}

impl Found {
    /// The PCI bus id as the driver writes it; "" where it does not tell.
    pub fn bus(&self) -> &Arc<str> {
        &self.bus
    }
}

/// No node has more; a count above is garbage.
const MOST: c_uint = 256;

/// How many GPUs the driver counts.
pub fn count(library: &Arc<Library>, slot: &CallSlot, clock: &Clock) -> Result<u32, Absence> {
    let mut door = Door::new(Arc::clone(library), slot.clone(), clock.clone());
    let mut count: c_uint = 0;
    ask!(door, nvmlDeviceGetCount_v2(&raw mut count))?;
    if count > MOST { Err(Absence::Rejected) } else { Ok(count) }
}

/// The GPU at an index below the count. Each is asked for alone: one that hangs or fails holds up no other.
pub fn find(library: &Arc<Library>, index: u32, slot: &CallSlot, clock: &Clock) -> Result<Found, Absence> {
    let mut door = Door::new(Arc::clone(library), slot.clone(), clock.clone());
    let mut device = std::ptr::null_mut();
    ask!(door, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device))?;
    let uuid = uuid(&mut door, Handle(device))?;
    let bus = pci_bus_id(&mut door, Handle(device)).unwrap_or_default();
    Ok(Found { id: GpuId { index, uuid }, bus })
}

/// What the driver says of its version; "" if nothing.
pub fn driver_version(library: &Arc<Library>, clock: &Clock) -> Arc<str> {
    version(&mut Door::new(Arc::clone(library), CallSlot::default(), clock.clone())).unwrap_or_default()
}

fn version(door: &mut Door) -> Result<Arc<str>, Absence> {
    text(|buffer, length| ask!(door, nvmlSystemGetDriverVersion(buffer, length)))
}

/// A handle for a GPU that was found. By its bus id where possible: by UUID the driver goes through all GPUs
/// and may answer "lost" when any of them has fallen off the bus (NVML header).
pub(super) fn handle(door: &mut Door, found: &Found) -> Result<Handle, Absence> {
    let by_bus = if found.bus.is_empty() { Err(Refusal::NoSymbol) } else { by_bus(door, &found.bus) };
    let device = match by_bus {
        Ok(device) => device,
        Err(Refusal::NoSymbol) => {
            let text = c_text(&found.id.uuid);
            let mut device = std::ptr::null_mut();
            let answer = ask!(door, nvmlDeviceGetHandleByUUID(text.as_ptr().cast(), &raw mut device));
            return answer.map(|()| Handle(device)).map_err(gone);
        }
        Err(refusal) => return Err(gone(refusal)),
    };
    // Another board in the same place is another GPU.
    if uuid(door, device)? == found.id.uuid { Ok(device) } else { Err(Absence::Lost) }
}

fn by_bus(door: &mut Door, bus: &str) -> Result<Handle, Refusal> {
    let text = c_text(bus);
    let mut device = std::ptr::null_mut();
    ask!(door, nvmlDeviceGetHandleByPciBusId_v2(text.as_ptr().cast(), &raw mut device))?;
    Ok(Handle(device))
}

/// A GPU that was there and is not found is lost.
fn gone(refusal: Refusal) -> Absence {
    if refusal == Refusal::Code(NOT_FOUND) { Absence::Lost } else { refusal.into() }
}

fn c_text(text: &str) -> Vec<u8> {
    text.bytes().filter(|byte| *byte != 0).chain([0]).collect()
}

/// Whether the GPU is cut into instances; none where it cannot be.
pub(super) fn mig_mode(door: &mut Door, Handle(device): Handle) -> Result<Option<bool>, Absence> {
    let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
    let answer = ask!(door, nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending));
    match answer.map_err(Absence::from) {
        // Nobody knows how such a GPU is billed.
        Ok(()) if current > 1 => Err(Absence::Rejected),
        Ok(()) => Ok(Some(current == 1)),
        Err(absence) if absence.is_permanent() => Ok(None),
        Err(absence) => Err(absence),
    }
}

pub(super) fn uuid(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    let uuid = text(|buffer, length| ask!(door, nvmlDeviceGetUUID(device, buffer, length)))?;
    if uuid.is_empty() || uuid.contains(' ') { Err(Absence::Rejected) } else { Ok(uuid) }
}

pub(super) fn name(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    text(|buffer, length| ask!(door, nvmlDeviceGetName(device, buffer, length)))
}

pub(super) fn pci_bus_id(door: &mut Door, Handle(device): Handle) -> Result<Arc<str>, Absence> {
    // SAFETY: the structure is integers and characters, for all of which zero is a value.
    let mut pci: sys::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    ask!(door, nvmlDeviceGetPciInfo_v3(device, &raw mut pci))?;
    let bus = read_text(&pci.busId)?;
    let is_one = bus.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    if is_one { Ok(bus) } else { Err(Absence::Rejected) }
}

const TEXT: usize = 96;

pub(super) fn text(
    read: impl FnOnce(*mut c_char, c_uint) -> Result<(), Refusal>,
) -> Result<Arc<str>, Absence> {
    let mut buffer: [c_char; TEXT] = [0; TEXT];
    read(buffer.as_mut_ptr(), TEXT as c_uint)?;
    read_text(&buffer)
}

/// A C string of the driver, which writes printable ASCII. Anything else is garbage, and so is a text that fills its
/// buffer without an end: there is room for more than the longest.
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
