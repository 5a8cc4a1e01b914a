//! Events of all GPUs from the driver's event set: XIDs and notices.

use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::Handle;
use super::driver_api::{CallError, CallSlot, DriverApi, call};
use super::inventory::{FoundGpu, handle, uuid};
use super::library::Library;
use crate::model::{Absence, Notice, Stamp};
use crate::runtime::clock::Clock;

pub struct EventSet {
    api: DriverApi,
    set: sys::nvmlEventSet_t,
    /// The GPUs in the set. A dying GPU may no longer return its UUID when its last XID comes.
    registered: Vec<(Handle, Arc<str>)>,
}

// SAFETY: the set belongs to this object alone and is used by the one thread that owns it.
unsafe impl Send for EventSet {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    pub uuid: Arc<str>,
    pub kind: DriverEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverEventKind {
    /// An XID, with the MIG instances if the driver names them.
    Xid {
        xid: u32,
        gpu_instance: Option<u32>,
        compute_instance: Option<u32>,
    },
    Notice(Notice),
}

const XID_CRITICAL_ERROR: u64 = 0x8;

/// The event types that are registered beside XIDs, as numbers, since the crate's own set ends at 0x100.
/// Performance state, clocks, power source and single correctable errors are left out: they would wake the
/// thread many times a second and say no more than readings do.
const NOTICES: [(u64, Notice); 9] = [
    (0x2, Notice::EccUncorrectable),
    (0x100, Notice::MigChanged),
    (0x200, Notice::EccStorm),
    (0x400, Notice::MemoryRetired),
    (0x800, Notice::MemoryRetirementFailed),
    (0x1000, Notice::PoisonContained),
    (0x2000, Notice::PoisonFatal),
    (0x4000, Notice::Unavailable),
    (0x8000, Notice::RecoveryChanged),
];

const TIMEOUT: u32 = 10;

impl EventSet {
    pub fn new(library: &Arc<Library>, slot: CallSlot, clock: Clock) -> Result<Self, Absence> {
        let mut api = DriverApi::new(Arc::clone(library), slot, clock);
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        call!(api, nvmlEventSetCreate(&raw mut set))?;
        Ok(Self { api, set, registered: Vec::new() })
    }

    /// Adds a GPU to the set; fails if the GPU cannot even report XIDs.
    pub fn register(&mut self, gpu: &FoundGpu) -> Result<(), Absence> {
        let (api, set) = (&mut self.api, self.set);
        let answer = handle(api, gpu).and_then(|Handle(device)| {
            let mut supported = XID_CRITICAL_ERROR;
            let asked = call!(api, nvmlDeviceGetSupportedEventTypes(device, &raw mut supported));
            let wanted = NOTICES.iter().fold(XID_CRITICAL_ERROR, |bits, (bit, _)| bits | bit);
            // XIDs are always registered, since the list of supported types may omit them.
            let bits = XID_CRITICAL_ERROR | if asked.is_ok() { wanted & supported } else { 0 };
            call!(api, nvmlDeviceRegisterEvents(device, bits, set))?;
            Ok(Handle(device))
        });
        api.take_calls();
        self.registered.push((answer?, Arc::clone(&gpu.id.uuid)));
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.registered.is_empty()
    }

    /// The time on the clock that events are stamped with.
    pub fn now(&self) -> Stamp {
        self.api.clock().now()
    }

    pub fn wait(&mut self, milliseconds: u32) -> Result<EventWait, Absence> {
        // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
        let mut data: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
        let set = self.set;
        let answer = call!(self.api, nvmlEventSetWait_v2(set, &raw mut data, milliseconds));
        // Waiting holds no lock of the driver, so its time is not counted.
        self.api.take_calls();
        match answer {
            Ok(()) => {}
            Err(CallError::Code(TIMEOUT)) => return Ok(EventWait::Timeout),
            Err(error) => return Err(error.into()),
        }
        if let Some(recorder) = self.api.recorder() {
            recorder.event(self.api.clock().now().boottime, &data);
        }
        let Some(kind) = event_kind(&data) else { return Ok(EventWait::Ignored) };
        let known = self.registered.iter().find(|(Handle(device), _)| *device == data.device);
        let uuid = match known {
            Some((_, uuid)) => Arc::clone(uuid),
            None => match uuid(&mut self.api, Handle(data.device)) {
                Ok(uuid) => uuid,
                Err(absence) => return Ok(EventWait::Unidentified(absence)),
            },
        };
        Ok(EventWait::Event(DriverEvent { uuid, kind }))
    }

    pub fn free(mut self) {
        let set = self.set;
        // A failure leaves nothing to do: the set is lost with the library.
        let _ = call!(self.api, nvmlEventSetFree(set));
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventWait {
    Event(DriverEvent),
    /// An event of a type that is not used.
    Ignored,
    /// An event of a GPU that is not in the set and whose UUID could not be read.
    Unidentified(Absence),
    Timeout,
}

fn event_kind(data: &sys::nvmlEventData_t) -> Option<DriverEventKind> {
    // The driver writes all ones if no instance is meant; NVML has at most a few of either kind.
    let instance = |id: u32| (id < 1_000).then_some(id);
    if data.eventType & XID_CRITICAL_ERROR != 0 {
        return Some(DriverEventKind::Xid {
            xid: u32::try_from(data.eventData).ok()?,
            gpu_instance: instance(data.gpuInstanceId),
            compute_instance: instance(data.computeInstanceId),
        });
    }
    let notice = NOTICES.iter().find(|(bit, _)| data.eventType & bit != 0);
    notice.map(|(_, notice)| DriverEventKind::Notice(*notice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bits: u64, value: u64, instance: u32) -> sys::nvmlEventData_t {
        sys::nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: bits,
            eventData: value,
            gpuInstanceId: instance,
            computeInstanceId: u32::MAX,
        }
    }

    #[test]
    fn an_xid_keeps_its_instance_and_garbage_is_none() {
        let (gpu_instance, compute_instance) = (Some(2), None);
        assert_eq!(
            event_kind(&data(0x8, 13, 2)),
            Some(DriverEventKind::Xid { xid: 13, gpu_instance, compute_instance })
        );
        let gpu_instance = None;
        assert_eq!(
            event_kind(&data(0x8, 13, u32::MAX)),
            Some(DriverEventKind::Xid { xid: 13, gpu_instance, compute_instance })
        );
        assert_eq!(event_kind(&data(0x8, u64::MAX, 0)), None);
    }

    #[test]
    fn bits_beyond_those_that_the_crate_knows_are_notices() {
        assert_eq!(event_kind(&data(0x8000, 0, 0)), Some(DriverEventKind::Notice(Notice::RecoveryChanged)));
        assert_eq!(event_kind(&data(0x100, 0, 0)), Some(DriverEventKind::Notice(Notice::MigChanged)));
        assert_eq!(event_kind(&data(0x10, 0, 0)), None);
        assert_eq!(event_kind(&data(1 << 40, 0, 0)), None);
    }
}
