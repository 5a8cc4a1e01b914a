//! Temperatures, margins and fans. Degrees Celsius.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlMarginTemperature_v1_t, nvmlTemperature_v1_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, expect_version};
use super::gpu_calls;
use crate::board::Limits;

gpu_calls! {
    fn nvmlDeviceGetTemperature(at, sensor: nvmlTemperatureSensors_t, temperature: Out<c_uint>) {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        temperature.put(at.meters().temperature())
    }

    fn nvmlDeviceGetTemperatureV(at, request: Out<nvmlTemperature_v1_t>) {
        let mut asked = request.get()?;
        expect_version::<nvmlTemperature_v1_t>(asked.version, 1)?;
        if asked.sensorType != 0 {
            return Err(INVALID_ARGUMENT);
        }
        asked.temperature = c_int::try_from(at.meters().temperature()).unwrap_or(c_int::MAX);
        request.put(asked)
    }

    // The absolute thresholds that follow from the margins; which of them a real H100 answers was not seen.
    fn nvmlDeviceGetTemperatureThreshold(at, kind: nvmlTemperatureThresholds_t, temperature: Out<c_uint>) {
        let place = usize::try_from(kind).ok().filter(|place| *place < 4).ok_or(NOT_SUPPORTED)?;
        let degrees = match at.gpu.board.thermal.limits {
            Limits::Absolute(degrees) => degrees.get(place).copied(),
            Limits::Margins { zero, tlimit } => {
                tlimit.get(place).map(|below| zero.saturating_add_signed(-below))
            }
        };
        temperature.put(degrees.ok_or(NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetMarginTemperature(at, request: Out<nvmlMarginTemperature_v1_t>) {
        let mut asked = request.get()?;
        expect_version::<nvmlMarginTemperature_v1_t>(asked.version, 1)?;
        asked.marginTemperature = at.meters().margin().ok_or(NOT_SUPPORTED)?;
        request.put(asked)
    }

    // Passive boards have no fan.
    fn nvmlDeviceGetNumFans(at, count: Out<c_uint>) {
        let _ = at;
        count.put(0)
    }

    fn nvmlDeviceGetFanSpeed(at, _speed: Out<c_uint>) {
        let _ = at;
        Err(NOT_SUPPORTED)
    }

    fn nvmlDeviceGetFanSpeed_v2(at, _fan: c_uint, _speed: Out<c_uint>) {
        let _ = at;
        Err(NOT_SUPPORTED)
    }
}
