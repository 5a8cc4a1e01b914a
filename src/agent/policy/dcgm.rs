//! What is on the page with dcgm-exporter's names, by the configuration.

use std::sync::Arc;

use crate::config::{Config, CounterLine};
use crate::model::catalogue::{DcgmMetric, Level, dcgm_metric, dcgm_refusal};
use crate::output::render::{DcgmCounter, DcgmOptions, dcgm_label};

/// Whether the page is configured; without that it has what is read anyway.
pub(super) fn is_configured(config: &Config) -> bool {
    !config.web.dcgm_listen.is_empty() || config.web.dcgm_counters.is_some()
}

pub fn dcgm_options(config: &Config) -> Arc<DcgmOptions> {
    let lines = || config.dcgm_counters.iter();
    let served = lines().filter(|line| line.kind != "label");
    let counters = served.filter_map(|line| {
        let metric = dcgm_metric(&line.name)?;
        let CounterLine { name, kind, help, .. } = line.clone();
        Some(DcgmCounter { name, kind, help, metric })
    });
    let labels = lines().filter(|line| line.kind == "label");
    let mut labels: Vec<_> =
        labels.filter_map(|line| Some((line.name.clone(), dcgm_label(&line.name)?))).collect();
    labels.sort_by(|left, right| left.0.cmp(&right.0));
    let counters: Vec<DcgmCounter> = counters.collect();
    Arc::new(DcgmOptions {
        unconfigured: unconfigured(config, &counters),
        counters,
        labels,
        host_label: config.web.dcgm_labels,
        corrected: config.web.dcgm_corrected,
    })
}

fn unconfigured(config: &Config, counters: &[DcgmCounter]) -> Vec<String> {
    if is_configured(config) {
        return Vec::new();
    }
    let is_read = |metric: &DcgmMetric| {
        metric.families().map(|family| family.level).min().is_none_or(|level| level <= config.sampling.level)
    };
    let absent =
        counters.iter().filter(|counter| counter.metric.needs_history() || !is_read(&counter.metric));
    absent.map(|counter| counter.name.clone()).collect()
}

/// The level that must be read: what the configured page needs, if that is more than what is exported.
pub(super) fn read_level(config: &Config) -> Level {
    let exported = config.sampling.level;
    if !is_configured(config) {
        return exported;
    }
    let metrics = config.dcgm_counters.iter().filter_map(|line| dcgm_metric(&line.name));
    let needed = metrics.filter_map(|metric: DcgmMetric| metric.families().map(|family| family.level).max());
    needed.chain([exported]).max().unwrap_or(exported)
}

/// A line for each counter of the operator's file that is not served, with the reason.
pub fn refused_counters(config: &Config) -> Vec<String> {
    let Some(file) = &config.web.dcgm_counters else { return Vec::new() };
    let is_refused = |line: &&CounterLine| match &*line.kind {
        "label" => dcgm_label(&line.name).is_none(),
        _ => dcgm_metric(&line.name).is_none(),
    };
    let refused = config.dcgm_counters.iter().filter(is_refused);
    refused
        .map(|CounterLine { line, name, kind, .. }| {
            let reason = if kind == "label" && dcgm_metric(name).is_some() {
                "it is no static property of a GPU"
            } else {
                dcgm_refusal(name)
            };
            format!("web.dcgm_counters: {}:{line}: {name} is not on the page: {reason}", file.display())
        })
        .collect()
}
