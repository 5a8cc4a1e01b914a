//! OTLP: a snapshot as one `ExportMetricsServiceRequest`, from the same walk as the page.
//!
//! The encoder keeps the attributes of the last request encoded, and writes lengths and tags around them itself: prost
//! computes the length of all attributes anew on each level of nesting. A series that has ended or lost its value is sent
//! with the no-recorded-value flag until a request with that is acknowledged.

mod hardware;
mod name;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::ops::Range;

use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ScopeMetrics, Sum, number_data_point,
};
use prost::encoding::{WireType, encode_key, encode_varint};
use prost::{Message, length_delimiter_len};

use self::hardware::{HardwareNames, hardware_unit};
pub use self::name::{native_name, native_unit};
use super::decimal;
use super::label_cache::LabelCache;
use super::walk::{Sample, Sink, Value, start, walk};
use crate::catalogue::{Family, Kind, Level, is_up_down_counter};
use crate::model::Utc;
use crate::model::snapshot::{self, Snapshot};

/// Encodes the snapshots for one destination, one after the other.
#[derive(Debug)]
pub struct OtlpEncoder {
    level: Level,
    has_hardware_names: bool,
    /// `ResourceMetrics` without its scopes, encoded.
    resource: Vec<u8>,
    /// `ScopeMetrics` without its metrics, encoded.
    scope: Vec<u8>,
    last: Request,
    /// By family: the attributes of series that have ended, each with the time of the first request that says so.
    ended: BTreeMap<&'static str, HashMap<Vec<u8>, Utc>>,
}

/// Series that have ended and are not acknowledged; of more the rest is told once.
const MOST_ENDED: usize = 5_000;

/// What is kept of a request.
#[derive(Debug, Default)]
struct Request {
    /// Each family's `Metric` without its data, and each series' attributes as fields of its data point.
    cache: LabelCache,
    /// Whether each entry of the cache is a series that had a value.
    has_value: Vec<bool>,
    /// The entry of each family.
    families: Vec<usize>,
}

impl OtlpEncoder {
    /// Creates an encoder of the families up to `level`.
    pub fn new(level: Level, resource: &OtlpResource) -> Self {
        let scope = ScopeMetrics { scope: Some(scope()), ..Default::default() }.encode_to_vec();
        Self {
            level,
            has_hardware_names: false,
            resource: resource.encoded(),
            scope,
            last: Request::default(),
            ended: BTreeMap::new(),
        }
    }

    /// Uses the names of OpenTelemetry's conventions for hardware where there are some.
    pub const fn with_hardware_names(mut self) -> Self {
        self.has_hardware_names = true;
        self
    }

    /// Writes one request into `out`, which is cleared before, and returns how many data points it holds.
    pub fn encode(&mut self, snapshot: &Snapshot, out: &mut Vec<u8>) -> usize {
        out.clear();
        // As if each request were acknowledged.
        self.acknowledge(Utc(u64::MAX));
        let parts = self.encode_metrics(snapshot, usize::MAX);
        parts.iter().for_each(|part| self.append_request(part, out));
        parts.iter().map(|part| part.points).sum()
    }

    /// Encodes requests of about `most` bytes, each with its number of data points.
    pub fn encode_requests(&mut self, snapshot: &Snapshot, most: usize) -> Vec<(Vec<u8>, usize)> {
        let parts = self.encode_metrics(snapshot, most);
        let request = |part: MetricsPart| {
            let mut out = Vec::new();
            self.append_request(&part, &mut out);
            (out, part.points)
        };
        parts.into_iter().map(request).collect()
    }

    /// Every destination has accepted a request of that time or later: what has ended before is told no more.
    pub fn acknowledge(&mut self, at: Utc) {
        self.ended.retain(|_, ended| {
            ended.retain(|_, since| *since > at);
            !ended.is_empty()
        });
    }

    fn append_request(&self, part: &MetricsPart, out: &mut Vec<u8>) {
        let mut scope_metrics = Vec::with_capacity(self.scope.len() + part.metrics.len() + 8);
        append_message(&mut scope_metrics, 2, &[&self.scope, &part.metrics]);
        append_message(out, 1, &[&self.resource, &scope_metrics]);
    }

    /// All metrics, in parts of about `most` bytes.
    fn encode_metrics(&mut self, snapshot: &Snapshot, most: usize) -> Vec<MetricsPart> {
        let mut last = mem::take(&mut self.last);
        let is_same_roster = last.cache.is_of(&snapshot.roster);
        let mut request = Request::default();
        if is_same_roster {
            request.cache = mem::take(&mut last.cache);
        }
        request.cache.begin(&snapshot.roster);
        let mut writer = RequestWriter {
            snapshot,
            last: &last,
            is_same_roster,
            request,
            family: None,
            ended: HashSet::new(),
            unacknowledged: &mut self.ended,
            ended_now: Vec::new(),
            messages: Messages { time: snapshot.at.utc.0, most, ..Messages::default() },
        };
        if self.has_hardware_names {
            let mut names = HardwareNames::new(&mut writer, snapshot);
            walk(snapshot, self.level, &mut names);
            names.finish();
        } else {
            walk(snapshot, self.level, &mut writer);
        }
        writer.finish_family();
        let RequestWriter { request, mut messages, .. } = writer;
        self.last = request;
        self.last.cache.finish(&snapshot.roster);
        messages.finish_part();
        messages.parts
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

    /// Its attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The field `resource` of a `ResourceMetrics` or `ResourceLogs`.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut attributes = Vec::new();
        self.attributes().for_each(|attribute| append_attribute(&mut attributes, 1, attribute));
        let mut resource = Vec::new();
        append_message(&mut resource, 1, &[&attributes]);
        resource
    }
}

