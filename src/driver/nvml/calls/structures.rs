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

pub(super) fn banks(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut banks = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    call!(api, nvmlDeviceGetRowRemapperHistogram(device, &raw mut banks))?;
    Ok(CallValues::of_words([banks.max, banks.high, banks.partial, banks.low, banks.none]))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FabricState {
    state: u32,
    status: u32,
    /// All zero on a fabric of one node.
    pub(crate) cluster: [u8; 16],
    pub(crate) clique: u32,
    /// NVML's mask of what is wrong, and its summary; 0 where the driver or the fabric does not say.
    health_mask: u32,
    health_summary: u8,
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

    /// What the fabric says of the GPU, each 1 or 0, absent where it does not say: whether its bandwidth is degraded, a
    /// route is being recovered, a route is unhealthy, it recovers from an access that timed out, its configuration
    /// is incorrect; whether it is healthy, unhealthy, of limited capacity; and the mask itself.
    pub(super) fn health(self) -> Result<[Option<u64>; 9], Absence> {
        if self.health_mask == 0 && self.health_summary == 0 {
            // A GPU that is not registered yet has no health.
            return Err(if self.is_complete() { Absence::NotSupported } else { Absence::NotYet });
        }
        let part = |shift: u32, width: u32| (self.health_mask >> shift) & width;
        let is_so = |shift, width| match part(shift, width) {
            sys::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE => Some(1),
            sys::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE => Some(0),
            _ => None,
        };
        let configuration = match part(
            sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION,
            sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION,
        ) {
            sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NOT_SUPPORTED => None,
            part => Some(u64::from(part != sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE)),
        };
        let summary = |state: u32| match u32::from(self.health_summary) {
            sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED => None,
            summary => Some(u64::from(summary == state)),
        };
        Ok([
            is_so(
                sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
                sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
            ),
            is_so(
                sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
                sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY,
            ),
            is_so(
                sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
                sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
            ),
            is_so(
                sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
                sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY,
            ),
            configuration,
            summary(sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY),
            summary(sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY),
            summary(sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY),
            Some(self.health_mask.into()).filter(|mask| *mask > 0),
        ])
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
                let fabric = FabricState {
                    state: state.into(),
                    status,
                    cluster: clusterUuid,
                    clique: cliqueId,
                    health_mask: info.healthMask,
                    health_summary: info.healthSummary,
                };
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
    let (state, cluster, clique) = (state.into(), clusterUuid, cliqueId);
    FabricState { state, status, cluster, clique, health_mask: 0, health_summary: 0 }.known()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(state: u32, status: u32) -> FabricState {
        let (health_mask, health_summary) = (0, 0);
        FabricState { state, status, cluster: [0; 16], clique: 0, health_mask, health_summary }
    }

    #[test]
    fn each_part_of_the_fabrics_health_is_so_is_not_so_or_is_not_known() {
        let health = |health_mask, health_summary| {
            FabricState { health_mask, health_summary, ..fabric(COMPLETED, 0) }.health()
        };
        let healthy = [Some(0), Some(0), Some(0), Some(0), Some(0), Some(1), Some(0), Some(0), Some(0x1aa)];
        assert_eq!(health(0b1_1010_1010, 1), Ok(healthy));
        // An older driver, which only knows the bandwidth.
        assert_eq!(health(1, 0), Ok([Some(1), None, None, None, None, None, None, None, Some(1)]));
        // A route that is unhealthy, and too few links.
        let unhealthy = [None, None, Some(1), None, Some(1), Some(0), Some(1), Some(0), Some(0x510)];
        assert_eq!(health(0x510, 2), Ok(unhealthy));
        assert_eq!(health(0, 0), Err(Absence::NotSupported));
        assert_eq!(fabric(2, 0).health(), Err(Absence::NotYet), "not registered yet");
    }

    #[test]
    fn a_registration_that_ended_in_an_error_is_not_completed() {
        for (place, (state, status)) in [(1, 0), (2, 0), (3, 0), (3, 17)].into_iter().enumerate() {
            let states = fabric(state, status).states();
            assert_eq!(states.iter().position(|is_so| *is_so), Some(place));
            assert_eq!(states.iter().filter(|is_so| **is_so).count(), 1);
        }
        assert_eq!(fabric(9, 0).known(), Err(Absence::Rejected));
        assert_eq!(fabric(0, 0).known(), Err(Absence::NotSupported));
    }
}
