//! GPM: the difference of two samples of hardware counters, exact over the time between them.

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, INVALID_ARGUMENT, call};
use super::fields::round_to_i64;
use super::plausibility::{CounterCheck, check_reading};
use super::probe::GpmMetrics;
use crate::driver::record::{RecordedAnswer, RecordedValue};
use crate::model::catalogue::{Bound, Counter};
use crate::model::{Absence, Reading, Unit};

/// Two sample buffers of one GPU or GPU instance, and the metrics computed from them.
pub(super) struct GpmPair {
    newer: sys::nvmlGpmSample_t,
    older: sys::nvmlGpmSample_t,
    /// Samples taken into the buffers, at most 2.
    taken: u8,
    of: Option<(Handle, Option<u32>)>,
    /// Ids of the metrics; those that every driver has come first.
    metrics: Vec<u32>,
    request: Box<sys::nvmlGpmMetricsGet_t>,
}

// SAFETY: the buffers belong to this pair alone and are used by the sampler that owns it.
unsafe impl Send for GpmPair {}

impl GpmPair {
    pub(super) fn new(api: &mut DriverApi, mut metrics: Vec<u32>) -> Result<Self, Absence> {
        metrics.sort_by_key(|id| is_late(*id));
        metrics.truncate(MOST);
        let newer = allocate_sample(api)?;
        let older = match allocate_sample(api) {
            Ok(older) => older,
            Err(absence) => {
                // A failure leaves nothing to do: the buffer is lost with the library.
                let _ = call!(api, nvmlGpmSampleFree(newer));
                return Err(absence);
            }
        };
        // SAFETY: the request is integers, doubles and pointers, for all of which zero is a value.
        let request = unsafe { Box::<sys::nvmlGpmMetricsGet_t>::new_zeroed().assume_init() };
        Ok(Self { newer, older, taken: 0, of: None, metrics, request })
    }

