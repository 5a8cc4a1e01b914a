//! GPM: the difference of two samples of hardware counters, exact over the time between them.

mod counters;

use nvml_wrapper_sys::bindings as sys;

pub(super) use self::counters::Counters;

use super::door::{Door, Handle, INVALID_ARGUMENT, Refusal, ask};
use super::fields::whole;
use super::probe::Metric;
use crate::model::Absence;
use crate::record::Value;

/// Two sample buffers of one GPU or one GPU instance, and the metrics that are asked of them.
pub(super) struct Pair {
    newer: sys::nvmlGpmSample_t,
    older: sys::nvmlGpmSample_t,
    /// Samples taken into the buffers, at most 2.
    taken: u8,
    /// Whose samples they are.
    of: Option<(Handle, Option<u32>)>,
    /// Those that every driver knows come first.
    metrics: Vec<u32>,
    request: Box<sys::nvmlGpmMetricsGet_t>,
}

// SAFETY: the buffers belong to this pair alone and are used by the lane that owns it.
unsafe impl Send for Pair {}

impl Pair {
    /// Allocates the buffers; an absence where the library cannot.
    pub(super) fn new(door: &mut Door, mut metrics: Vec<u32>) -> Result<Self, Absence> {
        metrics.sort_by_key(|id| is_late(*id));
        metrics.truncate(MOST);
        let newer = allocate(door)?;
        let older = match allocate(door) {
            Ok(older) => older,
            Err(absence) => {
                // A failure leaves nothing to do: the buffer is lost with the library.
                let _ = ask!(door, nvmlGpmSampleFree(newer));
                return Err(absence);
            }
        };
        // SAFETY: the request is integers, doubles and pointers, for all of which zero is a value.
        let request = unsafe { Box::<sys::nvmlGpmMetricsGet_t>::new_zeroed().assume_init() };
        Ok(Self { newer, older, taken: 0, of: None, metrics, request })
    }

    /// Whether GPM works on the device at all.
    pub(super) fn supported(door: &mut Door, Handle(device): Handle) -> Result<(), Absence> {
        let mut support =
            sys::nvmlGpmSupport_t { version: sys::NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
        ask!(door, nvmlGpmQueryDeviceSupport(device, &raw mut support))?;
        if support.isSupportedDevice == 0 { Err(Absence::NotSupported) } else { Ok(()) }
    }

    /// Whether the last sample was taken.
    pub(super) fn has_sample(&self) -> bool {
        self.taken > 0
    }

    /// Takes a sample; the one before becomes the older of the pair. A sample that fails breaks the pair:
    /// the next difference would otherwise cover an unknown time.
    pub(super) fn sample(
        &mut self,
        door: &mut Door,
        Handle(device): Handle,
        instance: Option<u32>,
    ) -> Result<(), Absence> {
        std::mem::swap(&mut self.newer, &mut self.older);
        self.of = Some((Handle(device), instance));
        let buffer = self.newer;
        let answer = match instance {
            None => ask!(door, nvmlGpmSampleGet(device, buffer)),
            Some(id) => ask!(door, nvmlGpmMigSampleGet(device, id, buffer)),
        };
        self.taken = if answer.is_ok() { (self.taken + 1).min(2) } else { 0 };
        Ok(answer?)
    }

    /// Computes the metrics between the two samples; needs no device.
    pub(super) fn compute(&mut self, door: &mut Door) -> Result<(), Absence> {
        if self.taken < 2 {
            return Err(Absence::NotYet);
        }
        match self.get(door) {
            Err(Refusal::Code(INVALID_ARGUMENT)) => self.get_what_is_known(door)?,
            answer => answer?,
        }
        self.record(door);
        Ok(())
    }

    fn get(&mut self, door: &mut Door) -> Result<(), Refusal> {
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
        ask!(door, nvmlGpmMetricsGet(request))
    }

    /// A driver may refuse the whole for a metric that its header does not have yet. If it is that, they are not
    /// asked for again; else all of them are at the next time.
    fn get_what_is_known(&mut self, door: &mut Door) -> Result<(), Refusal> {
        let late = self.metrics.split_off(self.metrics.partition_point(|id| !is_late(*id)));
        let answer = if late.is_empty() { Err(Refusal::Code(INVALID_ARGUMENT)) } else { self.get(door) };
        if answer.is_err() {
            self.metrics.extend(late);
        }
        answer
    }

    fn record(&self, door: &Door) {
        let (Some(recorder), Some((device, instance))) = (door.recorder(), self.of) else { return };
        for (metric, id) in self.request.metrics.iter().zip(&self.metrics) {
            let instance = instance.map_or(Value::None, |id| Value::Number(id.into()));
            let question = vec![instance, Value::Number((*id).into())];
            let out = vec![Value::Number(metric.value.to_bits())];
            let at = door.clock().now().boottime;
            recorder.value(at, "nvmlGpmMetric_t", (device, question), (metric.nvmlReturn, out));
        }
    }

    /// A metric of the last computation, times a factor.
    pub(super) fn value(&self, id: u32, times: i64) -> Result<i64, Absence> {
        let position = self.metrics.iter().position(|other| *other == id).ok_or(Absence::NotSupported)?;
        let metric = self.request.metrics.get(position).ok_or(Absence::NotSupported)?;
        match metric.nvmlReturn {
            0 => whole(metric.value * times as f64),
            // As with fields, what a driver does not know is an "invalid argument".
            INVALID_ARGUMENT => Err(Absence::NotSupported),
            code => Err(Refusal::Code(code).into()),
        }
    }

    /// The sum of metrics, each times a factor; one that is missing leaves none.
    pub(super) fn sum(&self, metric: Metric, times: i64) -> Result<i64, Absence> {
        metric
            .ids()
            .try_fold(0_i64, |sum, id| sum.checked_add(self.value(id, times)?).ok_or(Absence::Rejected))
    }

    /// Gives the buffers back to the library.
    pub(super) fn free(self, door: &mut Door) {
        // A failure leaves nothing to do: the buffers are lost with the library.
        let _ = ask!(door, nvmlGpmSampleFree(self.newer));
        let _ = ask!(door, nvmlGpmSampleFree(self.older));
    }
}

/// As many metrics as the request of the oldest header that we speak has room for.
const MOST: usize = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_MAX as usize;

/// Whether a metric came after the first header with GPM, which ends with the links.
fn is_late(id: u32) -> bool {
    id == 8 || id > 97
}

fn allocate(door: &mut Door) -> Result<sys::nvmlGpmSample_t, Absence> {
    let mut sample: sys::nvmlGpmSample_t = std::ptr::null_mut();
    ask!(door, nvmlGpmSampleAlloc(&raw mut sample))?;
    if sample.is_null() { Err(Absence::Failed) } else { Ok(sample) }
}
