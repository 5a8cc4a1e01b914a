//! Utilization of a GPU and of its encoder, decoder, JPEG and optical-flow engines.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1, nvmlGpuDynamicPstatesInfo_t, nvmlUtilization_t,
};

use super::answer::Answer;
use super::buffers::Out;
use super::{Device, gpu_calls};

gpu_calls! {
    fn nvmlDeviceGetUtilizationRates(at, utilization: Out<nvmlUtilization_t>) {
        at.undivided()?;
        let now = at.meters().utilization();
        utilization.put(nvmlUtilization_t { gpu: now.gpu, memory: now.memory })
    }

    fn nvmlDeviceGetDynamicPstatesInfo(at, info: Out<nvmlGpuDynamicPstatesInfo_t>) {
        at.undivided()?;
        let now = at.meters().utilization();
        let domain = |present, percentage| nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1 {
            bIsPresent: present,
            percentage,
            incThreshold: 0,
            decThreshold: 0,
        };
        // GPU, frame buffer, video, bus; the other places are empty.
        let mut utilization = [domain(0, 0); 8];
        let shown = [now.gpu, now.memory, now.encoder.max(now.decoder), 0];
        for (place, percent) in utilization.iter_mut().zip(shown) {
            *place = domain(1, percent);
        }
        info.put(nvmlGpuDynamicPstatesInfo_t { flags: 0, utilization })
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
