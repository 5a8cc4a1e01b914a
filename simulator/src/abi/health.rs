//! ECC, row remapping, retired pages: a board in good health.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEccCounterType_t, nvmlEnableState_t, nvmlMemoryErrorType_t, nvmlMemoryLocation_t,
    nvmlPageRetirementCause_t, nvmlRowRemapperHistogramValues_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::Out;
use super::{Device, device_calls, gpu_calls};

gpu_calls! {
    fn nvmlDeviceGetEccMode(at, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>) {
        let _ = at;
        pending.pointer()?;
        current.put(1)?;
        pending.put(1)
    }

    fn nvmlDeviceGetDefaultEccMode(at, mode: Out<nvmlEnableState_t>) {
        let _ = at;
        mode.put(1)
    }

    // Not answered in MIG mode, while the histogram is.
    fn nvmlDeviceGetRemappedRows(
        at,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>
    ) {
        at.undivided()?;
        remapped(at)?;
        for value in [corrected, uncorrected, pending, failed] {
            value.put(0)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetRowRemapperHistogram(at, values: Out<nvmlRowRemapperHistogramValues_t>) {
        remapped(at)?;
        values.put(nvmlRowRemapperHistogramValues_t {
            max: at.gpu.board.remap_banks,
            high: 0,
            partial: 0,
            low: 0,
            none: 0,
        })
    }

    // Rows are remapped since Ampere; pages are not retired.
    fn nvmlDeviceGetRetiredPages(
        at,
        _cause: nvmlPageRetirementCause_t,
        _count: Out<c_uint>,
        _addresses: Out<c_ulonglong>
    ) {
        let _ = at;
        Err(NOT_SUPPORTED)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(at, _pending: Out<nvmlEnableState_t>) {
        let _ = at;
        Err(NOT_SUPPORTED)
    }
}

device_calls! {
    fn nvmlDeviceGetTotalEccErrors(
        _,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: Out<c_ulonglong>
    ) {
        if kind > 1 || counter > 1 {
            return Err(INVALID_ARGUMENT);
        }
        count.put(0)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        at,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        location: nvmlMemoryLocation_t,
        count: Out<c_ulonglong>
    ) {
        // An instance has only the uncorrected errors of its SRAM since the driver was loaded.
        let sram_now = kind == 1 && counter == 0 && location == 7;
        match (kind, counter, location) {
            (2.., _, _) | (_, 2.., _) | (_, _, 8..) => Err(INVALID_ARGUMENT),
            _ if at.instance.is_some() && !sram_now => Err(NOT_SUPPORTED),
            // Only DRAM and SRAM are told apart since Ampere.
            (_, _, 2 | 7) => count.put(0),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// Turing retires pages instead.
fn remapped(at: &Device<'_>) -> Answer {
    if at.gpu.board.remap_banks == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
}
