//! The summary of a Slurm job as text.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::rounding::{decimal, in_hour_units, in_money_units, signed_decimal};
use super::text::{align_columns, list_names, readable};
use crate::billing::{JobGpu, JobSummary, JobUsage};
use crate::model::{Utc, shown};

/// A heading, and what stands below it of each use.
type Column = (String, Vec<String>);

/// The page of a job.
pub(super) fn text(summary: &JobSummary) -> String {
    let zone = zone(&summary.time_zone);
    let nodes = list_names(summary.nodes.iter().map(|node| node_name(node)));
    let mut page = format!("Job {} on {nodes}\n", shown(&summary.job));
    let labels =
        summary.labels.iter().map(|(label, value)| (label.trim_start_matches("slurm_"), value.clone()));
    let end = local(summary.total.end, &zone);
    let is_open = summary.total.end >= summary.accounted_until;
    let end = if is_open { end + ", the end of the account" } else { end };
    let times = [("start", local(summary.total.start, &zone)), ("end", end)];
    for (name, value) in labels.chain(times) {
        page += &format!("{:13} {}\n", shown(name), shown(&value));
    }
    if summary.simulated {
        page += "SIMULATED: the GPUs are simulated, every number is made up\n";
    }
    if summary.example_prices {
        page += "EXAMPLE PRICES: made up by gpumeter, not the operator's\n";
    }
    page += &gpu_table(summary);
    page += &step_table(summary, &zone);
    page + &legend(&local(summary.accounted_until, &zone), None)
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
fn gpu_table(summary: &JobSummary) -> String {
    let names = gpu_names(&summary.gpus, summary.nodes.len() > 1).into_iter().chain(["total".to_owned()]);
    let usage: Vec<&JobUsage> = summary.gpus.iter().map(|gpu| &gpu.usage).collect();
    let mut columns = vec![("gpu".to_owned(), names.collect())];
    columns.extend(usage_columns(&usage, &summary.total, summary.currency.as_deref()));
    "\n".to_owned() + &align_columns(&rows(&columns), 1)
}

/// The columns of use, with the total as their last cells. Each column is rounded such that it adds up.
pub(super) fn usage_columns(usage: &[&JobUsage], total: &JobUsage, currency: Option<&str>) -> Vec<Column> {
    let all = || usage.iter().copied().chain([total]);
    let texts = |of: fn(&JobUsage) -> String| all().map(of).collect::<Vec<_>>();
    let hours = |of: fn(&JobUsage) -> u128| {
        let exact: Vec<u128> = usage.iter().map(|one| of(one)).collect();
        with_total(&in_hour_units(&exact))
    };
    let mut columns = vec![
        ("held h".to_owned(), hours(|one| one.held_ns.0)),
        ("used h".to_owned(), hours(|one| one.used_ns.0)),
        ("lent h".to_owned(), hours(|one| one.lent_ns.0)),
        ("idle h".to_owned(), hours(|one| one.idle_ns.0)),
    ];
    // Most jobs have neither.
    if all().any(|one| one.unmeasured_ns.0 > 0) {
        columns.push(("unmeasured h".to_owned(), hours(|one| one.unmeasured_ns.0)));
    }
    if all().any(|one| one.unavailable_ns.0 > 0) {
        columns.push(("unavailable h".to_owned(), hours(|one| one.unavailable_ns.0)));
    }
    columns.extend([
        ("efficiency".to_owned(), texts(|one| percent(one.efficiency))),
        ("activity".to_owned(), texts(|one| percent(one.activity))),
        ("peak GiB".to_owned(), texts(|one| gibibytes(one.memory_peak_bytes))),
    ]);
    let energy = hours(|one| one.energy_uj.unwrap_or_default().0);
    let is_measured = all().map(|one| one.energy_uj.is_some());
    let energy = energy.into_iter().zip(is_measured).map(|(kwh, is)| if is { kwh } else { "-".to_owned() });
    columns.push(("kWh".to_owned(), energy.collect()));
    columns.extend(currency.map(|currency| {
        let money = in_money_units(usage.iter().map(|one| one.money.unwrap_or_default()));
        let all = money.iter().copied().chain([money.iter().sum()]);
        (currency.to_owned(), all.map(signed_decimal).collect())
    }));
    columns
}

/// The cells of a column, and their sum.
fn with_total(units: &[u128]) -> Vec<String> {
    units.iter().copied().chain([units.iter().sum()]).map(decimal).collect()
}

/// The rows of a table, the headings first.
pub(super) fn rows(columns: &[Column]) -> Vec<Vec<String>> {
    let heads = columns.iter().map(|(head, _)| head.clone()).collect();
    let count = columns.first().map_or(0, |(_, cells)| cells.len());
    let row = |place: usize| columns.iter().map(|(_, cells)| cells[place].clone()).collect();
    [heads].into_iter().chain((0..count).map(row)).collect()
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

fn step_table(summary: &JobSummary, zone: &TimeZone) -> String {
    if summary.steps.is_empty() {
        return String::new();
    }
    let heads = ["step", "start", "end", "gpus", "used h", "activity", "peak GiB", "kWh"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for step in &summary.steps {
        let usage = &step.usage;
        let hours = |exact: u128| decimal(in_hour_units(&[exact])[0]);
        table.push(vec![
            step.step.clone(),
            local(usage.start, zone),
            local(usage.end, zone),
            step.gpus.to_string(),
            hours(usage.used_ns.0),
            percent(usage.activity),
            gibibytes(usage.memory_peak_bytes),
            usage.energy_uj.map_or_else(|| "-".to_owned(), |energy| hours(energy.0)),
        ]);
    }
    "\n".to_owned() + &align_columns(&table, 3)
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

/// What the headings of columns mean.
const MEANINGS: [(&str, &str); 4] = [
    ("used", "all use by the job, within its holdings or not"),
    ("efficiency", "held and used time of all steps / held and measured time"),
    ("activity", "busy time / measured GPU time, in the minutes in which it was there throughout"),
    ("peak", "highest mean of the memory on one GPU over a minute"),
];

/// Explains the columns, except those that are not shown.
pub(super) fn legend(accounted_until: &str, without: Option<&str>) -> String {
    let shown = MEANINGS.iter().filter(|(name, _)| Some(*name) != without);
    let lines = shown.map(|(name, meaning)| format!("{name:10}  {meaning}\n"));
    format!("\naccounted until {accounted_until}; start and end are those of whole minutes\n")
        + &lines.collect::<String>()
}
