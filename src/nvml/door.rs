//! The one door to the driver: every call passes here, is timed, and is visible from outside while it lasts.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlReturn_t};

use super::Library;
use super::quirks::Quirks;
use super::recording::{Arguments, Function, Recorder};
use crate::clock::{Clock, system_now};
use crate::model::{Absence, CallTime, Nanoseconds, Rejection};

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

    /// Whether it is the same place.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Shows a call that does not pass the door, for as long as it takes.
    pub(super) fn during<T>(&self, call: InFlight, make: impl FnOnce() -> T) -> T {
        self.set(Some(call));
        let answer = make();
        self.set(None);
        answer
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
    /// That the GPU, or the whole driver, is gone.
    gone: Option<Absence>,
    /// That a call was answered, be it by a refusal that says why.
    heard: bool,
    /// That a call was refused since what it was about is not there.
    missed: bool,
    /// The boot clock at the last call.
    asked: Nanoseconds,
    spent: Nanoseconds,
    rejected: Vec<(Rejection, u64)>,
    quirks: Quirks,
}

/// Calls a function of the raw table by its name: `ask!(door, nvmlDeviceGetIndex(handle, &mut index))`.
///
/// Every argument is a handle of this library, a number, or a pointer to a live value of the type that the
/// header names; who writes the call promises it.
macro_rules! ask {
    ($door:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $door.call(stringify!($function), |table| table.$function.as_ref().ok().copied(), ($($argument,)*))
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

const UNINITIALIZED: c_uint = 1;
pub(super) const INVALID_ARGUMENT: c_uint = 2;
pub(super) const NOT_SUPPORTED: c_uint = 3;
const NO_PERMISSION: c_uint = 4;
pub(super) const NOT_FOUND: c_uint = 6;
pub(super) const INSUFFICIENT_SIZE: c_uint = 7;
const DRIVER_NOT_LOADED: c_uint = 9;
/// What a recorded driver without the function answers, since a library cannot hide a symbol.
const FUNCTION_NOT_FOUND: c_uint = 13;
const GPU_IS_LOST: c_uint = 15;
const LIB_RM_VERSION_MISMATCH: c_uint = 18;
const UNKNOWN: c_uint = 999;
pub(super) const ARGUMENT_VERSION_MISMATCH: c_uint = 25;
const DEPRECATED: c_uint = 26;
const NOT_READY: c_uint = 27;
const GPU_NOT_FOUND: c_uint = 28;

impl From<Refusal> for Absence {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSymbol | Refusal::Code(FUNCTION_NOT_FOUND) => Self::NoSymbol,
            Refusal::Code(NOT_SUPPORTED | ARGUMENT_VERSION_MISMATCH | DEPRECATED) => Self::NotSupported,
            Refusal::Code(NO_PERMISSION) => Self::NoPermission,
            Refusal::Code(GPU_IS_LOST | GPU_NOT_FOUND) => Self::Lost,
            Refusal::Code(UNINITIALIZED | DRIVER_NOT_LOADED | LIB_RM_VERSION_MISMATCH) => Self::DriverGone,
            Refusal::Code(NOT_READY) => Self::NotYet,
            Refusal::Code(_) => Self::Failed,
        }
    }
}

/// How many items to offer room for after a driver wanted more: slack, since some may be new by then, and at least
/// twice what there was, since one that wants less than it has is broken, and is not asked a thousand times.
/// None for more than `most`.
pub(super) fn more_room(room: usize, wanted: usize, most: usize) -> Option<usize> {
    let wanted = wanted.saturating_add(8).max(room.saturating_mul(2).min(most));
    (wanted <= most && room < most).then_some(wanted)
}

impl Door {
    pub(super) fn new(library: Arc<Library>, slot: CallSlot, clock: Clock) -> Self {
        Self {
            library,
            slot,
            clock,
            calls: Vec::new(),
            gone: None,
            heard: false,
            missed: false,
            asked: Nanoseconds(0),
            spent: Nanoseconds(0),
            rejected: Vec::new(),
            quirks: Quirks::default(),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Who takes down what passes, if anybody does.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.library.recorder()
    }

    /// Whether the driver said since the last look that the GPU is lost, or that it is gone itself.
    pub(super) fn take_gone(&mut self) -> Option<Absence> {
        self.gone.take()
    }

    /// Whether any call since the last look was answered by more than an unknown error.
    pub(super) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Whether any call since the last look was refused since what it was about is not there: a handle or an id
    /// that is good no longer.
    pub(super) fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }

    /// What the driver behind it does differently.
    pub(super) fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Tells which driver is behind it.
    pub(super) fn learn(&mut self, quirks: Quirks) {
        self.quirks = quirks;
    }

    /// Counts answers that cannot be true and were dropped.
    pub(super) fn reject(&mut self, reason: Rejection, count: u64) {
        if count == 0 {
            return;
        }
        match self.rejected.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sum)) => *sum += count,
            None => self.rejected.push((reason, count)),
        }
    }

    /// What was dropped since the last look, by reason.
    pub(super) fn take_rejected(&mut self) -> Vec<(Rejection, u64)> {
        std::mem::take(&mut self.rejected)
    }

    /// The boot clock when the last call was made.
    pub(super) fn asked(&self) -> Nanoseconds {
        self.asked
    }

    /// Time inside the driver since the door was made.
    pub(super) fn spent(&self) -> Nanoseconds {
        self.spent
    }

    /// How many calls there were since the last look.
    pub(super) fn made(&self) -> usize {
        self.calls.len()
    }

    /// The calls since the last look.
    pub(super) fn take_calls(&mut self) -> Vec<CallTime> {
        std::mem::take(&mut self.calls)
    }

    /// One call; `None` from `pick` means that the library has no such function.
    pub(super) fn call<F: Function<A>, A: Arguments>(
        &mut self,
        function: &'static str,
        pick: impl FnOnce(&NvmlLib) -> Option<F>,
        arguments: A,
    ) -> Result<(), Refusal> {
        let question = self.library.recorder().map(|recorder| recorder.question(function, &arguments));
        self.asked = self.clock.now().boottime;
        self.slot.set(Some(InFlight { function, since: self.asked }));
        // A call takes its real time, whatever time the node lives in.
        let begun = system_now();
        // SAFETY: `ask!`, the only caller, has the promise of whoever wrote the call.
        let answer = pick(self.library.table()).map(|function| unsafe { function.invoke(&arguments) });
        let took = system_now().since(begun);
        self.slot.set(None);
        if let (Some(recorder), Some(question)) = (self.library.recorder(), question) {
            recorder.answer(self.clock.now().boottime, question, answer, &arguments);
        }
        let Some(code) = answer else { return Err(Refusal::NoSymbol) };
        self.spent += took;
        self.calls.push(CallTime { function, took });
        self.heard |= code != UNKNOWN;
        self.missed |= matches!(code, INVALID_ARGUMENT | NOT_FOUND);
        match code {
            0 => Ok(()),
            code => {
                let absence = Absence::from(Refusal::Code(code));
                if matches!(absence, Absence::Lost | Absence::DriverGone) {
                    // Without a driver nothing is known of the GPU.
                    self.gone = self.gone.max(Some(absence));
                }
                Err(Refusal::Code(code))
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
        let asked = std::iter::from_fn(|| more_room(room, 0, 65_536).inspect(|more| room = *more)).count();
        assert_eq!(asked, 11);
    }
}
