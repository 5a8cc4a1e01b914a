//! The warm encode: times, values and flags around the kept attributes, one metric message per family.

use std::slice;

use super::series::{Ended, Series};
use crate::catalogue::{Family, Kind};
use crate::export::walk::{Sample, Sink, Value, start};
use crate::export::{decimal, pieces, protobuf};
use crate::model::snapshot::{Histogram, Snapshot};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u64 = 2;
/// `DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK`.
const NO_RECORDED_VALUE: u64 = 1;
/// A `fixed64` field with a number below 16.
const FIXED64_FIELD: usize = 9;

/// Bytes that are used again for each request.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Data points of the family at hand.
    points: Vec<u8>,
    /// All metrics, as fields of `ScopeMetrics`.
    pub(super) metrics: Vec<u8>,
}

/// Writes one request's metrics.
pub(super) struct Points<'a> {
    snapshot: &'a Snapshot,
    heads: pieces::Iter<'a>,
    attributes: pieces::Iter<'a>,
    sent: slice::IterMut<'a, bool>,
    /// Not yet written, by family.
    ended: &'a [Ended],
    buffers: &'a mut Buffers,
    family: Option<Current<'a>>,
    /// How many families have begun.
    families: usize,
    count: usize,
}

/// The family at hand.
#[derive(Clone, Copy)]
struct Current<'a> {
    family: &'static Family,
    head: &'a [u8],
    /// Unix nanoseconds, 0 if unknown or meaningless.
    start: u64,
}

impl<'a> Points<'a> {
    /// Begins a request; `ended` stands in the order of families.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        series: &'a mut Series,
        ended: &'a [Ended],
        buffers: &'a mut Buffers,
    ) -> Self {
        buffers.points.clear();
        buffers.metrics.clear();
        Self {
            snapshot,
            heads: series.heads.iter(),
            attributes: series.attributes.iter(),
            sent: series.sent.iter_mut(),
            ended,
            buffers,
            family: None,
            families: 0,
            count: 0,
        }
    }

    /// Ends the request; how many data points it holds.
    pub(super) fn finish(mut self) -> usize {
        self.finish_family();
        self.count
    }

    fn finish_family(&mut self) {
        let Some(current) = self.family.take() else { return };
        while let [first, rest @ ..] = self.ended
            && first.family < self.families
        {
            no_point(&mut self.buffers.points, current, self.snapshot.at.utc.0, &first.attributes);
            self.count += 1;
            self.ended = rest;
        }
        if !self.buffers.points.is_empty() {
            metric(&mut self.buffers.metrics, current, &self.buffers.points);
            self.buffers.points.clear();
        }
    }
}

impl Sink for Points<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        self.families += 1;
        let start = match family.kind {
            Kind::Gauge => 0,
            Kind::Counter | Kind::Histogram => start(self.snapshot, family).map_or(0, |start| start.0),
        };
        self.family = self.heads.next().map(|head| Current { family, head, start });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let (Some(attributes), Some(sent), Some(current)) =
            (self.attributes.next(), self.sent.next(), self.family)
        else {
            return;
        };
        // One time for all: Prometheus' receiver dates target_info by the earliest point of a request and refuses
        // the request when that lies before the last one.
        let start = sample.start.map_or(current.start, |start| start.0);
        let times = Times { start, taken: self.snapshot.at.utc.0 };
        let out = &mut self.buffers.points;
        match sample.value {
            Some(Value::Number(number)) => {
                number_point(out, times, (number, current.family.unit.decimals()), attributes);
            }
            Some(Value::Histogram(histogram)) => histogram_point(out, times, histogram, attributes),
            None if *sent => no_point(out, current, self.snapshot.at.utc.0, attributes),
            None => return,
        }
        *sent = sample.value.is_some();
        self.count += 1;
    }
}

/// Appends a `Metric` as a field of `ScopeMetrics`; `points` are fields 1 of its kind's message.
fn metric(out: &mut Vec<u8>, current: Current<'_>, points: &[u8]) {
    // Temporality is two bytes, monotonicity two.
    let (field, tail) = match current.family.kind {
        Kind::Gauge => (5, 0),
        Kind::Counter => (7, 4),
        Kind::Histogram => (9, 2),
    };
    let content = points.len() + tail;
    protobuf::open(out, 2, current.head.len() + protobuf::bytes_length(content));
    out.extend_from_slice(current.head);
    protobuf::open(out, field, content);
    out.extend_from_slice(points);
    if current.family.kind != Kind::Gauge {
        protobuf::small(out, 2, CUMULATIVE);
    }
    if current.family.kind == Kind::Counter {
        protobuf::small(out, 3, 1);
    }
}

/// The time stamps of a data point, in Unix nanoseconds.
#[derive(Clone, Copy)]
struct Times {
    /// 0 if unknown or meaningless.
    start: u64,
    taken: u64,
}

impl Times {
    /// How many bytes [`Self::write`] appends.
    const fn length(self) -> usize {
        if self.start == 0 { FIXED64_FIELD } else { 2 * FIXED64_FIELD }
    }

    /// Appends `start_time_unix_nano`, if known, and `time_unix_nano`.
    fn write(self, out: &mut Vec<u8>) {
        if self.start != 0 {
            protobuf::fixed64(out, 2, self.start);
        }
        protobuf::fixed64(out, 3, self.taken);
    }
}

/// Appends a `NumberDataPoint` with the value of `number` at that many decimals.
fn number_point(out: &mut Vec<u8>, times: Times, (number, decimals): (i128, u8), attributes: &[u8]) {
    protobuf::open(out, 1, times.length() + FIXED64_FIELD + attributes.len());
    times.write(out);
    match i64::try_from(number) {
        Ok(integer) if decimals == 0 => protobuf::fixed64(out, 6, integer as u64),
        _ => protobuf::fixed64(out, 4, decimal::double(number, decimals).to_bits()),
    }
    out.extend_from_slice(attributes);
}

/// Appends a `HistogramDataPoint`.
fn histogram_point(out: &mut Vec<u8>, times: Times, histogram: &Histogram, attributes: &[u8]) {
    let bounds = histogram.bounds.len().min(histogram.cumulative.len());
    let counts = 8 * (bounds + 1);
    let packed = protobuf::bytes_length(counts) + protobuf::bytes_length(8 * bounds);
    protobuf::open(out, 1, times.length() + 2 * FIXED64_FIELD + packed + attributes.len());
    times.write(out);
    protobuf::fixed64(out, 4, histogram.count);
    protobuf::fixed64(out, 5, histogram.sum.to_bits());
    protobuf::open(out, 6, counts);
    let mut below = 0;
    for cumulative in histogram.cumulative[..bounds].iter().chain([&histogram.count]) {
        // OTLP's buckets are not cumulative.
        out.extend_from_slice(&cumulative.saturating_sub(below).to_le_bytes());
        below = *cumulative;
    }
    protobuf::open(out, 7, 8 * bounds);
    for bound in &histogram.bounds[..bounds] {
        out.extend_from_slice(&bound.to_le_bytes());
    }
    out.extend_from_slice(attributes);
}

/// Appends a point that says that its series has no value any more.
fn no_point(out: &mut Vec<u8>, current: Current<'_>, at: u64, attributes: &[u8]) {
    let times = Times { start: current.start, taken: at };
    // Tag and value are one byte each.
    protobuf::open(out, 1, times.length() + attributes.len() + 2);
    times.write(out);
    out.extend_from_slice(attributes);
    let field = if current.family.kind == Kind::Histogram { 10 } else { 8 };
    protobuf::small(out, field, NO_RECORDED_VALUE);
}
