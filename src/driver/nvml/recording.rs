//! Records every driver call and its result as lines of a recording.
//!
//! The types of the arguments say how to record them. Tables here list the functions that fill arrays, and the
//! arguments that change from call to call and so cannot identify it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::io::{self, Write};
use std::mem::offset_of;
use std::ops::Range;

use nvml_wrapper_sys::bindings as sys;
use parking_lot::Mutex;

use super::driver_api::{Handle, INSUFFICIENT_SIZE};
use crate::driver::record::{RecordedAnswer, RecordedValue, RecordingHead, RecordingWriter};
use crate::model::Nanoseconds;

pub struct Recorder {
    begun: Nanoseconds,
    recording: Mutex<Option<OpenRecording>>,
}

struct OpenRecording {
    writer: RecordingWriter<Box<dyn Write + Send>>,
    handles: HandleNumbers,
}

pub(super) struct RecordedCall {
    function: &'static str,
    inputs: Vec<RecordedValue>,
    array: Option<ArrayArgument>,
    /// The capacity of the array; a driver that counts more items has not written them.
    room: usize,
}

/// The driver's handles, numbered in order of first use.
#[derive(Default)]
pub(super) struct HandleNumbers(HashMap<usize, u32>);

impl HandleNumbers {
    fn number<T>(&mut self, handle: *mut T) -> RecordedValue {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        RecordedValue::Handle(*self.0.entry(handle.addr()).or_insert(next))
    }
}

impl Recorder {
    pub fn begin(to: Box<dyn Write + Send>, head: &RecordingHead, begun: Nanoseconds) -> io::Result<Self> {
        let writer = RecordingWriter::begin(to, head)?;
        let recording = OpenRecording { writer, handles: HandleNumbers::default() };
        Ok(Self { begun, recording: Mutex::new(Some(recording)) })
    }

    /// Ends the recording; returns the number of results in it, or the first error. Later calls are not
    /// recorded.
    pub fn end(&self) -> io::Result<u64> {
        match self.recording.lock().take() {
            Some(OpenRecording { writer, .. }) => {
                let written = writer.written();
                writer.end().map(|_| written)
            }
            None => Ok(0),
        }
    }

    /// The inputs of a call, taken before it, since the driver may overwrite them.
    pub(super) fn inputs<A: CallArguments>(&self, function: &'static str, arguments: &A) -> RecordedCall {
        let array = array(function);
        let room = array.map_or(0, |array| arguments.length(array.count));
        let mut inputs = Vec::new();
        self.with(|recording| {
            inputs = arguments.inputs(&mut recording.handles);
            for changing in changing_arguments(function) {
                if let Some(place) = inputs.get_mut(*changing) {
                    *place = RecordedValue::None;
                }
            }
        });
        RecordedCall { function, inputs, array, room }
    }

    /// Records the result; without a code, the library has no such function.
    pub(super) fn answer<A: CallArguments>(
        &self,
        at: Nanoseconds,
        call: RecordedCall,
        code: Option<u32>,
        arguments: &A,
    ) {
        let RecordedCall { function, inputs, array, room } = call;
        self.with(|recording| {
            // After a failed call the arguments are undefined.
            let out = match code {
                Some(0) => arguments.outputs(array, room, &mut recording.handles),
                _ => Vec::new(),
            };
            // Do not record a failure caused only by our buffer being too small.
            let lacks_room = array.is_some() && code == Some(INSUFFICIENT_SIZE);
            if !is_housekeeping(function) && !lacks_room {
                let (at, call) = (self.since_begin(at), function.into());
                recording.writer.answer(RecordedAnswer { at, call, arguments: inputs, code, out });
            }
        });
    }

    /// Records one value of a batched call by itself, since the agent in a replay may put fields into other batches. Its
    /// time is a boot time, and the device comes before its arguments.
    pub(super) fn value(&self, Handle(device): Handle, mut value: RecordedAnswer) {
        self.with(|recording| {
            value.at = self.since_begin(Nanoseconds(value.at));
            value.arguments.insert(0, recording.handles.number(device));
            recording.writer.answer(value);
        });
    }

    pub(super) fn event(&self, at: Nanoseconds, event: &sys::nvmlEventData_t) {
        let instances = [event.gpuInstanceId, event.computeInstanceId].map(u64::from);
        let values =
            [event.eventType, event.eventData].into_iter().chain(instances).map(RecordedValue::Number);
        self.with(|recording| {
            let arguments = vec![recording.handles.number(event.device)];
            let (at, call) = (self.since_begin(at), "nvmlEventData_t".into());
            let out = values.collect();
            recording.writer.event(RecordedAnswer { at, call, arguments, code: None, out });
        });
    }

