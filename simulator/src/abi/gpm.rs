//! GPM: metrics between two samples.
//!
//! A sample is a time and a part of a GPU; what happened between two samples follows exactly from the truth.
//! `metrics` has the meaning of the numbers.

mod counters;
mod metrics;

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, VERSION_MISMATCH};
use super::buffers::Out;
use super::{Device, device_calls, gpu_calls, node_calls};
use crate::handles::{GpmSample, Part, Subject};
use crate::node::{Gpu, Node};
use metrics::Between;

/// More metrics than any header's request has room for.
const TOO_MANY: c_uint = 1_024;

node_calls! {
    fn nvmlGpmSampleAlloc(node, _, sample: Out<nvmlGpmSample_t>) {
        sample.pointer()?;
        sample.put(std::ptr::without_provenance_mut(node.samples.insert(None)))
    }

    fn nvmlGpmSampleFree(node, _, sample: nvmlGpmSample_t) {
        node.samples.remove(sample.addr())
    }

    fn nvmlGpmMetricsGet(node, _, request: Out<nvmlGpmMetricsGet_t>) {
        // The array's length differs between headers: only the requested entries are touched.
        let request = request.pointer()?;
        // SAFETY: not null, so by NVML's contract the caller's request; its head is set.
        let (version, count, first, second, metrics) = unsafe {
            let metrics = &raw mut (*request).metrics;
            ((*request).version, (*request).numMetrics, (*request).sample1, (*request).sample2, metrics)
        };
        if version != 1 {
            return Err(VERSION_MISMATCH);
        }
        if count > TOO_MANY {
            return Err(INVALID_ARGUMENT);
        }
        let span = Between::new(node, taken(node, first)?, taken(node, second)?)?;
        for index in 0..count as usize {
            let place = Out::at(metrics.cast::<nvmlGpmMetric_t>().wrapping_add(index));
            place.put(span.answer(place.get()?.metricId))?;
        }
        Ok(())
    }
}

device_calls! {
    fn nvmlGpmSampleGet(at, sample: nvmlGpmSample_t) {
        take(at, at.instance.map_or(Part::Whole, |instance| Part::Compute(instance.engine)), sample)
    }

    fn nvmlGpmQueryDeviceSupport(at, support: Out<nvmlGpmSupport_t>) {
        let mut asked = support.get()?;
        if asked.version != 1 {
            return Err(VERSION_MISMATCH);
        }
        asked.isSupportedDevice = at.gpu.board.gpm.into();
        support.put(asked)
    }
}

gpu_calls! {
    fn nvmlGpmMigSampleGet(at, instance: c_uint, sample: nvmlGpmSample_t) {
        at.gpu.instances.iter().find(|known| known.id == instance).ok_or(INVALID_ARGUMENT)?;
        take(at, Part::Instance(instance), sample)
    }

    fn nvmlGpmQueryIfStreamingEnabled(at, state: Out<c_uint>) {
        if !at.gpu.board.gpm {
            return Err(NOT_SUPPORTED);
        }
        state.put(0)
    }
}

fn take(at: &Device<'_>, part: Part, sample: nvmlGpmSample_t) -> Answer {
    if !at.gpu.board.gpm {
        return Err(NOT_SUPPORTED);
    }
    let Gpu { slot, life, cut, .. } = *at.gpu;
    let taken = GpmSample { subject: Subject { slot, life, cut, part }, elapsed: at.now.elapsed };
    at.node.samples.with(sample.addr(), |held| *held = Some(taken))
}

/// The sample of a handle; refused before it was taken.
fn taken(node: &Node, sample: nvmlGpmSample_t) -> Result<GpmSample, Refused> {
    node.samples.with(sample.addr(), |held| *held)?.ok_or(INVALID_ARGUMENT)
}
