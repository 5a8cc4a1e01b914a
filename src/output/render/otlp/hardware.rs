//! The names of OpenTelemetry's conventions for hardware instead of ours, for the series that have one.
//!
//! A series gets the attribute `hw.id`, the GPU's UUID, in place of `uuid`; other labels that the conventions do not name
//! stay, so that none has to be summed. Series wait until the walk has ended, because metrics such as `hw.errors` are made
//! of several families.

use super::super::walk::{Labels, Sample, Sink, Value, start};
use crate::model::Utc;
use crate::model::catalogue::{Alias, Family, HARDWARE, Kind, MEMORY_UTILIZATION, Profile, STATUS};
use crate::model::snapshot::Snapshot;

pub(super) struct HardwareNames<'a, S> {
    sink: &'a mut S,
    snapshot: &'a Snapshot,
    family: Option<&'static Family>,
    series: Vec<HardwareSeries>,
}

#[derive(Clone)]
struct HardwareSeries {
    metric: &'static str,
    labels: Vec<(String, String)>,
    value: Option<i128>,
    start: Utc,
}

impl<'a, S: Sink> HardwareNames<'a, S> {
    pub(super) const fn new(sink: &'a mut S, snapshot: &'a Snapshot) -> Self {
        Self { sink, snapshot, family: None, series: Vec::new() }
    }

    /// Visits the series that have other names, after the walk.
    pub(super) fn finish(mut self) {
        let utilization: Vec<_> =
            self.series.iter().filter_map(|one| one.utilization(&self.series)).collect();
        self.series.extend(utilization);
        for metric in &HARDWARE {
            self.sink.family(metric);
            for one in self.series.iter().filter(|one| one.metric == metric.name) {
                let (names, values): (Vec<&str>, Vec<&str>) =
                    one.labels.iter().map(|(name, value)| (&**name, &**value)).unzip();
                let (value, start) = (one.value.map(Value::Number), Some(one.start));
                self.sink.sample(Sample { labels: Labels::new(&names, &values), value, start });
            }
        }
    }
}

impl<S: Sink> Sink for HardwareNames<'_, S> {
    fn family(&mut self, family: &'static Family) {
        self.family = Some(family);
        self.sink.family(family);
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let found = self.family.and_then(|family| Some((family, alias(family, sample.labels)?)));
        let Some((family, alias)) = found else { return self.sink.sample(sample) };
        let value = match sample.value {
            Some(Value::Number(number)) => Some(number),
            // Here only the state that the GPU is in has a value.
            None if alias.name == STATUS => Some(0),
            _ => None,
        };
        let start = sample.start.or_else(|| start(self.snapshot, family));
        self.series.push(HardwareSeries {
            metric: alias.name,
            labels: attributes(alias, sample.labels),
            value,
            start: start.filter(|_| family.kind == Kind::Counter).unwrap_or(Utc(0)),
        });
    }
}

impl HardwareSeries {
    fn utilization(&self, all: &[Self]) -> Option<Self> {
        let is_limit = |one: &&Self| one.metric == "hw.gpu.memory.limit" && one.labels == self.labels;
        let limit = (self.metric == "hw.gpu.memory.usage").then(|| all.iter().find(is_limit))??;
        let share = |used: i128| (used * 1_000_000_000).checked_div(limit.value?);
        Some(Self { metric: MEMORY_UTILIZATION, value: self.value.and_then(share), ..self.clone() })
    }
}

/// The unit of a metric of the conventions, where it says more than ours.
pub(super) fn hardware_unit(name: &str) -> Option<&'static str> {
    match name {
        "hw.errors" => Some("{error}"),
        STATUS => Some("1"),
        _ => None,
    }
}

fn alias(family: &'static Family, labels: Labels<'_>) -> Option<&'static Alias> {
    let selects = |alias: &&Alias| {
        let has = |wanted: &(&str, &str)| labels.pairs().any(|own| own == *wanted);
        alias.profile == Profile::Otel && alias.when.iter().all(has)
    };
    family.aliases.iter().find(selects)
}

fn attributes(alias: &Alias, labels: Labels<'_>) -> Vec<(String, String)> {
    let own = labels.pairs().filter(|pair| !alias.when.contains(pair)).map(|(name, value)| {
        let renamed = alias.labels.iter().find(|(_, from)| from.strip_prefix('=') == Some(name));
        let name = if name == "uuid" { "hw.id" } else { renamed.map_or(name, |(name, _)| name) };
        (name, value)
    });
    let fixed = alias.labels.iter().copied().filter(|(_, value)| !value.starts_with('='));
    own.chain(fixed).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
