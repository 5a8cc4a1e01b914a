//! The counters of driver 590 and later: sums from the driver's load to the second sample, in cycles of the SM
//! clock and bytes. The first sample does not matter.

use std::ffi::c_uint;

use super::super::answer::{NOT_SUPPORTED, Refused};
use super::super::pcie;
use super::metrics::{Between, half_precision, weighed};
use crate::condition::Traffic;
use crate::schedule::Work;

/// The first metric of bytes by link; received and sent alternate.
const LINKS: c_uint = 261;

pub(super) fn value(between: &Between<'_>, metric: c_uint) -> Result<f64, Refused> {
    let (gpu, elapsed) = (between.gpu, between.elapsed);
    match metric {
        248 => Ok(between.cycles(elapsed - gpu.timeline.loaded(elapsed))),
        255 | 256 if !between.divided() => {
            let bytes = pcie::counted(gpu, elapsed);
            Ok(if metric == 255 { bytes.sent } else { bytes.received } as f64)
        }
        255 | 256 => Err(NOT_SUPPORTED),
        LINKS.. => {
            let place = metric - LINKS;
            let bytes = link(between, place / 2)?;
            Ok(if place.is_multiple_of(2) { bytes.received } else { bytes.sent } as f64)
        }
        _ => {
            let work = weighed(gpu, &between.instances, &gpu.timeline.counted(elapsed));
            Ok(between.cycles(cycled(&work, metric).ok_or(NOT_SUPPORTED)?))
        }
    }
}

/// The nanoseconds whose cycles a metric counts.
fn cycled(work: &Work, metric: c_uint) -> Option<u64> {
    Some(match metric {
        249 => work.sm,
        250 => work.tensor,
        251 | 254 => work.dfma,
        252 => half_precision(work),
        253 => work.imma,
        257 => work.integer,
        258 => work.fp64,
        259 => work.fp32,
        260 => work.fp16,
        _ => return None,
    })
}

fn link(between: &Between<'_>, link: u32) -> Result<Traffic, Refused> {
    let gpu = between.gpu;
    if gpu.divided {
        return Err(NOT_SUPPORTED);
    }
    let carried = gpu.condition.links.counted(&gpu.timeline, between.elapsed);
    carried.get(link as usize).copied().ok_or(NOT_SUPPORTED)
}
