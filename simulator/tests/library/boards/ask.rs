//! Calls that nvml-wrapper's safe layer lacks or changes.

use std::mem;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;

/// Calls a function of the library's table with valid arguments.
macro_rules! ask {
    ($gpu:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: the handle is the library's own, and every pointer is to a value of its caller.
        unsafe { ($gpu.nvml().lib().$function.as_ref().unwrap())($crate::boards::ask::raw($gpu), $($argument),*) }
    };
}

pub(crate) use ask;

pub(crate) fn raw(gpu: &Device<'_>) -> sys::nvmlDevice_t {
    // SAFETY: it is only passed back to the library that gave it.
    unsafe { gpu.handle() }
}

/// A number or the return code.
pub(crate) fn number(of: impl FnOnce(*mut u32) -> u32) -> Result<u32, u32> {
    let mut value = 0;
    match of(&raw mut value) {
        0 => Ok(value),
        code => Err(code),
    }
}

/// A field's eight bytes or its return code.
pub(crate) fn field_value(gpu: &Device<'_>, field: u32, scope: u32) -> Result<u64, u32> {
    // SAFETY: integers and a union of numbers may all be zero.
    let mut value: sys::nvmlFieldValue_t = unsafe { mem::zeroed() };
    (value.fieldId, value.scopeId) = (field, scope);
    assert_eq!(ask!(gpu, nvmlDeviceGetFieldValues(1, &raw mut value)), 0);
    // SAFETY: the library sets all eight bytes.
    if value.nvmlReturn == 0 { Ok(unsafe { value.value.ullVal }) } else { Err(value.nvmlReturn) }
}

/// The number of graphics clocks of a memory clock; nvml-wrapper's own call stops at 128.
pub(crate) fn graphics_clocks(gpu: &Device<'_>, memory: u32) -> usize {
    let (mut count, mut clocks) = (300, [0; 300]);
    let list = clocks.as_mut_ptr();
    assert_eq!(ask!(gpu, nvmlDeviceGetSupportedGraphicsClocks(memory, &raw mut count, list)), 0);
    count as usize
}

/// The temperature margin or the return code.
pub(crate) fn margin(gpu: &Device<'_>) -> Result<i32, u32> {
    let version = u32::try_from(size_of::<sys::nvmlMarginTemperature_v1_t>()).unwrap() | 1 << 24;
    let mut asked = sys::nvmlMarginTemperature_v1_t { version, marginTemperature: 0 };
    match ask!(gpu, nvmlDeviceGetMarginTemperature(&raw mut asked)) {
        0 => Ok(asked.marginTemperature),
        code => Err(code),
    }
}

/// Banks that can remap rows.
pub(crate) fn remap_banks(gpu: &Device<'_>) -> Option<u32> {
    let mut seen = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    (ask!(gpu, nvmlDeviceGetRowRemapperHistogram(&raw mut seen)) == 0).then_some(seen.max)
}

/// Whether the C2C link is enabled; `None` if it is not supported.
pub(crate) fn c2c(gpu: &Device<'_>) -> Option<bool> {
    let mut seen = sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: 9 };
    (ask!(gpu, nvmlDeviceGetC2cModeInfoV(&raw mut seen)) == 0).then_some(seen.isC2cEnabled == 1)
}
