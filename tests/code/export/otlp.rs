//! The OTLP request, decoded and compared with what the walk visits.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpumeter::model::catalogue::{self, Kind, Level, Origin};
use gpumeter::model::snapshot::{Roster, Snapshot};
use gpumeter::model::{Absence, Utc};
use gpumeter::output::render::{OtlpEncoder, OtlpResource, native_name, native_unit};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use prost::Message;

use super::fixture;
use super::record::{Shown, Visit, visits};

/// A data point in the test's own form.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    name: String,
    unit: String,
    labels: Vec<(String, String)>,
    start: u64,
    time: u64,
    value: Wire,
    flags: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Wire {
    Nothing,
    Integer(i64),
    Double(f64),
    Histogram { count: u64, sum: f64, bounds: Vec<f64>, buckets: Vec<u64> },
}

fn texts(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => (attribute.key.clone(), text.clone()),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(text).collect()
}

fn metrics(body: &[u8]) -> Vec<Metric> {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    assert_eq!(
        request.encoded_len(),
        body.len(),
        "nothing in the request is unknown, and no length is padded"
    );
    assert_eq!(request.resource_metrics.len(), 1);
    assert_eq!(request.resource_metrics[0].scope_metrics.len(), 1);
    request.resource_metrics[0].scope_metrics[0].metrics.clone()
}

fn points(metric: &Metric) -> Vec<Point> {
    let point = |attributes: &[KeyValue], (start, time), value, flags| Point {
        name: metric.name.clone(),
        unit: metric.unit.clone(),
        labels: texts(attributes),
        start,
        time,
        value,
        flags,
    };
    let data = metric.data.as_ref().unwrap();
    let numbers = match data {
        metric::Data::Gauge(gauge) => &gauge.data_points,
        metric::Data::Sum(sum) => {
            assert!(sum.is_monotonic != catalogue::is_up_down_counter(&metric.name));
            assert_eq!(sum.aggregation_temporality, 2);
            &sum.data_points
        }
        metric::Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, 2);
            return histogram
                .data_points
                .iter()
                .map(|it| {
                    let value = if it.flags == 1 {
                        Wire::Nothing
                    } else {
                        let (bounds, buckets) = (it.explicit_bounds.clone(), it.bucket_counts.clone());
                        Wire::Histogram { count: it.count, sum: it.sum.unwrap(), bounds, buckets }
                    };
                    point(&it.attributes, (it.start_time_unix_nano, it.time_unix_nano), value, it.flags)
                })
                .collect();
        }
        other => panic!("{other:?}"),
    };
    let value = |value: Option<number_data_point::Value>| match value {
        None => Wire::Nothing,
        Some(number_data_point::Value::AsInt(number)) => Wire::Integer(number),
        Some(number_data_point::Value::AsDouble(number)) => Wire::Double(number),
    };
    numbers
        .iter()
        .map(|it| {
            point(&it.attributes, (it.start_time_unix_nano, it.time_unix_nano), value(it.value), it.flags)
        })
        .collect()
}

fn wire(visit: &Visit) -> Wire {
    match &visit.value {
        Shown::Number(number) => match visit.family.unit.decimals() {
            0 => Wire::Integer(i64::try_from(*number).unwrap()),
            decimals => Wire::Double(format!("{number}e-{decimals}").parse().unwrap()),
        },
        Shown::Histogram(histogram) => {
            let counts: Vec<u64> = histogram.cumulative.iter().copied().chain([histogram.count]).collect();
            let buckets =
                (0..counts.len()).map(|n| counts[n] - if n > 0 { counts[n - 1] } else { 0 }).collect();
            let bounds = histogram.bounds.clone();
            Wire::Histogram { count: histogram.count, sum: histogram.sum, bounds, buckets }
        }
    }
}

fn expected(snapshot: &Snapshot, visit: &Visit) -> Point {
    let start = match (visit.family.kind, visit.family.origin()) {
        (Kind::Gauge, _) | (_, Origin::Driver) => 0,
        (_, Origin::Agent) => snapshot.started.0,
        (_, Origin::Ledger) => snapshot.ledger_started.map_or(0, |started| started.0),
        (_, Origin::LedgerOrAgent) => snapshot.ledger_started.unwrap_or(snapshot.started).0,
    };
    Point {
        name: native_name(visit.family),
        unit: native_unit(visit.family.unit).into(),
        labels: visit.labels.clone(),
        start,
        time: snapshot.at.utc.0,
        value: wire(visit),
        flags: 0,
    }
}

