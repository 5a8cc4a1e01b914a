//! Direct calls: which driver function brings which values of the catalogue.
//!
//! A metric from a new driver call adds a value to the catalogue's `CallValue` and its function here.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, ask};
use crate::catalogue::CallValue;
use crate::model::Absence;

/// A driver function that brings one or more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Function {
    Utilization,
    Encoder,
    Decoder,
    Memory,
    PowerUsage,
    PowerLimitEnforced,
    Energy,
    Temperature,
    ClockSm,
    ClockMemory,
    PcieReplays,
}

/// The function that brings a value.
pub(super) const fn function(value: CallValue) -> Function {
    match value {
        CallValue::UtilizationGpu | CallValue::UtilizationMemory => Function::Utilization,
        CallValue::UtilizationEncoder => Function::Encoder,
        CallValue::UtilizationDecoder => Function::Decoder,
        CallValue::MemoryTotal
        | CallValue::MemoryUsed
        | CallValue::MemoryFree
        | CallValue::MemoryReserved => Function::Memory,
        CallValue::PowerUsage => Function::PowerUsage,
        CallValue::PowerLimitEnforced => Function::PowerLimitEnforced,
        CallValue::Energy => Function::Energy,
        CallValue::Temperature => Function::Temperature,
        CallValue::ClockSm => Function::ClockSm,
        CallValue::ClockMemory => Function::ClockMemory,
        CallValue::PcieReplays => Function::PcieReplays,
    }
}

/// What one call brought; a value that the answer does not hold is absent.
pub(super) type Answer = Result<Values, Absence>;

/// The values of one answer, in the driver's units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Values {
    first: u64,
    second: u64,
    third: u64,
    fourth: Option<u64>,
}

impl Values {
    const fn one(value: u64) -> Self {
        Self { first: value, second: 0, third: 0, fourth: None }
    }

    /// One value of the answer of its [`function`].
    pub(super) fn get(&self, value: CallValue) -> Result<u64, Absence> {
        match value {
            CallValue::UtilizationMemory | CallValue::MemoryUsed => Ok(self.second),
            CallValue::MemoryFree => Ok(self.third),
            CallValue::MemoryReserved => self.fourth.ok_or(Absence::NotSupported),
            _ => Ok(self.first),
        }
    }
}

/// Calls one function.
pub(super) fn call(door: &mut Door, Handle(device): Handle, function: Function) -> Answer {
    let mut value: c_uint = 0;
    match function {
        Function::Utilization => {
            let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
            ask!(door, nvmlDeviceGetUtilizationRates(device, &raw mut rates))?;
            return Ok(Values { first: rates.gpu.into(), second: rates.memory.into(), ..Values::default() });
        }
        Function::Memory => return memory(door, Handle(device)),
        Function::Encoder => {
            let mut period: c_uint = 0;
            ask!(door, nvmlDeviceGetEncoderUtilization(device, &raw mut value, &raw mut period))?;
        }
        Function::Decoder => {
            let mut period: c_uint = 0;
            ask!(door, nvmlDeviceGetDecoderUtilization(device, &raw mut value, &raw mut period))?;
        }
        Function::PowerUsage => ask!(door, nvmlDeviceGetPowerUsage(device, &raw mut value))?,
        Function::PowerLimitEnforced => ask!(door, nvmlDeviceGetEnforcedPowerLimit(device, &raw mut value))?,
        Function::Energy => {
            let mut energy: u64 = 0;
            ask!(door, nvmlDeviceGetTotalEnergyConsumption(device, &raw mut energy))?;
            return Ok(Values::one(energy));
        }
        Function::Temperature => {
            let sensor = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
            ask!(door, nvmlDeviceGetTemperature(device, sensor, &raw mut value))?;
        }
        Function::ClockSm => {
            let clock = sys::nvmlClockType_enum_NVML_CLOCK_SM;
            ask!(door, nvmlDeviceGetClockInfo(device, clock, &raw mut value))?;
        }
        Function::ClockMemory => {
            let clock = sys::nvmlClockType_enum_NVML_CLOCK_MEM;
            ask!(door, nvmlDeviceGetClockInfo(device, clock, &raw mut value))?;
        }
        Function::PcieReplays => ask!(door, nvmlDeviceGetPcieReplayCounter(device, &raw mut value))?,
    }
    Ok(Values::one(value.into()))
}

/// Total, used, free, reserved. Drivers before 510 have only the first version, which knows no reserve.
pub(super) fn memory(door: &mut Door, Handle(device): Handle) -> Answer {
    let version = u32::try_from(size_of::<sys::nvmlMemory_v2_t>()).unwrap_or(0) | (2 << 24);
    let mut second = sys::nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    let answer = ask!(door, nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
    match answer.map_err(Absence::from) {
        Ok(()) => Ok(Values {
            first: second.total,
            second: second.used,
            third: second.free,
            fourth: Some(second.reserved),
        }),
        Err(absence) if absence.is_permanent() => {
            let mut first = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
            ask!(door, nvmlDeviceGetMemoryInfo(device, &raw mut first))?;
            Ok(Values { first: first.total, second: first.used, third: first.free, fourth: None })
        }
        Err(absence) => Err(absence),
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
    if let Err(super::door::Refusal::NoSymbol) = answer {
        ask!(door, nvmlDeviceGetCurrentClocksThrottleReasons(device, &raw mut reasons))?;
    } else {
        answer?;
    }
    Ok(reasons)
}
