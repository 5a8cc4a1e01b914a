//! Direct calls: which driver function returns which values of the catalogue.
//!
//! A metric from a new driver call names the function in its row of the catalogue, and has it in [`NAMED`] here.

mod structures;

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, INVALID_ARGUMENT, call};
use crate::catalogue::{CallValue, MOST_LINKS};
use crate::model::Absence;

pub(super) use structures::{fabric, memory, version};

/// A driver function that returns one or more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DriverFunction {
    Utilization,
    Encoder,
    Decoder,
    Jpeg,
    Ofa,
    Memory,
    Threshold(u32),
    Fan(u32),
    Clock(u32),
    ClockMax(u32),
    NvLinksUp,
    EccCounter {
        kind: u32,
        counter: u32,
        location: u32,
    },
    Sram,
    /// One of [`NAMED`].
    Named(&'static str),
}

/// The function that returns a value.
pub(super) const fn function(value: CallValue) -> DriverFunction {
    place(value).0
}

/// The function that returns a value, and the value's place in its answer.
const fn place(value: CallValue) -> (DriverFunction, usize) {
    match value {
        CallValue::Named { function, place } => (DriverFunction::Named(function), place),
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
        CallValue::Threshold(threshold) => (DriverFunction::Threshold(threshold), 0),
        CallValue::Fan(fan) => (DriverFunction::Fan(fan), 0),
        CallValue::Clock(clock) => (DriverFunction::Clock(clock), 0),
        CallValue::ClockMax(clock) => (DriverFunction::ClockMax(clock), 0),
        CallValue::NvLinksUp => (DriverFunction::NvLinksUp, 0),
        CallValue::EccCounter { kind, counter, location } => {
            (DriverFunction::EccCounter { kind, counter, location }, 0)
        }
        CallValue::SramCorrected => (DriverFunction::Sram, 0),
        CallValue::SramUncorrected => (DriverFunction::Sram, 1),
        CallValue::SramCorrectedLifetime => (DriverFunction::Sram, 2),
        CallValue::SramUncorrectedLifetime => (DriverFunction::Sram, 3),
        CallValue::SramThresholdExceeded => (DriverFunction::Sram, 4),
    }
}

/// The values of one call, or why it failed.
pub(super) type CallResult = Result<CallValues, Absence>;

/// The values of one answer, in the driver's units; values that it does not hold are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallValues([Option<u64>; 9]);

impl CallValues {
    /// CallValues from 32-bit words, which have their own marker for "no value".
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
        DriverFunction::Sram => structures::sram(api, device),
        DriverFunction::Named(name) => named(api, device, name),
        DriverFunction::NvLinksUp => Ok(CallValues::of([count_links_up(api, device)?])),
        DriverFunction::EccCounter { kind, counter, location } => {
            Ok(CallValues::of([ecc_counter(api, device, (kind, counter, location))?]))
        }
        _ => Ok(CallValues::of_words([read_u32(api, device, function)?])),
    }
}

/// How often a kind of error was counted at a place, by NVML's numbers of kind, counter and place.
fn ecc_counter(
    api: &mut DriverApi,
    Handle(device): Handle,
    (kind, counter, location): (u32, u32, u32),
) -> Result<u64, CallError> {
    let mut errors: u64 = 0;
    call!(api, nvmlDeviceGetMemoryErrorCounter(device, kind, counter, location, &raw mut errors))?;
    Ok(errors)
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
        DriverFunction::Threshold(threshold) => {
            call!(api, nvmlDeviceGetTemperatureThreshold(device, threshold, value))
        }
        DriverFunction::Fan(fan) => match call!(api, nvmlDeviceGetFanSpeed_v2(device, fan, value)) {
            Err(CallError::NoSymbol) if fan == 0 => call!(api, nvmlDeviceGetFanSpeed(device, value)),
            answer => answer,
        },
        DriverFunction::Clock(clock) => call!(api, nvmlDeviceGetClockInfo(device, clock, value)),
        DriverFunction::ClockMax(clock) => call!(api, nvmlDeviceGetMaxClockInfo(device, clock, value)),
        _ => Err(CallError::NoSymbol),
    }?;
    Ok(number)
}

