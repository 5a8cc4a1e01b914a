//! GPM: metrics between two samples.
//!
//! A sample is no more than a time and an engine; what happened between two of them follows from the truth
//! exactly. Percent from 0 to 100, traffic in MiB/s. Two samples of one time give NaN, as DCGM has seen.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Mutex;

use nvml_wrapper_sys::bindings::{
    nvmlGpmMetric_t, nvmlGpmMetric_t__bindgen_ty_1, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, VERSION_MISMATCH, code};
use super::buffers::Out;
use super::links::{nvlink, of_link, pcie};
use super::{Device, device_calls, gpu_calls, node_calls};
use crate::node::{Gpu, Node};
use crate::schedule::Work;
use crate::state::lock;

/// What the opaque buffers of the clients stand for; absent until the first sample is taken.
#[derive(Default)]
pub(crate) struct Samples(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    given: usize,
    samples: BTreeMap<usize, Option<Sample>>,
}

/// A GPU (or one engine of it) at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sample {
    gpu: u32,
    engine: Option<usize>,
    elapsed: u64,
}

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
        take(at, at.instance.map(|instance| instance.engine), sample)
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
        let instance = at.gpu.instances.iter().find(|known| known.id == instance).ok_or(INVALID_ARGUMENT)?;
        take(at, Some(instance.engine), sample)
    }

    fn nvmlGpmQueryIfStreamingEnabled(at, state: Out<c_uint>) {
        if !at.gpu.board.gpm {
            return Err(NOT_SUPPORTED);
        }
        state.put(0)
    }
}

fn take(at: &Device<'_>, engine: Option<usize>, sample: nvmlGpmSample_t) -> Answer {
    if !at.gpu.board.gpm {
        return Err(NOT_SUPPORTED);
    }
    at.node.samples.set(sample, Sample { gpu: at.gpu.index, engine, elapsed: at.now.elapsed })
}

/// What happened between two samples.
struct Between<'a> {
    gpu: &'a Gpu,
    engine: Option<usize>,
    first: u64,
    second: u64,
    work: Work,
    /// Nanoseconds at which the work would be 100 percent.
    whole: f64,
}

impl<'a> Between<'a> {
    fn new(node: &'a Node, first: Sample, second: Sample) -> Result<Self, Refused> {
        if first.gpu != second.gpu || first.engine != second.engine || second.elapsed < first.elapsed {
            return Err(INVALID_ARGUMENT);
        }
        let gpu = node.gpus.get(first.gpu as usize).ok_or(INVALID_ARGUMENT)?;
        let (before, after) = (gpu.timeline.totals(first.elapsed), gpu.timeline.totals(second.elapsed));
        let mut work = Work::default();
        let mut whole = 0.0;
        let span = (second.elapsed - first.elapsed) as f64;
        for (engine, (earlier, later)) in before.engines.iter().zip(&after.engines).enumerate() {
            if first.engine.is_none_or(|asked| asked == engine) {
                let share = if first.engine.is_some() { 1.0 } else { gpu.timeline.share(engine) };
                work += (*later - *earlier).scaled(share);
                whole = span;
            }
        }
        Ok(Self { gpu, engine: first.engine, first: first.elapsed, second: second.elapsed, work, whole })
    }

    fn answer(&self, metric: c_uint) -> nvmlGpmMetric_t {
        let (nvmlReturn, value) = match self.value(metric) {
            Ok(value) => (0, value),
            Err(refused) => (code(Err(refused)), 0.0),
        };
        let none = std::ptr::null_mut();
        let metricInfo = nvmlGpmMetric_t__bindgen_ty_1 { shortName: none, longName: none, unit: none };
        nvmlGpmMetric_t { metricId: metric, nvmlReturn, value, metricInfo }
    }

    fn value(&self, metric: c_uint) -> Result<f64, Refused> {
        let Work { busy, sm, tensor, dram, encoder, decoder } = self.work;
        let decoders = if self.gpu.board.nvlinks > 0 { 7 } else { 4 };
        match metric {
            1 => Ok(self.percent(busy)),
            2 => Ok(self.percent(sm)),
            // Half of the warps that fit are resident, a third of the instructions are integer or single.
            3 => Ok(self.percent(sm) / 2.0),
            4 => Ok(self.percent(sm) / 3.0),
            5 | 7 => Ok(self.percent(tensor)),
            6 | 9 | 11 => Ok(self.percent(0)),
            10 => Ok(self.percent(dram)),
            12 => Ok(self.percent(sm - tensor.min(sm)) / 3.0),
            13 => Ok(self.percent(tensor) / 10.0),
            20 => self.rate(|elapsed| pcie(&self.gpu.timeline, elapsed).sent),
            21 => self.rate(|elapsed| pcie(&self.gpu.timeline, elapsed).received),
            // The load of the decoders is spread over all of them.
            30..=37 if metric - 30 < decoders => Ok(self.percent(decoder)),
            40..=47 if metric - 40 < decoders => Ok(self.percent(0)),
            50 => Ok(self.percent(0)),
            60 => self.links(|elapsed| nvlink(&self.gpu.timeline, elapsed).received),
            61 => self.links(|elapsed| nvlink(&self.gpu.timeline, elapsed).sent),
            62..=97 => self.link(metric - 62),
            166..=169 => Ok(self.percent(encoder)),
            0 | 210.. => Err(INVALID_ARGUMENT),
            _ => Err(NOT_SUPPORTED),
        }
    }

    fn percent(&self, part: u64) -> f64 {
        // Zero over zero is the NaN of two samples at one time.
        part as f64 * 100.0 / self.whole
    }

    /// MiB/s; PCIe is not told apart by instance.
    fn rate(&self, bytes: impl Fn(u64) -> u64) -> Result<f64, Refused> {
        if self.engine.is_some() {
            return Err(NOT_SUPPORTED);
        }
        let passed = (bytes(self.second) - bytes(self.first)) as f64;
        Ok(passed / 1_048_576.0 * 1e9 / self.whole)
    }

    fn links(&self, bytes: impl Fn(u64) -> u64) -> Result<f64, Refused> {
        if self.gpu.board.nvlinks == 0 || !self.gpu.instances.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        self.rate(bytes)
    }

    /// Received and sent by turns, link by link.
    fn link(&self, place: c_uint) -> Result<f64, Refused> {
        let links = self.gpu.board.nvlinks;
        let link = place / 2;
        if link >= links {
            return Err(NOT_SUPPORTED);
        }
        self.links(|elapsed| {
            let all = nvlink(&self.gpu.timeline, elapsed);
            of_link(if place.is_multiple_of(2) { all.received } else { all.sent }, link, links)
        })
    }
}
