//! The body of `/api/v1/snapshot`: the same series as the page, as one JSON object.
//!
//! `{"at": RFC 3339, "sequence": n, "simulated": bool, "node": {"name", "cluster"}, "families": [{"name", "type",
//! "unit", "help", "series": [{"labels": {name: value}, "value": number}]}]}`. Numbers are exact decimals, as on the
//! page, and a series without a value is left out. A histogram's value is
//! `{"count", "sum", "buckets": [{"le", "count"}]}`, cumulative, without the infinite bucket. `"partial": true` says
//! that series of other tenants are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::decimal;
use super::walk::{Labels, Sample, Sink, Value, walk};
use crate::catalogue::{AgentFamily, Family, GpuRows, InstanceRows, Level, Rows};
use crate::model::VisibleAccount;
use crate::model::snapshot::{Histogram, Snapshot, WorkloadEntry};

/// Appends the snapshot's series up to `level`.
pub fn json(snapshot: &Snapshot, level: Level, out: &mut Vec<u8>) {
    write(snapshot, level, None, out);
}

/// Appends what a reader may see. Where that is not everything, it is the series of tenants and workloads and the identity of
/// the GPUs, marked as partial: a GPU's measurements are sums over all its tenants.
pub fn json_of(snapshot: &Snapshot, level: Level, visible: &VisibleAccount, out: &mut Vec<u8>) {
    write(snapshot, level, SeriesFilter::new(snapshot, visible), out);
}

/// What is shown to a reader who may not see everything.
pub(super) struct SeriesFilter<'a> {
    visible: &'a VisibleAccount,
    /// The workloads of now that are shown.
    workloads: BTreeSet<&'a str>,
}

impl<'a> SeriesFilter<'a> {
    /// The filter for a reader; none where everything is shown.
    pub(super) fn new(snapshot: &'a Snapshot, visible: &'a VisibleAccount) -> Option<Self> {
        if *visible == VisibleAccount::Everything {
            return None;
        }
        let is_shown = |entry: &&WorkloadEntry| {
            visible.shows(&entry.tenant, |fact| entry.facts.get(fact).map(|text| &**text))
        };
        let workloads = snapshot.roster.workloads.iter().filter(is_shown);
        Some(Self { visible, workloads: workloads.map(|entry| &*entry.workload).collect() })
    }

    pub(super) fn shows_workload(&self, workload: &str) -> bool {
        self.workloads.contains(workload)
    }

    /// What a tenant has in all is a sum over its users.
    pub(super) fn shows_tenant(&self, tenant: &str) -> bool {
        self.visible.shows(tenant, |_| None)
    }

    fn shows(&self, family: &Family, labels: Labels<'_>) -> bool {
        let value = |name: &str| labels.pairs().find(|(label, _)| *label == name).map(|(_, value)| value);
        match (value("tenant"), value("workload")) {
            (Some(_), Some(workload)) if matches!(self.visible, VisibleAccount::OfUser(_)) => {
                self.shows_workload(workload)
            }
            (Some(tenant), _) => self.shows_tenant(tenant),
            (None, Some(workload)) => self.shows_workload(workload),
            (None, None) => {
                matches!(family.rows, Rows::Gpu(GpuRows::Info) | Rows::Instance(InstanceRows::Info))
            }
        }
    }
}

fn write<'a>(snapshot: &'a Snapshot, level: Level, filter: Option<SeriesFilter<'a>>, out: &'a mut Vec<u8>) {
    let is_partial = filter.is_some();
    let mut sink = JsonWriter { out, filter, family: None, families: 0, series: 0 };
    sink.raw("{\"at\":");
    sink.value(&snapshot.at.utc.to_string());
    sink.raw(",\"sequence\":");
    sink.value(&snapshot.sequence);
    sink.raw(",\"simulated\":");
    sink.value(&simulated(snapshot));
    sink.raw(",\"node\":");
    sink.value(&node(snapshot));
    if is_partial {
        sink.raw(",\"partial\":true");
    }
    sink.raw(",\"families\":[");
    walk(snapshot, level, &mut sink);
    sink.finish_family();
    sink.raw("]}\n");
}

/// Whether the driver is simulated, by the agent's own series.
pub(super) fn simulated(snapshot: &Snapshot) -> bool {
    snapshot.agent_integer(AgentFamily::Simulated.name()) == Some(1)
}

/// The node's names, by the agent's own series; the cluster is left out where none is configured.
pub(super) fn node(snapshot: &Snapshot) -> BTreeMap<&'static str, &str> {
    let info = snapshot.roster.agent.iter().find(|entry| entry.family == AgentFamily::NodeInfo.name());
    let labels = info.map_or(&[] as &[_], |entry| &entry.labels);
    let texts =
        labels.iter().map(|(label, text)| (if *label == "node_name" { "name" } else { "cluster" }, &**text));
    texts.filter(|(_, text)| !text.is_empty()).collect()
}

struct JsonWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Absent where everything is shown.
    filter: Option<SeriesFilter<'a>>,
    family: Option<&'static Family>,
    families: usize,
    /// How many series of the family have been written.
    series: usize,
}

impl Sink for JsonWriter<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        self.family = Some(family);
        self.series = 0;
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let (Some(family), Some(value)) = (self.family, sample.value) else { return };
        if self.filter.as_ref().is_some_and(|filter| !filter.shows(family, sample.labels)) {
            return;
        }
        self.begin_series(family);
        for (number, (name, value)) in sample.labels.pairs().enumerate() {
            self.raw(if number > 0 { "," } else { "" });
            self.value(name);
            self.raw(":");
            self.value(value);
        }
        self.raw("},\"value\":");
        match value {
            Value::Number(number) => decimal::write(self.out, number, family.unit.decimals()),
            Value::Histogram(histogram) => self.histogram(histogram),
        }
        self.raw("}");
    }
}

impl JsonWriter<'_> {
    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Writing to memory does not fail, and neither do the plain values that come here.
        let _written = serde_json::to_writer(&mut *self.out, value);
    }

    fn begin_series(&mut self, family: &Family) {
        if self.series == 0 {
            self.raw(if self.families > 0 { "," } else { "" });
            self.families += 1;
            for (key, text) in [
                ("{\"name\":", family.name),
                (",\"type\":", family.kind.name()),
                (",\"unit\":", family.unit.suffix()),
                (",\"help\":", family.help),
            ] {
                self.raw(key);
                self.value(text);
            }
            self.raw(",\"series\":[");
        } else {
            self.raw(",");
        }
        self.series += 1;
        self.raw("{\"labels\":{");
    }

    fn finish_family(&mut self) {
        if self.series > 0 {
            self.raw("]}");
        }
    }

    fn histogram(&mut self, histogram: &Histogram) {
        self.raw("{\"count\":");
        self.value(&histogram.count);
        self.raw(",\"sum\":");
        self.value(&histogram.sum);
        self.raw(",\"buckets\":[");
        for (number, (bound, count)) in histogram.bounds.iter().zip(&histogram.cumulative).enumerate() {
            self.raw(if number > 0 { ",{\"le\":" } else { "{\"le\":" });
            self.value(bound);
            self.raw(",\"count\":");
            self.value(count);
            self.raw("}");
        }
        self.raw("]}");
    }
}
