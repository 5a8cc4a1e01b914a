//! Utilization of a GPU and of its encoder, decoder, JPEG and optical-flow engines.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlUtilization_t;

use super::answer::Answer;
use super::buffers::Out;
use super::{Device, gpu_calls};

gpu_calls! {
    fn nvmlDeviceGetUtilizationRates(at, utilization: Out<nvmlUtilization_t>) {
        at.undivided()?;
        let now = at.meters().utilization();
        utilization.put(nvmlUtilization_t { gpu: now.gpu, memory: now.memory })
    }

    fn nvmlDeviceGetEncoderUtilization(at, percent: Out<c_uint>, period: Out<c_uint>) {
        put(at, percent, period, at.meters().utilization().encoder)
    }

    fn nvmlDeviceGetDecoderUtilization(at, percent: Out<c_uint>, period: Out<c_uint>) {
        put(at, percent, period, at.meters().utilization().decoder)
    }

    // Real boards answer 0, not "not supported", for engines that nothing uses.
    fn nvmlDeviceGetJpgUtilization(at, percent: Out<c_uint>, period: Out<c_uint>) {
        put(at, percent, period, at.meters().utilization().jpeg)
    }

    fn nvmlDeviceGetOfaUtilization(at, percent: Out<c_uint>, period: Out<c_uint>) {
        put(at, percent, period, at.meters().utilization().ofa)
    }
}

fn put(at: &Device<'_>, percent: Out<c_uint>, period: Out<c_uint>, value: u32) -> Answer {
    at.undivided()?;
    period.pointer()?;
    percent.put(value)?;
    let microseconds = at.gpu.board.utilization_window / 1_000;
    period.put(microseconds.try_into().unwrap_or(c_uint::MAX))
}
