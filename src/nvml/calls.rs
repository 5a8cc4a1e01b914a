//! Direct calls: which driver function returns which values of the catalogue.
//!
//! A metric from a new driver call adds a value to the catalogue's `CallValue` and its function here.

mod structures;

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, INVALID_ARGUMENT, call};
use crate::catalogue::{CallValue, MOST_LINKS};
use crate::model::Absence;

pub(super) use structures::{fabric, memory};

/// A driver function that returns one or more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DriverFunction {
    Utilization,
    Encoder,
    Decoder,
    Jpeg,
    Ofa,
    Memory,
    Bar1,
    PowerUsage,
    PowerLimitEnforced,
    PowerLimitRequested,
    PowerLimitDefault,
    PowerLimitRange,
    Energy,
    TemperatureVersioned,
    Temperature,
    Threshold(u32),
    Fan(u32),
    Clock(u32),
    ClockMax(u32),
    PerformanceState,
    PcieReplays,
    PcieGeneration,
    PcieGenerationMax,
    PcieWidth,
    PcieWidthMax,
    NvLinksUp,
    EccCounter { kind: u32, counter: u32, location: u32 },
    Sram,
    Remap,
    Banks,
    RetiredPending,
    Fabric,
}

/// The function that returns a value.
pub(super) const fn function(value: CallValue) -> DriverFunction {
    place(value).0
}

/// The function that returns a value, and the value's place in its answer.
const fn place(value: CallValue) -> (DriverFunction, usize) {
    match value {
        CallValue::UtilizationGpu => (DriverFunction::Utilization, 0),
        CallValue::UtilizationMemory => (DriverFunction::Utilization, 1),
        CallValue::UtilizationEncoder => (DriverFunction::Encoder, 0),
        CallValue::UtilizationDecoder => (DriverFunction::Decoder, 0),
        CallValue::UtilizationJpeg => (DriverFunction::Jpeg, 0),
        CallValue::UtilizationOfa => (DriverFunction::Ofa, 0),
        CallValue::MemoryTotal => (DriverFunction::Memory, 0),
        CallValue::MemoryUsed => (DriverFunction::Memory, 1),
        CallValue::MemoryFree => (DriverFunction::Memory, 2),
        CallValue::MemoryReserved => (DriverFunction::Memory, 3),
        CallValue::Bar1Total => (DriverFunction::Bar1, 0),
        CallValue::Bar1Used => (DriverFunction::Bar1, 1),
        CallValue::PowerUsage => (DriverFunction::PowerUsage, 0),
        CallValue::PowerLimitEnforced => (DriverFunction::PowerLimitEnforced, 0),
        CallValue::PowerLimitRequested => (DriverFunction::PowerLimitRequested, 0),
        CallValue::PowerLimitDefault => (DriverFunction::PowerLimitDefault, 0),
        CallValue::PowerLimitMin => (DriverFunction::PowerLimitRange, 0),
        CallValue::PowerLimitMax => (DriverFunction::PowerLimitRange, 1),
        CallValue::Energy => (DriverFunction::Energy, 0),
        CallValue::TemperatureVersioned => (DriverFunction::TemperatureVersioned, 0),
        CallValue::Temperature => (DriverFunction::Temperature, 0),
        CallValue::Threshold(threshold) => (DriverFunction::Threshold(threshold), 0),
        CallValue::Fan(fan) => (DriverFunction::Fan(fan), 0),
        CallValue::Clock(clock) => (DriverFunction::Clock(clock), 0),
        CallValue::ClockMax(clock) => (DriverFunction::ClockMax(clock), 0),
        CallValue::PerformanceState => (DriverFunction::PerformanceState, 0),
        CallValue::PcieReplays => (DriverFunction::PcieReplays, 0),
        CallValue::PcieGeneration => (DriverFunction::PcieGeneration, 0),
        CallValue::PcieGenerationMax => (DriverFunction::PcieGenerationMax, 0),
        CallValue::PcieWidth => (DriverFunction::PcieWidth, 0),
        CallValue::PcieWidthMax => (DriverFunction::PcieWidthMax, 0),
        CallValue::NvLinksUp => (DriverFunction::NvLinksUp, 0),
        CallValue::FabricNotStarted => (DriverFunction::Fabric, 0),
        CallValue::FabricInProgress => (DriverFunction::Fabric, 1),
        CallValue::FabricCompleted => (DriverFunction::Fabric, 2),
        CallValue::FabricFailed => (DriverFunction::Fabric, 3),
        CallValue::EccCounter { .. }
        | CallValue::SramCorrected
        | CallValue::SramUncorrected
        | CallValue::SramCorrectedLifetime
        | CallValue::SramUncorrectedLifetime
        | CallValue::SramThresholdExceeded
        | CallValue::RemappedCorrectable
        | CallValue::RemappedUncorrectable
        | CallValue::RemapPending
        | CallValue::RemapFailure
        | CallValue::BanksMax
        | CallValue::BanksHigh
        | CallValue::BanksPartial
        | CallValue::BanksLow
        | CallValue::BanksNone
        | CallValue::RetiredPending => place_of_error(value),
    }
}

