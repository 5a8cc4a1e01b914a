//! The driver call wrapper: every call is made here, is timed, and is visible to other threads while it lasts.

use std::ffi::c_uint;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlReturn_t};
use parking_lot::Mutex;

use super::Library;
use super::driver_budget::{CallCosts, CostClass, TickCosts};
use super::quirks::Quirks;
use super::recording::{CallArguments, RawFunction, Recorder};
use crate::model::{Absence, CallInFlight, CallTime, Nanoseconds, Rejection};
use crate::runtime::clock::{Clock, system_now};

/// A device handle. It is valid on any thread for as long as the library stays initialised.
#[derive(Clone, Copy)]
pub(super) struct Handle(pub(super) nvmlDevice_t);

// SAFETY: the NVML header calls the library thread-safe, and a handle is an index into its own tables.
unsafe impl Send for Handle {}

/// Where a sampler publishes the call it is in, since a thread cannot time out its own call.
///
/// The lock is held for one store or one load, never across a driver call.
#[derive(Clone, Debug, Default)]
pub struct CallSlot(Arc<Mutex<Option<CallInFlight>>>);

impl CallSlot {
    pub fn in_flight(&self) -> Option<CallInFlight> {
        *self.0.lock()
    }

    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Publishes a call that is not made through `DriverApi`, for as long as it lasts.
    pub(super) fn during<T>(&self, call: CallInFlight, make: impl FnOnce() -> T) -> T {
        self.set(Some(call));
        let answer = make();
        self.set(None);
        answer
    }

    fn set(&self, call: Option<CallInFlight>) {
        *self.0.lock() = call;
    }
}

pub(super) struct DriverApi {
    library: Arc<Library>,
    slot: CallSlot,
    clock: Clock,
    calls: Vec<CallTime>,
    /// Set when a call reported that the GPU is lost or the driver is gone.
    fatal: Option<Absence>,
    /// Whether any call returned something other than NVML_ERROR_UNKNOWN; if none did, the driver is taken as failed.
    responded: bool,
    /// Whether a call reported that its handle or id does not exist.
    not_found: bool,
    /// The boot time of the last call.
    last_call_at: Nanoseconds,
    /// What the calls that follow count as, and the time inside the driver by class.
    class: CostClass,
    costs: CallCosts,
    rejected: Vec<(Rejection, u64)>,
    quirks: Quirks,
}

/// Calls a function of the raw table by its name: `call!(api, nvmlDeviceGetIndex(handle, &mut index))`.
///
/// The author of each call promises that every argument is a handle of this library, a number, or a pointer to a
/// live value of the type that the header names.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $api.call(stringify!($function), |table| table.$function.as_ref().ok().copied(), ($($argument,)*))
    };
}
pub(super) use call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    NoSymbol,
    Code(nvmlReturn_t),
    /// The driver asked for a larger buffer than the limit of this call.
    TooMany,
}

const UNINITIALIZED: c_uint = 1;
pub(super) const INVALID_ARGUMENT: c_uint = 2;
pub(super) const NOT_SUPPORTED: c_uint = 3;
const NO_PERMISSION: c_uint = 4;
pub(super) const NOT_FOUND: c_uint = 6;
pub(super) const INSUFFICIENT_SIZE: c_uint = 7;
const DRIVER_NOT_LOADED: c_uint = 9;
/// Returned by the replay of a recording whose driver lacked the function, since a library cannot hide a symbol.
const FUNCTION_NOT_FOUND: c_uint = 13;
const GPU_IS_LOST: c_uint = 15;
const LIB_RM_VERSION_MISMATCH: c_uint = 18;
const UNKNOWN: c_uint = 999;
pub(super) const ARGUMENT_VERSION_MISMATCH: c_uint = 25;
const DEPRECATED: c_uint = 26;
const NOT_READY: c_uint = 27;
const GPU_NOT_FOUND: c_uint = 28;

impl From<CallError> for Absence {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NoSymbol | CallError::Code(FUNCTION_NOT_FOUND) => Self::NoSymbol,
            CallError::TooMany => Self::Rejected,
            CallError::Code(NOT_SUPPORTED | ARGUMENT_VERSION_MISMATCH | DEPRECATED) => Self::NotSupported,
            CallError::Code(NO_PERMISSION) => Self::NoPermission,
            CallError::Code(GPU_IS_LOST | GPU_NOT_FOUND) => Self::Lost,
            CallError::Code(UNINITIALIZED | DRIVER_NOT_LOADED | LIB_RM_VERSION_MISMATCH) => Self::DriverGone,
            CallError::Code(NOT_READY) => Self::NotYet,
            CallError::Code(_) => Self::Failed,
        }
    }
}

/// How many items to make room for after the driver wanted more: some slack for new ones, and at least twice the
/// present room, so that a driver that always wants more is soon refused. None above `most`.
fn more_room(room: usize, wanted: usize, most: usize) -> Option<usize> {
    let wanted = wanted.saturating_add(8).max(room.saturating_mul(2).min(most));
    (wanted <= most && room < most).then_some(wanted)
}

