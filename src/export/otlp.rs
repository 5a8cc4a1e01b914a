//! OTLP: a snapshot as one `ExportMetricsServiceRequest`, from the same walk as the page.
//!
//! The encoder keeps the last request: attributes of series that are still there move into the next one, and a series
//! that has ended or lost its value is sent once more with the no-recorded-value flag. Whether a request arrives is
//! not known here.

mod name;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter::Peekable;
use std::sync::Arc;
use std::{mem, vec};

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

pub use self::name::{native_name, native_unit};
use super::decimal;
use super::walk::{Sample, Sink, Value, start, walk};
use crate::catalogue::{Family, Kind, Level};
use crate::model::snapshot::{self, Roster, Snapshot};

/// Tags of fields 1 and 2 where they hold messages.
const LENGTH_DELIMITED_1: u8 = 0x0a;
const LENGTH_DELIMITED_2: u8 = 0x12;

/// Encodes the snapshots for one destination, one after the other.
#[derive(Debug)]
pub struct OtlpEncoder {
    level: Level,
    /// `ResourceMetrics` without its scopes, encoded.
    resource: Vec<u8>,
    /// `ScopeMetrics` without its metrics, encoded.
    scope: Vec<u8>,
    /// The metrics of the last request.
    metrics: Vec<Metric>,
    /// Those metrics as fields of `ScopeMetrics`.
    encoded: Vec<u8>,
    /// The roster of the last request.
    roster: Option<Arc<Roster>>,
    /// Whether each series of that roster had a value, in the order of the walk.
    had_value: Vec<bool>,
}

impl OtlpEncoder {
    /// Creates an encoder of the families up to `level` for a node; the cluster's name may be empty.
    pub fn new(level: Level, node: &str, cluster: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let attributes = [
            ("service.name", "gpumeter"),
            ("service.instance.id", node),
            ("service.version", version),
            ("host.name", node),
            // OpenTelemetry has no other name for a cluster.
            ("k8s.cluster.name", cluster),
        ];
        let attributes =
            attributes.into_iter().filter(|(_, value)| !value.is_empty()).map(attribute).collect();
        let resource = Resource { attributes, ..Default::default() };
        let scope =
            InstrumentationScope { name: "gpumeter".into(), version: version.into(), ..Default::default() };
        let resource = ResourceMetrics { resource: Some(resource), ..Default::default() }.encode_to_vec();
        let scope = ScopeMetrics { scope: Some(scope), ..Default::default() }.encode_to_vec();
        let (metrics, encoded, had_value) = Default::default();
        Self { level, resource, scope, metrics, encoded, roster: None, had_value }
    }

    /// Writes the request into `out`, which is cleared before, and returns how many data points it holds.
    pub fn encode(&mut self, snapshot: &Snapshot, out: &mut Vec<u8>) -> usize {
        let same_roster = self.roster.as_ref().is_some_and(|roster| Arc::ptr_eq(roster, &snapshot.roster));
        let had_value = mem::take(&mut self.had_value);
        let mut builder = MetricsBuilder {
            snapshot,
            last_metrics: mem::take(&mut self.metrics).into_iter().peekable(),
            has_value: Vec::with_capacity(had_value.len()),
            had_value: same_roster.then(|| had_value.into_iter()),
            metrics: Vec::new(),
            points: 0,
            family: None,
        };
        walk(snapshot, self.level, &mut builder);
        builder.finish_family();
        self.metrics = builder.metrics;
        self.had_value = builder.has_value;
        self.roster = Some(Arc::clone(&snapshot.roster));
        let points = builder.points;
        self.encode_request(out);
        points
    }

    /// Encodes each metric on its own and writes the messages around them by hand: prost computes the length of all
    /// attributes anew on each level of nesting, and there are three levels around a metric.
    fn encode_request(&mut self, out: &mut Vec<u8>) {
        self.encoded.clear();
        for metric in &self.metrics {
            self.encoded.push(LENGTH_DELIMITED_2);
            // A vector grows, so encoding cannot fail for lack of room.
            let _fits = metric.encode_length_delimited(&mut self.encoded);
        }
        let scope_metrics = self.scope.len() + self.encoded.len();
        let resource_metrics =
            self.resource.len() + 1 + prost::length_delimiter_len(scope_metrics) + scope_metrics;
        out.clear();
        out.push(LENGTH_DELIMITED_1);
        let _fits = prost::encode_length_delimiter(resource_metrics, out);
        out.extend_from_slice(&self.resource);
        out.push(LENGTH_DELIMITED_2);
        let _fits = prost::encode_length_delimiter(scope_metrics, out);
        out.extend_from_slice(&self.scope);
        out.extend_from_slice(&self.encoded);
    }
}

/// Builds one request's metrics while the snapshot is walked.
struct MetricsBuilder<'a> {
    snapshot: &'a Snapshot,
    /// The metrics of the last request whose families have not been reached.
    last_metrics: Peekable<vec::IntoIter<Metric>>,
    /// Whether each remaining series had a value in the last request; absent where the roster has changed.
    had_value: Option<vec::IntoIter<bool>>,
    /// The same for this request.
    has_value: Vec<bool>,
    metrics: Vec<Metric>,
    /// How many data points the metrics hold.
    points: usize,
    family: Option<FamilyPoints>,
}

/// The family that is being visited.
struct FamilyPoints {
    family: &'static Family,
    name: String,
    /// When its counters began, in Unix nanoseconds; 0 if unknown or meaningless.
    start: u64,
    reported: ReportedSeries,
    numbers: Vec<NumberDataPoint>,
    histograms: Vec<HistogramDataPoint>,
}

