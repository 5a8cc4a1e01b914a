//! Traces of the agent itself: ticks, commits, pushes, slow driver calls and rounds of resolvers.
//!
//! OpenTelemetry's SDK samples them. They wait here, in memory and bounded, until the tick loop takes them for a push, so
//! that neither a thread nor an exporter of the SDK is needed. Off by default; then a span costs one atomic read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::global::{self, BoxedSpan};
use opentelemetry::trace::{Span as _, Status, Tracer as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_proto::tonic::trace::v1::Span as EncodedSpan;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanProcessor};

use crate::clock::system_now;
use crate::model::Nanoseconds;

/// Spans that wait at most; later ones are dropped.
const MOST_WAITING: usize = 2_048;

/// Whether spans are made.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Spans that have ended.
static WAITING: Mutex<Vec<SpanData>> = Mutex::new(Vec::new());

/// Keeps the spans that have ended.
#[derive(Debug)]
struct KeepSpans;

impl SpanProcessor for KeepSpans {
    fn on_start(&self, _span: &mut SdkSpan, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < MOST_WAITING {
            waiting.push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Makes spans of that share of all that could be made, in millionths.
pub(crate) fn start(share: u32) {
    let sampler = Sampler::TraceIdRatioBased(f64::from(share) / 1_000_000.0);
    let provider = SdkTracerProvider::builder().with_sampler(sampler).with_span_processor(KeepSpans);
    global::set_tracer_provider(provider.build());
    IS_ON.store(share > 0, Ordering::Relaxed);
}

/// The spans that have ended since the last call.
pub(crate) fn take() -> Vec<EncodedSpan> {
    let ended = std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner));
    ended.into_iter().map(EncodedSpan::from).collect()
}

/// A span that ends when this is dropped.
pub(crate) struct ActiveSpan(Option<BoxedSpan>);

impl ActiveSpan {
    /// Sets an attribute.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks it as failed, with the reason.
    pub(crate) fn fail(&mut self, reason: String) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(reason));
        }
    }
}

/// Begins a span.
pub(crate) fn begin(name: &'static str) -> ActiveSpan {
    let is_on = IS_ON.load(Ordering::Relaxed);
    ActiveSpan(is_on.then(|| global::tracer("gpumeter").start(name)))
}

/// Begins the span of a resolver's round.
pub(crate) fn begin_round(resolver: &'static str) -> ActiveSpan {
    let mut span = begin("resolver.round");
    span.set("resolver", resolver);
    span
}

/// Records a span that ends now.
pub(crate) fn record(name: &'static str, lasted: Nanoseconds, attributes: Vec<(&'static str, String)>) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let began = system_now().utc.0.saturating_sub(lasted.0);
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let tracer = global::tracer("gpumeter");
    let span = tracer.span_builder(name).with_start_time(UNIX_EPOCH + Duration::from_nanos(began));
    drop(span.with_attributes(attributes.collect::<Vec<_>>()).start(&tracer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_made_when_they_are_switched_on_and_taken_once() {
        drop(begin("test.before"));
        start(1_000_000);
        let mut span = begin("test.push");
        span.set("destination", "c");
        span.fail("it is away".to_owned());
        drop(span);
        record("test.call", Nanoseconds::from_seconds(3), vec![("call", "nvmlDeviceGetUUID".to_owned())]);
        // Other tests of this process may make spans too.
        let spans = take();
        let find = |name: &str| spans.iter().find(|span| span.name == name);
        assert!(find("test.before").is_none());
        let push = find("test.push").unwrap();
        assert_eq!(push.status.as_ref().unwrap().message, "it is away");
        let call = find("test.call").unwrap();
        let lasted = call.end_time_unix_nano - call.start_time_unix_nano;
        assert!((3_000_000_000..60_000_000_000).contains(&lasted), "{lasted}");
        assert_eq!(call.attributes[0].key, "call");
        assert!(!take().iter().any(|span| span.name == "test.push"));
    }
}
