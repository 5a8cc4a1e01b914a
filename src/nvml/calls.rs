//! Direct calls: which driver function brings which values of the catalogue.
//!
//! A metric from a new driver call names the function in its row of the catalogue, and has it in [`NAMED`] here.

mod structures;

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, INVALID_ARGUMENT, Refusal, ask};
use crate::catalogue::{CallValue, MOST_LINKS};
use crate::model::Absence;

pub(super) use structures::{fabric, memory};

/// A driver function that brings one or more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Function {
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

/// The function that brings a value.
pub(super) const fn function(value: CallValue) -> Function {
    place(value).0
}

/// The function that brings a value, and where the value stands in its answer.
const fn place(value: CallValue) -> (Function, usize) {
    match value {
        CallValue::Named { function, place } => (Function::Named(function), place),
        CallValue::UtilizationGpu => (Function::Utilization, 0),
        CallValue::UtilizationMemory => (Function::Utilization, 1),
        CallValue::UtilizationEncoder => (Function::Encoder, 0),
        CallValue::UtilizationDecoder => (Function::Decoder, 0),
        CallValue::UtilizationJpeg => (Function::Jpeg, 0),
        CallValue::UtilizationOfa => (Function::Ofa, 0),
        CallValue::MemoryTotal => (Function::Memory, 0),
        CallValue::MemoryUsed => (Function::Memory, 1),
        CallValue::MemoryFree => (Function::Memory, 2),
        CallValue::MemoryReserved => (Function::Memory, 3),
        CallValue::Threshold(threshold) => (Function::Threshold(threshold), 0),
        CallValue::Fan(fan) => (Function::Fan(fan), 0),
        CallValue::Clock(clock) => (Function::Clock(clock), 0),
        CallValue::ClockMax(clock) => (Function::ClockMax(clock), 0),
        CallValue::NvLinksUp => (Function::NvLinksUp, 0),
        CallValue::EccCounter { kind, counter, location } => {
            (Function::EccCounter { kind, counter, location }, 0)
        }
        CallValue::SramCorrected => (Function::Sram, 0),
        CallValue::SramUncorrected => (Function::Sram, 1),
        CallValue::SramCorrectedLifetime => (Function::Sram, 2),
        CallValue::SramUncorrectedLifetime => (Function::Sram, 3),
        CallValue::SramThresholdExceeded => (Function::Sram, 4),
    }
}

/// What one call brought; a value that the answer does not hold is absent.
pub(super) type Answer = Result<Values, Absence>;

/// The values of one answer, in the driver's units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Values([Option<u64>; 5]);

