//! The summary of a Slurm job, and the columns of what jobs held and used.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::text::{list_names, made_up, readable};
use crate::accounting::billing::{JobGpu, JobSummary, JobUsage};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};
use crate::model::{TimeSum, Utc, shown};

/// A job, or a part of one, in a table.
pub(super) struct UsageRow<'a> {
    pub(super) names: Vec<String>,
    /// On how many GPUs it was.
    pub(super) gpus: String,
    pub(super) usage: &'a JobUsage,
}

pub(super) fn report(summary: &JobSummary) -> Report {
    let zone = zone(&summary.time_zone);
    let nodes = list_names(summary.nodes.iter().map(|node| node_name(node)));
    let labels =
        summary.labels.iter().map(|(label, value)| (label.trim_start_matches("slurm_"), value.clone()));
    let end = local(summary.total.end, &zone);
    let is_open = summary.total.end >= summary.accounted_until;
    let end = if is_open { end + ", the end of the account" } else { end };
    let class = [("class", summary.class.name().to_owned())];
    let times = [("start", local(summary.total.start, &zone)), ("end", end)];
    let head =
        labels.chain(class).chain(times).map(|(name, value)| format!("{:13} {}", shown(name), shown(&value)));
    let gpus = gpu_table(summary);
    let has_steps = !summary.steps.is_empty();
    let steps = has_steps.then(|| ReportPart::Table(String::new(), step_table(summary, &zone)));
    let legend = gpus.legend();
    let mut parts = vec![ReportPart::Table(String::new(), gpus)];
    parts.extend(steps);
    parts.push(accounted_until(summary.accounted_until, &zone));
    Report {
        title: format!("Job {} on {nodes}", shown(&summary.job)),
        head: head.collect(),
        marks: made_up(summary.simulated, summary.example_prices),
        parts,
        legend,
    }
}

/// Says which times are in the tables of jobs.
pub(super) fn accounted_until(until: Utc, zone: &TimeZone) -> ReportPart {
    let until = local(until, zone);
    ReportPart::Note(format!("accounted until {until}; start and end are those of whole minutes\n"))
}

/// A time zone by its name or offset, else UTC.
pub(in crate::cli) fn zone(name: &str) -> TimeZone {
    let offset = || jiff::fmt::strtime::parse("%:z", name).ok()?.offset();
    let named = TimeZone::get(name).ok();
    named.or_else(|| offset().map(TimeZone::fixed)).unwrap_or(TimeZone::UTC)
}

