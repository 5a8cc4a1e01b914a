//! MIG: modes, device handles of instances, their ids and attributes.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use super::buffers::Out;
use super::{Device, device_calls, gpu_calls, handle};
use crate::board::family;

gpu_calls! {
    fn nvmlDeviceGetMigMode(at, current: Out<c_uint>, pending: Out<c_uint>) {
        if at.gpu.board.mig_slices == 0 {
            return Err(NOT_SUPPORTED);
        }
        let on = c_uint::from(at.gpu.divided);
        pending.pointer()?;
        current.put(on)?;
        pending.put(on)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(at, count: Out<c_uint>) {
        // "Zero if MIG is not supported or enabled", says the header.
        count.put(if at.gpu.divided { at.gpu.board.mig_slices } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(at, index: c_uint, device: Out<nvmlDevice_t>) {
        if !at.gpu.divided {
            return Err(NOT_SUPPORTED);
        }
        if index >= at.gpu.board.mig_slices {
            return Err(INVALID_ARGUMENT);
        }
        // Empty slots answer so on real boards.
        at.gpu.instances.get(index as usize).ok_or(NOT_FOUND)?;
        device.put(handle(at.gpu, Some(index as usize)))
    }
}

device_calls! {
    fn nvmlDeviceIsMigDeviceHandle(at, is: Out<c_uint>) {
        is.put(at.instance.is_some().into())
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(at, device: Out<nvmlDevice_t>) {
        at.instance.ok_or(INVALID_ARGUMENT)?;
        device.put(handle(at.gpu, None))
    }

    fn nvmlDeviceGetGpuInstanceId(at, id: Out<c_uint>) {
        id.put(at.instance.ok_or(NOT_SUPPORTED)?.id)
    }

    fn nvmlDeviceGetComputeInstanceId(at, id: Out<c_uint>) {
        id.put(at.instance.ok_or(NOT_SUPPORTED)?.compute)
    }

    fn nvmlDeviceGetAttributes_v2(at, attributes: Out<nvmlDeviceAttributes_t>) {
        put_attributes(at, attributes)
    }

    fn nvmlDeviceGetAttributes(at, attributes: Out<nvmlDeviceAttributes_t>) {
        put_attributes(at, attributes)
    }
}

fn put_attributes(at: &Device<'_>, attributes: Out<nvmlDeviceAttributes_t>) -> Answer {
    let instance = at.instance.ok_or(NOT_SUPPORTED)?;
    let profile = instance.profile;
    attributes.put(nvmlDeviceAttributes_t {
        multiprocessorCount: instance.sms,
        sharedCopyEngineCount: profile.copy_engines,
        sharedDecoderCount: profile.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: family::jpegs(at.gpu.board, profile),
        sharedOfaCount: profile.ofa,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: instance.compute_slices,
        memorySizeMB: profile.memory_mib,
    })
}