impl Values {
    /// Of words, whose way to say that there is no value is shorter.
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

/// NVML's word for no value (`NVML_VALUE_NOT_AVAILABLE`), in an answer that says that it succeeded.
const NO_VALUE: u64 = u64::MAX;

/// A word, in which all ones are no value.
fn word(word: c_uint) -> u64 {
    if word == c_uint::MAX { NO_VALUE } else { word.into() }
}

/// Calls one function.
pub(super) fn call(door: &mut Door, device: Handle, function: Function) -> Answer {
    match function {
        Function::Utilization => structures::utilization(door, device),
        Function::Memory => memory(door, device),
        Function::Sram => structures::sram(door, device),
        Function::Named(name) => named(door, device, name),
        Function::NvLinksUp => Ok(Values::of([links_up(door, device)?])),
        Function::EccCounter { kind, counter, location } => {
            Ok(Values::of([ecc_counter(door, device, (kind, counter, location))?]))
        }
        _ => Ok(Values::of_words([number(door, device, function)?])),
    }
}

/// How often a kind of error was counted at a place, by NVML's numbers of kind, counter and place.
fn ecc_counter(
    door: &mut Door,
    Handle(device): Handle,
    (kind, counter, location): (u32, u32, u32),
) -> Result<u64, Refusal> {
    let mut errors: u64 = 0;
    ask!(door, nvmlDeviceGetMemoryErrorCounter(device, kind, counter, location, &raw mut errors))?;
    Ok(errors)
}

/// How many NVLinks are up: a call for each, and one that says that there is no other.
fn links_up(door: &mut Door, Handle(device): Handle) -> Result<u64, Absence> {
    let mut up = 0;
    for link in 0..MOST_LINKS {
        let mut active: sys::nvmlEnableState_t = 0;
        match ask!(door, nvmlDeviceGetNvLinkState(device, link, &raw mut active)) {
            Ok(()) if active > 1 => return Err(Absence::Rejected),
            Ok(()) => up += u64::from(active),
            Err(Refusal::Code(INVALID_ARGUMENT)) if link > 0 => break,
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(up)
}

/// Functions that bring one number.
fn number(door: &mut Door, Handle(device): Handle, function: Function) -> Result<c_uint, Refusal> {
    let (mut number, mut period): (c_uint, c_uint) = (0, 0);
    let value = &raw mut number;
    let period = &raw mut period;
    match function {
        Function::Encoder => ask!(door, nvmlDeviceGetEncoderUtilization(device, value, period)),
        Function::Decoder => ask!(door, nvmlDeviceGetDecoderUtilization(device, value, period)),
        Function::Jpeg => ask!(door, nvmlDeviceGetJpgUtilization(device, value, period)),
        Function::Ofa => ask!(door, nvmlDeviceGetOfaUtilization(device, value, period)),
        Function::Threshold(threshold) => {
            ask!(door, nvmlDeviceGetTemperatureThreshold(device, threshold, value))
        }
        Function::Fan(fan) => match ask!(door, nvmlDeviceGetFanSpeed_v2(device, fan, value)) {
            Err(Refusal::NoSymbol) if fan == 0 => ask!(door, nvmlDeviceGetFanSpeed(device, value)),
            answer => answer,
        },
        Function::Clock(clock) => ask!(door, nvmlDeviceGetClockInfo(device, clock, value)),
        Function::ClockMax(clock) => ask!(door, nvmlDeviceGetMaxClockInfo(device, clock, value)),
        _ => Err(Refusal::NoSymbol),
    }?;
    Ok(number)
}

/// A driver function and how it is called.
type NamedFunction = (&'static str, fn(&mut Door, Handle) -> Answer);

/// A function that brings words, each in an argument of its own.
macro_rules! words {
    ($function:ident, $($value:ident),+) => {
        (stringify!($function), |door, Handle(device)| {
            $(let mut $value: c_uint = 0;)+
            ask!(door, $function(device, $(&raw mut $value),+))?;
            Ok(Values::of_words([$($value),+]))
        })
    };
}

/// The functions that the catalogue names ([`CallValue::Named`]).
const NAMED: &[NamedFunction] = &[
    ("nvmlDeviceGetPerformanceState", performance_state),
    words!(nvmlDeviceGetCurrPcieLinkGeneration, generation),
    words!(nvmlDeviceGetMaxPcieLinkGeneration, generation),
    words!(nvmlDeviceGetCurrPcieLinkWidth, lanes),
    words!(nvmlDeviceGetMaxPcieLinkWidth, lanes),
    words!(nvmlDeviceGetRetiredPagesPendingStatus, pending),
    words!(nvmlDeviceGetPcieReplayCounter, replays),
    words!(nvmlDeviceGetPowerUsage, milliwatts),
    words!(nvmlDeviceGetEnforcedPowerLimit, milliwatts),
    words!(nvmlDeviceGetPowerManagementLimit, milliwatts),
    words!(nvmlDeviceGetPowerManagementDefaultLimit, milliwatts),
    ("nvmlDeviceGetPowerManagementLimitConstraints", structures::power_limits),
    ("nvmlDeviceGetTotalEnergyConsumption", energy),
    ("nvmlDeviceGetTemperatureV", structures::temperature),
    ("nvmlDeviceGetTemperature", temperature),
    ("nvmlDeviceGetBAR1MemoryInfo", structures::bar1),
    ("nvmlDeviceGetRemappedRows", structures::remap),
    ("nvmlDeviceGetRowRemapperHistogram", structures::banks),
    ("nvmlDeviceGetGpuFabricInfo", fabric_states),
    words!(nvmlDeviceGetPersistenceMode, mode),
    words!(nvmlDeviceGetEccMode, current, pending),
    words!(nvmlDeviceGetMigMode, current, pending),
    words!(nvmlDeviceGetAccountingMode, mode),
    ("nvmlDeviceGetComputeMode", compute_mode),
];

/// Calls a function by its name.
fn named(door: &mut Door, device: Handle, name: &str) -> Answer {
    let known = NAMED.iter().find(|(known, _)| *known == name);
    known.map_or(Err(Absence::NoSymbol), |(_, call)| call(door, device))
}

fn performance_state(door: &mut Door, Handle(device): Handle) -> Answer {
    let mut state: c_uint = 0;
    ask!(door, nvmlDeviceGetPerformanceState(device, &raw mut state))?;
    // 32 is NVML's word for not knowing.
    if state == sys::nvmlPStates_enum_NVML_PSTATE_UNKNOWN {
        Err(Absence::NotSupported)
    } else {
        Ok(Values::of_words([state]))
    }
}

fn energy(door: &mut Door, Handle(device): Handle) -> Answer {
    let mut millijoules: u64 = 0;
    ask!(door, nvmlDeviceGetTotalEnergyConsumption(device, &raw mut millijoules))?;
    Ok(Values::of([millijoules]))
}

fn temperature(door: &mut Door, Handle(device): Handle) -> Answer {
    let mut degrees: c_uint = 0;
    ask!(door, nvmlDeviceGetTemperature(device, structures::GPU_SENSOR, &raw mut degrees))?;
    Ok(Values::of_words([degrees]))
}

/// One value per state of the registration with a fabric: 1 for the one that the GPU is in, else 0.
fn fabric_states(door: &mut Door, device: Handle) -> Answer {
    Ok(Values::of(fabric(door, device)?.states().map(u64::from)))
}

/// One value per compute mode, in NVML's order: 1 for the one that the GPU is in, else 0.
fn compute_mode(door: &mut Door, Handle(device): Handle) -> Answer {
    let mut mode: c_uint = 0;
    ask!(door, nvmlDeviceGetComputeMode(device, &raw mut mode))?;
    let modes: [c_uint; 4] = [0, 1, 2, 3];
    if modes.contains(&mode) {
        Ok(Values::of(modes.map(|one| u64::from(one == mode))))
    } else {
        Err(Absence::Rejected)
    }
}

/// The uncorrected SRAM errors of a MIG instance since the driver was loaded: all that is told of one.
pub(super) fn instance_errors(door: &mut Door, device: Handle) -> Result<u64, Absence> {
    Ok(ecc_counter(door, device, (1, 0, 7))?)
}

/// Whether ECC is on; none where the board has none.
pub(super) fn ecc(door: &mut Door, Handle(device): Handle) -> Result<(), Absence> {
    let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
    ask!(door, nvmlDeviceGetEccMode(device, &raw mut current, &raw mut pending))?;
    match current {
        0 => Err(Absence::NotSupported),
        1 => Ok(()),
        _ => Err(Absence::Rejected),
    }
}

/// How many fans the board has; without the function as many as answer.
pub(super) fn fans(door: &mut Door, Handle(device): Handle) -> Result<u32, Absence> {
    let mut count: c_uint = 0;
    match ask!(door, nvmlDeviceGetNumFans(device, &raw mut count)) {
        Ok(()) => Ok(count),
        Err(Refusal::NoSymbol) => Ok(u32::MAX),
        Err(refusal) => Err(refusal.into()),
    }
}

/// The distance to the nearest thermal limit, in degrees.
pub(super) fn margin(door: &mut Door, Handle(device): Handle) -> Result<i64, Absence> {
    let version = u32::try_from(size_of::<sys::nvmlMarginTemperature_t>()).unwrap_or(0) | (1 << 24);
    let mut margin = sys::nvmlMarginTemperature_t { version, marginTemperature: 0 };
    ask!(door, nvmlDeviceGetMarginTemperature(device, &raw mut margin))?;
    Ok(margin.marginTemperature.into())
}

/// The clock event reasons as bits; older libraries know the function by its former name only.
pub(super) fn reasons(door: &mut Door, Handle(device): Handle) -> Result<u64, Absence> {
    let mut reasons: u64 = 0;
    let answer = ask!(door, nvmlDeviceGetCurrentClocksEventReasons(device, &raw mut reasons));
    if let Err(Refusal::NoSymbol) = answer {
        ask!(door, nvmlDeviceGetCurrentClocksThrottleReasons(device, &raw mut reasons))?;
    } else {
        answer?;
    }
    // No header knows a bit above the ninth.
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
        let first_version = Values::of([100, 40, 60]);
        assert_eq!(first_version.get(CallValue::MemoryFree), Ok(60));
        assert_eq!(first_version.get(CallValue::MemoryReserved), Err(Absence::NoSymbol));
    }

    #[test]
    fn all_ones_are_no_value_in_whatever_length_they_come() {
        let words = Values::of_words([u32::MAX, 250]);
        let told = [CallValue::UtilizationGpu, CallValue::UtilizationMemory].map(|value| words.get(value));
        assert_eq!(told, [Err(Absence::Rejected), Ok(250)]);
        let long = Values::of([u64::MAX, u32::MAX.into()]);
        let told = [CallValue::MemoryTotal, CallValue::MemoryUsed].map(|value| long.get(value));
        assert_eq!(told, [Err(Absence::Rejected), Ok(u32::MAX.into())]);
    }
}
