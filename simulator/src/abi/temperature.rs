//! Temperatures, margins and fans. Degrees Celsius.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlCoolerInfo_t, nvmlFanControlPolicy_t, nvmlGpuThermalSettings_t,
    nvmlGpuThermalSettings_t__bindgen_ty_1, nvmlMarginTemperature_v1_t, nvmlTemperature_v1_t,
    nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused};
use super::buffers::{Out, expect_version};
use super::{Device, gpu_calls};
use crate::board::{Limits, family};

/// NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR.
const TARGET: nvmlTemperatureThresholds_t = 5;

gpu_calls! {
    fn nvmlDeviceGetTemperature(at, sensor: nvmlTemperatureSensors_t, temperature: Out<c_uint>) {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        temperature.put(at.meters().temperature())
    }

    fn nvmlDeviceGetTemperatureV(at, request: Out<nvmlTemperature_v1_t>) {
        expect_version::<nvmlTemperature_v1_t>(request.version()?, 1)?;
        let mut asked = request.get()?;
        if asked.sensorType != 0 {
            return Err(INVALID_ARGUMENT);
        }
        asked.temperature = c_int::try_from(at.meters().temperature()).unwrap_or(c_int::MAX);
        request.put(asked)
    }

    // Absolute thresholds that follow from the margins; which of them a real H100 reports is unknown.
    fn nvmlDeviceGetTemperatureThreshold(at, kind: nvmlTemperatureThresholds_t, temperature: Out<c_uint>) {
        if kind == TARGET {
            return temperature.put(family::target(at.gpu.board).ok_or(NOT_SUPPORTED)?);
        }
        let place = usize::try_from(kind).ok().filter(|place| *place < 4).ok_or(NOT_SUPPORTED)?;
        if place == 2 && at.gpu.board.thermal.memory.is_none() {
            return Err(NOT_SUPPORTED);
        }
        let degrees = match at.gpu.board.thermal.limits {
            Limits::Absolute(degrees) => degrees.get(place).copied(),
            Limits::Margins { zero, tlimit } => {
                tlimit.get(place).map(|below| zero.saturating_add_signed(-below))
            }
        };
        temperature.put(degrees.ok_or(NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetMarginTemperature(at, request: Out<nvmlMarginTemperature_v1_t>) {
        expect_version::<nvmlMarginTemperature_v1_t>(request.version()?, 1)?;
        let mut asked = request.get()?;
        asked.marginTemperature = at.meters().margin().ok_or(NOT_SUPPORTED)?;
        request.put(asked)
    }

    // The only sensor is that of the GPU itself; index 15 asks for all.
    fn nvmlDeviceGetThermalSettings(at, index: c_uint, settings: Out<nvmlGpuThermalSettings_t>) {
        if index != 0 && index != 15 {
            return Err(INVALID_ARGUMENT);
        }
        let (most, now) = (slowdown(&at.gpu.board.thermal.limits), at.meters().temperature());
        let sensor = |controller, target, most, now| nvmlGpuThermalSettings_t__bindgen_ty_1 {
            controller,
            defaultMinTemp: 0,
            defaultMaxTemp: c_int::try_from(most).unwrap_or(c_int::MAX),
            currentTemp: c_int::try_from(now).unwrap_or(c_int::MAX),
            target,
        };
        let none = sensor(0, 0, 0, 0);
        settings.put(nvmlGpuThermalSettings_t { count: 1, sensor: [sensor(1, 1, most, now), none, none] })
    }

    // Most passive boards have no fan.
    fn nvmlDeviceGetNumFans(at, count: Out<c_uint>) {
        count.put(at.gpu.board.fan.is_some().into())
    }

    fn nvmlDeviceGetFanSpeed(at, speed: Out<c_uint>) {
        speed.put(fan(at, 0)?)
    }

    fn nvmlDeviceGetFanSpeed_v2(at, index: c_uint, speed: Out<c_uint>) {
        speed.put(fan(at, index)?)
    }

    fn nvmlDeviceGetTargetFanSpeed(at, index: c_uint, speed: Out<c_uint>) {
        speed.put(fan(at, index)?)
    }

    fn nvmlDeviceGetMinMaxFanSpeed(at, least: Out<c_uint>, most: Out<c_uint>) {
        fan(at, 0)?;
        most.pointer()?;
        least.put(0)?;
        most.put(100)
    }

    fn nvmlDeviceGetFanControlPolicy_v2(at, index: c_uint, policy: Out<nvmlFanControlPolicy_t>) {
        fan(at, index)?;
        policy.put(0)
    }

    fn nvmlDeviceGetCoolerInfo(at, cooler: Out<nvmlCoolerInfo_t>) {
        expect_version::<nvmlCoolerInfo_t>(cooler.version()?, 1)?;
        let asked = cooler.get()?;
        fan(at, asked.index)?;
        // Variable speed, and it cools everything.
        cooler.put(nvmlCoolerInfo_t { signalType: 2, target: 7, ..asked })
    }
}

/// The fan's percent, which rises with the temperature.
fn fan(at: &Device<'_>, index: c_uint) -> Result<c_uint, Refused> {
    let rest = at.gpu.board.fan.ok_or(NOT_SUPPORTED)?;
    if index > 0 {
        return Err(INVALID_ARGUMENT);
    }
    // The A10 answers 0 whatever its temperature.
    let above =
        if rest == 0 { 0 } else { at.meters().temperature().saturating_sub(at.gpu.board.thermal.gpu.0) };
    Ok((rest + above).min(100))
}

/// Degrees at which the GPU slows down.
fn slowdown(limits: &Limits) -> u32 {
    match *limits {
        Limits::Absolute([_, slowdown, _, _]) => slowdown,
        Limits::Margins { zero, tlimit: [_, slowdown, _, _] } => zero.saturating_add_signed(-slowdown),
    }
}
