//! OTLP: a snapshot as one `ExportMetricsServiceRequest`, written by hand from the same walk as the page.
//!
//! In: a snapshot. Out: the request's bytes and the number of data points in it. Attributes and metric heads
//! are kept for as long as the roster stays the same `Arc`. It remembers which series it has sent: one that
//! ends, or whose value is withheld, is sent once more with the no-recorded-value flag. It does not know where
//! the bytes go, or whether they arrive.
//!
//! Messages and field numbers: opentelemetry-proto 1.x, `metrics/v1/metrics.proto`.

mod name;
mod points;
mod series;

pub use name::{native_name, native_unit};

use self::points::{Buffers, Points};
use self::series::{Ended, Series, attribute};
use super::protobuf;
use super::walk::walk;
use crate::catalogue::Level;
use crate::model::snapshot::Snapshot;

/// Encodes the snapshots of one destination, one after the other.
#[derive(Debug)]
pub struct Otlp {
    level: Level,
    /// `ResourceMetrics.resource`, whole.
    resource: Vec<u8>,
    /// `ScopeMetrics.scope`, whole.
    scope: Vec<u8>,
    series: Option<Series>,
    buffers: Buffers,
}

impl Otlp {
    /// An encoder of the families up to `level`, for the node of that name.
    pub fn new(level: Level, node: &str) -> Self {
        Self::in_cluster(level, node, "")
    }

    /// The same for a node of that cluster, which may be empty.
    pub fn in_cluster(level: Level, node: &str, cluster: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let mut attributes = Vec::new();
        for (key, value) in [
            ("service.name", "gpumeter"),
            ("service.instance.id", node),
            ("service.version", version),
            ("host.name", node),
            // OpenTelemetry has no other name for a cluster.
            ("k8s.cluster.name", cluster),
        ] {
            if !value.is_empty() {
                attribute(&mut attributes, 1, key, value);
            }
        }
        let mut resource = Vec::new();
        protobuf::bytes(&mut resource, 1, &attributes);
        let mut named = Vec::new();
        protobuf::bytes(&mut named, 1, b"gpumeter");
        protobuf::bytes(&mut named, 2, version.as_bytes());
        let mut scope = Vec::new();
        protobuf::bytes(&mut scope, 1, &named);
        Self { level, resource, scope, series: None, buffers: Buffers::default() }
    }

    /// Writes the request into `out`, which is cleared before; how many data points it holds.
    pub fn encode(&mut self, snapshot: &Snapshot, out: &mut Vec<u8>) -> usize {
        let (mut series, ended) = self.series(snapshot);
        let mut points = Points::new(snapshot, &mut series, &ended, &mut self.buffers);
        walk(snapshot, self.level, &mut points);
        let count = points.finish();
        self.series = Some(series);
        self.wrap(out);
        count
    }

    /// The series of this snapshot's roster, and those that went with the roster before it.
    fn series(&mut self, snapshot: &Snapshot) -> (Series, Vec<Ended>) {
        match self.series.take() {
            Some(series) if series.fits(snapshot) => (series, Vec::new()),
            Some(before) => {
                let mut series = Series::new(snapshot, self.level);
                let ended = series.succeed(&before);
                (series, ended)
            }
            None => (Series::new(snapshot, self.level), Vec::new()),
        }
    }

    /// Puts the request's envelopes around the metrics.
    fn wrap(&self, out: &mut Vec<u8>) {
        let metrics = &self.buffers.metrics;
        let scope_metrics = self.scope.len() + metrics.len();
        let resource_metrics = self.resource.len() + protobuf::bytes_length(scope_metrics);
        out.clear();
        out.reserve(protobuf::bytes_length(resource_metrics));
        protobuf::open(out, 1, resource_metrics);
        out.extend_from_slice(&self.resource);
        protobuf::open(out, 2, scope_metrics);
        out.extend_from_slice(&self.scope);
        out.extend_from_slice(metrics);
    }
}
