//! Calls through the raw function table, for functions that nvml-wrapper does not wrap.

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;

pub(crate) const INVALID_ARGUMENT: u32 = 2;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NOT_FOUND: u32 = 6;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const VERSION_MISMATCH: u32 = 25;

/// Calls a function of the table; the arguments are the test's own and valid.
macro_rules! call {
    ($nvml:expr, $name:ident, $($argument:expr),*) => {
        unsafe { ($nvml.lib().$name.as_ref().unwrap())($($argument),*) }
    };
}
pub(crate) use call;

pub(crate) fn gpu(nvml: &Nvml, index: u32) -> sys::nvmlDevice_t {
    unsafe { nvml.device_by_index(index).unwrap().handle() }
}

/// The MIG device at an index.
pub(crate) fn instance(nvml: &Nvml, gpu: sys::nvmlDevice_t, index: u32) -> sys::nvmlDevice_t {
    let mut handle = std::ptr::null_mut();
    assert_eq!(call!(nvml, nvmlDeviceGetMigDeviceHandleByIndex, gpu, index, &raw mut handle), 0);
    handle
}

/// A field's value or return code.
pub(crate) fn field(nvml: &Nvml, gpu: sys::nvmlDevice_t, field: u32, scope: u32) -> Result<u64, u32> {
    let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    (value.fieldId, value.scopeId) = (field, scope);
    assert_eq!(call!(nvml, nvmlDeviceGetFieldValues, gpu, 1, &raw mut value), 0);
    if value.nvmlReturn == 0 { Ok(unsafe { value.value.ullVal }) } else { Err(value.nvmlReturn) }
}

/// The version word of a structure.
pub(crate) fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap() | number << 24
}

/// A new GPM sample of a GPU or an instance.
pub(crate) fn sample(nvml: &Nvml, device: sys::nvmlDevice_t) -> sys::nvmlGpmSample_t {
    let mut sample = std::ptr::null_mut();
    assert_eq!(call!(nvml, nvmlGpmSampleAlloc, &raw mut sample), 0);
    assert_eq!(call!(nvml, nvmlGpmSampleGet, device, sample), 0);
    sample
}

/// GPM metrics between two samples: values or return codes.
pub(crate) fn between(
    nvml: &Nvml,
    first: sys::nvmlGpmSample_t,
    second: sys::nvmlGpmSample_t,
    ids: &[u32],
) -> Vec<Result<f64, u32>> {
    let mut request: Box<sys::nvmlGpmMetricsGet_t> = Box::new(unsafe { std::mem::zeroed() });
    request.version = 1;
    request.numMetrics = u32::try_from(ids.len()).unwrap();
    (request.sample1, request.sample2) = (first, second);
    for (metric, id) in request.metrics.iter_mut().zip(ids) {
        metric.metricId = *id;
    }
    assert_eq!(call!(nvml, nvmlGpmMetricsGet, &raw mut *request), 0);
    let asked = request.metrics.iter().take(ids.len());
    asked
        .map(|metric| if metric.nvmlReturn == 0 { Ok(metric.value) } else { Err(metric.nvmlReturn) })
        .collect()
}