/// The instrumentation scope of all that is sent.
pub(super) fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").into();
    InstrumentationScope { name: "gpumeter".into(), version, ..Default::default() }
}

/// Metrics as fields of `ScopeMetrics`.
#[derive(Default)]
struct MetricsPart {
    metrics: Vec<u8>,
    points: usize,
}

/// Appends a field that holds a message, which is given as encoded parts.
pub(super) fn append_message(out: &mut Vec<u8>, tag: u32, parts: &[&[u8]]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(parts.iter().map(|part| part.len() as u64).sum(), out);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

impl Request {
    /// The attributes of those series of the family at that place that had a value.
    fn reported(&self, family: usize) -> impl Iterator<Item = &[u8]> {
        let entry = |family: usize| self.families.get(family).copied().unwrap_or(self.has_value.len());
        let entries = entry(family)..entry(family + 1);
        entries.filter(|entry| self.has_value[*entry]).map(|entry| self.cache.entry_at(entry))
    }
}

/// Writes one request while the snapshot is walked.
struct RequestWriter<'a> {
    snapshot: &'a Snapshot,
    last: &'a Request,
    /// Whether the last request was of the same roster, so that entries of the cache have the same places.
    is_same_roster: bool,
    request: Request,
    family: Option<CurrentFamily>,
    /// The attributes in the last request of the family's series that this roster may no longer have.
    ended: HashSet<&'a [u8]>,
    /// The encoder's series that have ended.
    unacknowledged: &'a mut BTreeMap<&'static str, HashMap<Vec<u8>, Utc>>,
    /// Those of the family in this request.
    ended_now: Vec<Vec<u8>>,
    messages: Messages,
}

/// The family that is being visited.
struct CurrentFamily {
    family: &'static Family,
    /// Its entry in the cache.
    head: Range<usize>,
    /// When its counters began, in Unix nanoseconds; 0 if unknown or meaningless.
    start: u64,
}

/// The messages of a request, encoded.
#[derive(Default)]
struct Messages {
    /// The time of all data points: Prometheus' receiver dates target_info by the earliest point of a request, and
    /// refuses the request when that lies before the last one.
    time: u64,
    /// One data point without its attributes, and all data points of a family as fields of its data.
    point: Vec<u8>,
    points: Vec<u8>,
    /// The data of one metric, and all metrics as fields of `ScopeMetrics`.
    data: Vec<u8>,
    metrics: Vec<u8>,
    /// Data points in `metrics` and `points`.
    points_written: usize,
    /// A part is complete when it is as long as this.
    most: usize,
    parts: Vec<MetricsPart>,
}

impl Sink for RequestWriter<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        if !self.is_same_roster {
            self.ended.extend(self.last.reported(self.request.families.len()));
        }
        self.request.families.push(self.request.has_value.len());
        self.request.has_value.push(false);
        let head = self.request.cache.next_entry(|out| write_head(out, family));
        let start = match family.kind {
            Kind::Gauge => 0,
            Kind::Counter | Kind::Histogram => start(self.snapshot, family).map_or(0, |start| start.0),
        };
        self.family = Some(CurrentFamily { family, head, start });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let Some(current) = &self.family else { return };
        let Request { cache, has_value, .. } = &mut self.request;
        let entry = cache.next_entry(|out| {
            // The field of attributes in each kind of data point.
            let tag = if current.family.kind == Kind::Histogram { 9 } else { 7 };
            sample.labels.pairs().for_each(|pair| append_attribute(out, tag, pair));
        });
        let attributes = cache.entry(entry);
        let was_reported = if self.is_same_roster {
            self.last.has_value.get(has_value.len()).is_some_and(|had_value| *had_value)
        } else {
            self.ended.remove(attributes)
        };
        has_value.push(sample.value.is_some());
        match sample.value {
            // A series that is back has not ended.
            Some(_) if !self.unacknowledged.is_empty() => {
                if let Some(ended) = self.unacknowledged.get_mut(current.family.name) {
                    ended.remove(attributes);
                }
            }
            None if was_reported => self.ended_now.push(attributes.to_vec()),
            _ => {}
        }
        if sample.value.is_some() || was_reported {
            let start = sample.start.map_or(current.start, |start| start.0);
            self.messages.append_point(current.family, attributes, start, sample.value);
            if self.messages.metrics.len() + self.messages.points.len() >= self.messages.most {
                self.messages.append_metric(current.family, cache.entry(current.head.clone()));
            }
        }
    }
}

