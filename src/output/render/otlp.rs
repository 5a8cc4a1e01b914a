//! OTLP: a snapshot as `ExportMetricsServiceRequest`s, from the same walk as the page.
//!
//! Attributes are encoded here, and the messages around them put together from bytes; all else is encoded by prost. Where
//! attributes are messages too, two strings each, a request takes more than twice the instructions, since prost computes
//! their lengths anew on each level of nesting. A series that has ended or lost its value is sent with the no-recorded-value
//! flag until a request with that is acknowledged.

mod hardware;
mod name;

use std::collections::{BTreeMap, HashMap};
use std::mem;

use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost::{Message, length_delimiter_len};

use self::hardware::{HardwareNames, hardware_unit};
pub use self::name::{native_name, native_unit};
use super::decimal;
use super::walk::{Sample, Sink, Value, start, walk};
use crate::model::Utc;
use crate::model::catalogue::{Family, Kind, Level, is_up_down_counter};
use crate::model::snapshot::{self, Snapshot};

#[derive(Debug)]
pub struct OtlpEncoder {
    pub level: Level,
    /// Whether series have the names of OpenTelemetry's conventions for hardware where there are some.
    pub has_hardware_names: bool,
    resource: Resource,
    /// By family: the series of the last request, and those that have ended since and are not acknowledged.
    series: HashMap<&'static str, HashMap<Attributes, SeriesState>>,
    snapshots: u64,
}

/// The labels of a series, encoded as fields of its data point.
type Attributes = Box<[u8]>;

#[derive(Debug)]
struct SeriesState {
    /// The last snapshot in which it had a value, by [`OtlpEncoder::snapshots`].
    snapshot: u64,
    /// The time of the first request that says that it has ended.
    ended: Option<Utc>,
}

/// Ended series that are kept until they are acknowledged; the end of any further one is sent once.
const MOST_ENDED: usize = 5_000;

impl OtlpEncoder {
    pub fn new(level: Level, resource: &OtlpResource) -> Self {
        Self {
            level,
            has_hardware_names: false,
            resource: resource.message(),
            series: HashMap::new(),
            snapshots: 0,
        }
    }

    /// Encodes requests of about `most` bytes, each with its number of data points.
    pub fn encode_requests(&mut self, snapshot: &Snapshot, most: usize) -> Vec<(Vec<u8>, usize)> {
        self.snapshots += 1;
        let kept_ended =
            self.series.values().flat_map(HashMap::values).filter(|one| one.ended.is_some()).count();
        let mut writer = RequestWriter {
            snapshot,
            number: self.snapshots,
            series: &mut self.series,
            room_for_ended: MOST_ENDED.saturating_sub(kept_ended),
            family: None,
            attributes: Vec::new(),
            metric: MetricBuffer::default(),
            part: MetricsPart::default(),
            most,
            parts: Vec::new(),
        };
        if self.has_hardware_names {
            let mut names = HardwareNames::new(&mut writer, snapshot);
            walk(snapshot, self.level, &mut names);
            names.finish();
        } else {
            walk(snapshot, self.level, &mut writer);
        }
        writer.finish_family();
        let mut parts = writer.parts;
        // Each snapshot makes a request.
        if writer.part.points > 0 || parts.is_empty() {
            parts.push(writer.part);
        }
        parts.iter().map(|part| (self.request(&part.metrics), part.points)).collect()
    }

    /// Every destination has accepted a request of that time or later: earlier ends are not sent any more.
    pub fn acknowledge(&mut self, at: Utc) {
        for series in self.series.values_mut() {
            series.retain(|_, one| one.ended.is_none_or(|since| since > at));
        }
    }

    /// A request with encoded metrics. What is appended to an encoded message is a field of it.
    fn request(&self, metrics: &[u8]) -> Vec<u8> {
        let mut scope_metrics = ScopeMetrics { scope: Some(scope()), ..Default::default() }.encode_to_vec();
        scope_metrics.extend_from_slice(metrics);
        let resource = Some(self.resource.clone());
        let mut resource_metrics = ResourceMetrics { resource, ..Default::default() }.encode_to_vec();
        append_message(&mut resource_metrics, 2, &[&scope_metrics]);
        let mut request = Vec::with_capacity(resource_metrics.len() + 8);
        append_message(&mut request, 1, &[&resource_metrics]);
        request
    }
}

