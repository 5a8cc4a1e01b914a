//! Times in which a policy held the clocks down.

use nvml_wrapper_sys::bindings::{nvmlPerfPolicyType_t, nvmlViolationTime_t};

use super::answer::INVALID_ARGUMENT;
use super::buffers::Out;
use super::{Device, gpu_calls};
use crate::board::family;

gpu_calls! {
    fn nvmlDeviceGetViolationStatus(at, policy: nvmlPerfPolicyType_t, time: Out<nvmlViolationTime_t>) {
        time.put(nvmlViolationTime_t {
            // Microseconds.
            referenceTime: at.now.utc / 1_000,
            violationTime: violation(at, policy).ok_or(INVALID_ARGUMENT)?,
        })
    }
}

/// Nanoseconds since the driver was loaded in which a policy (NVML_PERF_POLICY_*) held the clocks down.
pub(super) fn violation(at: &Device<'_>, policy: nvmlPerfPolicyType_t) -> Option<u64> {
    match policy {
        0 => Some(capped(at) + braked(at, 0x4)),
        1 => Some(braked(at, 0x20) + braked(at, 0x40)),
        2 => Some(braked(at, 0x10)),
        3 => Some(braked(at, 0x80)),
        4 | 5 => Some(0),
        10 => Some(braked(at, 0x2)),
        11 => Some(0),
        _ => None,
    }
}

/// Nanoseconds since the driver was loaded in which any of the reasons was in force.
pub(super) fn braked(at: &Device<'_>, reasons: u64) -> u64 {
    at.gpu.timeline.braked(reasons, at.now.elapsed)
}

/// Nanoseconds of power cap that some idle boards report until the driver is reloaded.
fn capped(at: &Device<'_>) -> u64 {
    if at.since_load().0 > 0 {
        return 0;
    }
    let seconds = family::power_capped(at.gpu.board, at.gpu.surprise);
    if seconds > 0 { (seconds + u64::from(at.gpu.warmer)) * 1_000_000_000 } else { 0 }
}
