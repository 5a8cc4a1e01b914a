//! GPM: metrics between two samples.
//!
//! A sample is no more than a time and a part of a GPU; what happened between two of them follows from the truth
//! exactly. What the numbers mean is in `metrics`.

mod counters;
mod metrics;

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Mutex;

use nvml_wrapper_sys::bindings::{nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, VERSION_MISMATCH};
use super::buffers::Out;
use super::{Device, device_calls, gpu_calls, node_calls};
use crate::node::Gpu;
use crate::state::lock;
use metrics::Between;

/// What the opaque buffers of the clients stand for; absent until the first sample is taken.
#[derive(Default)]
pub(crate) struct Samples(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    given: usize,
    samples: BTreeMap<usize, Option<Sample>>,
}

/// A GPU, or a part of it, at a time.
#[derive(Clone, Copy)]
struct Sample {
    subject: Subject,
    elapsed: u64,
}

/// What a sample is of: another board or another MIG layout in the same place is something else.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Subject {
    slot: u32,
    life: u32,
    cut: u32,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// A GPU instance, by its id.
    Instance(u32),
    /// A compute instance, by its engine.
    Compute(usize),
}

/// More metrics than any header's request has room for.
const TOO_MANY: c_uint = 1_024;

/// Sample handles are numbers, not addresses.
const SAMPLE_MARK: usize = 0x6770_0000_0000;

impl Samples {
    fn allocate(&self) -> nvmlGpmSample_t {
        let mut shelf = lock(&self.0);
        shelf.given += 1;
        let number = SAMPLE_MARK | shelf.given;
        shelf.samples.insert(number, None);
        std::ptr::without_provenance_mut(number)
    }

    fn free(&self, sample: nvmlGpmSample_t) -> Answer {
        lock(&self.0).samples.remove(&sample.addr()).map(|_| ()).ok_or(INVALID_ARGUMENT)
    }

    fn set(&self, sample: nvmlGpmSample_t, value: Sample) -> Answer {
        let mut shelf = lock(&self.0);
        *shelf.samples.get_mut(&sample.addr()).ok_or(INVALID_ARGUMENT)? = Some(value);
        Ok(())
    }

    fn get(&self, sample: nvmlGpmSample_t) -> Result<Sample, Refused> {
        lock(&self.0).samples.get(&sample.addr()).copied().flatten().ok_or(INVALID_ARGUMENT)
    }
}

node_calls! {
    fn nvmlGpmSampleAlloc(node, _, sample: Out<nvmlGpmSample_t>) {
        sample.pointer()?;
        sample.put(node.samples.allocate())
    }

    fn nvmlGpmSampleFree(node, _, sample: nvmlGpmSample_t) {
        node.samples.free(sample)
    }

    fn nvmlGpmMetricsGet(node, _, request: Out<nvmlGpmMetricsGet_t>) {
        // Newer headers have a longer array, callers a shorter one: only entries asked for are touched.
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
        let span = Between::new(node, node.samples.get(first)?, node.samples.get(second)?)?;
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
    at.node
        .samples
        .set(sample, Sample { subject: Subject { slot, life, cut, part }, elapsed: at.now.elapsed })
}