    fn since_begin(&self, at: Nanoseconds) -> u64 {
        at.0.saturating_sub(self.begun.0)
    }

    fn with(&self, run: impl FnOnce(&mut OpenRecording)) {
        if let Some(recording) = self.recording.lock().as_mut() {
            run(recording);
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct ArrayArgument {
    items: usize,
    count: usize,
}

fn array(function: &str) -> Option<ArrayArgument> {
    let (items, count) = match function {
        "nvmlDeviceGetProcessUtilization" => (1, 2),
        "nvmlDeviceGetSamples" => (5, 4),
        name if name.contains("PossiblePlacements") => (2, 3),
        name if name.contains("RunningProcesses") => (2, 1),
        _ => return None,
    };
    Some(ArrayArgument { items, count })
}

/// Arguments that do not identify a call: start times, and buffers of the library.
fn changing_arguments(function: &str) -> &'static [usize] {
    match function {
        "nvmlDeviceGetProcessUtilization" => &[3],
        "nvmlDeviceGetSamples" | "nvmlDeviceRegisterEvents" | "nvmlGpmMigSampleGet" => &[2],
        "nvmlGpmSampleGet" => &[1],
        _ => &[],
    }
}

/// Whether a call only manages buffers of the library.
fn is_housekeeping(function: &str) -> bool {
    ["nvmlGpmSampleAlloc", "nvmlGpmSampleFree"].contains(&function) || function.starts_with("nvmlEventSet")
}

pub(super) trait CallArgument: Copy {
    /// The input; none for an output argument.
    fn input(self, _handles: &mut HandleNumbers) -> RecordedValue {
        RecordedValue::None
    }

    /// The output, of that many items.
    ///
    /// # Safety
    ///
    /// A pointer is one that the driver has just filled with at least that many items.
    unsafe fn output(self, _items: usize, _handles: &mut HandleNumbers) -> RecordedValue {
        RecordedValue::None
    }

    /// The number in an argument that may be the length of an array.
    ///
    /// # Safety
    ///
    /// A pointer is one to a live value.
    unsafe fn length(self) -> usize {
        1
    }

    /// Whether it is a buffer whose length is the next argument.
    const IS_TEXT: bool = false;
}

/// Numbers and structures that a call fills, recorded byte by byte.
trait Plain: Sized {
    /// Bytes recorded as 0: padding, since leftover bytes would make every result look changed, and addresses.
    const GAPS: &'static [Range<usize>];
    /// Whether the first word is the requested version, which is part of the input.
    const IS_VERSIONED: bool = false;

    /// The number behind the pointer, if it may be the length of an array.
    ///
    /// # Safety
    ///
    /// The pointer is one to a live value.
    unsafe fn length(_: *mut Self) -> usize {
        1
    }
}

macro_rules! plain {
    ($($kind:ty: $role:ident [$($last:ident .. $next:tt),*];)*) => { $(
        impl Plain for $kind {
            const GAPS: &'static [Range<usize>] = &[$(plain!(@gap $kind, $last, $next)),*];
            const IS_VERSIONED: bool = plain!(@is $role);
        }
    )* };
    (@is filled) => { false };
    (@is versioned) => { true };
    (@gap $kind:ty, $last:ident, end) => { after!($kind, $last)..size_of::<$kind>() };
    (@gap $kind:ty, $last:ident, $next:ident) => { after!($kind, $last)..offset_of!($kind, $next) };
}

/// The end of a field.
macro_rules! after {
    ($kind:ty, $field:ident) => {
        offset_of!($kind, $field) + size_of_field(|value: &$kind| &raw const value.$field)
    };
}

const fn size_of_field<S, F>(_: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

plain! {
    u64: filled [];
    i32: filled [];
    sys::nvmlUtilization_t: filled [];
    sys::nvmlMemory_t: filled [];
    sys::nvmlBAR1Memory_t: filled [];
    sys::nvmlPciInfo_t: filled [];
    sys::nvmlDeviceAttributes_t: filled [];
    sys::nvmlSample_t: filled [];
    sys::nvmlRowRemapperHistogramValues_t: filled [];
    sys::nvmlGpuInstancePlacement_t: filled [];
    sys::nvmlGpuInstanceProfileInfo_t: filled [];
    sys::nvmlProcessInfo_t: filled [pid..usedGpuMemory];
    sys::nvmlProcessInfo_v1_t: filled [pid..usedGpuMemory];
    sys::nvmlProcessUtilizationSample_t: filled [pid..timeStamp];
    sys::nvmlGpuFabricInfo_t: filled [state..end];
    sys::nvmlMemory_v2_t: versioned [version..total];
    sys::nvmlMarginTemperature_t: versioned [];
    sys::nvmlTemperature_v1_t: versioned [];
    sys::nvmlGpmSupport_t: versioned [];
    sys::nvmlEccSramErrorStatus_v1_t: versioned [version..aggregateUncParity, bThresholdExceeded..end];
    sys::nvmlGpuFabricInfo_v3_t: versioned [state..healthMask, healthSummary..end];
    sys::nvmlPlatformInfo_v2_t: versioned [moduleId..end];
}

impl Plain for u32 {
    const GAPS: &'static [Range<usize>] = &[];

    unsafe fn length(pointer: *mut Self) -> usize {
        // SAFETY: by the contract of this function it leads to a live value.
        if pointer.is_null() { 0 } else { unsafe { pointer.read() as usize } }
    }
}

/// It begins with the handle of the GPU, an address without meaning in a replay.
const GPU_OF_INSTANCE: Range<usize> = 0..offset_of!(sys::nvmlGpuInstanceInfo_t, id);

impl Plain for sys::nvmlGpuInstanceInfo_t {
    const GAPS: &'static [Range<usize>] = &[GPU_OF_INSTANCE];
}

impl<T: Plain> CallArgument for *mut T {
    fn input(self, _: &mut HandleNumbers) -> RecordedValue {
        if !T::IS_VERSIONED || self.is_null() {
            return RecordedValue::None;
        }
        // SAFETY: the author of the call promises that it leads to a live structure.
        RecordedValue::Number(unsafe { self.cast::<u32>().read() }.into())
    }

    unsafe fn output(self, items: usize, _: &mut HandleNumbers) -> RecordedValue {
        // SAFETY: by the contract of this function that many items are there.
        unsafe { bytes(self, items) }
    }

    unsafe fn length(self) -> usize {
        // SAFETY: the caller guarantees what `T::length` requires.
        unsafe { T::length(self) }
    }
}

/// The bytes behind a pointer.
///
/// # Safety
///
/// That many items are there, and all their fields are set.
unsafe fn bytes<T: Plain>(pointer: *mut T, items: usize) -> RecordedValue {
    if pointer.is_null() {
        return RecordedValue::None;
    }
    let mut all = Vec::with_capacity(items * size_of::<T>());
    for item in 0..items {
        for place in 0..size_of::<T>() {
            let is_set = T::GAPS.iter().all(|gap| !gap.contains(&place));
            // SAFETY: the caller guarantees that the items exist; this byte belongs to a field and not to padding.
            all.push(if is_set { unsafe { pointer.add(item).cast::<u8>().add(place).read() } } else { 0 });
        }
    }
    RecordedValue::bytes(&all)
}

macro_rules! number {
    ($($kind:ty),*) => { $(
        impl CallArgument for $kind {
            fn input(self, _: &mut HandleNumbers) -> RecordedValue {
                RecordedValue::Number(self as u64)
            }

            unsafe fn length(self) -> usize {
                self as usize
            }
        }
    )* };
}

number!(u32, u64, i32);

macro_rules! handle {
    ($($kind:ty),*) => { $(
        impl CallArgument for $kind {
            fn input(self, handles: &mut HandleNumbers) -> RecordedValue {
                handles.number(self)
            }
        }

        impl CallArgument for *mut $kind {
            unsafe fn output(self, _: usize, handles: &mut HandleNumbers) -> RecordedValue {
                // SAFETY: by the contract of this function the driver has filled it.
                if self.is_null() { RecordedValue::None } else { handles.number(unsafe { self.read() }) }
            }
        }
    )* };
}

handle!(sys::nvmlDevice_t, sys::nvmlGpuInstance_t, sys::nvmlGpmSample_t, sys::nvmlEventSet_t);

impl CallArgument for *const c_char {
    fn input(self, _: &mut HandleNumbers) -> RecordedValue {
        if self.is_null() {
            return RecordedValue::None;
        }
        // SAFETY: the callers of `DriverApi` end their texts with NUL.
        RecordedValue::Text(unsafe { CStr::from_ptr(self) }.to_string_lossy().into_owned())
    }
}

/// A buffer for a text, whose length is the next argument.
impl CallArgument for *mut c_char {
    const IS_TEXT: bool = true;

    unsafe fn output(self, items: usize, _: &mut HandleNumbers) -> RecordedValue {
        if self.is_null() {
            return RecordedValue::None;
        }
        // SAFETY: by the contract of this function that many bytes are there.
        let bytes = unsafe { std::slice::from_raw_parts(self.cast::<u8>(), items) };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(items);
        RecordedValue::Text(String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned())
    }
}

/// Recorded value by value, since each has its own code.
impl CallArgument for *mut sys::nvmlFieldValue_t {}
impl CallArgument for *mut sys::nvmlGpmMetricsGet_t {}

/// Recorded as an event.
impl CallArgument for *mut sys::nvmlEventData_t {}

pub(super) trait CallArguments {
    fn inputs(&self, handles: &mut HandleNumbers) -> Vec<RecordedValue>;
    /// The number in the argument at a place.
    fn length(&self, place: usize) -> usize;
    /// The outputs of a successful call, one for each argument.
    fn outputs(
        &self,
        array: Option<ArrayArgument>,
        room: usize,
        handles: &mut HandleNumbers,
    ) -> Vec<RecordedValue>;
}

pub(super) trait RawFunction<A> {
    /// Calls it.
    ///
    /// # Safety
    ///
    /// Handles are the library's own, and pointers lead to live values of the types that the header names.
    unsafe fn invoke(self, arguments: &A) -> sys::nvmlReturn_t;
}

macro_rules! arity {
    ($($kind:ident $place:tt),*) => {
        impl<$($kind: CallArgument),*> CallArguments for ($($kind,)*) {
            fn inputs(&self, handles: &mut HandleNumbers) -> Vec<RecordedValue> {
                vec![$(self.$place.input(handles)),*]
            }

            fn length(&self, place: usize) -> usize {
                // SAFETY: the arguments are those of a call, so pointers lead to live values.
                let lengths: &[usize] = unsafe { &[$(self.$place.length()),*] };
                lengths.get(place).copied().unwrap_or(0)
            }

            fn outputs(&self, array: Option<ArrayArgument>, room: usize, handles: &mut HandleNumbers) -> Vec<RecordedValue> {
                let items = |place: usize, is_text: bool| match array {
                    Some(array) if array.items == place => self.length(array.count).min(room),
                    _ if is_text => self.length(place + 1),
                    _ => 1,
                };
                // SAFETY: the call succeeded, so every pointer has been filled, and arrays have that room.
                unsafe { vec![$(self.$place.output(items($place, $kind::IS_TEXT), handles)),*] }
            }
        }

        impl<$($kind: Copy),*> RawFunction<($($kind,)*)> for unsafe extern "C" fn($($kind),*) -> sys::nvmlReturn_t {
            unsafe fn invoke(self, arguments: &($($kind,)*)) -> sys::nvmlReturn_t {
                // SAFETY: the caller's promise is this function's.
                unsafe { self($(arguments.$place),*) }
            }
        }
    };
}

arity!(A 0);
arity!(A 0, B 1);
arity!(A 0, B 1, C 2);
arity!(A 0, B 1, C 2, D 3);
arity!(A 0, B 1, C 2, D 3, E 4);
arity!(A 0, B 1, C 2, D 3, E 4, F 5);

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn what_stood_between_the_fields_is_not_taken_down() {
        let mut memory = MaybeUninit::<sys::nvmlMemory_v2_t>::uninit();
        let place = memory.as_mut_ptr();
        // SAFETY: the bytes are those of the structure, whose fields are integers.
        let taken = unsafe {
            place.write_bytes(0xaa, 1);
            (&raw mut (*place).version).write(0x0102_0304);
            for field in [&raw mut (*place).total, &raw mut (*place).reserved] {
                field.write(7);
            }
            bytes(place, 1)
        };
        let RecordedValue::Bytes(digits) = taken else { panic!("it is a structure") };
        assert_eq!(&digits[..32], "04030201000000000700000000000000");
        assert_eq!(digits.len(), 80);
    }

    #[test]
    fn gaps_lie_where_the_fields_leave_them() {
        let gaps = [
            <sys::nvmlProcessInfo_t as Plain>::GAPS,
            <sys::nvmlProcessUtilizationSample_t as Plain>::GAPS,
            <sys::nvmlGpuFabricInfo_t as Plain>::GAPS,
        ];
        assert_eq!(gaps.concat(), [4..8, 4..8, 25..28]);
    }
}
