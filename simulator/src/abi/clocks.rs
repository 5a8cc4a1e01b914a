//! Clocks, performance state, and the reasons for lower clocks.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlClkMonFaultInfo_t, nvmlClkMonStatus_t, nvmlClockId_t, nvmlClockType_t, nvmlDeviceCurrentClockFreqs_t,
    nvmlEnableState_t, nvmlPstates_t, nvmlRestrictedAPI_t,
};

use super::answer::{DEPRECATED, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused};
use super::buffers::{Out, array, expect_version, fill};
use super::{Device, gpu_calls};
use crate::board::{Clocks, family};
use crate::surprise::Surprise;

const IDLE: c_ulonglong = 0x1;
/// Every reason: all boards answer this mask.
const SUPPORTED: c_ulonglong = 0x1FF;
/// NVML_PSTATE_UNKNOWN: the end of a list of states.
const NO_STATE: nvmlPstates_t = 32;

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

    fn nvmlDeviceGetSupportedMemoryClocks(at, count: Out<c_uint>, clocks: Out<c_uint>) {
        let known: Vec<c_uint> = at.gpu.board.clocks.supported.iter().map(|set| set.memory).collect();
        fill(count, clocks, &known)
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(at, memory: c_uint, count: Out<c_uint>, clocks: Out<c_uint>) {
        let set = at.gpu.board.clocks.supported.iter().find(|set| set.memory == memory).ok_or(NOT_FOUND)?;
        fill(count, clocks, &set.graphics().collect::<Vec<_>>())
    }

    // Boards with HBM stay at P0, at rest too.
    fn nvmlDeviceGetPerformanceState(at, state: Out<nvmlPstates_t>) {
        state.put(if resting(at) { at.gpu.board.pstate_rest } else { 0 })
    }

    fn nvmlDeviceGetPowerState(at, state: Out<nvmlPstates_t>) {
        state.put(if resting(at) { at.gpu.board.pstate_rest } else { 0 })
    }

    fn nvmlDeviceGetSupportedPerformanceStates(at, states: Out<nvmlPstates_t>, size: c_uint) {
        let room = size as usize / size_of::<nvmlPstates_t>();
        let known = states_of(at);
        if room < known.len() {
            return Err(INVALID_ARGUMENT);
        }
        (0..room).try_for_each(|index| {
            states.put_at(index, known.get(index).copied().unwrap_or(NO_STATE))
        })
    }

    fn nvmlDeviceGetMinMaxClockOfPState(
        at,
        kind: nvmlClockType_t,
        state: nvmlPstates_t,
        least: Out<c_uint>,
        most: Out<c_uint>
    ) {
        if !states_of(at).contains(&state) {
            return Err(INVALID_ARGUMENT);
        }
        let (rest, full) = domain(&at.gpu.board.clocks, kind)?;
        most.pointer()?;
        least.put(rest)?;
        // The lower state holds the memory at its clock of rest.
        most.put(if state == 0 || kind != 2 { full } else { rest })
    }

    fn nvmlDeviceGetCurrentClockFreqs(at, text: Out<nvmlDeviceCurrentClockFreqs_t>) {
        let version = text.version()?;
        expect_version::<nvmlDeviceCurrentClockFreqs_t>(version, 1)?;
        let state = if resting(at) { at.gpu.board.pstate_rest } else { 0 };
        let Clocks { sm, memory, .. } = at.gpu.board.clocks;
        let (graphics, dram) = (current(at, 0)?, current(at, 2)?);
        text.put(nvmlDeviceCurrentClockFreqs_t { version, str_: array(&format!(
            "perf={state}, nvclock={graphics}, nvclockmin={}, nvclockmax={}, memclock={dram}, memclockmin={}, memclockmax={}",
            sm.0, sm.1, memory.0, memory.1
        )) })
    }

    // Server boards hold their clocks; consumer boards adapt them to the voltage.
    fn nvmlDeviceGetAdaptiveClockInfoStatus(at, status: Out<c_uint>) {
        status.put(at.gpu.board.part.is_none().into())
    }

    fn nvmlDeviceGetClkMonStatus(at, status: Out<nvmlClkMonStatus_t>) {
        let none = nvmlClkMonFaultInfo_t { clkApiDomain: 0, clkDomainFaultMask: 0 };
        status.put(nvmlClkMonStatus_t { bGlobalStatus: 0, clkMonListSize: 0, clkMonList: [none; 32] })
    }

    // Everyone may set application clocks; automatic boost is not there to be restricted since Pascal.
    fn nvmlDeviceGetAPIRestriction(at, kind: nvmlRestrictedAPI_t, restricted: Out<nvmlEnableState_t>) {
        match kind {
            0 => restricted.put(0),
            1 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(reasons_now(at))
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(reasons_now(at))
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(SUPPORTED)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(at, reasons: Out<c_ulonglong>) {
        reasons.put(SUPPORTED)
    }
}

/// Whether clocks and state are those of rest.
fn resting(at: &Device<'_>) -> bool {
    let awake = at.gpu.divided && family::awake_when_cut(at.gpu.board);
    !awake && at.meters().resting()
}

fn states_of(at: &Device<'_>) -> Vec<nvmlPstates_t> {
    let rest = at.gpu.board.pstate_rest;
    if rest == 0 { vec![0] } else { vec![0, rest] }
}

fn reasons_now(at: &Device<'_>) -> c_ulonglong {
    let resting = !at.gpu.divided && at.meters().resting();
    let brakes = at.gpu.timeline.brakes(at.now.elapsed);
    let at_rest = || at.gpu.surprise.and_then(Surprise::reasons_at_rest).unwrap_or(IDLE);
    if resting && brakes == 0 { at_rest() } else { brakes }
}

fn current(at: &Device<'_>, kind: nvmlClockType_t) -> Result<c_uint, Refused> {
    let (rest, most) = domain(&at.gpu.board.clocks, kind)?;
    if resting(at) {
        let odd = at.gpu.surprise.and_then(Surprise::clock_at_rest).filter(|_| kind < 2);
        return Ok(odd.unwrap_or(rest));
    }
    let braked = at.gpu.timeline.brakes(at.now.elapsed) != 0 && kind != 2;
    // In steps of 15 MHz, as the boards' supported clocks are.
    Ok(if braked { most * 4 / 5 / 15 * 15 } else { most })
}

fn application(at: &Device<'_>, kind: nvmlClockType_t) -> Result<c_uint, Refused> {
    if at.node.driver_major() >= 590 {
        return Err(DEPRECATED);
    }
    let (sm, memory) = at.gpu.board.clocks.application;
    match kind {
        0 | 1 => Ok(sm),
        2 => Ok(memory),
        // The video clock has none.
        3 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn domain(clocks: &Clocks, kind: nvmlClockType_t) -> Result<(u32, u32), Refused> {
    match kind {
        0 | 1 => Ok(clocks.sm),
        2 if clocks.memory.1 == 0 => Err(NOT_SUPPORTED),
        2 => Ok(clocks.memory),
        3 => Ok(clocks.video),
        _ => Err(INVALID_ARGUMENT),
    }
}
