//! Recorded calls that are answered part by part, since every reader asks for other batches, samples and waits.

use std::thread;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlFieldValue_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlValue_t,
};

use super::Arguments;
use super::argument::{Argument, handle};
use super::tape::{AnswerLookup, Replay, TapeValue, TimedAnswer};
use crate::abi::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, TIMEOUT, VERSION_MISMATCH, code};
use crate::clock::host_boottime;
use crate::handles::Handles;

/// A GPM sample of a recorded driver: of which GPU or instance, and when.
#[derive(Clone)]
pub(super) struct RecordedSample {
    device: TapeValue,
    instance: TapeValue,
    elapsed: u64,
}

/// Nanoseconds between two checks for an event while a client waits.
const STEP: u64 = 10_000_000;

impl Replay {
    /// The answer of a call that is recorded in parts; `None` for other calls.
    pub(super) fn apart(&self, function: &str, arguments: Arguments<'_>, elapsed: u64) -> Option<Answer> {
        Some(match (function, arguments) {
            ("nvmlDeviceGetFieldValues", [device, count, values]) => {
                self.fields(*device, *count, *values, elapsed)
            }
            ("nvmlGpmSampleAlloc", [sample]) => put_handle(*sample, &self.samples, None),
            ("nvmlGpmSampleFree", [sample]) => {
                number_of(*sample).and_then(|sample| self.samples.remove(sample))
            }
            ("nvmlGpmSampleGet", [device, sample]) => {
                self.sample(*device, Ok(TapeValue::None), *sample, elapsed)
            }
            ("nvmlGpmMigSampleGet", [device, instance, sample]) => {
                self.sample(*device, instance.question(), *sample, elapsed)
            }
            ("nvmlGpmMetricsGet", [request]) => self.metrics(*request),
            ("nvmlEventSetCreate", [set]) => {
                let behind = self.events.partition_point(|(at, ..)| *at <= elapsed);
                put_handle(*set, &self.sets, behind)
            }
            ("nvmlEventSetFree", [set]) => number_of(*set).and_then(|set| self.sets.remove(set)),
            ("nvmlDeviceRegisterEvents", [device, _, _]) => device.question().map(|_| ()),
            _ => return None,
        })
    }

    fn fields(
        &self,
        device: &dyn Argument,
        count: &dyn Argument,
        values: &dyn Argument,
        elapsed: u64,
    ) -> Answer {
        let device = device.question()?;
        let place = values.place().ok_or(INVALID_ARGUMENT)?.cast::<nvmlFieldValue_t>();
        for index in 0..count.number().ok_or(INVALID_ARGUMENT)? {
            // SAFETY: by NVML's contract the caller has an array of that many entries, whose heads are set.
            let entry = unsafe { &mut *place.add(index) };
            let question = vec![
                device.clone(),
                TapeValue::Number(entry.fieldId.into()),
                TapeValue::Number(entry.scopeId.into()),
            ];
            match self.at("nvmlFieldValue_t", question, elapsed) {
                AnswerLookup::Answered(TimedAnswer { code, out, .. }) => {
                    let [kind, bits] = out.as_slice() else { return Err(INVALID_ARGUMENT) };
                    entry.nvmlReturn = code.unwrap_or(0);
                    entry.valueType = kind.number().and_then(|kind| u32::try_from(kind).ok()).unwrap_or(0);
                    entry.value = nvmlValue_t { ullVal: bits.bits() };
                }
                AnswerLookup::OtherArguments | AnswerLookup::Never => {
                    entry.nvmlReturn = code(Err(NOT_SUPPORTED))
                }
            }
        }
        Ok(())
    }

    fn sample(
        &self,
        device: &dyn Argument,
        instance: Result<TapeValue, Refused>,
        sample: &dyn Argument,
        elapsed: u64,
    ) -> Answer {
        let (device, instance) = (device.question()?, instance?);
        let taken = RecordedSample { device, instance, elapsed };
        self.samples.with(number_of(sample)?, |held| *held = Some(taken))
    }

