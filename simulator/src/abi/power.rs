//! Power, its limits, and energy. Milliwatts and millijoules.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlEnableState_t, nvmlPowerSource_t};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused};
use super::buffers::Out;
use super::{Device, gpu_calls};
use crate::board::family;
use crate::meters::Meters;
use crate::node::Gpu;

gpu_calls! {
    fn nvmlDeviceGetPowerUsage(at, power: Out<c_uint>) {
        power.put(at.meters().power_usage().try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetTotalEnergyConsumption(at, energy: Out<c_ulonglong>) {
        energy.put(at.gpu.timeline.counted(at.now.elapsed).energy / 1_000)
    }

    fn nvmlDeviceGetPowerManagementMode(at, mode: Out<nvmlEnableState_t>) {
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

    fn nvmlDeviceGetPowerSource(at, source: Out<nvmlPowerSource_t>) {
        source.put(0)
    }
}

/// Milliwatts of the GPU (scope 0), its module (1) or its memory (2): the mean of a second or the instant. Every
/// board reports its GPU's instant; the memory has only the mean.
pub(super) fn scoped_power(at: &Device<'_>, average: bool, scope: c_uint) -> Result<u32, Refused> {
    let board = at.gpu.board;
    let of = |meters: &Meters<'_>| if average { meters.power_average() } else { meters.power_instant() };
    let milliwatts = match scope {
        0 if average && !board.power_average => return Err(NOT_SUPPORTED),
        0 => of(&at.meters()),
        1 => {
            let rest = u64::from(board.module_power.ok_or(NOT_SUPPORTED)?.rest) * 1_000;
            // Each GPU reports the whole module: a sum over GPUs would count it twice.
            rest + neighbours(at).map(|gpu| of(&Device { gpu, instance: None, ..*at }.meters())).sum::<u64>()
        }
        2 if average => at.meters().memory_power(of(&at.meters())).ok_or(NOT_SUPPORTED)?,
        2 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_ARGUMENT),
    };
    Ok(u32::try_from(milliwatts).unwrap_or(u32::MAX))
}

/// The GPUs on the same module, this one included.
pub(super) fn neighbours<'a>(at: &Device<'a>) -> impl Iterator<Item = &'a Gpu> {
    let module = at.gpu.slot / 2;
    at.node.gpus.iter().filter(move |gpu| gpu.slot / 2 == module)
}

/// Power limits of a scope in watts: minimum, maximum, current.
pub(super) fn scoped_limits(at: &Device<'_>, scope: c_uint) -> Result<(u32, u32, u32), Refused> {
    let board = at.gpu.board;
    match (scope, board.module_power) {
        (0, _) if family::is_integrated(board) => Err(NOT_SUPPORTED),
        (0, _) => Ok((board.power.limit_min, board.power.limit_max, board.power.limit_default)),
        (1, Some(module)) => Ok((module.limit_min, module.limit_max, module.limit_max)),
        (1 | 2, _) => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
}
