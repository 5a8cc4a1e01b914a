//! Field values: many readings in one call, each with its own code, some with a scope.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code};
use super::buffers::Out;
use super::clocks::violation;
use super::links::{nvlink, of_link, pcie};
use super::{Device, gpu_calls};
use crate::board::Limits;

/// The scope that means all links.
const ALL: c_uint = c_uint::MAX;
/// What the driver says a field took.
const LATENCY: i64 = 10;

/// A value with NVML's type.
enum Value {
    Unsigned(u32),
    Long(u64),
    Signed(i32),
}

gpu_calls! {
    fn nvmlDeviceGetFieldValues(at, count: c_int, values: Out<nvmlFieldValue_t>) {
        values.pointer()?;
        let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(INVALID_ARGUMENT)?;
        if let Some(debt) = at.node.debt(Some(at.gpu.slot)) {
            debt.fields(count);
        }
        for index in 0..count {
            let place = Out::at(values.pointer()?.wrapping_add(index));
            place.put(answered(at, place.get()?))?;
        }
        Ok(())
    }
}

fn answered(at: &Device<'_>, asked: nvmlFieldValue_t) -> nvmlFieldValue_t {
    let stamp = i64::try_from(at.now.utc / 1_000).unwrap_or(i64::MAX);
    let answer = nvmlFieldValue_t { timestamp: stamp, latencyUsec: LATENCY, nvmlReturn: 0, ..asked };
    match read(at, asked.fieldId, asked.scopeId) {
        Ok(Value::Unsigned(value)) => nvmlFieldValue_t { valueType: 1, value: whole(value.into()), ..answer },
        Ok(Value::Long(value)) => nvmlFieldValue_t { valueType: 3, value: whole(value), ..answer },
        Ok(Value::Signed(value)) => {
            let mut wide = whole(0);
            wide.siVal = value;
            nvmlFieldValue_t { valueType: 5, value: wide, ..answer }
        }
        Err(refused) => nvmlFieldValue_t { nvmlReturn: code(Err(refused)), value: whole(0), ..answer },
    }
}

/// All eight bytes are set, so that a reader of the wrong width sees no rest of another value.
fn whole(value: u64) -> nvmlValue_t {
    nvmlValue_t { ullVal: value }
}