const fn place_of_error(value: CallValue) -> (DriverFunction, usize) {
    match value {
        CallValue::EccCounter { kind, counter, location } => {
            (DriverFunction::EccCounter { kind, counter, location }, 0)
        }
        CallValue::SramCorrected => (DriverFunction::Sram, 0),
        CallValue::SramUncorrected => (DriverFunction::Sram, 1),
        CallValue::SramCorrectedLifetime => (DriverFunction::Sram, 2),
        CallValue::SramUncorrectedLifetime => (DriverFunction::Sram, 3),
        CallValue::SramThresholdExceeded => (DriverFunction::Sram, 4),
        CallValue::RemappedCorrectable => (DriverFunction::Remap, 0),
        CallValue::RemappedUncorrectable => (DriverFunction::Remap, 1),
        CallValue::RemapPending => (DriverFunction::Remap, 2),
        CallValue::RemapFailure => (DriverFunction::Remap, 3),
        CallValue::BanksMax => (DriverFunction::Banks, 0),
        CallValue::BanksHigh => (DriverFunction::Banks, 1),
        CallValue::BanksPartial => (DriverFunction::Banks, 2),
        CallValue::BanksLow => (DriverFunction::Banks, 3),
        CallValue::BanksNone => (DriverFunction::Banks, 4),
        _ => (DriverFunction::RetiredPending, 0),
    }
}

/// The values of one call, or why it failed.
pub(super) type CallResult = Result<CallValues, Absence>;

/// The values of one answer, in the driver's units; values that it does not hold are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallValues([Option<u64>; 5]);

impl CallValues {
    /// Values from 32-bit words, which have their own marker for "no value".
    fn of_words<const N: usize>(words: [c_uint; N]) -> Self {
        Self::of(words.map(word))
    }

    fn of<const N: usize>(values: [u64; N]) -> Self {
        let mut all = Self::default();
        for (place, value) in all.0.iter_mut().zip(values) {
            *place = Some(value);
        }
        all
    }

    /// One value of the answer of its [`function`].
    pub(super) fn get(&self, value: CallValue) -> Result<u64, Absence> {
        let absence = match value {
            // Only the second version of the function has it.
            CallValue::MemoryReserved => Absence::NoSymbol,
            _ => Absence::NotSupported,
        };
        match self.0.get(place(value).1).copied().flatten().ok_or(absence)? {
            NO_VALUE => Err(Absence::Rejected),
            value => Ok(value),
        }
    }
}

/// NVML's marker for "no value" (`NVML_VALUE_NOT_AVAILABLE`) in an answer with the code for success.
const NO_VALUE: u64 = u64::MAX;

/// Widens a word, in which all ones mean "no value".
fn word(word: c_uint) -> u64 {
    if word == c_uint::MAX { NO_VALUE } else { word.into() }
}

/// Calls one function.
pub(super) fn call(api: &mut DriverApi, device: Handle, function: DriverFunction) -> CallResult {
    match function {
        DriverFunction::Utilization => structures::utilization(api, device),
        DriverFunction::Memory => memory(api, device),
        DriverFunction::Bar1 => structures::bar1(api, device),
        DriverFunction::PowerLimitRange => structures::power_limits(api, device),
        DriverFunction::TemperatureVersioned => structures::temperature(api, device),
        DriverFunction::Sram => structures::sram(api, device),
        DriverFunction::Remap => structures::remap(api, device),
        DriverFunction::Banks => structures::banks(api, device),
        DriverFunction::Fabric => {
            fabric(api, device).map(|fabric| CallValues::of(fabric.states().map(u64::from)))
        }
        DriverFunction::NvLinksUp => Ok(CallValues::of([count_links_up(api, device)?])),
        DriverFunction::Energy | DriverFunction::EccCounter { .. } => {
            Ok(CallValues::of([read_u64(api, device, function)?]))
        }
        _ => Ok(CallValues::of_words([read_u32(api, device, function)?])),
    }
}

