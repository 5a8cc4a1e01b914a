//! Traces of the agent itself: ticks, commits, pushes, slow driver calls and rounds of resolvers.
//!
//! OpenTelemetry's SDK samples them, collects them on a thread of its own, and encodes them with its OTLP exporter; the
//! exporter's client puts the requests into the spool. Off by default; then a span costs one atomic read.

use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{
    Span as _, SpanContext, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_http::HttpClient;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{ParentBasedSampler, Sampler, SdkTracer, SdkTracerProvider, Span};

use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;

static TRACING: OnceLock<(SdkTracerProvider, SdkTracer)> = OnceLock::new();

/// Makes spans of that share of all traces, in millionths, and gives the requests with them to the client.
///
/// # Errors
/// The exporter cannot be made.
pub(crate) fn start<'a>(
    share: u32,
    resource: impl Iterator<Item = (&'a str, &'a str)>,
    client: impl HttpClient + 'static,
) -> Result<(), ExporterBuildError> {
    // What is given here, the exporter does not take from the environment; nothing connects to the address.
    let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    let exporter = exporter.with_endpoint("http://spool").with_http_client(client).build()?;
    let attributes = resource.map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned()));
    let share = Sampler::TraceIdRatioBased(f64::from(share) / 1_000_000.0);
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder_empty().with_attributes(attributes).build())
        .with_sampler(ParentBasedSampler::new(share))
        .with_batch_exporter(exporter)
        .build();
    let scope = InstrumentationScope::builder("gpumeter").with_version(env!("CARGO_PKG_VERSION"));
    let tracer = provider.tracer_with_scope(scope.build());
    // It is set once, because a process has one agent.
    let _ = TRACING.set((provider, tracer));
    Ok(())
}

/// Gives the spans that have ended to the client, and makes no more.
pub(crate) fn stop(longest: Duration) {
    if let Some((provider, _)) = TRACING.get()
        && let Err(error) = provider.shutdown_with_timeout(longest)
    {
        tracing::warn!(%error, "the last spans of the agent are lost");
    }
}

/// A span that ends when this is dropped.
pub(crate) struct ActiveSpan(Option<Span>);

impl ActiveSpan {
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    pub(crate) fn fail(&mut self, reason: String) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(reason));
        }
    }

    pub(crate) fn context(&self) -> SpanContext {
        self.0.as_ref().map_or(SpanContext::NONE, |span| span.span_context().clone())
    }
}

pub(crate) fn begin(name: &'static str) -> ActiveSpan {
    begin_child(name, &SpanContext::NONE)
}

pub(crate) fn begin_child(name: &'static str, cause: &SpanContext) -> ActiveSpan {
    let parent = || Context::new().with_remote_span_context(cause.clone());
    ActiveSpan(TRACING.get().map(|(_, tracer)| tracer.start_with_context(name, &parent())))
}

pub(crate) fn begin_round(resolver: &'static str) -> ActiveSpan {
    let mut span = begin("resolver.round");
    span.set("resolver", resolver);
    span
}

/// Records a span that ends now.
pub(crate) fn record(name: &'static str, lasted: Nanoseconds, attributes: Vec<(&'static str, String)>) {
    let Some((_, tracer)) = TRACING.get() else { return };
    let began = system_now().utc.0.saturating_sub(lasted.0);
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let span = tracer.span_builder(name).with_start_time(UNIX_EPOCH + Duration::from_nanos(began));
    let span = span.with_attributes(attributes.collect::<Vec<_>>());
    drop(tracer.build_with_context(span, &Context::new()));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry_http::{Bytes, HttpError, Request, Response};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message as _;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct KeptRequests(Arc<Mutex<Vec<Bytes>>>);

    #[async_trait::async_trait]
    impl HttpClient for KeptRequests {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            self.0.lock().unwrap().push(request.into_body());
            Ok(Response::default())
        }
    }

    #[test]
    fn spans_are_made_when_they_are_switched_on_and_name_their_parent() {
        drop(begin("test.before"));
        let requests = KeptRequests::default();
        start(1_000_000, [("host.name", "n")].into_iter(), requests.clone()).unwrap();
        let tick = begin("test.tick");
        let mut push = begin_child("test.push", &tick.context());
        push.set("destination", "c");
        push.fail("it is away".to_owned());
        drop((push, tick));
        record("test.call", Nanoseconds::from_seconds(3), vec![("call", "nvmlDeviceGetUUID".to_owned())]);
        stop(Duration::from_secs(60));
        let decode = |body: &Bytes| ExportTraceServiceRequest::decode(body.clone()).unwrap();
        let requests: Vec<_> = requests.0.lock().unwrap().iter().map(decode).collect();
        let sent: Vec<_> = requests.iter().flat_map(|request| &request.resource_spans).collect();
        assert_eq!(sent[0].resource.as_ref().unwrap().attributes[0].key, "host.name");
        let scopes = sent.iter().flat_map(|spans| &spans.scope_spans);
        assert!(scopes.clone().all(|spans| spans.scope.as_ref().unwrap().name == "gpumeter"));
        // Other tests of this process may make spans too.
        let spans: Vec<_> = scopes.flat_map(|spans| &spans.spans).collect();
        let find = |name: &str| spans.iter().find(|span| span.name == name);
        assert!(find("test.before").is_none());
        let (tick, push, call) =
            (find("test.tick").unwrap(), find("test.push").unwrap(), find("test.call").unwrap());
        assert_eq!(push.status.as_ref().unwrap().message, "it is away");
        assert_eq!((&push.trace_id, &push.parent_span_id), (&tick.trace_id, &tick.span_id));
        assert!(tick.parent_span_id.is_empty() && call.parent_span_id.is_empty());
        let lasted = call.end_time_unix_nano - call.start_time_unix_nano;
        assert!((3_000_000_000..60_000_000_000).contains(&lasted), "{lasted}");
        assert_eq!(call.attributes[0].key, "call");
    }
}