fn read(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<Value, Refused> {
    let renumbered = at.node.renumbered_fields();
    match field {
        1 | 2 => Ok(Value::Unsigned(1)),
        // Total volatile and aggregate errors; the locations 7-28 are not told apart since Ampere.
        3..=6 => Ok(Value::Long(0)),
        74..=79 => brake(at, field - 74),
        80 => brake(at, 10),
        81 => brake(at, 11),
        82 => at.meters().memory_temperature().map(Value::Unsigned).ok_or(NOT_SUPPORTED),
        83 | 191 => Ok(Value::Long(at.gpu.timeline.totals(at.now.elapsed).energy / 1_000)),
        94 => Ok(Value::Unsigned(at.gpu.replays)),
        95 => Ok(Value::Unsigned(0)),
        142..=145 => {
            at.undivided()?;
            Ok(Value::Unsigned(0))
        }
        32..=73 | 84..=91 | 96..=141 | 146..=168 => link(at, field, scope),
        169 | 173..=183 => Ok(Value::Unsigned(0)),
        185 | 186 => power(at, field, scope),
        187 => limit(at.gpu.board.power.limit_min),
        188 => limit(at.gpu.board.power.limit_max),
        189 | 190 | 192 => limit(at.gpu.board.power.limit_default),
        193..=196 => tlimit(at, field - 193),
        197 => Ok(Value::Long(pcie(&at.gpu.timeline, at.now.elapsed).sent)),
        198 => Ok(Value::Long(pcie(&at.gpu.timeline, at.now.elapsed).received)),
        226 | 227 | 230 => Ok(Value::Unsigned(0)),
        // Driver 580.82 moved these three behind the power-smoothing fields.
        251..=253 if !renumbered => thermal(at, field - 251),
        269..=271 if renumbered => thermal(at, field - 269),
        0 | 274.. => Err(INVALID_ARGUMENT),
        _ => Err(NOT_SUPPORTED),
    }
}

fn brake(at: &Device<'_>, policy: c_uint) -> Result<Value, Refused> {
    violation(at, policy).map(Value::Long).ok_or(NOT_SUPPORTED)
}

/// Nanoseconds of software thermal slowdown, hardware thermal slowdown, hardware power brake.
fn thermal(at: &Device<'_>, which: c_uint) -> Result<Value, Refused> {
    let reason = [0x20, 0x40, 0x80].get(which as usize).copied().ok_or(NOT_SUPPORTED)?;
    Ok(Value::Long(at.gpu.timeline.braked(reason, at.now.elapsed)))
}

fn limit(watts: u32) -> Result<Value, Refused> {
    Ok(Value::Unsigned(watts * 1_000))
}

fn tlimit(at: &Device<'_>, which: c_uint) -> Result<Value, Refused> {
    // The fields' order is shutdown, slowdown, memory, GPU, as the board's.
    match at.gpu.board.thermal.limits {
        // No margin of a memory that shows no temperature.
        _ if which == 2 && at.gpu.board.thermal.memory.is_none() => Err(NOT_SUPPORTED),
        Limits::Margins { tlimit, .. } => {
            tlimit.get(which as usize).copied().map(Value::Signed).ok_or(NOT_SUPPORTED)
        }
        Limits::Absolute(_) => Err(NOT_SUPPORTED),
    }
}

/// Average and instant power of the GPU (scope 0) and of its memory (2); H100 has no module (1).
fn power(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<Value, Refused> {
    if !at.gpu.board.power_fields {
        return Err(NOT_SUPPORTED);
    }
    let meters = at.meters();
    let of_gpu = if field == 185 { meters.power_average() } else { meters.power_instant() };
    let milliwatts = match scope {
        0 => of_gpu,
        // Captures: 33-70 W at rest, 86 W when the GPU draws 632 W.
        2 if at.gpu.board.memory_power => 45_000 + of_gpu * 65 / 1_000,
        1 | 2 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_ARGUMENT),
    };
    Ok(Value::Unsigned(u32::try_from(milliwatts).unwrap_or(u32::MAX)))
}

/// NVLink fields: errors are 0, throughput grows with load; not answered in MIG mode.
fn link(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<Value, Refused> {
    at.undivided()?;
    let links = at.gpu.board.nvlinks;
    if links == 0 {
        return Err(NOT_SUPPORTED);
    }
    let within = scope < links || scope == ALL;
    let speed = Value::Unsigned(at.gpu.board.nvlink_speed);
    match field {
        // Counters of single links (0 to 11) and their sums.
        32..=59 | 96..=119 | 148..=160 => Ok(Value::Long(0)),
        84..=90 | 132..=137 => Ok(speed),
        91 | 147 => Ok(Value::Unsigned(links)),
        138..=141 if within => {
            let all = nvlink(&at.gpu.timeline, at.now.elapsed);
            let bytes = if field.is_multiple_of(2) { all.sent } else { all.received };
            // Raw counts protocol too, about a sixteenth more.
            let bytes = if field < 140 { bytes } else { bytes + bytes / 16 };
            let kibibytes = bytes / 1_024;
            Ok(Value::Long(if scope == ALL { kibibytes } else { of_link(kibibytes, scope, links) }))
        }
        161..=163 if within => Ok(Value::Long(0)),
        164 if within => Ok(speed),
        165 if within => Ok(Value::Unsigned(1)),
        166 if within => Ok(Value::Unsigned(at.gpu.board.nvlink_version)),
        138..=141 | 161..=166 => Err(INVALID_ARGUMENT),
        // The bandwidth counters before Ampere, and what Hopper does not say.
        _ => Err(NOT_SUPPORTED),
    }
}
