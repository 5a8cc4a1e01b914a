//! Events as OTLP logs, and as the body of `/api/v1/events`.
//!
//! `{"events": [{"id", "name", "severity", "severity_number", "time": RFC 3339, "observed", "gpu", "uuid", "text", "count",
//! "attributes": {name: text}, "workloads": [{"workload", "tenant"}]}]}`, the oldest first.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prost::Message;
use serde_json::{Value, json};

use super::json::to_json;
use super::otlp::{OtlpResource, attribute, scope};
use super::summarize::View;
use crate::model::VisibleAccount;
use crate::model::snapshot::Snapshot;
use crate::output::events::Event;

pub fn events(latest: &[Arc<Event>], snapshot: &Snapshot, visible: &VisibleAccount) -> Vec<u8> {
    let view = View::new(snapshot, visible);
    let shown = latest
        .iter()
        .filter_map(|event| event.shown_to(visible).filter(|shown| view.shows_event(event, &shown.parties)));
    let events: Vec<Value> = shown.map(|event| event_json(&event)).collect();
    to_json(&json!({ "events": events }))
}

fn event_json(event: &Event) -> Value {
    let attributes: BTreeMap<&str, &str> =
        event.attributes.iter().map(|(name, text)| (*name, &**text)).collect();
    let workloads: Vec<Value> = event
        .parties
        .iter()
        .map(|party| json!({ "workload": &*party.workload, "tenant": &*party.tenant }))
        .collect();
    json!({
        "id": event.id(),
        "name": event.kind.name,
        "severity": event.severity.text(),
        "severity_number": event.severity.number(),
        "time": event.at.to_string(),
        "observed": event.observed.to_string(),
        "gpu": event.gpu.as_ref().map(|gpu| gpu.index),
        "uuid": event.gpu.as_ref().map(|gpu| &*gpu.uuid),
        "text": event.text,
        "count": event.count,
        "attributes": attributes,
        "workloads": workloads,
    })
}

pub fn encode_events(events: &[Arc<Event>], resource: &OtlpResource) -> Vec<u8> {
    let log_records = events.iter().map(|event| log_record(event)).collect();
    let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records, ..Default::default() }];
    let resource_logs =
        vec![ResourceLogs { resource: Some(resource.message()), scope_logs, ..Default::default() }];
    ExportLogsServiceRequest { resource_logs }.encode_to_vec()
}

fn log_record(event: &Event) -> LogRecord {
    let text = |text: &str| Some(AnyValue { value: Some(OtlpValue::StringValue(text.to_owned())) });
    let pair = |key: &str, value| KeyValue { key: key.to_owned(), value, ..Default::default() };
    let mut attributes = vec![attribute("event.id", &event.id())];
    if let Some(gpu) = &event.gpu {
        attributes.push(attribute("gpu", &gpu.index.to_string()));
        attributes.push(attribute("uuid", &gpu.uuid));
    }
    attributes.extend(event.attributes.iter().map(|(name, value)| attribute(name, value)));
    let count = i64::try_from(event.count).unwrap_or(i64::MAX);
    attributes.push(pair("count", Some(AnyValue { value: Some(OtlpValue::IntValue(count)) })));
    let mut tenants: Vec<&str> = event.parties.iter().map(|party| &*party.tenant).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let workloads =
        event.parties.iter().map(|party| &*party.workload).filter(|workload| !workload.is_empty());
    for (key, texts) in [("workloads", workloads.collect()), ("tenants", tenants)] {
        let values: Vec<AnyValue> = texts.into_iter().filter_map(text).collect();
        if !values.is_empty() {
            let value = OtlpValue::ArrayValue(ArrayValue { values });
            attributes.push(pair(key, Some(AnyValue { value: Some(value) })));
        }
    }
    LogRecord {
        time_unix_nano: event.at.0,
        observed_time_unix_nano: event.observed.0,
        severity_number: event.severity.number(),
        severity_text: event.severity.text().to_owned(),
        body: text(&event.text),
        attributes,
        event_name: event.kind.name.to_owned(),
        ..Default::default()
    }
}
