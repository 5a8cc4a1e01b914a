//! Corrupts answers in the caller's buffers: garbage of a fault, and bugs of old drivers.
//!
//! In: the distortion of the call, set for its duration, and every value that was written. Out: the value changed
//! in place. It works by type, so that every function, list and field is covered; of an unknown structure it
//! overwrites the words that are neither 0 nor look like addresses. Pointers and handles are left alone, since
//! every client would crash on those.
//!
//! The distortion is a thread-local without a destructor, so it does not pin the library.

use std::any::{TypeId, type_name};
use std::cell::Cell;
use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlEventData_t, nvmlFieldValue_t, nvmlGpmMetric_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlUtilization_t, nvmlValue_t, nvmlViolationTime_t,
};

use crate::schedule::hash;

/// Percent.
const TOO_MUCH: u32 = 250;
const MEMORY_FIELD: c_uint = 82;
const DOUBLE: u32 = 0;
/// Microseconds since 1970, some thousands of years from now.
const FAR_FUTURE: u64 = u64::MAX >> 4;

/// How a call's answer is corrupted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distortion {
    /// The seed of the garbage; `None` without such a fault.
    pub(super) garbage: Option<u64>,
    /// Whether single numbers of the answer are percent.
    pub(super) percent: bool,
    /// Entries of process lists have one field more.
    pub(super) wide_processes: bool,
    /// The memory temperature is marked as a double.
    pub(super) double_temperature: bool,
}

thread_local! {
    static DISTORTION: Cell<Distortion> = const {
        Cell::new(Distortion { garbage: None, percent: false, wide_processes: false, double_temperature: false })
    };
}

/// Runs a call's body with a distortion.
pub(super) fn with<T>(distortion: Distortion, body: impl FnOnce() -> T) -> T {
    DISTORTION.set(distortion);
    let answer = body();
    DISTORTION.set(Distortion::default());
    answer
}

/// Whether entries of this type have one field more in this call.
pub(super) fn widened<T: 'static>() -> bool {
    DISTORTION.get().wide_processes && TypeId::of::<T>() == TypeId::of::<nvmlProcessInfo_v2_t>()
}

/// The next random number of the garbage; `None` without such a fault.
fn next() -> Option<u64> {
    let distortion = DISTORTION.get();
    let seed = hash(distortion.garbage?);
    DISTORTION.set(Distortion { garbage: Some(seed), ..distortion });
    Some(seed)
}

/// Corrupts a text in its whole buffer: without a NUL, or with bytes that are not UTF-8.
pub(super) fn text(buffer: *mut c_char, length: usize) {
    let Some(seed) = next() else { return };
    let endless = seed.is_multiple_of(2);
    for place in 0..length {
        let last = place + 1 == length;
        let byte = if endless {
            b'A'
        } else if last {
            0
        } else {
            0xFF
        };
        // SAFETY: within the caller's buffer, as its length says.
        unsafe { buffer.add(place).write(byte.cast_signed()) };
    }
}

/// Corrupts a value that was just written.
pub(super) fn written<T: 'static>(pointer: *mut T) {
    let distortion = DISTORTION.get();
    if distortion.double_temperature {
        on(pointer, |value: &mut nvmlFieldValue_t| {
            if value.fieldId == MEMORY_FIELD && value.nvmlReturn == 0 {
                value.valueType = DOUBLE;
            }
        });
    }
    if type_name::<T>().starts_with('*') || TypeId::of::<T>() == TypeId::of::<c_char>() {
        return;
    }
    let Some(seed) = next() else { return };
    let known = scalar(pointer, seed, distortion.percent)
        || memory(pointer)
        || process(pointer, seed)
        || reading(pointer, seed)
        || place(pointer);
    if !known {
        unknown(pointer);
    }
}

/// Changes the value if it has type `U`.
fn on<T: 'static, U: 'static>(pointer: *mut T, change: impl FnOnce(&mut U)) -> bool {
    if TypeId::of::<T>() != TypeId::of::<U>() {
        return false;
    }
    // SAFETY: the type is the same, and the value was written a moment ago.
    change(unsafe { &mut *pointer.cast::<U>() });
    true
}

fn scalar<T: 'static>(pointer: *mut T, seed: u64, percent: bool) -> bool {
    on(pointer, |value: &mut u32| *value = if percent { TOO_MUCH } else { u32::MAX })
        // A counter falls back, or is all ones.
        || on(pointer, |value: &mut u64| *value = backwards(*value, seed))
        || on(pointer, |value: &mut i32| *value = i32::MIN)
        || on(pointer, |value: &mut f64| *value = double(seed))
}

fn backwards(value: u64, seed: u64) -> u64 {
    if seed.is_multiple_of(3) { u64::MAX } else { value - hash(seed) % (value / 2 + 1) - value / 4 }
}

fn double(seed: u64) -> f64 {
    match seed % 4 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        _ => 1e308,
    }
}

fn memory<T: 'static>(pointer: *mut T) -> bool {
    on(pointer, |value: &mut nvmlMemory_t| {
        (value.total, value.free, value.used) = (u64::MAX, u64::MAX, u64::MAX)
    }) || on(pointer, |value: &mut nvmlMemory_v2_t| {
        (value.total, value.free, value.used, value.reserved) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    }) || on(pointer, |value: &mut nvmlBAR1Memory_t| {
        (value.bar1Total, value.bar1Free, value.bar1Used) = (u64::MAX, u64::MAX, u64::MAX);
    })
}

