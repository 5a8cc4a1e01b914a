//! XID events of all GPUs, from the driver's event set.

use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::door::Handle;
use super::door::{CallSlot, Door, Refusal, ask};
use super::inventory::{Found, handle, uuid};
use super::library::Library;
use crate::clock::Clock;
use crate::model::{Absence, XidEvent};

/// A registered event set.
pub struct Events {
    door: Door,
    set: sys::nvmlEventSet_t,
}

// SAFETY: the set belongs to this object alone and is used by the one thread that owns it.
unsafe impl Send for Events {}

const XID_CRITICAL_ERROR: u64 = 8;
const TIMEOUT: u32 = 10;
const WAIT_MILLISECONDS: u32 = 500;

impl Events {
    /// Registers every GPU that can tell of XIDs; an absence when none can.
    pub fn register(
        library: &Arc<Library>,
        found: &[Found],
        slot: CallSlot,
        clock: Clock,
    ) -> Result<Self, Absence> {
        let mut door = Door::new(Arc::clone(library), slot, clock);
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        ask!(door, nvmlEventSetCreate(&raw mut set))?;
        let mut registered = Err(Absence::NotSupported);
        for gpu in found {
            let answer = handle(&mut door, &gpu.id.uuid).and_then(|Handle(device)| {
                Ok(ask!(door, nvmlDeviceRegisterEvents(device, XID_CRITICAL_ERROR, set))?)
            });
            registered = registered.or(answer);
        }
        let events = Self { door, set };
        match registered {
            Ok(()) => Ok(events),
            Err(absence) => {
                events.free();
                Err(absence)
            }
        }
    }

    /// Waits half a second for an XID.
    pub fn wait(&mut self) -> Result<Option<XidEvent>, Absence> {
        // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
        let mut data: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
        let set = self.set;
        match ask!(self.door, nvmlEventSetWait_v2(set, &raw mut data, WAIT_MILLISECONDS)) {
            Ok(()) => {}
            Err(Refusal::Code(TIMEOUT)) => return Ok(None),
            Err(refusal) => return Err(refusal.into()),
        }
        // The set is waited in by nobody else; how long it waited is no time inside the driver's locks.
        self.door.take_calls();
        let Ok(xid) = u32::try_from(data.eventData) else { return Ok(None) };
        if data.eventType & XID_CRITICAL_ERROR == 0 {
            return Ok(None);
        }
        let uuid = uuid(&mut self.door, Handle(data.device))?;
        Ok(Some(XidEvent { uuid, xid, at: self.door.clock().now() }))
    }

    /// Gives the set back to the library.
    pub fn free(mut self) {
        let set = self.set;
        // A failure leaves nothing to do: the set is lost with the library.
        let _ = ask!(self.door, nvmlEventSetFree(set));
    }
}
