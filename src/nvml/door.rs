//! The one door to the driver: every call passes here, is timed, and is visible from outside while it lasts.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlReturn_t};

use super::Library;
use crate::clock::Clock;
use crate::model::{Absence, CallTime, Nanoseconds};

/// A device handle. Handles are valid on any thread for as long as the library stays initialised.
#[derive(Clone, Copy)]
pub(super) struct Handle(pub(super) nvmlDevice_t);

// SAFETY: the NVML header calls the library thread-safe, and a handle is an index into its own tables.
unsafe impl Send for Handle {}

/// The call that a lane is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The function.
    pub function: &'static str,
    /// The boot clock when it was called.
    pub since: Nanoseconds,
}

/// Where a lane publishes the call that it is in: a thread cannot time out its own call.
///
/// The lock is held for one store or one load, never across a driver call.
#[derive(Clone, Debug, Default)]
pub struct CallSlot(Arc<Mutex<Option<InFlight>>>);

impl CallSlot {
    /// The call that has not returned.
    pub fn in_flight(&self) -> Option<InFlight> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, call: Option<InFlight>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }
}

/// A lane's way into the driver.
pub(super) struct Door {
    library: Arc<Library>,
    slot: CallSlot,
    clock: Clock,
    calls: Vec<CallTime>,
    lost: bool,
}

/// Calls a function of the raw table by its name: `ask!(door, nvmlDeviceGetIndex(handle, &mut index))`.
macro_rules! ask {
    ($door:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $door.call(stringify!($function), |table| {
            let function = table.$function.as_ref().ok()?;
            // SAFETY: the arguments are handles of this library and pointers to live values of the types
            // that the header names, for the length of the call.
            Some(unsafe { function($($argument),*) })
        })
    };
}
pub(super) use ask;

/// A driver call that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The library has no such function.
    NoSymbol,
    /// The driver's return code.
    Code(nvmlReturn_t),
}

pub(super) const NOT_SUPPORTED: c_uint = 3;
const NO_PERMISSION: c_uint = 4;
pub(super) const NOT_FOUND: c_uint = 6;
pub(super) const INSUFFICIENT_SIZE: c_uint = 7;
const GPU_IS_LOST: c_uint = 15;
pub(super) const ARGUMENT_VERSION_MISMATCH: c_uint = 25;
const DEPRECATED: c_uint = 26;
const NOT_READY: c_uint = 27;
const GPU_NOT_FOUND: c_uint = 28;

impl From<Refusal> for Absence {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSymbol => Self::NoSymbol,
            Refusal::Code(NOT_SUPPORTED | ARGUMENT_VERSION_MISMATCH | DEPRECATED) => Self::NotSupported,
            Refusal::Code(NO_PERMISSION) => Self::NoPermission,
            Refusal::Code(GPU_IS_LOST | GPU_NOT_FOUND) => Self::Lost,
            Refusal::Code(NOT_READY) => Self::NotYet,
            Refusal::Code(_) => Self::Failed,
        }
    }
}

impl Door {
    pub(super) fn new(library: Arc<Library>, slot: CallSlot, clock: Clock) -> Self {
        Self { library, slot, clock, calls: Vec::new(), lost: false }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether the driver said that the GPU is gone, since the last look.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// The calls since the last look.
    pub(super) fn take_calls(&mut self) -> Vec<CallTime> {
        std::mem::take(&mut self.calls)
    }

    /// One call; `None` from `run` means that the library has no such function.
    pub(super) fn call(
        &mut self,
        function: &'static str,
        run: impl FnOnce(&NvmlLib) -> Option<nvmlReturn_t>,
    ) -> Result<(), Refusal> {
        let begun = self.clock.now().boottime;
        self.slot.set(Some(InFlight { function, since: begun }));
        let answer = run(self.library.table());
        self.slot.set(None);
        let Some(code) = answer else { return Err(Refusal::NoSymbol) };
        let took = Nanoseconds(self.clock.now().boottime.0.saturating_sub(begun.0));
        self.calls.push(CallTime { function, took });
        match code {
            0 => Ok(()),
            code => {
                self.lost |= matches!(code, GPU_IS_LOST | GPU_NOT_FOUND);
                Err(Refusal::Code(code))
            }
        }
    }
}