impl DriverApi {
    pub(super) fn new(library: Arc<Library>, slot: CallSlot, clock: Clock) -> Self {
        Self {
            library,
            slot,
            clock,
            calls: Vec::new(),
            fatal: None,
            responded: false,
            not_found: false,
            last_call_at: Nanoseconds(0),
            class: CostClass::Plan,
            costs: CallCosts::default(),
            rejected: Vec::new(),
            quirks: Quirks::default(),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.library.recorder()
    }

    pub(super) fn take_fatal(&mut self) -> Option<Absence> {
        self.fatal.take()
    }

    /// Returns and clears whether any call returned something other than NVML_ERROR_UNKNOWN; if none did, the driver is
    /// taken as failed.
    pub(super) fn take_responded(&mut self) -> bool {
        std::mem::take(&mut self.responded)
    }

    pub(super) fn take_not_found(&mut self) -> bool {
        std::mem::take(&mut self.not_found)
    }

    pub(super) fn quirks(&self) -> Quirks {
        self.quirks
    }

    pub(super) fn set_quirks(&mut self, quirks: Quirks) {
        self.quirks = quirks;
    }

    /// Fills a buffer and returns the number of items; while the driver wants more room, it grows up to `most`.
    pub(super) fn read_array<T: Copy>(
        &mut self,
        buffer: &mut Vec<T>,
        blank: T,
        most: usize,
        mut read: impl FnMut(&mut Self, *mut T, *mut c_uint) -> Result<(), CallError>,
    ) -> Result<usize, CallError> {
        loop {
            let mut count = c_uint::try_from(buffer.len()).unwrap_or(c_uint::MAX);
            match read(self, buffer.as_mut_ptr(), &raw mut count) {
                Ok(()) => return Ok((count as usize).min(buffer.len())),
                Err(CallError::Code(INSUFFICIENT_SIZE)) => {
                    let Some(room) = more_room(buffer.len(), count as usize, most) else {
                        self.reject(Rejection::Count, 1);
                        return Err(CallError::TooMany);
                    };
                    buffer.resize(room, blank);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn reject(&mut self, reason: Rejection, count: u64) {
        if count == 0 {
            return;
        }
        match self.rejected.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sum)) => *sum += count,
            None => self.rejected.push((reason, count)),
        }
    }

    pub(super) fn rejections(&self, reason: Rejection) -> u64 {
        self.rejected.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
    }

    pub(super) fn take_rejected(&mut self) -> Vec<(Rejection, u64)> {
        std::mem::take(&mut self.rejected)
    }

    pub(super) fn last_call_at(&self) -> Nanoseconds {
        self.last_call_at
    }

    /// Counts the calls that follow as this class.
    pub(super) fn charge(&mut self, class: CostClass) {
        self.class = class;
    }

    pub(super) fn take_costs(&mut self) -> TickCosts {
        self.costs.take()
    }

    pub(super) fn calls_made(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn take_calls(&mut self) -> Vec<CallTime> {
        std::mem::take(&mut self.calls)
    }

    /// Makes one call; `pick` returns `None` if the library has no such function.
    pub(super) fn call<F: RawFunction<A>, A: CallArguments>(
        &mut self,
        function: &'static str,
        pick: impl FnOnce(&NvmlLib) -> Option<F>,
        arguments: A,
    ) -> Result<(), CallError> {
        let inputs = self.library.recorder().map(|recorder| recorder.inputs(function, &arguments));
        self.last_call_at = self.clock.now().boottime;
        self.slot.set(Some(CallInFlight { function, since: self.last_call_at }));
        // Latency is measured on the system's clock even if the node's clock is virtual.
        let begun = system_now();
        // SAFETY: `call!` is the only caller, and the author of each call promises that its arguments are valid.
        let answer = pick(self.library.table()).map(|function| unsafe { function.invoke(&arguments) });
        let took = system_now().since(begun);
        self.slot.set(None);
        if let (Some(recorder), Some(inputs)) = (self.library.recorder(), inputs) {
            recorder.answer(self.clock.now().boottime, inputs, answer, &arguments);
        }
        let Some(code) = answer else { return Err(CallError::NoSymbol) };
        self.costs.add(self.class, function, took);
        self.calls.push(CallTime { function, took });
        self.responded |= code != UNKNOWN;
        self.not_found |= matches!(code, INVALID_ARGUMENT | NOT_FOUND);
        match code {
            0 => Ok(()),
            code => {
                let absence = Absence::from(CallError::Code(code));
                if matches!(absence, Absence::Lost | Absence::DriverGone) {
                    // A missing driver outranks a lost GPU.
                    self.fatal = self.fatal.max(Some(absence));
                }
                Err(CallError::Code(code))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_always_wants_more_soon_gets_none() {
        assert_eq!(more_room(32, 5_000, 65_536), Some(5_008));
        assert_eq!(more_room(32, 0, 65_536), Some(64));
        assert_eq!(more_room(40_000, 41_000, 65_536), Some(65_536));
        assert_eq!(more_room(65_536, 65_536, 65_536), None);
        assert_eq!(more_room(32, usize::MAX, 65_536), None);
        let mut room = 32;
        let tries = std::iter::from_fn(|| more_room(room, 0, 65_536).inspect(|more| room = *more)).count();
        assert_eq!(tries, 11);
    }
}
