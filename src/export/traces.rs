//! Spans of the agent as OTLP.

use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span};
use prost::Message;

use super::otlp::{OtlpResource, append_message, scope};

/// Encodes an `ExportTraceServiceRequest`.
pub fn encode_spans(spans: Vec<Span>, resource: &OtlpResource) -> Vec<u8> {
    let spans = ScopeSpans { scope: Some(scope()), spans, ..Default::default() }.encode_to_vec();
    let mut resource_spans = resource.encoded();
    append_message(&mut resource_spans, 2, &[&spans]);
    let mut request = Vec::new();
    append_message(&mut request, 1, &[&resource_spans]);
    request
}