    /// The metrics that were recorded at the time of the newer sample.
    fn metrics(&self, request: &dyn Argument) -> Answer {
        let request = request.place().ok_or(INVALID_ARGUMENT)?.cast::<nvmlGpmMetricsGet_t>();
        // SAFETY: not null, so by NVML's contract the caller's request; its head is set.
        let (version, count, newer, metrics) = unsafe {
            ((*request).version, (*request).numMetrics, (*request).sample2, &raw mut (*request).metrics)
        };
        if version != 1 {
            return Err(VERSION_MISMATCH);
        }
        let sample = self.samples.with(newer.addr(), |held| held.clone())?.ok_or(INVALID_ARGUMENT)?;
        for index in 0..count as usize {
            // SAFETY: by NVML's contract that many entries are there, and their ids are set.
            let metric = unsafe { &mut *metrics.cast::<nvmlGpmMetric_t>().add(index) };
            let id = TapeValue::Number(metric.metricId.into());
            let question = vec![sample.device.clone(), sample.instance.clone(), id];
            match self.at("nvmlGpmMetric_t", question, sample.elapsed) {
                AnswerLookup::Answered(TimedAnswer { code, out, .. }) => {
                    metric.nvmlReturn = code.unwrap_or(0);
                    metric.value = out.first().map_or(f64::NAN, |value| f64::from_bits(value.bits()));
                }
                AnswerLookup::OtherArguments | AnswerLookup::Never => {
                    metric.nvmlReturn = code(Err(NOT_SUPPORTED))
                }
            }
        }
        Ok(())
    }

    /// Waits for the next recorded event; `now` returns nanoseconds since the beginning.
    pub(crate) fn wait(&self, arguments: Arguments<'_>, now: impl Fn() -> u64) -> Answer {
        let [set, data, milliseconds] = arguments else { return Err(INVALID_ARGUMENT) };
        let (set, milliseconds) = (number_of(*set)?, milliseconds.number().unwrap_or(0) as u64);
        let place = data.place().ok_or(INVALID_ARGUMENT)?.cast::<nvmlEventData_t>();
        let deadline = host_boottime().saturating_add(milliseconds * 1_000_000);
        loop {
            if let Some(event) = self.next(set, now())? {
                // SAFETY: not null, so by NVML's contract the caller's event to be written.
                unsafe { place.write(event) };
                return Ok(());
            }
            let host = host_boottime();
            if host >= deadline {
                return Err(TIMEOUT);
            }
            thread::sleep(Duration::from_nanos(STEP.min(deadline - host)));
        }
    }

    /// The next event of a set, which counts it as delivered.
    fn next(&self, set: usize, elapsed: u64) -> Result<Option<nvmlEventData_t>, Refused> {
        let next = self.sets.with(set, |delivered| {
            let event = self.events.get(*delivered).filter(|(at, ..)| *at <= elapsed)?;
            *delivered += 1;
            Some(event)
        })?;
        let Some((_, device, out)) = next else { return Ok(None) };
        let Some(TapeValue::Handle(device)) = device.first() else { return Ok(None) };
        let number = |place: usize| out.get(place).map_or(0, TapeValue::bits);
        Ok(Some(nvmlEventData_t {
            device: std::ptr::without_provenance_mut(handle(*device)),
            eventType: number(0),
            eventData: number(1),
            gpuInstanceId: number(2) as u32,
            computeInstanceId: number(3) as u32,
        }))
    }
}

fn number_of(argument: &dyn Argument) -> Result<usize, Refused> {
    argument.number().ok_or(INVALID_ARGUMENT)
}

/// Keeps an object and writes its handle to the caller.
fn put_handle<T>(to: &dyn Argument, handles: &Handles<T>, object: T) -> Answer {
    let place = to.place().ok_or(INVALID_ARGUMENT)?.cast::<usize>();
    // SAFETY: not null, so by NVML's contract the caller's handle to be written.
    unsafe { place.write(handles.insert(object)) };
    Ok(())
}