/// Encodes, checks the values against the walk, and returns the points without a value.
fn check(otlp: &mut OtlpEncoder, snapshot: &Snapshot, level: Level) -> Vec<Point> {
    let mut body = Vec::new();
    let count = fixture::encode(otlp, snapshot, &mut body);
    let all: Vec<Point> = metrics(&body).iter().flat_map(points).collect();
    assert_eq!(count, all.len());
    let (ended, alive): (Vec<_>, Vec<_>) = all.into_iter().partition(|point| point.flags == 1);
    let wanted: Vec<Point> = visits(snapshot, level).iter().map(|visit| expected(snapshot, visit)).collect();
    assert_eq!(alive, wanted);
    for point in &ended {
        assert_eq!((&point.value, point.time), (&Wire::Nothing, snapshot.at.utc.0));
    }
    ended
}

#[test]
fn the_request_decodes_to_what_the_walk_visits() {
    for level in Level::ALL {
        let mut otlp = OtlpEncoder::new(level, &OtlpResource::new("node-1", ""));
        assert!(check(&mut otlp, &fixture::node(2, 3), level).is_empty());
    }
}

#[test]
fn the_resource_names_service_and_node() {
    let mut body = Vec::new();
    let mut otlp = OtlpEncoder::new(Level::Lean, &OtlpResource::new("node-1", ""));
    fixture::encode(&mut otlp, &fixture::node(1, 0), &mut body);
    let request = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let wanted = [
        ("host.name", "node-1"),
        ("service.instance.id", "node-1"),
        ("service.name", "gpumeter"),
        ("service.version", version),
    ];
    assert_eq!(texts(&resource.attributes), wanted.map(|(key, value)| (key.into(), value.into())));
    let mut otlp = OtlpEncoder::new(Level::Lean, &OtlpResource::new("node-1", "zurich"));
    fixture::encode(&mut otlp, &fixture::node(1, 0), &mut body);
    let in_cluster = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
    let attributes = &in_cluster.resource_metrics[0].resource.as_ref().unwrap().attributes;
    assert!(texts(attributes).contains(&("k8s.cluster.name".to_owned(), "zurich".to_owned())));
    let scope = request.resource_metrics[0].scope_metrics[0].scope.as_ref().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("gpumeter", version));
}

#[test]
fn each_metric_has_its_kind_help_and_unit() {
    let mut body = Vec::new();
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    fixture::encode(&mut otlp, &fixture::node(2, 2), &mut body);
    let mut seen = BTreeSet::new();
    for metric in metrics(&body) {
        let family = catalogue::families().find(|family| native_name(family) == metric.name).unwrap();
        assert_eq!((&*metric.description, &*metric.unit), (family.help, native_unit(family.unit)));
        let kind = match metric.data.unwrap() {
            metric::Data::Gauge(_) => Kind::Gauge,
            metric::Data::Sum(_) => Kind::Counter,
            _ => Kind::Histogram,
        };
        assert_eq!(kind, family.kind, "{}", family.name);
        assert!(seen.insert(family.name), "{} is one message", family.name);
    }
}

/// The points of a request with the names of the conventions for hardware.
fn hardware_points(otlp: &mut OtlpEncoder, snapshot: &Snapshot) -> Vec<Point> {
    let mut body = Vec::new();
    fixture::encode(otlp, snapshot, &mut body);
    let mut names = BTreeSet::new();
    let all = metrics(&body);
    all.iter()
        .for_each(|metric| assert!(names.insert(metric.name.clone()), "{} is one message", metric.name));
    all.iter().flat_map(points).collect()
}

#[test]
fn names_of_hardware_take_the_place_of_ours_and_lose_no_series() {
    let snapshot = fixture::node(2, 2);
    let mut native = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    let mut body = Vec::new();
    fixture::encode(&mut native, &snapshot, &mut body);
    let native: Vec<Point> = metrics(&body).iter().flat_map(points).collect();
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    otlp.has_hardware_names = true;
    let points = hardware_points(&mut otlp, &snapshot);
    let (hardware, ours): (Vec<_>, Vec<_>) = points.iter().partition(|point| point.name.starts_with("hw."));
    assert!(ours.iter().all(|point| native.contains(point)));
    let of = |name: &str| hardware.iter().filter(|point| point.name == name).copied().collect::<Vec<_>>();
    let states = of("hw.status");
    let derived = of("hw.gpu.memory.utilization");
    // Of gpu_health only the state of a GPU has a series.
    assert_eq!(ours.len() + hardware.len() - derived.len() - states.len() + 2, native.len());
    assert_eq!((states.len(), derived.len()), (8, 2));
    assert_eq!(states.iter().filter(|point| point.value == Wire::Integer(1)).count(), 2);
    assert!(!ours.iter().any(|point| point.name == "gpu.power"));
    let label = |point: &Point, name: &str| {
        point.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
    };
    for point in &hardware {
        assert!(label(point, "hw.id").is_some() && label(point, "uuid").is_none(), "{point:?}");
    }
    let tasks: BTreeSet<_> =
        of("hw.gpu.utilization").iter().map(|point| label(point, "hw.gpu.task").unwrap()).collect();
    assert_eq!(tasks.into_iter().collect::<Vec<_>>(), ["decoder", "encoder", "general"]);
    let power = native.iter().find(|point| point.name == "gpu.power").unwrap();
    assert_eq!(of("hw.power")[0].value, power.value);
    // The same again from the cache, and a GPU that is gone ends its series.
    assert_eq!(hardware_points(&mut otlp, &snapshot), points);
    let ended = hardware_points(&mut otlp, &fixture::node(1, 2));
    let ended: Vec<_> = ended.iter().filter(|point| point.flags == 1 && point.name == "hw.power").collect();
    assert_eq!(ended.len(), 1);
}