/// The attributes of one family's series that had a value in the last request.
struct ReportedSeries {
    /// Each is taken out when its series is visited.
    attributes: Vec<Option<Vec<KeyValue>>>,
    /// The place of the next one, where the roster is the same.
    next: usize,
    /// Their places by [`attributes_hash`], where the roster has changed.
    places: HashMap<u64, usize>,
}

impl Sink for MetricsBuilder<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        let name = native_name(family);
        let unit = native_unit(family.unit);
        let last = self.last_metrics.next_if(|metric| metric.name == name && metric.unit == unit);
        let start = match family.kind {
            Kind::Gauge => 0,
            Kind::Counter | Kind::Histogram => start(self.snapshot, family).map_or(0, |start| start.0),
        };
        let reported = ReportedSeries::new(last, self.had_value.is_none());
        let (numbers, histograms) = (Vec::new(), Vec::new());
        self.family = Some(FamilyPoints { family, name, start, reported, numbers, histograms });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let Some(current) = &mut self.family else { return };
        let reported = match &mut self.had_value {
            Some(had_value) => had_value.next().filter(|had| *had).and_then(|_| current.reported.take_next()),
            None => current.reported.take(attributes_hash(sample.labels.pairs())),
        };
        self.has_value.push(sample.value.is_some());
        if sample.value.is_none() && reported.is_none() {
            return;
        }
        let attributes = reported.unwrap_or_else(|| sample.labels.pairs().map(attribute).collect());
        // All points have the snapshot's time: Prometheus' receiver dates target_info by the earliest point of a
        // request and refuses the request when that lies before the last one.
        let (time, start) = (self.snapshot.at.utc.0, sample.start.map_or(current.start, |start| start.0));
        current.push(sample.value, attributes, start, time);
    }
}

impl MetricsBuilder<'_> {
    fn finish_family(&mut self) {
        let Some(mut current) = self.family.take() else { return };
        for attributes in mem::take(&mut current.reported.attributes).into_iter().flatten() {
            current.push(None, attributes, current.start, self.snapshot.at.utc.0);
        }
        let points = current.numbers.len() + current.histograms.len();
        if points > 0 {
            self.points += points;
            self.metrics.push(current.into_metric());
        }
    }
}

impl FamilyPoints {
    /// Appends a data point; one without a value carries the no-recorded-value flag.
    fn push(&mut self, value: Option<Value<'_>>, attributes: Vec<KeyValue>, start: u64, time: u64) {
        let flags = if value.is_some() { 0 } else { DataPointFlags::NoRecordedValueMask as u32 };
        if self.family.kind == Kind::Histogram {
            let point = match value {
                Some(Value::Histogram(histogram)) => histogram_point(histogram),
                _ => HistogramDataPoint::default(),
            };
            self.histograms.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: time,
                flags,
                ..point
            });
        } else {
            let value = match value {
                Some(Value::Number(number)) => Some(number_value(number, self.family.unit.decimals())),
                _ => None,
            };
            self.numbers.push(NumberDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: time,
                exemplars: Vec::new(),
                flags,
                value,
            });
        }
    }

    fn into_metric(self) -> Metric {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let data_points = self.numbers;
        let data = match self.family.kind {
            Kind::Gauge => Data::Gauge(Gauge { data_points }),
            Kind::Counter => Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }),
            Kind::Histogram => {
                Data::Histogram(Histogram { data_points: self.histograms, aggregation_temporality })
            }
        };
        Metric {
            name: self.name,
            description: self.family.help.into(),
            unit: native_unit(self.family.unit).into(),
            data: Some(data),
            ..Default::default()
        }
    }
}

impl ReportedSeries {
    /// Takes the attributes out of a family's last metric.
    fn new(last: Option<Metric>, is_by_hash: bool) -> Self {
        let of_numbers = |points: Vec<NumberDataPoint>| {
            points.into_iter().filter(|point| point.flags == 0).map(|point| Some(point.attributes)).collect()
        };
        let attributes: Vec<_> = match last.and_then(|metric| metric.data) {
            Some(Data::Gauge(gauge)) => of_numbers(gauge.data_points),
            Some(Data::Sum(sum)) => of_numbers(sum.data_points),
            Some(Data::Histogram(histogram)) => {
                let points = histogram.data_points.into_iter().filter(|point| point.flags == 0);
                points.map(|point| Some(point.attributes)).collect()
            }
            _ => Vec::new(),
        };
        let mut places = HashMap::new();
        if is_by_hash {
            let hashes = attributes.iter().flatten().map(|attributes| attributes_hash(pairs(attributes)));
            places.extend(hashes.zip(0..));
        }
        Self { attributes, next: 0, places }
    }

    fn take_next(&mut self) -> Option<Vec<KeyValue>> {
        self.next += 1;
        self.attributes.get_mut(self.next - 1)?.take()
    }

    fn take(&mut self, hash: u64) -> Option<Vec<KeyValue>> {
        self.attributes.get_mut(*self.places.get(&hash)?)?.take()
    }
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

fn attribute((key, value): (&str, &str)) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.into())) };
    KeyValue { key: key.into(), value: Some(value), ..Default::default() }
}

/// Keys and values of attributes that [`attribute`] made.
fn pairs(attributes: &[KeyValue]) -> impl Iterator<Item = (&str, &str)> {
    attributes.iter().map(|attribute| match attribute.value.as_ref().and_then(|any| any.value.as_ref()) {
        Some(any_value::Value::StringValue(value)) => (&*attribute.key, &**value),
        _ => (&*attribute.key, ""),
    })
}

/// Tells the series of a family apart: 64 bits, so that two of a node's series do not collide in practice.
fn attributes_hash<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    pairs.for_each(|pair| pair.hash(&mut hasher));
    hasher.finish()
}