/// Calls functions that return one 64-bit number.
fn read_u64(api: &mut DriverApi, Handle(device): Handle, function: DriverFunction) -> Result<u64, CallError> {
    let mut value: u64 = 0;
    match function {
        DriverFunction::EccCounter { kind, counter, location } => {
            call!(api, nvmlDeviceGetMemoryErrorCounter(device, kind, counter, location, &raw mut value))?;
        }
        DriverFunction::Energy => call!(api, nvmlDeviceGetTotalEnergyConsumption(device, &raw mut value))?,
        _ => return Err(CallError::NoSymbol),
    }
    Ok(value)
}

/// How many NVLinks are up: one call for each link, until one fails because there is no such link.
fn count_links_up(api: &mut DriverApi, Handle(device): Handle) -> Result<u64, Absence> {
    let mut up = 0;
    for link in 0..MOST_LINKS {
        let mut active: sys::nvmlEnableState_t = 0;
        match call!(api, nvmlDeviceGetNvLinkState(device, link, &raw mut active)) {
            Ok(()) if active > 1 => return Err(Absence::Rejected),
            Ok(()) => up += u64::from(active),
            Err(CallError::Code(INVALID_ARGUMENT)) if link > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(up)
}

/// Calls functions that return one number.
fn read_u32(
    api: &mut DriverApi,
    Handle(device): Handle,
    function: DriverFunction,
) -> Result<c_uint, CallError> {
    let (mut number, mut period): (c_uint, c_uint) = (0, 0);
    let value = &raw mut number;
    let period = &raw mut period;
    match function {
        DriverFunction::Encoder => call!(api, nvmlDeviceGetEncoderUtilization(device, value, period)),
        DriverFunction::Decoder => call!(api, nvmlDeviceGetDecoderUtilization(device, value, period)),
        DriverFunction::Jpeg => call!(api, nvmlDeviceGetJpgUtilization(device, value, period)),
        DriverFunction::Ofa => call!(api, nvmlDeviceGetOfaUtilization(device, value, period)),
        DriverFunction::PowerUsage => call!(api, nvmlDeviceGetPowerUsage(device, value)),
        DriverFunction::PowerLimitEnforced => call!(api, nvmlDeviceGetEnforcedPowerLimit(device, value)),
        DriverFunction::PowerLimitRequested => call!(api, nvmlDeviceGetPowerManagementLimit(device, value)),
        DriverFunction::PowerLimitDefault => {
            call!(api, nvmlDeviceGetPowerManagementDefaultLimit(device, value))
        }
        DriverFunction::Temperature => {
            call!(api, nvmlDeviceGetTemperature(device, structures::GPU_SENSOR, value))
        }
        DriverFunction::Threshold(threshold) => {
            call!(api, nvmlDeviceGetTemperatureThreshold(device, threshold, value))
        }
        DriverFunction::Fan(fan) => match call!(api, nvmlDeviceGetFanSpeed_v2(device, fan, value)) {
            Err(CallError::NoSymbol) if fan == 0 => call!(api, nvmlDeviceGetFanSpeed(device, value)),
            answer => answer,
        },
        DriverFunction::Clock(clock) => call!(api, nvmlDeviceGetClockInfo(device, clock, value)),
        DriverFunction::ClockMax(clock) => call!(api, nvmlDeviceGetMaxClockInfo(device, clock, value)),
        _ => return read_state(api, Handle(device), function),
    }?;
    Ok(number)
}

/// Calls functions that return a state or a PCIe number.
fn read_state(
    api: &mut DriverApi,
    Handle(device): Handle,
    function: DriverFunction,
) -> Result<c_uint, CallError> {
    let mut number: c_uint = 0;
    let value = &raw mut number;
    match function {
        DriverFunction::PerformanceState => {
            call!(api, nvmlDeviceGetPerformanceState(device, value))?;
            // 32 is NVML's number for an unknown state.
            if number == sys::nvmlPStates_enum_NVML_PSTATE_UNKNOWN {
                return Err(CallError::Code(super::driver_api::NOT_SUPPORTED));
            }
            Ok(())
        }
        DriverFunction::PcieGeneration => call!(api, nvmlDeviceGetCurrPcieLinkGeneration(device, value)),
        DriverFunction::PcieGenerationMax => call!(api, nvmlDeviceGetMaxPcieLinkGeneration(device, value)),
        DriverFunction::PcieWidth => call!(api, nvmlDeviceGetCurrPcieLinkWidth(device, value)),
        DriverFunction::PcieWidthMax => call!(api, nvmlDeviceGetMaxPcieLinkWidth(device, value)),
        DriverFunction::RetiredPending => call!(api, nvmlDeviceGetRetiredPagesPendingStatus(device, value)),
        DriverFunction::PcieReplays => call!(api, nvmlDeviceGetPcieReplayCounter(device, value)),
        _ => Err(CallError::NoSymbol),
    }?;
    Ok(number)
}

/// Uncorrected SRAM errors of a MIG instance since the driver was loaded; the only error count of an instance.
pub(super) fn instance_errors(api: &mut DriverApi, device: Handle) -> Result<u64, Absence> {
    let function = DriverFunction::EccCounter { kind: 1, counter: 0, location: 7 };
    Ok(read_u64(api, device, function)?)
}

/// Succeeds if ECC is on.
pub(super) fn ecc(api: &mut DriverApi, Handle(device): Handle) -> Result<(), Absence> {
    let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
    call!(api, nvmlDeviceGetEccMode(device, &raw mut current, &raw mut pending))?;
    match current {
        0 => Err(Absence::NotSupported),
        1 => Ok(()),
        _ => Err(Absence::Rejected),
    }
}

/// How many fans the board has; without the function, any number may answer.
pub(super) fn fans(api: &mut DriverApi, Handle(device): Handle) -> Result<u32, Absence> {
    let mut count: c_uint = 0;
    match call!(api, nvmlDeviceGetNumFans(device, &raw mut count)) {
        Ok(()) => Ok(count),
        Err(CallError::NoSymbol) => Ok(u32::MAX),
        Err(error) => Err(error.into()),
    }
}

/// The distance to the nearest thermal limit, in degrees.
pub(super) fn margin(api: &mut DriverApi, Handle(device): Handle) -> Result<i64, Absence> {
    let version = u32::try_from(size_of::<sys::nvmlMarginTemperature_t>()).unwrap_or(0) | (1 << 24);
    let mut margin = sys::nvmlMarginTemperature_t { version, marginTemperature: 0 };
    call!(api, nvmlDeviceGetMarginTemperature(device, &raw mut margin))?;
    Ok(margin.marginTemperature.into())
}

/// The clock event reasons as bits; older libraries know the function by its former name only.
pub(super) fn reasons(api: &mut DriverApi, Handle(device): Handle) -> Result<u64, Absence> {
    let mut reasons: u64 = 0;
    let answer = call!(api, nvmlDeviceGetCurrentClocksEventReasons(device, &raw mut reasons));
    if let Err(CallError::NoSymbol) = answer {
        call!(api, nvmlDeviceGetCurrentClocksThrottleReasons(device, &raw mut reasons))?;
    } else {
        answer?;
    }
    // No header defines a bit above the ninth.
    if reasons > u32::MAX.into() { Err(Absence::Rejected) } else { Ok(reasons) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalogue::{Source, device_points};

    #[test]
    fn no_two_values_of_the_catalogue_stand_in_one_place() {
        let calls = device_points().flat_map(|(_, point)| point.sources).filter_map(|source| match source {
            Source::Call { value, .. } => Some(*value),
            _ => None,
        });
        let values: Vec<CallValue> = calls.collect();
        let places: BTreeSet<_> = values.iter().map(|value| place(*value)).collect();
        assert_eq!(places.len(), values.len(), "each value is read for one point");
    }

    #[test]
    fn a_value_that_the_answer_does_not_hold_is_absent() {
        let first_version = CallValues::of([100, 40, 60]);
        assert_eq!(first_version.get(CallValue::MemoryFree), Ok(60));
        assert_eq!(first_version.get(CallValue::MemoryReserved), Err(Absence::NoSymbol));
    }

    #[test]
    fn all_ones_are_no_value_in_whatever_length_they_come() {
        let words = CallValues::of_words([u32::MAX, 250]);
        let values = [CallValue::UtilizationGpu, CallValue::UtilizationMemory].map(|value| words.get(value));
        assert_eq!(values, [Err(Absence::Rejected), Ok(250)]);
        let long = CallValues::of([u64::MAX, u32::MAX.into()]);
        let values = [CallValue::MemoryTotal, CallValue::MemoryUsed].map(|value| long.get(value));
        assert_eq!(values, [Err(Absence::Rejected), Ok(u32::MAX.into())]);
    }
}
