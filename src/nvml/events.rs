//! What the driver tells of all GPUs by itself: XIDs and notices, from its event set.

use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::door::Handle;
use super::door::{CallSlot, Door, Refusal, ask};
use super::inventory::{Found, handle, uuid};
use super::library::Library;
use crate::clock::Clock;
use crate::model::{Absence, Notice, Stamp};

/// An event set and the GPUs in it.
pub struct Events {
    door: Door,
    set: sys::nvmlEventSet_t,
    /// Who is in the set. A GPU that dies may not say its name any more when its last XID comes.
    registered: Vec<(Handle, Arc<str>)>,
}

// SAFETY: the set belongs to this object alone and is used by the one thread that owns it.
unsafe impl Send for Events {}

/// Something that the driver told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// UUID of the GPU.
    pub uuid: Arc<str>,
    /// What.
    pub told: Told,
}

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// An XID, and the instances that it happened in where the driver names them.
    Xid {
        /// The code.
        xid: u32,
        /// GPU instance.
        gpu_instance: Option<u32>,
        /// Compute instance.
        compute_instance: Option<u32>,
    },
    /// A notice.
    Notice(Notice),
}

const XID_CRITICAL_ERROR: u64 = 0x8;

/// The bits that are listened to beside XIDs. Numbers, since the crate's own set ends at 0x100. Left out are
/// performance state, clocks, power source and single correctable errors: they would wake the thread many times
/// a second and tell nothing that readings do not.
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

impl Events {
    /// An empty event set.
    pub fn new(library: &Arc<Library>, slot: CallSlot, clock: Clock) -> Result<Self, Absence> {
        let mut door = Door::new(Arc::clone(library), slot, clock);
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        ask!(door, nvmlEventSetCreate(&raw mut set))?;
        Ok(Self { door, set, registered: Vec::new() })
    }

    /// Hears a GPU from now on; an absence when it cannot even tell of XIDs.
    pub fn register(&mut self, gpu: &Found) -> Result<(), Absence> {
        let (door, set) = (&mut self.door, self.set);
        let answer = handle(door, gpu).and_then(|Handle(device)| {
            let mut supported = XID_CRITICAL_ERROR;
            let asked = ask!(door, nvmlDeviceGetSupportedEventTypes(device, &raw mut supported));
            let wanted = NOTICES.iter().fold(XID_CRITICAL_ERROR, |bits, (bit, _)| bits | bit);
            // Whether or not it names XIDs among what it supports, only registering tells.
            let bits = XID_CRITICAL_ERROR | if asked.is_ok() { wanted & supported } else { 0 };
            ask!(door, nvmlDeviceRegisterEvents(device, bits, set))?;
            Ok(Handle(device))
        });
        door.take_calls();
        self.registered.push((answer?, Arc::clone(&gpu.id.uuid)));
        Ok(())
    }

    /// Whether there is nobody to wait for.
    pub fn is_empty(&self) -> bool {
        self.registered.is_empty()
    }

    /// The time on the clock that the driver's events are stamped with.
    pub fn now(&self) -> Stamp {
        self.door.clock().now()
    }

    /// Waits at most that long for an event. One that tells nothing of use is none, but not the last; nor is one
    /// of a GPU that does not say who it is.
    pub fn wait(&mut self, milliseconds: u32) -> Result<Waited, Absence> {
        // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
        let mut data: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
        let set = self.set;
        let answer = ask!(self.door, nvmlEventSetWait_v2(set, &raw mut data, milliseconds));
        // The set is waited in by nobody else; how long it waited is no time inside the driver's locks.
        self.door.take_calls();
        match answer {
            Ok(()) => {}
            Err(Refusal::Code(TIMEOUT)) => return Ok(Waited::Quiet),
            Err(refusal) => return Err(refusal.into()),
        }
        if let Some(recorder) = self.door.recorder() {
            recorder.event(self.door.clock().now().boottime, &data);
        }
        let Some(told) = told(&data) else { return Ok(Waited::Noise) };
        let known = self.registered.iter().find(|(Handle(device), _)| *device == data.device);
        let uuid = match known {
            Some((_, uuid)) => Arc::clone(uuid),
            None => match uuid(&mut self.door, Handle(data.device)) {
                Ok(uuid) => uuid,
                Err(absence) => return Ok(Waited::Nameless(absence)),
            },
        };
        Ok(Waited::Event(Event { uuid, told }))
    }

    /// Gives the set back to the library.
    pub fn free(mut self) {
        let set = self.set;
        // A failure leaves nothing to do: the set is lost with the library.
        let _ = ask!(self.door, nvmlEventSetFree(set));
    }
}

/// What a wait brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// An event.
    Event(Event),
    /// Something that is not listened to.
    Noise,
    /// An event of a GPU that is not in the set and could not be asked for its name.
    Nameless(Absence),
    /// Nothing within the time.
    Quiet,
}

fn told(data: &sys::nvmlEventData_t) -> Option<Told> {
    // The driver writes all ones where no instance is meant; NVML has at most a few of either.
    let instance = |id: u32| (id < 1_000).then_some(id);
    if data.eventType & XID_CRITICAL_ERROR != 0 {
        return Some(Told::Xid {
            xid: u32::try_from(data.eventData).ok()?,
            gpu_instance: instance(data.gpuInstanceId),
            compute_instance: instance(data.computeInstanceId),
        });
    }
    let notice = NOTICES.iter().find(|(bit, _)| data.eventType & bit != 0);
    notice.map(|(_, notice)| Told::Notice(*notice))
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
        assert_eq!(told(&data(0x8, 13, 2)), Some(Told::Xid { xid: 13, gpu_instance, compute_instance }));
        let gpu_instance = None;
        assert_eq!(
            told(&data(0x8, 13, u32::MAX)),
            Some(Told::Xid { xid: 13, gpu_instance, compute_instance })
        );
        assert_eq!(told(&data(0x8, u64::MAX, 0)), None);
    }

    #[test]
    fn bits_beyond_those_that_the_crate_knows_are_notices() {
        assert_eq!(told(&data(0x8000, 0, 0)), Some(Told::Notice(Notice::RecoveryChanged)));
        assert_eq!(told(&data(0x100, 0, 0)), Some(Told::Notice(Notice::MigChanged)));
        assert_eq!(told(&data(0x10, 0, 0)), None);
        assert_eq!(told(&data(1 << 40, 0, 0)), None);
    }
}