/// A driver function and how it is called.
type NamedFunction = (&'static str, fn(&mut DriverApi, Handle) -> CallResult);

/// A function that returns 32-bit numbers, each through a pointer argument of its own.
macro_rules! u32_outputs {
    ($function:ident, $($value:ident),+) => {
        (stringify!($function), |api, Handle(device)| {
            $(let mut $value: c_uint = 0;)+
            call!(api, $function(device, $(&raw mut $value),+))?;
            Ok(CallValues::of_words([$($value),+]))
        })
    };
}

/// The functions that the catalogue names ([`CallValue::Named`]).
const NAMED: &[NamedFunction] = &[
    ("nvmlDeviceGetPerformanceState", performance_state),
    u32_outputs!(nvmlDeviceGetCurrPcieLinkGeneration, generation),
    u32_outputs!(nvmlDeviceGetMaxPcieLinkGeneration, generation),
    u32_outputs!(nvmlDeviceGetCurrPcieLinkWidth, lanes),
    u32_outputs!(nvmlDeviceGetMaxPcieLinkWidth, lanes),
    u32_outputs!(nvmlDeviceGetRetiredPagesPendingStatus, pending),
    u32_outputs!(nvmlDeviceGetPcieReplayCounter, replays),
    u32_outputs!(nvmlDeviceGetPowerUsage, milliwatts),
    u32_outputs!(nvmlDeviceGetEnforcedPowerLimit, milliwatts),
    u32_outputs!(nvmlDeviceGetPowerManagementLimit, milliwatts),
    u32_outputs!(nvmlDeviceGetPowerManagementDefaultLimit, milliwatts),
    ("nvmlDeviceGetPowerManagementLimitConstraints", structures::power_limits),
    ("nvmlDeviceGetTotalEnergyConsumption", energy),
    ("nvmlDeviceGetTemperatureV", structures::temperature),
    ("nvmlDeviceGetTemperature", temperature),
    ("nvmlDeviceGetBAR1MemoryInfo", structures::bar1),
    ("nvmlDeviceGetRemappedRows", structures::remap),
    ("nvmlDeviceGetRowRemapperHistogram", structures::banks),
    ("nvmlDeviceGetGpuFabricInfo", fabric_states),
    ("nvmlDeviceGetGpuFabricInfoV", fabric_health),
    u32_outputs!(nvmlDeviceGetPersistenceMode, mode),
    u32_outputs!(nvmlDeviceGetEccMode, current, pending),
    u32_outputs!(nvmlDeviceGetMigMode, current, pending),
    u32_outputs!(nvmlDeviceGetAccountingMode, mode),
    ("nvmlDeviceGetComputeMode", compute_mode),
];

/// Calls a function by its name.
fn named(api: &mut DriverApi, device: Handle, name: &str) -> CallResult {
    let known = NAMED.iter().find(|(known, _)| *known == name);
    known.map_or(Err(Absence::NoSymbol), |(_, call)| call(api, device))
}

fn performance_state(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut state: c_uint = 0;
    call!(api, nvmlDeviceGetPerformanceState(device, &raw mut state))?;
    // 32 means that the performance state is unknown.
    if state == sys::nvmlPStates_enum_NVML_PSTATE_UNKNOWN {
        Err(Absence::NotSupported)
    } else {
        Ok(CallValues::of_words([state]))
    }
}

fn energy(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut millijoules: u64 = 0;
    call!(api, nvmlDeviceGetTotalEnergyConsumption(device, &raw mut millijoules))?;
    Ok(CallValues::of([millijoules]))
}

fn temperature(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut degrees: c_uint = 0;
    call!(api, nvmlDeviceGetTemperature(device, structures::GPU_SENSOR, &raw mut degrees))?;
    Ok(CallValues::of_words([degrees]))
}

/// One value per state of the registration with a fabric: 1 for the one that the GPU is in, else 0.
fn fabric_states(api: &mut DriverApi, device: Handle) -> CallResult {
    Ok(CallValues::of(fabric(api, device)?.states().map(u64::from)))
}

/// What the fabric says of the GPU: five faults, one value per state of the summary, and the mask.
fn fabric_health(api: &mut DriverApi, device: Handle) -> CallResult {
    fabric(api, device)?.health().map(CallValues)
}

/// One value per compute mode, in NVML's order: 1 for the one that the GPU is in, else 0.
fn compute_mode(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
    let mut mode: c_uint = 0;
    call!(api, nvmlDeviceGetComputeMode(device, &raw mut mode))?;
    let modes: [c_uint; 4] = [0, 1, 2, 3];
    if modes.contains(&mode) {
        Ok(CallValues::of(modes.map(|one| u64::from(one == mode))))
    } else {
        Err(Absence::Rejected)
    }
}

/// The uncorrected SRAM errors of a MIG instance since the driver was loaded; NVML reports no other errors of an
/// instance.
pub(super) fn instance_errors(api: &mut DriverApi, device: Handle) -> Result<u64, Absence> {
    Ok(ecc_counter(api, device, (1, 0, 7))?)
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

/// How many fans the board has; without the function, `u32::MAX`, so that every fan number is tried.
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
    let version = version::<sys::nvmlMarginTemperature_t>(1);
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
    fn every_function_that_the_catalogue_names_is_known() {
        for source in device_points().flat_map(|(_, point)| point.sources) {
            if let Source::Call { value: CallValue::Named { function, .. }, .. } = source {
                assert!(NAMED.iter().any(|(known, _)| known == function), "{function}");
            }
        }
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