    pub(super) fn supported(api: &mut DriverApi, Handle(device): Handle) -> Result<(), Absence> {
        let mut support =
            sys::nvmlGpmSupport_t { version: sys::NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
        call!(api, nvmlGpmQueryDeviceSupport(device, &raw mut support))?;
        if support.isSupportedDevice == 0 { Err(Absence::NotSupported) } else { Ok(()) }
    }

    pub(super) fn has_sample(&self) -> bool {
        self.taken > 0
    }

    /// Takes a sample; the one before becomes the older of the pair. A failed sample empties the pair, since the
    /// next difference would cover an unknown time.
    pub(super) fn sample(
        &mut self,
        api: &mut DriverApi,
        Handle(device): Handle,
        instance: Option<u32>,
    ) -> Result<(), Absence> {
        std::mem::swap(&mut self.newer, &mut self.older);
        self.of = Some((Handle(device), instance));
        let buffer = self.newer;
        let answer = match instance {
            None => call!(api, nvmlGpmSampleGet(device, buffer)),
            Some(id) => call!(api, nvmlGpmMigSampleGet(device, id, buffer)),
        };
        self.taken = if answer.is_ok() { (self.taken + 1).min(2) } else { 0 };
        Ok(answer?)
    }

    /// Computes the metrics between the two samples; needs no device.
    pub(super) fn compute(&mut self, api: &mut DriverApi) -> Result<(), Absence> {
        if self.taken < 2 {
            return Err(Absence::NotYet);
        }
        match self.compute_metrics(api) {
            Err(CallError::Code(INVALID_ARGUMENT)) => self.compute_without_late_metrics(api)?,
            answer => answer?,
        }
        self.record(api);
        Ok(())
    }

    fn compute_metrics(&mut self, api: &mut DriverApi) -> Result<(), CallError> {
        self.request.version = sys::NVML_GPM_METRICS_GET_VERSION;
        self.request.numMetrics = u32::try_from(self.metrics.len()).unwrap_or(0);
        self.request.sample1 = self.older;
        self.request.sample2 = self.newer;
        for (place, id) in self.request.metrics.iter_mut().zip(&self.metrics) {
            place.metricId = *id;
            place.nvmlReturn = 3;
            place.value = f64::NAN;
        }
        let request: *mut sys::nvmlGpmMetricsGet_t = &raw mut *self.request;
        call!(api, nvmlGpmMetricsGet(request))
    }

    /// Some drivers refuse the whole request for a metric that their header lacks. If it works without the late
    /// metrics they are dropped; otherwise all are requested again next time.
    fn compute_without_late_metrics(&mut self, api: &mut DriverApi) -> Result<(), CallError> {
        let late = self.metrics.split_off(self.metrics.partition_point(|id| !is_late(*id)));
        let answer =
            if late.is_empty() { Err(CallError::Code(INVALID_ARGUMENT)) } else { self.compute_metrics(api) };
        if answer.is_err() {
            self.metrics.extend(late);
        }
        answer
    }

    fn record(&self, api: &DriverApi) {
        let (Some(recorder), Some((device, instance))) = (api.recorder(), self.of) else { return };
        for (metric, id) in self.request.metrics.iter().zip(&self.metrics) {
            let instance = instance.map_or(RecordedValue::None, |id| RecordedValue::Number(id.into()));
            let value = RecordedAnswer {
                at: api.clock().now().boottime.0,
                call: "nvmlGpmMetric_t".into(),
                arguments: vec![instance, RecordedValue::Number((*id).into())],
                code: Some(metric.nvmlReturn),
                out: vec![RecordedValue::Number(metric.value.to_bits())],
            };
            recorder.value(device, value);
        }
    }

    pub(super) fn value(&self, id: u32, times: i64) -> Result<i64, Absence> {
        let position = self.metrics.iter().position(|other| *other == id).ok_or(Absence::NotSupported)?;
        let metric = self.request.metrics.get(position).ok_or(Absence::NotSupported)?;
        match metric.nvmlReturn {
            0 => round_to_i64(metric.value * times as f64),
            // As with fields, drivers return "invalid argument" for what they do not have.
            INVALID_ARGUMENT => Err(Absence::NotSupported),
            code => Err(CallError::Code(code).into()),
        }
    }

    /// The sum of metrics; one that is missing leaves none.
    pub(super) fn sum(&self, metrics: GpmMetrics) -> Result<i64, Absence> {
        let add = |sum: i64, id| sum.checked_add(self.value(id, metrics.times)?).ok_or(Absence::Rejected);
        metrics.ids().try_fold(0, add)
    }

    pub(super) fn free(self, api: &mut DriverApi) {
        // A failure leaves nothing to do: the buffers are lost with the library.
        let _ = call!(api, nvmlGpmSampleFree(self.newer));
        let _ = call!(api, nvmlGpmSampleFree(self.older));
    }
}

/// The number of metrics in a request by the oldest supported header.
const MOST: usize = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_MAX as usize;

/// Whether a metric came after the first header with GPM, which ends with the links.
fn is_late(id: u32) -> bool {
    id == 8 || id > 97
}

fn allocate_sample(api: &mut DriverApi) -> Result<sys::nvmlGpmSample_t, Absence> {
    let mut sample: sys::nvmlGpmSample_t = std::ptr::null_mut();
    call!(api, nvmlGpmSampleAlloc(&raw mut sample))?;
    if sample.is_null() { Err(Absence::Failed) } else { Ok(sample) }
}

const COUNT: usize = Counter::ALL.len();

/// GPM counters of a GPU or a MIG instance since the driver was started, as last read and checked for plausibility.
/// The meter computes differences over time.
pub(super) struct GpmCounters {
    requested: Vec<Counter>,
    known: [CounterCheck; COUNT],
    readings: [Reading; COUNT],
}

impl GpmCounters {
    /// Counters that were never read; those that are not requested are not supported.
    pub(super) fn new(requested: Vec<Counter>) -> Self {
        let mut readings = [Err(Absence::NotSupported); COUNT];
        for counter in &requested {
            readings[*counter as usize] = Err(Absence::NotYet);
        }
        Self { requested, known: Counter::ALL.map(known), readings }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.requested.iter().map(|counter| counter.id())
    }

    pub(super) fn read(&mut self, api: &mut DriverApi, pair: &GpmPair, answer: Result<(), Absence>) {
        for counter in &self.requested {
            let raw = answer.and_then(|()| pair.value(counter.id(), 1));
            let check = &mut self.known[*counter as usize];
            self.readings[*counter as usize] = check_reading(api, raw, Bound::COUNTER, Some(check));
        }
    }

    /// All of them, in the catalogue's order.
    pub(super) fn readings(&self) -> Box<[Reading]> {
        self.readings.into()
    }
}

/// The most cycles that are counted in a second: 4 GHz on a thousand units.
const CYCLES: i64 = 4_000_000_000_000;

fn known(counter: Counter) -> CounterCheck {
    if counter.is_of_time() { CounterCheck::with_max_rate(CYCLES) } else { CounterCheck::new(Unit::Bytes) }
}
