//! Field values: many readings in one call, each with its own code, some with a scope.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};

use super::answer::{INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED, Refused, code};
use super::buffers::Out;
use super::link_fields::link;
use super::power::{scoped_limits, scoped_power};
use super::violations::{braked, violation};
use super::{Device, gpu_calls, health, pcie};
use crate::board::family;
use crate::board::{Board, Limits};
use crate::channel::incidents::ErrorKind;
use crate::surprise::Surprise;

/// Microseconds that the driver reports for reading a field.
const LATENCY: i64 = 10;

/// A value with NVML's type.
pub(super) enum FieldValue {
    Unsigned(u32),
    Long(u64),
    Signed(i32),
}

gpu_calls! {
    fn nvmlDeviceGetFieldValues(at, count: c_int, values: Out<nvmlFieldValue_t>) {
        values.pointer()?;
        let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(INVALID_ARGUMENT)?;
        if let Some(debt) = at.node.debt(Some(at.gpu.slot)) {
            at.node.report.owe("nvmlDeviceGetFieldValues", debt.fields(count));
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
        Ok(FieldValue::Unsigned(value)) => {
            nvmlFieldValue_t { valueType: 1, value: whole(value.into()), ..answer }
        }
        Ok(FieldValue::Long(value)) => nvmlFieldValue_t { valueType: 3, value: whole(value), ..answer },
        Ok(FieldValue::Signed(value)) => {
            let mut wide = whole(0);
            wide.siVal = value;
            nvmlFieldValue_t { valueType: 5, value: wide, ..answer }
        }
        Err(refused) => nvmlFieldValue_t { nvmlReturn: code(Err(refused)), value: whole(0), ..answer },
    }
}

/// Sets all eight bytes, so that a reader of the wrong width gets no remains of another value.
fn whole(value: u64) -> nvmlValue_t {
    nvmlValue_t { ullVal: value }
}

fn read(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<FieldValue, Refused> {
    if let Some(which) =
        at.node.slowdown_field().and_then(|first| field.checked_sub(first)).filter(|which| *which < 3)
    {
        return thermal(at, which);
    }
    match field {
        _ if field >= at.node.fields() => Err(INVALID_ARGUMENT),
        1 | 2 => health::mode(at).map(FieldValue::Unsigned),
        // Corrected and uncorrected alternate: first volatile, then aggregate.
        3..=6 => health::total(at, (field - 3) % 2, (field - 3) / 2).map(FieldValue::Long),
        7..=28 => located(at, field),
        29 | 30 => Ok(FieldValue::Unsigned(
            u32::try_from(health::retired(at, field - 29)?.len()).unwrap_or(u32::MAX),
        )),
        31 | 92 | 93 => pages_pending(at, field),
        74..=79 => brake(at, field - 74),
        80 => brake(at, 10),
        81 => brake(at, 11),
        82 => at.meters().memory_temperature().map(FieldValue::Unsigned).ok_or(NOT_SUPPORTED),
        83 | 191 => Ok(FieldValue::Long(at.gpu.timeline.counted(at.now.elapsed).energy / 1_000)),
        94 => Ok(FieldValue::Unsigned(pcie::replays(at))),
        95 => Ok(FieldValue::Unsigned(0)),
        142..=145 => {
            let rows = health::remapped(at)?;
            rows.get(field as usize - 142).copied().map(FieldValue::Unsigned).ok_or(NOT_SUPPORTED)
        }
        32..=73 | 84..=91 | 96..=141 | 146..=168 | 201..=222 | 235..=250 => link(at, field, scope),
        169 | 173..=183 => Ok(FieldValue::Unsigned(0)),
        185 | 186 => power(at, field, scope),
        187 => limit(scoped_limits(at, scope)?.0),
        188 => limit(scoped_limits(at, scope)?.1),
        189 | 190 | 192 => limit(scoped_limits(at, scope)?.2),
        193..=196 => tlimit(at, field - 193),
        197 => Ok(FieldValue::Long(pcie::counted(at.gpu, at.now.elapsed).sent)),
        198 => Ok(FieldValue::Long(pcie::counted(at.gpu, at.now.elapsed).received)),
        226 => Ok(FieldValue::Unsigned(u32::from(matches!(action(at), 1 | 2)))),
        227 => Ok(FieldValue::Unsigned(u32::from(action(at) == 4))),
        230 => Ok(FieldValue::Unsigned(action(at))),
        // Before 580.82 some of these are slowdown times, which are handled above.
        251..=268 | 275..=288 | 300 => Err(power_smoothing(at.gpu.board)),
        274 => edpp(at.gpu.board),
        301 | 302 => health::remapped(at).map(|_| FieldValue::Unsigned(0)),
        0 => Err(INVALID_ARGUMENT),
        _ => Err(NOT_SUPPORTED),
    }
}

/// The error of power smoothing for an unprivileged reader: server boards since Blackwell have it.
pub(super) fn power_smoothing(board: &Board) -> Refused {
    if family::smooths_power(board) { NO_PERMISSION } else { NOT_SUPPORTED }
}

/// The EDPp multiplier in percent.
fn edpp(board: &Board) -> Result<FieldValue, Refused> {
    if family::multiplies_peaks(board) { Ok(FieldValue::Unsigned(100)) } else { Err(NOT_SUPPORTED) }
}

fn brake(at: &Device<'_>, policy: c_uint) -> Result<FieldValue, Refused> {
    violation(at, policy).map(FieldValue::Long).ok_or(NOT_SUPPORTED)
}

/// Nanoseconds of software thermal slowdown, hardware thermal slowdown, hardware power brake.
fn thermal(at: &Device<'_>, which: c_uint) -> Result<FieldValue, Refused> {
    let reason = [0x20, 0x40, 0x80].get(which as usize).copied().ok_or(NOT_SUPPORTED)?;
    Ok(FieldValue::Long(braked(at, reason)))
}

fn limit(watts: u32) -> Result<FieldValue, Refused> {
    Ok(FieldValue::Unsigned(watts * 1_000))
}

fn tlimit(at: &Device<'_>, which: c_uint) -> Result<FieldValue, Refused> {
    // The fields' order is shutdown, slowdown, memory, GPU, as the board's.
    match at.gpu.board.thermal.limits {
        // A memory without temperature has no margin.
        _ if which == 2 && at.gpu.board.thermal.memory.is_none() => Err(NOT_SUPPORTED),
        Limits::Margins { tlimit, .. } => {
            tlimit.get(which as usize).copied().map(FieldValue::Signed).ok_or(NOT_SUPPORTED)
        }
        Limits::Absolute(_) => Err(NOT_SUPPORTED),
    }
}

/// Average and instant power of the GPU (scope 0), of its module (1), of its memory (2).
fn power(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<FieldValue, Refused> {
    let power = scoped_power(at, field == 185, scope)?;
    let garbage = at.gpu.surprise == Some(Surprise::PowerFieldGarbage);
    Ok(FieldValue::Unsigned(if garbage { 3_000_000_000 } else { power }))
}

/// NVML's number of the recovery action asked for.
fn action(at: &Device<'_>) -> u32 {
    at.gpu.condition.health.action(at.now.elapsed)
}

/// ECC counters of one place: L1, L2, device memory, registers, texture, CBU; volatile ones first.
fn located(at: &Device<'_>, field: c_uint) -> Result<FieldValue, Refused> {
    let (counter, place) = if field < 18 { (0, field - 7) } else { (1, field - 18) };
    // The CBU has only uncorrected errors.
    let (kind, place) = if place == 10 { (1, 5) } else { (place % 2, place / 2) };
    let location = [0, 1, 2, 3, 4, 6].get(place as usize).copied().ok_or(NOT_SUPPORTED)?;
    // Since Ampere these fields are not supported, not even that of the device memory.
    if family::splits_sram(at.gpu.board) {
        return Err(NOT_SUPPORTED);
    }
    health::located(at, kind, counter, location).map(FieldValue::Long)
}

fn pages_pending(at: &Device<'_>, field: c_uint) -> Result<FieldValue, Refused> {
    let (corrected, uncorrected) = (ErrorKind::PageRetiredCorrected, ErrorKind::PageRetiredUncorrected);
    let causes: &[ErrorKind] = match field {
        92 => &[corrected],
        93 => &[uncorrected],
        _ => &[corrected, uncorrected],
    };
    health::retirement_pending(at, causes).map(FieldValue::Unsigned)
}