/// The attributes of all that a node sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpResource(BTreeMap<String, String>);

impl OtlpResource {
    /// The resource of a node; the cluster's name may be empty.
    pub fn new(node: &str, cluster: &str) -> Self {
        let attributes = [
            ("service.name", "gpumeter"),
            ("service.instance.id", node),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("host.name", node),
            // OpenTelemetry has no other name for a cluster.
            ("k8s.cluster.name", cluster),
        ];
        let mut resource = Self::default();
        for (key, value) in attributes {
            resource.set(key, value);
        }
        resource
    }

    /// Sets an attribute that has a value.
    pub fn set(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.0.insert(key.to_owned(), value.to_owned());
        }
    }

    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    pub(super) fn message(&self) -> Resource {
        let attributes = self.attributes().map(|(key, value)| attribute(key, value)).collect();
        Resource { attributes, ..Default::default() }
    }
}

pub(super) fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(OtlpValue::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..Default::default() }
}

pub(super) fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").into();
    InstrumentationScope { name: "gpumeter".into(), version, ..Default::default() }
}

/// Encoded metrics, as fields of `ScopeMetrics`.
#[derive(Default)]
struct MetricsPart {
    metrics: Vec<u8>,
    points: usize,
}

struct RequestWriter<'a> {
    snapshot: &'a Snapshot,
    number: u64,
    series: &'a mut HashMap<&'static str, HashMap<Attributes, SeriesState>>,
    /// How many more series that have ended are kept.
    room_for_ended: usize,
    family: Option<CurrentFamily>,
    attributes: Vec<u8>,
    metric: MetricBuffer,
    part: MetricsPart,
    /// A part is complete when it is as long as this.
    most: usize,
    parts: Vec<MetricsPart>,
}

struct CurrentFamily {
    family: &'static Family,
    /// When its counters began, in Unix nanoseconds; 0 if unknown or meaningless.
    start: u64,
    series: HashMap<Attributes, SeriesState>,
}

/// The data points of a metric, as fields of its data.
#[derive(Default)]
struct MetricBuffer {
    points: Vec<u8>,
    count: usize,
    point: Vec<u8>,
}

impl Sink for RequestWriter<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        let start = match family.kind {
            Kind::Gauge => 0,
            Kind::Counter | Kind::Histogram => start(self.snapshot, family).map_or(0, |start| start.0),
        };
        let series = self.series.remove(family.name).unwrap_or_default();
        self.family = Some(CurrentFamily { family, start, series });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        // A series without a value is found when the family is finished.
        let (Some(current), Some(value)) = (&mut self.family, sample.value) else { return };
        // The field of attributes in each kind of data point.
        let tag = if current.family.kind == Kind::Histogram { 9 } else { 7 };
        self.attributes.clear();
        sample
            .labels
            .pairs()
            .for_each(|(key, value)| append_attribute(&mut self.attributes, tag, key, value));
        let state = SeriesState { snapshot: self.number, ended: None };
        match current.series.get_mut(&*self.attributes) {
            Some(known) => *known = state,
            None => drop(current.series.insert(self.attributes.as_slice().into(), state)),
        }
        let start = sample.start.map_or(current.start, |start| start.0);
        let point = SentPoint { start, time: self.snapshot.at.utc.0, value: Some(value) };
        self.metric.append_point(current.family, &self.attributes, point);
        if self.part.metrics.len() + self.metric.points.len() >= self.most {
            let family = current.family;
            self.append_metric(family);
        }
    }
}

