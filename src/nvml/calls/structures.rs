//! Functions that return several values in a structure.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::super::driver_api::{CallError, DriverApi, Handle, call};
use super::{CallResult, CallValues, word};
use crate::model::Absence;

/// The sensor of the GPU's core.
pub(super) const GPU_SENSOR: c_uint = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;

/// The version field of a structure: its size and the number of its layout.
pub(crate) fn version<T>(number: u32) -> c_uint {
    u32::try_from(size_of::<T>()).unwrap_or(0) | (number << 24)
}

pub(super) fn utilization(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
    call!(api, nvmlDeviceGetUtilizationRates(device, &raw mut rates))?;
    Ok(CallValues::of_words([rates.gpu, rates.memory]))
}

/// Total, used, free, reserved. Drivers before 510 have only the first version, which has no reserved memory.
pub(crate) fn memory(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let version = version::<sys::nvmlMemory_v2_t>(2);
    let mut second = sys::nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    let answer = call!(api, nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
    match answer.map_err(Absence::from) {
        Ok(()) => Ok(CallValues::of([second.total, second.used, second.free, second.reserved])),
        Err(absence) if absence.is_permanent() => {
            let mut first = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
            call!(api, nvmlDeviceGetMemoryInfo(device, &raw mut first))?;
            Ok(CallValues::of([first.total, first.used, first.free]))
        }
        Err(absence) => Err(absence),
    }
}

pub(super) fn bar1(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut memory = sys::nvmlBAR1Memory_t { bar1Total: 0, bar1Free: 0, bar1Used: 0 };
    call!(api, nvmlDeviceGetBAR1MemoryInfo(device, &raw mut memory))?;
    Ok(CallValues::of([memory.bar1Total, memory.bar1Used]))
}

pub(super) fn power_limits(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let (mut least, mut most): (c_uint, c_uint) = (0, 0);
    call!(api, nvmlDeviceGetPowerManagementLimitConstraints(device, &raw mut least, &raw mut most))?;
    Ok(CallValues::of_words([least, most]))
}

pub(super) fn temperature(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let version = version::<sys::nvmlTemperature_v1_t>(1);
    let mut answer = sys::nvmlTemperature_v1_t { version, sensorType: GPU_SENSOR, temperature: 0 };
    call!(api, nvmlDeviceGetTemperatureV(device, &raw mut answer))?;
    // No data centre is below zero.
    Ok(CallValues::of([u64::try_from(answer.temperature).map_err(|_| Absence::Rejected)?]))
}

/// SRAM errors since the driver was loaded and over the board's life; uncorrected ones are counted by their
/// detection, parity or SEC-DED.
pub(super) fn sram(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut status: sys::nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    status.version = version::<sys::nvmlEccSramErrorStatus_v1_t>(1);
    call!(api, nvmlDeviceGetSramEccErrorStatus(device, &raw mut status))?;
    Ok(CallValues::of([
        status.volatileCor,
        status.volatileUncParity.saturating_add(status.volatileUncSecDed),
        status.aggregateCor,
        status.aggregateUncParity.saturating_add(status.aggregateUncSecDed),
        word(status.bThresholdExceeded),
    ]))
}

pub(super) fn remap(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut rows: [c_uint; 4] = [0; 4];
    let [correctable, uncorrectable, pending, failure] = rows.each_mut().map(std::ptr::from_mut);
    call!(api, nvmlDeviceGetRemappedRows(device, correctable, uncorrectable, pending, failure))?;
    Ok(CallValues::of_words(rows))
}

pub(super) fn banks(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut banks = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    call!(api, nvmlDeviceGetRowRemapperHistogram(device, &raw mut banks))?;
    Ok(CallValues::of_words([banks.max, banks.high, banks.partial, banks.low, banks.none]))
}

/// The state of a GPU in its NVLink fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FabricState {
    state: u32,
    status: u32,
    /// All zero on a fabric of one node.
    pub(crate) cluster: [u8; 16],
    pub(crate) clique: u32,
}

/// NVML's number of a registration that ended.
const COMPLETED: u32 = sys::NVML_GPU_FABRIC_STATE_COMPLETED;

impl FabricState {
    /// Whether the registration is not started, in progress, completed, failed. NVML has one number for the last
    /// two and an error code beside it.
    pub(super) fn states(self) -> [bool; 4] {
        let ended = self.state == COMPLETED;
        [
            self.state == sys::NVML_GPU_FABRIC_STATE_NOT_STARTED,
            self.state == sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS,
            ended && self.status == 0,
            ended && self.status != 0,
        ]
    }

    /// Whether the GPU belongs to a fabric.
    pub(crate) const fn is_complete(self) -> bool {
        self.state == COMPLETED
    }

    fn known(self) -> Result<Self, Absence> {
        match self.state {
            sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => Err(Absence::NotSupported),
            state if state > COMPLETED => Err(Absence::Rejected),
            _ => Ok(self),
        }
    }
}

/// The GPU's state in its NVLink fabric; absent on boards without one.
pub(crate) fn fabric(api: &mut DriverApi, Handle(device): Handle) -> Result<FabricState, Absence> {
    for (number, size) in
        [(3, size_of::<sys::nvmlGpuFabricInfo_v3_t>()), (2, size_of::<sys::nvmlGpuFabricInfo_v2_t>())]
    {
        // SAFETY: the structure is integers, for all of which zero is a value.
        let mut info: sys::nvmlGpuFabricInfo_v3_t = unsafe { std::mem::zeroed() };
        // The second layout is the beginning of the third.
        info.version = u32::try_from(size).unwrap_or(0) | (number << 24);
        match call!(api, nvmlDeviceGetGpuFabricInfoV(device, &raw mut info)) {
            Ok(()) => {
                let sys::nvmlGpuFabricInfo_v3_t { state, status, clusterUuid, cliqueId, .. } = info;
                let fabric =
                    FabricState { state: state.into(), status, cluster: clusterUuid, clique: cliqueId };
                return fabric.known();
            }
            Err(
                CallError::NoSymbol | CallError::Code(super::super::driver_api::ARGUMENT_VERSION_MISMATCH),
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut info: sys::nvmlGpuFabricInfo_t = unsafe { std::mem::zeroed() };
    call!(api, nvmlDeviceGetGpuFabricInfo(device, &raw mut info))?;
    let sys::nvmlGpuFabricInfo_t { state, status, clusterUuid, cliqueId } = info;
    FabricState { state: state.into(), status, cluster: clusterUuid, clique: cliqueId }.known()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_that_ended_in_an_error_is_not_completed() {
        let fabric = |state, status| FabricState { state, status, cluster: [0; 16], clique: 0 };
        for (place, (state, status)) in [(1, 0), (2, 0), (3, 0), (3, 17)].into_iter().enumerate() {
            let states = fabric(state, status).states();
            assert_eq!(states.iter().position(|is_so| *is_so), Some(place));
            assert_eq!(states.iter().filter(|is_so| **is_so).count(), 1);
        }
        assert_eq!(fabric(9, 0).known(), Err(Absence::Rejected));
        assert_eq!(fabric(0, 0).known(), Err(Absence::NotSupported));
    }
}