fn process<T: 'static>(pointer: *mut T, seed: u64) -> bool {
    on(pointer, |value: &mut nvmlProcessInfo_v1_t| (value.pid, value.usedGpuMemory) = (0, u64::MAX))
        || on(pointer, |value: &mut nvmlProcessInfo_v2_t| {
            (value.pid, value.usedGpuMemory) = (0, u64::MAX);
            (value.gpuInstanceId, value.computeInstanceId) = (TOO_MUCH, seed as u32 | 1 << 31);
        })
        || on(pointer, |value: &mut nvmlProcessUtilizationSample_t| {
            (value.pid, value.timeStamp) = (0, FAR_FUTURE);
            (value.smUtil, value.memUtil, value.encUtil, value.decUtil) =
                (TOO_MUCH, u32::MAX, TOO_MUCH, u32::MAX);
        })
        || on(pointer, |value: &mut nvmlProcessUtilizationInfo_v1_t| {
            (value.pid, value.timeStamp) = (0, FAR_FUTURE);
            (value.smUtil, value.memUtil, value.encUtil, value.decUtil) =
                (TOO_MUCH, u32::MAX, TOO_MUCH, u32::MAX);
            (value.jpgUtil, value.ofaUtil) = (TOO_MUCH, u32::MAX);
        })
}

fn reading<T: 'static>(pointer: *mut T, seed: u64) -> bool {
    on(pointer, |value: &mut nvmlUtilization_t| (value.gpu, value.memory) = (TOO_MUCH, u32::MAX))
        || on(pointer, |value: &mut nvmlFieldValue_t| field(value, seed))
        || on(pointer, |value: &mut nvmlGpmMetric_t| value.value = double(seed))
        || on(pointer, |value: &mut nvmlViolationTime_t| {
            value.referenceTime = FAR_FUTURE;
            value.violationTime = backwards(value.violationTime, seed);
        })
        || on(pointer, |value: &mut nvmlEventData_t| {
            (value.eventData, value.gpuInstanceId) = (u64::MAX - 1, TOO_MUCH);
        })
}

/// Corrupts a field: a refused one succeeds too, and some get an invalid type.
fn field(value: &mut nvmlFieldValue_t, seed: u64) {
    // SAFETY: all eight bytes are set, whatever the type.
    let all = unsafe { value.value.ullVal };
    value.timestamp = i64::MAX;
    value.latencyUsec = i64::MIN;
    value.nvmlReturn = 0;
    value.value = match value.valueType {
        DOUBLE => nvmlValue_t { dVal: double(seed) },
        3 => nvmlValue_t { ullVal: backwards(all, seed) },
        _ => nvmlValue_t { ullVal: u64::MAX },
    };
    if seed % 5 == 1 {
        value.valueType = TOO_MUCH;
    }
}

fn place<T: 'static>(pointer: *mut T) -> bool {
    on(pointer, |value: &mut nvmlPciInfo_t| {
        value.busId.fill(b'F'.cast_signed());
        value.busIdLegacy.fill(-1);
        (value.domain, value.bus, value.device) = (u32::MAX, u32::MAX, u32::MAX);
    })
}

/// Sets every word to all ones, except zeros, a version word, and what looks like an address.
fn unknown<T>(pointer: *mut T) {
    if align_of::<T>() < 4 {
        return;
    }
    let words = pointer.cast::<u32>();
    for place in 0..size_of::<T>() / 4 {
        // SAFETY: inside the structure that was written, whose alignment is at least that of a word.
        let word = unsafe { words.add(place).read_unaligned() };
        let pair = pointer.cast::<u64>().wrapping_add(place / 2);
        let inside = (place / 2 + 1) * 8 <= size_of::<T>();
        // SAFETY: the pair lies inside the structure.
        let wide = if inside { unsafe { pair.read_unaligned() } } else { 0 };
        let address = align_of::<T>() >= 8 && (0x5000_0000_0000..0x8000_0000_0000).contains(&wide);
        let version = place == 0 && word as usize & 0xFF_FFFF == size_of::<T>();
        if word != 0 && !address && !version {
            // SAFETY: as above.
            unsafe { words.add(place).write_unaligned(u32::MAX) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoilt<T: Copy + 'static>(mut value: T) -> T {
        let garbage = Distortion { garbage: Some(7), ..Distortion::default() };
        with(garbage, || written(&raw mut value));
        value
    }

    #[test]
    fn numbers_become_impossible_ones() {
        assert_eq!(spoilt(5_u32), u32::MAX);
        assert_eq!(spoilt(5_i32), i32::MIN);
        let energy = spoilt(1_000_000_u64);
        assert!(energy < 1_000_000 || energy == u64::MAX);
        assert!(!(0.0..=100.0).contains(&spoilt(50.0_f64)));
        let mut truth = 5_u32;
        written(&raw mut truth);
        assert_eq!(truth, 5);
    }

    #[test]
    fn an_unknown_structure_loses_its_words_but_not_its_addresses() {
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Some {
            version: u32,
            count: u32,
            address: u64,
            none: u64,
        }
        let some = Some { version: 1 << 24 | 24, count: 3, address: 0x7F00_1234_5678, none: 0 };
        let some = spoilt(some);
        assert_eq!((some.version, some.count), (1 << 24 | 24, u32::MAX));
        assert_eq!((some.address, some.none), (0x7F00_1234_5678, 0));
    }

    #[test]
    fn handles_are_left_alone() {
        let handle: *mut u8 = std::ptr::without_provenance_mut(0x6E76_0000_0100);
        assert_eq!(spoilt(handle), handle);
    }
}
