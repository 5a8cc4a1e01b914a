//! Direct calls: which driver function returns which values of the catalogue.
//!
//! A metric from a new driver call names the function in its row of the catalogue, and has it in [`FUNCTIONS`] here.

mod structures;

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, INVALID_ARGUMENT, call};
use crate::model::Absence;
use crate::model::catalogue::{
    CallValue, FAN, LINK_STATE, MEMORY, MEMORY_ERRORS, MOST_LINKS, SRAM_ERRORS, UTILIZATION,
};

pub(super) use structures::{fabric, memory, version};

/// A driver function with the numbers that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DriverFunction {
    pub(super) name: &'static str,
    pub(super) arguments: [u32; 3],
}

impl DriverFunction {
    pub(super) const fn of(CallValue { function, arguments, .. }: CallValue) -> Self {
        Self { name: function, arguments }
    }
}

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

    pub(super) fn get(&self, value: CallValue) -> Result<u64, Absence> {
        // Only the second version of the function has the reserved memory.
        let is_of_second = value == CallValue::of(MEMORY, 3);
        let absence = if is_of_second { Absence::NoSymbol } else { Absence::NotSupported };
        match self.0.get(value.place).copied().flatten().ok_or(absence)? {
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

pub(super) fn call(api: &mut DriverApi, device: Handle, function: DriverFunction) -> CallResult {
    let known = FUNCTIONS.iter().find(|(name, _)| *name == function.name);
    known.map_or(Err(Absence::NoSymbol), |(_, call)| call(api, device, function.arguments))
}

/// How often a kind of error was counted at a place, by NVML's numbers of kind, counter and place.
fn ecc_counter(
    api: &mut DriverApi,
    Handle(device): Handle,
    [kind, counter, location]: [u32; 3],
) -> Result<u64, CallError> {
    let mut errors: u64 = 0;
    call!(api, nvmlDeviceGetMemoryErrorCounter(device, kind, counter, location, &raw mut errors))?;
    Ok(errors)
}

/// How many NVLinks are up: one call for each link, until one fails because there is no such link.
fn count_links_up(api: &mut DriverApi, Handle(device): Handle) -> CallResult {
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
    Ok(CallValues::of([up]))
}

/// The speed of a fan; older libraries know the function of the first fan alone.
fn fan(api: &mut DriverApi, Handle(device): Handle, [fan, ..]: [u32; 3]) -> CallResult {
    let mut percent: c_uint = 0;
    match call!(api, nvmlDeviceGetFanSpeed_v2(device, fan, &raw mut percent)) {
        Err(CallError::NoSymbol) if fan == 0 => call!(api, nvmlDeviceGetFanSpeed(device, &raw mut percent))?,
        answer => answer?,
    }
    Ok(CallValues::of_words([percent]))
}

type KnownFunction = (&'static str, fn(&mut DriverApi, Handle, [u32; 3]) -> CallResult);

/// A function that returns 32-bit numbers, each through a pointer argument of its own, and may be given one number.
macro_rules! u32_outputs {
    ($function:ident, $($value:ident),+) => {
        (stringify!($function), |api, Handle(device), _| {
            $(let mut $value: c_uint = 0;)+
            call!(api, $function(device, $(&raw mut $value),+))?;
            Ok(CallValues::of_words([$($value),+]))
        })
    };
    ($function:ident[$number:ident], $value:ident) => {
        (stringify!($function), |api, Handle(device), [$number, ..]| {
            let mut $value: c_uint = 0;
            call!(api, $function(device, $number, &raw mut $value))?;
            Ok(CallValues::of_words([$value]))
        })
    };
}

const FUNCTIONS: &[KnownFunction] = &[
    (UTILIZATION, |api, device, _| structures::utilization(api, device)),
    u32_outputs!(nvmlDeviceGetEncoderUtilization, percent, period),
    u32_outputs!(nvmlDeviceGetDecoderUtilization, percent, period),
    u32_outputs!(nvmlDeviceGetJpgUtilization, percent, period),
    u32_outputs!(nvmlDeviceGetOfaUtilization, percent, period),
    (MEMORY, |api, device, _| memory(api, device)),
    u32_outputs!(nvmlDeviceGetTemperatureThreshold[threshold], degrees),
    (FAN, fan),
    u32_outputs!(nvmlDeviceGetClockInfo[clock], megahertz),
    u32_outputs!(nvmlDeviceGetMaxClockInfo[clock], megahertz),
    (LINK_STATE, |api, device, _| count_links_up(api, device)),
    (MEMORY_ERRORS, |api, device, error| Ok(CallValues::of([ecc_counter(api, device, error)?]))),
    (SRAM_ERRORS, |api, device, _| structures::sram(api, device)),
    ("nvmlDeviceGetPerformanceState", |api, device, _| performance_state(api, device)),
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
    u32_outputs!(nvmlDeviceGetPowerManagementLimitConstraints, least, most),
    ("nvmlDeviceGetTotalEnergyConsumption", |api, device, _| energy(api, device)),
    ("nvmlDeviceGetTemperatureV", |api, device, _| structures::temperature(api, device)),
    ("nvmlDeviceGetTemperature", |api, device, _| temperature(api, device)),
    ("nvmlDeviceGetBAR1MemoryInfo", |api, device, _| structures::bar1(api, device)),
    u32_outputs!(nvmlDeviceGetRemappedRows, correctable, uncorrectable, pending, failure),
    ("nvmlDeviceGetRowRemapperHistogram", |api, device, _| structures::banks(api, device)),
    // One value per state of the registration: 1 for the one that the GPU is in, else 0.
    ("nvmlDeviceGetGpuFabricInfo", |api, device, _| {
        Ok(CallValues::of(fabric(api, device)?.states().map(u64::from)))
    }),
    // Five faults, one value per state of the summary, and the mask.
    ("nvmlDeviceGetGpuFabricInfoV", |api, device, _| fabric(api, device)?.health().map(CallValues)),
    u32_outputs!(nvmlDeviceGetPersistenceMode, mode),
    u32_outputs!(nvmlDeviceGetEccMode, current, pending),
    u32_outputs!(nvmlDeviceGetMigMode, current, pending),
    u32_outputs!(nvmlDeviceGetAccountingMode, mode),
    ("nvmlDeviceGetComputeMode", |api, device, _| compute_mode(api, device)),
];

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
    Ok(ecc_counter(api, device, [1, 0, 7])?)
}

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
    use crate::model::catalogue::{Source, device_points};

    #[test]
    fn no_two_values_of_the_catalogue_stand_in_one_place() {
        let calls = device_points().flat_map(|(_, point)| point.sources).filter_map(|source| match source {
            Source::Call { value, .. } => Some(*value),
            _ => None,
        });
        let values: Vec<CallValue> = calls.collect();
        let places: BTreeSet<_> =
            values.iter().map(|value| (DriverFunction::of(*value), value.place)).collect();
        assert_eq!(places.len(), values.len(), "each value is read for one point");
    }

    #[test]
    fn every_function_that_the_catalogue_names_is_known() {
        for source in device_points().flat_map(|(_, point)| point.sources) {
            if let Source::Call { value: CallValue { function, .. }, .. } = source {
                assert!(FUNCTIONS.iter().any(|(known, _)| known == function), "{function}");
            }
        }
    }

    #[test]
    fn a_value_that_the_answer_does_not_hold_is_absent() {
        let first_version = CallValues::of([100, 40, 60]);
        assert_eq!(first_version.get(CallValue::of(MEMORY, 2)), Ok(60));
        assert_eq!(first_version.get(CallValue::of(MEMORY, 3)), Err(Absence::NoSymbol));
    }

    #[test]
    fn all_ones_are_no_value_in_whatever_length_they_come() {
        let words = CallValues::of_words([u32::MAX, 250]);
        let values =
            [CallValue::of(UTILIZATION, 0), CallValue::of(UTILIZATION, 1)].map(|value| words.get(value));
        assert_eq!(values, [Err(Absence::Rejected), Ok(250)]);
        let long = CallValues::of([u64::MAX, u32::MAX.into()]);
        let values = [CallValue::of(MEMORY, 0), CallValue::of(MEMORY, 1)].map(|value| long.get(value));
        assert_eq!(values, [Err(Absence::Rejected), Ok(u32::MAX.into())]);
    }
}
