//! Divides a request that a destination finds too large.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::Signal;

/// A part of a request, with its number of points.
pub(super) type Part = (Vec<u8>, u32);

/// Two halves of a request; none if it has one point, or is no request.
pub(super) fn halves(signal: Signal, request: &[u8]) -> Option<[Part; 2]> {
    match signal {
        Signal::Metrics => halves_of(request, metrics, take_half, points),
        Signal::Logs => halves_of(request, log_records, |_| None, <[_]>::len),
        Signal::Traces => halves_of(request, spans, |_| None, <[_]>::len),
    }
}

/// Two halves of a request: of its items, or of its only item by `take_half`.
fn halves_of<R: Message + Default + Clone, T>(
    request: &[u8],
    items: fn(&mut R) -> Option<&mut Vec<T>>,
    take_half: fn(&mut T) -> Option<T>,
    points: fn(&[T]) -> usize,
) -> Option<[Part; 2]> {
    let mut first = R::decode(request).ok()?;
    let own = items(&mut first)?;
    let mut rest = own.split_off(own.len() / 2);
    if own.is_empty() {
        let mut half = rest.pop()?;
        rest.push(take_half(&mut half)?);
        own.push(half);
    }
    let counts = [points(own), points(&rest)].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut second = first.clone();
    *items(&mut second)? = rest;
    Some([(first.encode_to_vec(), counts[0]), (second.encode_to_vec(), counts[1])])
}

/// Moves the second half of a metric's points to another of the same name; none if it has one.
fn take_half(metric: &mut Metric) -> Option<Metric> {
    fn split<T>(points: &mut Vec<T>) -> Option<Vec<T>> {
        (points.len() > 1).then(|| points.split_off(points.len() / 2))
    }
    let mut other = metric.clone();
    match (metric.data.as_mut()?, other.data.as_mut()?) {
        (metric::Data::Gauge(own), metric::Data::Gauge(other)) => {
            other.data_points = split(&mut own.data_points)?;
        }
        (metric::Data::Sum(own), metric::Data::Sum(other)) => {
            other.data_points = split(&mut own.data_points)?;
        }
        (metric::Data::Histogram(own), metric::Data::Histogram(other)) => {
            other.data_points = split(&mut own.data_points)?;
        }
        _ => return None,
    }
    Some(other)
}

fn points(metrics: &[Metric]) -> usize {
    let count = |metric: &Metric| match &metric.data {
        Some(metric::Data::Gauge(data)) => data.data_points.len(),
        Some(metric::Data::Sum(data)) => data.data_points.len(),
        Some(metric::Data::Histogram(data)) => data.data_points.len(),
        _ => 0,
    };
    metrics.iter().map(count).sum()
}

fn metrics(request: &mut ExportMetricsServiceRequest) -> Option<&mut Vec<Metric>> {
    Some(&mut request.resource_metrics.first_mut()?.scope_metrics.first_mut()?.metrics)
}

fn log_records(request: &mut ExportLogsServiceRequest) -> Option<&mut Vec<LogRecord>> {
    Some(&mut request.resource_logs.first_mut()?.scope_logs.first_mut()?.log_records)
}

fn spans(request: &mut ExportTraceServiceRequest) -> Option<&mut Vec<Span>> {
    Some(&mut request.resource_spans.first_mut()?.scope_spans.first_mut()?.spans)
}
