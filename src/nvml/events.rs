//! XID events of all GPUs, from the driver's event set.

use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::door::Handle;
use super::door::{CallSlot, Door, Refusal, ask};
use super::inventory::{Found, handle, uuid};
use super::library::Library;
use crate::clock::Clock;
use crate::model::{Absence, XidEvent};

/// An event set and the GPUs in it.
pub struct Events {
    door: Door,
    set: sys::nvmlEventSet_t,
    /// Who is in the set. A GPU that dies may not say its name any more when its last XID comes.
    registered: Vec<(Handle, Arc<str>)>,
}

// SAFETY: the set belongs to this object alone and is used by the one thread that owns it.
unsafe impl Send for Events {}

const XID_CRITICAL_ERROR: u64 = 8;
const TIMEOUT: u32 = 10;

/// Short, since whoever waits hears no stop meanwhile.
const WAIT_MILLISECONDS: u32 = 200;

impl Events {
    /// An empty event set.
    pub fn new(library: &Arc<Library>, slot: CallSlot, clock: Clock) -> Result<Self, Absence> {
        let mut door = Door::new(Arc::clone(library), slot, clock);
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        ask!(door, nvmlEventSetCreate(&raw mut set))?;
        Ok(Self { door, set, registered: Vec::new() })
    }

    /// Hears a GPU's XIDs from now on; an absence when it cannot tell of any.
    pub fn register(&mut self, gpu: &Found) -> Result<(), Absence> {
        let (door, set) = (&mut self.door, self.set);
        let answer = handle(door, gpu).and_then(|Handle(device)| {
            ask!(door, nvmlDeviceRegisterEvents(device, XID_CRITICAL_ERROR, set))?;
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

    /// Waits a fifth of a second for an XID.
    pub fn wait(&mut self) -> Result<Option<XidEvent>, Absence> {
        // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
        let mut data: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
        let set = self.set;
        let answer = ask!(self.door, nvmlEventSetWait_v2(set, &raw mut data, WAIT_MILLISECONDS));
        // The set is waited in by nobody else; how long it waited is no time inside the driver's locks.
        self.door.take_calls();
        match answer {
            Ok(()) => {}
            Err(Refusal::Code(TIMEOUT)) => return Ok(None),
            Err(refusal) => return Err(refusal.into()),
        }
        if let Some(recorder) = self.door.recorder() {
            recorder.event(self.door.clock().now().boottime, &data);
        }
        let Ok(xid) = u32::try_from(data.eventData) else { return Ok(None) };
        if data.eventType & XID_CRITICAL_ERROR == 0 {
            return Ok(None);
        }
        let known = self.registered.iter().find(|(Handle(device), _)| *device == data.device);
        let uuid = match known {
            Some((_, uuid)) => Arc::clone(uuid),
            None => uuid(&mut self.door, Handle(data.device))?,
        };
        Ok(Some(XidEvent { uuid, xid, at: self.door.clock().now() }))
    }

    /// Gives the set back to the library.
    pub fn free(mut self) {
        let set = self.set;
        // A failure leaves nothing to do: the set is lost with the library.
        let _ = ask!(self.door, nvmlEventSetFree(set));
    }
}
