//! The arguments of a call as a recording has them: inputs, and places for outputs.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventSet_t, nvmlGpmSample_t, nvmlGpuInstance_t};

use super::tape::TapeValue;
use crate::abi::answer::{Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Refused};
use crate::abi::buffers::{Out, Text};

/// Handles are numbers, not addresses: a wrong one is refused instead of followed.
const MARK: usize = 0x7270_0000_0000;

/// The handle for a recorded handle's number.
pub(super) const fn handle(number: u32) -> usize {
    MARK | number as usize
}

/// One argument.
pub(crate) trait Argument {
    /// The input value; `TapeValue::None` for outputs.
    fn question(&self) -> Result<TapeValue, Refused> {
        Ok(TapeValue::None)
    }

    /// Writes a recorded value; a text must fit into `room` bytes.
    fn fill(&self, _value: &TapeValue, _room: usize) -> Answer {
        Ok(())
    }

    /// The number, if it is one or points to one.
    fn number(&self) -> Option<usize> {
        None
    }

    /// The address to which it points, if it is a pointer.
    fn place(&self) -> Option<*mut u8> {
        None
    }
}

impl<T> Argument for Out<T> {
    fn fill(&self, value: &TapeValue, room: usize) -> Answer {
        let bytes = match value {
            TapeValue::None | TapeValue::Number(_) => return Ok(()),
            TapeValue::Handle(number) if size_of::<T>() == size_of::<usize>() => {
                handle(*number).to_ne_bytes().to_vec()
            }
            TapeValue::Handle(_) => return Err(INVALID_ARGUMENT),
            TapeValue::Text(text) if text.len() >= room => return Err(INSUFFICIENT_SIZE),
            TapeValue::Text(text) => text.bytes().chain([0]).collect(),
            TapeValue::Bytes(bytes) => bytes.0.clone(),
        };
        if bytes.is_empty() {
            return Ok(());
        }
        let place = self.pointer()?.cast::<u8>();
        // SAFETY: not null, so by NVML's contract a value of the caller's; that an array or a text has this
        // many bytes has been checked.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn number(&self) -> Option<usize> {
        if size_of::<T>() != size_of::<c_uint>() {
            return None;
        }
        let place = self.pointer().ok()?.cast::<c_uint>();
        // SAFETY: not null, so by NVML's contract a value of that size which the caller has set.
        Some(unsafe { place.read() } as usize)
    }

    fn place(&self) -> Option<*mut u8> {
        self.pointer().ok().map(|pointer| pointer.cast())
    }
}

impl Argument for Text {
    fn question(&self) -> Result<TapeValue, Refused> {
        Ok(TapeValue::Text(self.get()?.to_owned()))
    }
}

impl Argument for *const c_char {
    fn question(&self) -> Result<TapeValue, Refused> {
        Text::at(*self).question()
    }
}

macro_rules! number {
    ($($kind:ty),*) => { $(
        impl Argument for $kind {
            fn question(&self) -> Result<TapeValue, Refused> {
                Ok(TapeValue::Number(*self as u64))
            }

            fn number(&self) -> Option<usize> {
                usize::try_from(*self).ok()
            }
        }
    )* };
}

number!(c_uint, c_int, c_ulonglong);

macro_rules! handle {
    ($($kind:ty),*) => { $(
        impl Argument for $kind {
            fn question(&self) -> Result<TapeValue, Refused> {
                match self.addr() ^ MARK {
                    number if number <= u32::MAX as usize => Ok(TapeValue::Handle(number as u32)),
                    _ => Err(INVALID_ARGUMENT),
                }
            }
        }
    )* };
}

handle!(nvmlDevice_t, nvmlGpuInstance_t);

macro_rules! shelved {
    ($($kind:ty),*) => { $(
        /// Handles of this library, not of the recorded driver: they are not part of a question.
        impl Argument for $kind {
            fn number(&self) -> Option<usize> {
                Some(self.addr())
            }
        }
    )* };
}

shelved!(nvmlGpmSample_t, nvmlEventSet_t);
