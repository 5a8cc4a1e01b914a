//! The rings of samples that the driver keeps of a GPU.
//!
//! Without a buffer the call returns the ring's size. With one it returns the oldest samples after the last seen
//! time that fit, so that a reader with a small buffer can continue.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlSamplingType_t, nvmlValue_t, nvmlValueType_t};

use super::answer::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused};
use super::buffers::Out;
use super::power::neighbours;
use super::{Device, gpu_calls};
use crate::meters::{Meters, RING, Ring};

/// NVML_VALUE_TYPE_UNSIGNED_INT.
const UNSIGNED: nvmlValueType_t = 1;

gpu_calls! {
    fn nvmlDeviceGetSamples(
        at,
        kind: nvmlSamplingType_t,
        last_seen: c_ulonglong,
        value_type: Out<nvmlValueType_t>,
        count: Out<c_uint>,
        samples: Out<nvmlSample_t>
    ) {
        value_type.pointer()?;
        let room = count.get()?;
        let ring = ring(at, kind)?;
        value_type.put(UNSIGNED)?;
        if samples.pointer().is_err() {
            return count.put(c_uint::try_from(RING).unwrap_or(c_uint::MAX));
        }
        if room == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let mut found = since(at, ring, kind, last_seen);
        found.truncate(room as usize);
        if found.is_empty() {
            return Err(NOT_FOUND);
        }
        count.put(c_uint::try_from(found.len()).unwrap_or(c_uint::MAX))?;
        found.into_iter().enumerate().try_for_each(|(index, sample)| samples.put_at(index, sample))
    }
}

fn ring(at: &Device<'_>, kind: nvmlSamplingType_t) -> Result<Ring, Refused> {
    let ring = match kind {
        0 => Ring::Power,
        1 => Ring::Gpu,
        2 => Ring::Memory,
        3 => Ring::Encoder,
        4 => Ring::Decoder,
        5 | 6 => Ring::Awake,
        // Only modules with a Grace processor have a module power.
        7 if at.gpu.board.module_power.is_some() => Ring::Power,
        7 => return Err(NOT_SUPPORTED),
        8 => Ring::Jpeg,
        9 => Ring::Ofa,
        _ => return Err(INVALID_ARGUMENT),
    };
    // A GPU in MIG mode has no utilization.
    if !matches!(ring, Ring::Power | Ring::Awake) {
        at.undivided()?;
    }
    Ok(ring)
}

/// Samples with UTC microseconds.
fn since(at: &Device<'_>, ring: Ring, kind: nvmlSamplingType_t, last_seen: c_ulonglong) -> Vec<nvmlSample_t> {
    let begun = at.now.utc.saturating_sub(at.now.elapsed);
    let seen = last_seen.saturating_mul(1_000).checked_sub(begun);
    let mut samples = Vec::new();
    for (when, value) in at.meters().ring(ring, seen) {
        let stamp = (begun + when) / 1_000;
        if stamp > last_seen {
            samples.push(nvmlSample_t { timeStamp: stamp, sampleValue: shown(at, kind, when, value) });
        }
    }
    samples
}

fn shown(at: &Device<'_>, kind: nvmlSamplingType_t, when: u64, value: u64) -> nvmlValue_t {
    let clocks = &at.gpu.board.clocks;
    let clock = |(rest, most): (u32, u32), brakes: bool| {
        let braked = brakes && at.gpu.timeline.brakes(when) != 0;
        let working = if braked { most * 4 / 5 / 15 * 15 } else { most };
        u64::from(if value == 0 { rest } else { working })
    };
    let value = match kind {
        5 => clock(clocks.sm, true),
        6 => clock(clocks.memory, false),
        7 => module_power(at, when),
        _ => value,
    };
    nvmlValue_t { ullVal: value }
}

/// Milliwatts of the module at a time: of its GPUs and the rest.
fn module_power(at: &Device<'_>, when: u64) -> u64 {
    let rest = at.gpu.board.module_power.map_or(0, |module| u64::from(module.rest) * 1_000);
    let gpus = neighbours(at).map(|gpu| Device { gpu, instance: None, ..*at });
    rest + gpus.map(|gpu| Meters { elapsed: when, ..gpu.meters() }.power_instant()).sum::<u64>()
}
