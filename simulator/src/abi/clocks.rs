//! Clocks, performance state, and the reasons for lower clocks.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlClockId_t, nvmlClockType_t, nvmlPstates_t};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused};
use super::buffers::Out;
use super::{Device, gpu_calls};
use crate::board::Clocks;

const IDLE: c_ulonglong = 0x1;
/// Every reason: all boards answer this mask.
const SUPPORTED: c_ulonglong = 0x1FF;

gpu_calls! {
    fn nvmlDeviceGetClockInfo(at, kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.put(current(at, kind)?)
    }

    fn nvmlDeviceGetMaxClockInfo(at, kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.put(domain(&at.gpu.board.clocks, kind)?.1)
    }

    fn nvmlDeviceGetApplicationsClock(at, kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.put(application(at, kind)?)
    }

    fn nvmlDeviceGetDefaultApplicationsClock(at, kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.put(application(at, kind)?)
    }

    fn nvmlDeviceGetMaxCustomerBoostClock(at, kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.put(domain(&at.gpu.board.clocks, kind)?.1)
    }

    fn nvmlDeviceGetClock(at, kind: nvmlClockType_t, id: nvmlClockId_t, clock: Out<c_uint>) {
        clock.put(match id {
            0 => current(at, kind)?,
            1 | 2 => application(at, kind)?,
            3 => domain(&at.gpu.board.clocks, kind)?.1,
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    // Boards with HBM stay at P0, at rest too.
    fn nvmlDeviceGetPerformanceState(at, state: Out<nvmlPstates_t>) {
        state.put(if at.meters().resting() { at.gpu.board.pstate_rest } else { 0 })
    }

    fn nvmlDeviceGetPowerState(at, state: Out<nvmlPstates_t>) {
        state.put(if at.meters().resting() { at.gpu.board.pstate_rest } else { 0 })
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(reasons_now(at))
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(reasons_now(at))
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(at, reasons: Out<c_ulonglong>) {
        let _ = at;
        reasons.put(SUPPORTED)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(at, reasons: Out<c_ulonglong>) {
        let _ = at;
        reasons.put(SUPPORTED)
    }
}

fn reasons_now(at: &Device<'_>) -> c_ulonglong {
    let resting = at.gpu.instances.is_empty() && at.meters().resting();
    let brakes = at.gpu.timeline.brakes(at.now.elapsed);
    if resting && brakes == 0 { IDLE } else { brakes }
}

fn current(at: &Device<'_>, kind: nvmlClockType_t) -> Result<c_uint, Refused> {
    let (rest, most) = domain(&at.gpu.board.clocks, kind)?;
    if at.meters().resting() {
        return Ok(rest);
    }
    let braked = at.gpu.timeline.brakes(at.now.elapsed) != 0 && kind != 2;
    // In steps of 15 MHz, as the boards' supported clocks are.
    Ok(if braked { most * 4 / 5 / 15 * 15 } else { most })
}

fn application(at: &Device<'_>, kind: nvmlClockType_t) -> Result<c_uint, Refused> {
    // The video clock has none.
    if kind == 3 { Err(NOT_SUPPORTED) } else { Ok(domain(&at.gpu.board.clocks, kind)?.1) }
}

fn domain(clocks: &Clocks, kind: nvmlClockType_t) -> Result<(u32, u32), Refused> {
    match kind {
        0 | 1 => Ok(clocks.sm),
        2 => Ok(clocks.memory),
        3 => Ok(clocks.video),
        _ => Err(INVALID_ARGUMENT),
    }
}