impl RequestWriter<'_> {
    /// Reports the series of the family that have no value any more, and completes its metric.
    fn finish_family(&mut self) {
        let Some(mut current) = self.family.take() else { return };
        let now = self.snapshot.at.utc;
        let ended = SentPoint { start: current.start, time: now.0, value: None };
        current.series.retain(|attributes, one| {
            if one.snapshot == self.number {
                return true;
            }
            self.metric.append_point(current.family, attributes, ended);
            if one.ended.is_some() {
                return true;
            }
            one.ended = Some(now);
            let is_kept = self.room_for_ended > 0;
            self.room_for_ended = self.room_for_ended.saturating_sub(1);
            is_kept
        });
        self.series.insert(current.family.name, current.series);
        self.append_metric(current.family);
    }

    /// Appends a metric with the data points since the last one, if there are any, and completes a part that is long enough.
    fn append_metric(&mut self, family: &Family) {
        if self.metric.count == 0 {
            return;
        }
        let mut metric = Metric {
            name: native_name(family),
            description: family.help.into(),
            unit: hardware_unit(family.name).unwrap_or(native_unit(family.unit)).into(),
            ..Default::default()
        }
        .encode_to_vec();
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let is_monotonic = family.kind == Kind::Counter;
        // The field of `Metric` that holds the data, and the data without its points.
        let (field, rest) = match family.kind {
            Kind::Histogram => {
                (9, Histogram { aggregation_temporality, ..Default::default() }.encode_to_vec())
            }
            Kind::Gauge if !is_up_down_counter(family.name) => (5, Vec::new()),
            Kind::Gauge | Kind::Counter => {
                (7, Sum { aggregation_temporality, is_monotonic, ..Default::default() }.encode_to_vec())
            }
        };
        append_message(&mut metric, field, &[&self.metric.points, &rest]);
        append_message(&mut self.part.metrics, 2, &[&metric]);
        self.part.points += mem::take(&mut self.metric.count);
        self.metric.points.clear();
        if self.part.metrics.len() >= self.most {
            self.parts.push(mem::take(&mut self.part));
        }
    }
}

/// A data point without attributes; one without a value carries the no-recorded-value flag.
#[derive(Clone, Copy)]
struct SentPoint<'a> {
    start: u64,
    /// That of the snapshot for all: Prometheus' receiver dates target_info by the earliest point of a request, and refuses
    /// the request when that lies before the last one.
    time: u64,
    value: Option<Value<'a>>,
}

impl MetricBuffer {
    fn append_point(&mut self, family: &Family, attributes: &[u8], point: SentPoint<'_>) {
        let flags = if point.value.is_some() { 0 } else { DataPointFlags::NoRecordedValueMask as u32 };
        let (start_time_unix_nano, time_unix_nano) = (point.start, point.time);
        self.point.clear();
        // A vector grows, so encoding cannot fail for lack of room.
        let _fits = if family.kind == Kind::Histogram {
            let values = match point.value {
                Some(Value::Histogram(histogram)) => histogram_point(histogram),
                _ => HistogramDataPoint::default(),
            };
            HistogramDataPoint { start_time_unix_nano, time_unix_nano, flags, ..values }
                .encode(&mut self.point)
        } else {
            let value = match point.value {
                Some(Value::Number(number)) => Some(number_value(number, family.unit.decimals())),
                _ => None,
            };
            NumberDataPoint { start_time_unix_nano, time_unix_nano, flags, value, ..Default::default() }
                .encode(&mut self.point)
        };
        append_message(&mut self.points, 1, &[&self.point, attributes]);
        self.count += 1;
    }
}

fn append_message(out: &mut Vec<u8>, tag: u32, parts: &[&[u8]]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(parts.iter().map(|part| part.len() as u64).sum(), out);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn append_attribute(out: &mut Vec<u8>, tag: u32, key: &str, value: &str) {
    let field_len = |text: &str| 1 + length_delimiter_len(text.len()) + text.len();
    let any_value = field_len(value);
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint((field_len(key) + 1 + length_delimiter_len(any_value) + any_value) as u64, out);
    append_message(out, 1, &[key.as_bytes()]);
    encode_key(2, WireType::LengthDelimited, out);
    encode_varint(any_value as u64, out);
    append_message(out, 1, &[value.as_bytes()]);
}

fn number_value(number: i128, decimals: u8) -> number_data_point::Value {
    match i64::try_from(number) {
        Ok(integer) if decimals == 0 => number_data_point::Value::AsInt(integer),
        _ => number_data_point::Value::AsDouble(decimal::double(number, decimals)),
    }
}

fn histogram_point(histogram: &snapshot::Histogram) -> HistogramDataPoint {
    let bounds = histogram.bounds.len().min(histogram.cumulative.len());
    let mut below = 0;
    // OTLP's buckets are not cumulative.
    let bucket_counts = histogram.cumulative[..bounds].iter().chain([&histogram.count]).map(|cumulative| {
        let count = cumulative.saturating_sub(below);
        below = *cumulative;
        count
    });
    HistogramDataPoint {
        count: histogram.count,
        sum: Some(histogram.sum),
        bucket_counts: bucket_counts.collect(),
        explicit_bounds: histogram.bounds[..bounds].to_vec(),
        ..Default::default()
    }
}