impl RequestWriter<'_> {
    fn finish_family(&mut self) {
        let Some(CurrentFamily { family, head, start }) = self.family.take() else { return };
        if !self.ended.is_empty() {
            for attributes in self.last.reported(self.request.families.len() - 1) {
                if self.ended.remove(attributes) {
                    self.messages.append_point(family, attributes, start, None);
                    self.ended_now.push(attributes.to_vec());
                }
            }
        }
        self.repeat_ended(family, start);
        self.messages.append_metric(family, self.request.cache.entry(head));
    }
}

impl RequestWriter<'_> {
    /// Tells again of the family's series that have ended, and keeps those of this request.
    fn repeat_ended(&mut self, family: &'static Family, start: u64) {
        if let Some(ended) = self.unacknowledged.get(family.name) {
            let again = ended.keys().filter(|attributes| !self.ended_now.contains(attributes));
            again.for_each(|attributes| self.messages.append_point(family, attributes, start, None));
        }
        if self.ended_now.is_empty() {
            return;
        }
        let (now, kept) = (self.snapshot.at.utc, self.unacknowledged.values().map(HashMap::len).sum());
        let ended = self.unacknowledged.entry(family.name).or_default();
        for attributes in self.ended_now.drain(..).take(MOST_ENDED.saturating_sub(kept)) {
            ended.entry(attributes).or_insert(now);
        }
    }
}

impl Messages {
    /// Appends a data point; one without a value carries the no-recorded-value flag.
    fn append_point(&mut self, family: &Family, attributes: &[u8], start: u64, value: Option<Value<'_>>) {
        let flags = if value.is_some() { 0 } else { DataPointFlags::NoRecordedValueMask as u32 };
        self.point.clear();
        // A vector grows, so encoding cannot fail for lack of room.
        let _fits = if family.kind == Kind::Histogram {
            let point = match value {
                Some(Value::Histogram(histogram)) => histogram_point(histogram),
                _ => HistogramDataPoint::default(),
            };
            let (start_time_unix_nano, time_unix_nano) = (start, self.time);
            HistogramDataPoint { start_time_unix_nano, time_unix_nano, flags, ..point }
                .encode(&mut self.point)
        } else {
            let point = NumberDataPoint {
                start_time_unix_nano: start,
                time_unix_nano: self.time,
                flags,
                value: match value {
                    Some(Value::Number(number)) => Some(number_value(number, family.unit.decimals())),
                    _ => None,
                },
                ..Default::default()
            };
            point.encode(&mut self.point)
        };
        append_message(&mut self.points, 1, &[&self.point, attributes]);
        self.points_written += 1;
    }

    /// Appends a metric with the data points since the last one, if there are any.
    fn append_metric(&mut self, family: &Family, head: &[u8]) {
        if self.points.is_empty() {
            return;
        }
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        // The field of `Metric` that holds the data, and the data without its points.
        let (field, rest) = match family.kind {
            Kind::Gauge if is_up_down_counter(family.name) => {
                (7, Sum { aggregation_temporality, ..Default::default() }.encode_to_vec())
            }
            Kind::Gauge => (5, Vec::new()),
            Kind::Counter => {
                (7, Sum { aggregation_temporality, is_monotonic: true, ..Default::default() }.encode_to_vec())
            }
            Kind::Histogram => {
                (9, Histogram { aggregation_temporality, ..Default::default() }.encode_to_vec())
            }
        };
        self.data.clear();
        append_message(&mut self.data, field, &[&self.points, &rest]);
        append_message(&mut self.metrics, 2, &[head, &self.data]);
        self.points.clear();
        if self.metrics.len() >= self.most {
            self.finish_part();
        }
    }

    /// Completes a part; the first one may be empty, so that each snapshot makes one.
    fn finish_part(&mut self) {
        if self.points_written > 0 || self.parts.is_empty() {
            let (metrics, points) = (mem::take(&mut self.metrics), mem::take(&mut self.points_written));
            self.parts.push(MetricsPart { metrics, points });
        }
    }
}

/// Writes the family's `Metric` without its data.
fn write_head(out: &mut Vec<u8>, family: &Family) {
    let metric = Metric {
        name: native_name(family),
        description: family.help.into(),
        unit: hardware_unit(family.name).unwrap_or(native_unit(family.unit)).into(),
        ..Default::default()
    };
    let _fits = metric.encode(out);
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

/// Appends a `KeyValue` with a string, as field `tag`. Written without the message of prost, which takes three
/// allocations.
fn append_attribute(out: &mut Vec<u8>, tag: u32, (key, value): (&str, &str)) {
    let field_len = |text: &str| 1 + length_delimiter_len(text.len()) + text.len();
    let any_value = field_len(value);
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint((field_len(key) + 1 + length_delimiter_len(any_value) + any_value) as u64, out);
    append_message(out, 1, &[key.as_bytes()]);
    encode_key(2, WireType::LengthDelimited, out);
    encode_varint(any_value as u64, out);
    append_message(out, 1, &[value.as_bytes()]);
}
