//! The body of `/api/v1/snapshot`: the same series as the page, as one JSON object.
//!
//! `{"at": RFC 3339, "sequence": n, "simulated": bool, "node": {"name", "cluster"}, "families": [{"name", "type",
//! "unit", "help", "series": [{"labels": {name: value}, "value": number}]}]}`. Numbers are exact decimals, as on the
//! page, and a series without a value is left out. A histogram's value is
//! `{"count", "sum", "buckets": [{"le", "count"}]}`, cumulative, without the infinite bucket. `"partial": true` says
//! that series of other tenants are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::decimal;
use super::walk::{Labels, Sample, Sink, Value, walk};
use crate::model::VisibleAccount;
use crate::model::catalogue::{AgentFamily, Family, GpuRows, InstanceRows, Level, Rows};
use crate::model::snapshot::{Histogram, Snapshot, WorkloadEntry};

/// The snapshot's series up to `level` as a reader may see them. Where that is not everything, it is the series of tenants and
/// workloads and the identity of the GPUs, marked as partial: a GPU's measurements are sums over all its tenants.
pub fn json(snapshot: &Snapshot, level: Level, visible: &VisibleAccount) -> Vec<u8> {
    let filter = SeriesFilter::new(snapshot, visible);
    let is_partial = filter.is_some();
    let mut sink = JsonSink { filter, family: None, families: Vec::new() };
    walk(snapshot, level, &mut sink);
    let document = SnapshotJson {
        at: snapshot.at.utc.to_string(),
        sequence: snapshot.sequence,
        simulated: simulated(snapshot),
        node: node(snapshot),
        partial: is_partial.then_some(true),
        families: sink.families,
    };
    to_json(&document)
}

pub fn to_json<T: Serialize>(document: &T) -> Vec<u8> {
    // Writing plain values to memory does not fail.
    let mut text = serde_json::to_vec(document).unwrap_or_default();
    text.push(b'\n');
    text
}

pub(super) struct SeriesFilter<'a> {
    visible: &'a VisibleAccount,
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

#[derive(Serialize)]
struct SnapshotJson<'a> {
    at: String,
    sequence: u64,
    simulated: bool,
    node: BTreeMap<&'static str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<bool>,
    families: Vec<FamilyJson>,
}

#[derive(Serialize)]
struct FamilyJson {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    unit: &'static str,
    help: &'static str,
    series: Vec<SeriesJson>,
}

/// Labels and value are encoded at once: the labels are borrowed, and a number has more digits than a float keeps.
#[derive(Serialize)]
struct SeriesJson {
    labels: Box<RawValue>,
    value: Box<RawValue>,
}

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

struct JsonSink<'a> {
    /// Absent where everything is shown.
    filter: Option<SeriesFilter<'a>>,
    family: Option<&'static Family>,
    families: Vec<FamilyJson>,
}

impl Sink for JsonSink<'_> {
    fn family(&mut self, family: &'static Family) {
        self.family = Some(family);
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let (Some(family), Some(value)) = (self.family, sample.value) else { return };
        if self.filter.as_ref().is_some_and(|filter| !filter.shows(family, sample.labels)) {
            return;
        }
        let value = match value {
            Value::Number(number) => number_json(number, family),
            Value::Histogram(histogram) => to_raw_value(&histogram_json(histogram)),
        };
        let labels = to_raw_value(&LabelsJson(sample.labels));
        // Neither fails for plain values.
        let (Ok(labels), Ok(value)) = (labels, value) else { return };
        let series = SeriesJson { labels, value };
        match self.families.last_mut().filter(|last| last.name == family.name) {
            Some(last) => last.series.push(series),
            None => self.families.push(FamilyJson {
                name: family.name,
                kind: family.kind.name(),
                unit: family.unit.suffix(),
                help: family.help,
                series: vec![series],
            }),
        }
    }
}

fn number_json(number: i128, family: &Family) -> serde_json::Result<Box<RawValue>> {
    let mut text = Vec::new();
    decimal::write(&mut text, number, family.unit.decimals());
    RawValue::from_string(String::from_utf8(text).unwrap_or_default())
}

fn histogram_json(Histogram { bounds, cumulative, count, sum }: &Histogram) -> serde_json::Value {
    let buckets = bounds.iter().zip(cumulative).map(|(le, count)| json!({ "le": le, "count": count }));
    json!({ "count": count, "sum": sum, "buckets": buckets.collect::<Vec<_>>() })
}

/// Labels as an object, in their order.
struct LabelsJson<'a>(Labels<'a>);

impl Serialize for LabelsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.pairs())
    }
}