/// Local time, to the minute.
pub(super) fn local(at: Utc, zone: &TimeZone) -> String {
    let time = Timestamp::from(at).to_zoned(zone.clone());
    let format = if *zone == TimeZone::UTC { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    readable(&time.strftime(format).to_string())
}

pub(super) fn node_name(node: &str) -> &str {
    if node.is_empty() { "unknown node" } else { node }
}

/// A row per GPU and their total.
fn gpu_table(summary: &JobSummary) -> ReportTable {
    let names = gpu_names(&summary.gpus, summary.nodes.len() > 1);
    let rows = names.into_iter().zip(&summary.gpus);
    let rows = rows.map(|(name, gpu)| UsageRow { names: vec![name], gpus: String::new(), usage: &gpu.usage });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let total = UsageRow { names: vec!["total".to_owned()], gpus: String::new(), usage: &summary.total };
    let mut columns = Column::names(&["gpu"], |row: &UsageRow<'_>| &row.names);
    columns.extend(usage_columns(summary.currency.as_deref()));
    ReportTable::new(columns, &rows, Some(&total)).for_people()
}

fn step_table(summary: &JobSummary, zone: &TimeZone) -> ReportTable {
    let rows = summary.steps.iter().map(|step| UsageRow {
        names: vec![step.step.clone(), local(step.usage.start, zone), local(step.usage.end, zone)],
        gpus: step.gpus.to_string(),
        usage: &step.usage,
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let mut columns = Column::names(&["step", "start", "end"], |row: &UsageRow<'_>| &row.names);
    columns.push(gpu_count());
    columns.extend(only(&["used h", "activity", "peak GiB", "kWh"], usage_columns(None)));
    ReportTable::new(columns, &rows, None)
}

pub(super) fn gpu_count<'a>() -> Column<'a, UsageRow<'a>> {
    Column::new("gpus", CellUnit::Number, |row: &UsageRow<'_>| row.gpus.clone().into())
}

/// The columns of these names.
pub(super) fn only<'a>(
    names: &[&str],
    columns: Vec<Column<'a, UsageRow<'a>>>,
) -> impl Iterator<Item = Column<'a, UsageRow<'a>>> {
    columns.into_iter().filter(|column| names.contains(&&*column.heading.name))
}

/// What jobs held, used and cost.
pub(super) fn usage_columns<'a>(currency: Option<&str>) -> Vec<Column<'a, UsageRow<'a>>> {
    let hours = |heading, of: fn(&JobUsage) -> TimeSum| {
        Column::new(heading, CellUnit::Hours, move |row: &UsageRow<'_>| of(row.usage).into())
    };
    let number = |heading, of: fn(&JobUsage) -> String| {
        Column::new(heading, CellUnit::Number, move |row: &UsageRow<'_>| of(row.usage).into())
    };
    let mut columns = vec![
        hours("held h", |usage| usage.held_ns).always(),
        hours("used h", |usage| usage.used_ns)
            .always()
            .help("all use by the job, within its holdings or not"),
        hours("lent h", |usage| usage.lent_ns).always(),
        hours("idle h", |usage| usage.idle_ns).always(),
        hours("unmeasured h", |usage| usage.unmeasured_ns),
        hours("unavailable h", |usage| usage.unavailable_ns),
        number("efficiency", |usage| percent(usage.efficiency))
            .help("held and used time of all steps / held and measured time"),
        number("activity", |usage| percent(usage.activity))
            .help("busy time / measured GPU time, in the minutes in which it was there throughout"),
        number("peak GiB", |usage| gibibytes(usage.memory_peak_bytes))
            .help("most memory on one GPU in a tick"),
        Column::new("kWh", CellUnit::Kwh, |row: &UsageRow<'_>| {
            row.usage
                .energy_uj
                .map_or(ReportCell::Unknown, |energy| ReportCell::Amount(energy.0.cast_signed()))
        })
        .always(),
    ];
    columns.extend(currency.map(|currency| {
        Column::new(currency, CellUnit::Money, |row: &UsageRow<'_>| {
            ReportCell::Amount(row.usage.money.unwrap_or_default().0)
        })
    }));
    columns
}

/// The name of each GPU: its index, with its UUID where a replaced one had the same.
fn gpu_names(gpus: &[JobGpu], has_nodes: bool) -> Vec<String> {
    let mut uuids = BTreeMap::<(&str, u32), BTreeSet<&str>>::new();
    for gpu in gpus {
        uuids.entry((&gpu.node, gpu.gpu)).or_default().insert(&gpu.uuid);
    }
    let name = |gpu: &JobGpu| {
        let node = if has_nodes { format!("{} gpu ", node_name(&gpu.node)) } else { String::new() };
        let is_replaced = uuids.get(&(&*gpu.node, gpu.gpu)).is_some_and(|uuids| uuids.len() > 1);
        let uuid = if is_replaced { format!(" ({})", gpu.uuid) } else { String::new() };
        format!("{node}{}{uuid}", gpu.gpu)
    };
    gpus.iter().map(name).collect()
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// Bytes in GiB; `-` where nothing is known.
fn gibibytes(bytes: u64) -> String {
    if bytes == 0 {
        return "-".to_owned();
    }
    let tenths = (u128::from(bytes) * 10 + (1 << 29)) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}
