//! Power, its limits, and energy. Milliwatts and millijoules.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlEnableState_t;

use super::buffers::Out;
use super::gpu_calls;

gpu_calls! {
    fn nvmlDeviceGetPowerUsage(at, power: Out<c_uint>) {
        power.put(at.meters().power_usage().try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetTotalEnergyConsumption(at, energy: Out<c_ulonglong>) {
        energy.put(at.gpu.timeline.totals(at.now.elapsed).energy / 1_000)
    }

    fn nvmlDeviceGetPowerManagementMode(at, mode: Out<nvmlEnableState_t>) {
        let _ = at;
        mode.put(1)
    }

    fn nvmlDeviceGetPowerManagementLimit(at, limit: Out<c_uint>) {
        limit.put(at.gpu.board.power.limit_default * 1_000)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(at, limit: Out<c_uint>) {
        limit.put(at.gpu.board.power.limit_default * 1_000)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(at, limit: Out<c_uint>) {
        limit.put(at.gpu.board.power.limit_default * 1_000)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(at, least: Out<c_uint>, most: Out<c_uint>) {
        most.pointer()?;
        least.put(at.gpu.board.power.limit_min * 1_000)?;
        most.put(at.gpu.board.power.limit_max * 1_000)
    }
}