#[test]
fn a_removed_series_is_ended_once() {
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    check(&mut otlp, &fixture::node(2, 3), Level::Full);
    let ended = check(&mut otlp, &fixture::node(2, 2), Level::Full);
    let names: Vec<_> = ended.iter().map(|point| point.name.as_str()).collect();
    // Memory, and each engine.
    let [memory, engines] = ["gpu.process.memory", "gpu.process.utilization.ratio"];
    assert_eq!(names, [memory, engines, engines, engines, engines]);
    for point in &ended {
        assert!(point.labels.contains(&("pid".into(), "4002".into())), "{point:?}");
    }
    assert!(check(&mut otlp, &fixture::node(2, 2), Level::Full).is_empty());
    // It may return, and end again.
    assert!(check(&mut otlp, &fixture::node(2, 3), Level::Full).is_empty());
    assert_eq!(check(&mut otlp, &fixture::node(2, 2), Level::Full).len(), 5);
}

#[test]
fn a_family_whose_last_series_leaves_still_ends_it() {
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    check(&mut otlp, &fixture::node(1, 1), Level::Full);
    let bare = fixture::values(Arc::new(Roster { prices: Arc::default(), ..fixture::roster(1, 0) }), 1);
    let ended = check(&mut otlp, &bare, Level::Full);
    let names: BTreeSet<_> = ended.iter().map(|point| point.name.as_str()).collect();
    let wanted = [
        "gpu.process.memory",
        "gpu.process.utilization.ratio",
        "gpu.tenant.held.cost",
        "gpu.tenant.used.cost",
        "gpu.workload.held.cost",
        "gpu.workload.used.cost",
        "gpu.cost.per.hour",
    ];
    assert_eq!(names, BTreeSet::from(wanted));
    let gone = fixture::values(Arc::new(Roster::default()), 1);
    let alive = visits(&bare, Level::Full).len();
    assert_eq!(check(&mut otlp, &gone, Level::Full).len(), alive, "everything ends, histograms too");
}

#[test]
fn a_value_that_is_withheld_is_ended_once_and_comes_back() {
    let roster = Arc::new(fixture::roster(1, 1));
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    check(&mut otlp, &fixture::values(Arc::clone(&roster), 1), Level::Full);
    let mut absent = fixture::values(Arc::clone(&roster), 1);
    absent.processes[0].values[0] = Err(Absence::Failed);
    for count in [1, 0] {
        let ended = check(&mut otlp, &absent, Level::Full);
        assert_eq!(ended.len(), count);
        assert!(ended.iter().all(|point| point.name == "gpu.process.memory"));
    }
    assert!(check(&mut otlp, &fixture::values(roster, 1), Level::Full).is_empty());
}

#[test]
fn the_end_of_a_series_is_told_until_it_is_acknowledged_and_not_if_it_is_back() {
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    let snapshot = |processes: usize, second: u64| {
        let mut snapshot = fixture::node(2, processes);
        snapshot.at.utc.0 += second;
        snapshot
    };
    let mut ended = |processes: usize, second: u64, acknowledged: u64| {
        otlp.acknowledge(Utc(fixture::AT.0 + acknowledged));
        let requests = otlp.encode_requests(&snapshot(processes, second), usize::MAX);
        metrics(&requests[0].0).iter().flat_map(points).filter(|point| point.flags == 1).count()
    };
    let first = ended(3, 1, 0);
    assert_eq!(first, 0);
    let all = ended(1, 2, 1);
    assert!(all > 0);
    assert_eq!(ended(1, 3, 1), all);
    // One of the two is back.
    assert_eq!(ended(2, 4, 1), all / 2);
    assert_eq!(ended(2, 5, 1), all / 2);
    assert_eq!(ended(2, 6, 5), 0);
}
