//! The report of a job, and the columns of what jobs held and used.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;

use super::text::{list_names, made_up};
use crate::accounting::billing::{GpuIncident, JobGpu, JobSummary, JobUsage, readable_time, zone_of};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};
use crate::cli::wrap;
use crate::model::{MINUTE, TimeSum, Utc, shown};

/// A job, or a part of one, in a table.
pub(super) struct UsageRow<'a> {
    pub(super) names: Vec<String>,
    /// On how many GPUs it was.
    pub(super) gpus: String,
    pub(super) usage: &'a JobUsage,
    /// Of the GPU of the row.
    pub(super) memory_total: Option<u64>,
}

impl<'a> UsageRow<'a> {
    pub(super) const fn of(usage: &'a JobUsage) -> Self {
        Self { names: Vec::new(), gpus: String::new(), usage, memory_total: None }
    }
}

pub(super) fn report(summary: &JobSummary) -> Report {
    let zone = zone_of(&summary.time_zone);
    let nodes = list_names(summary.nodes.iter().map(|node| node_name(node)));
    let (gpus, steps) = (gpu_table(summary), step_table(summary, &zone));
    let mut legend = gpus.legend();
    let table = |table: ReportTable| ReportPart::Table(String::new(), table);
    let mut parts: Vec<ReportPart> = Vec::new();
    if !summary.notes.is_empty() {
        let notes: String = notes(summary).map(|note| format!("  {note}\n")).collect();
        parts.push(ReportPart::Note(format!("notes\n{notes}")));
    }
    parts.push(table(gpus));
    if !summary.members.is_empty() {
        parts.push(table(member_table(summary, &zone)));
    }
    if !summary.steps.is_empty() {
        legend.extend(steps.legend().pop());
        parts.push(table(steps));
    }
    if summary.gpus.iter().any(|gpu| !gpu.faults.is_empty()) {
        parts.push(table(fault_table(summary, &zone)));
    }
    parts.push(accounted_until(std::slice::from_ref(summary), &zone));
    Report {
        title: format!("Job {} on {nodes}", shown(&printed_name(&summary.job))),
        head: head(summary, &zone),
        marks: made_up(summary.simulated, summary.example_prices),
        parts,
        legend,
    }
}

fn head(summary: &JobSummary, zone: &TimeZone) -> Vec<String> {
    let label = |label: &str| match label.strip_prefix("k8s_") {
        Some(rest) => rest.strip_suffix("_name").unwrap_or(rest).replace('_', " "),
        None => label.trim_start_matches("slurm_").to_owned(),
    };
    let labels = summary.labels.iter().map(|(name, value)| (label(name), value.clone()));
    let tasks = summary.members.len();
    let of_kubernetes = summary.job.contains('/');
    let word = if of_kubernetes { "pods" } else { "tasks" };
    let tasks = (tasks > 0).then(|| (word.to_owned(), tasks.to_string()));
    let end = readable_time(summary.total.end, zone);
    let end = if summary.goes_on() { end + ", the end of the account" } else { end };
    let length = summary.total.end.since(summary.total.start).0 / MINUTE.0;
    let class = ("class".to_owned(), summary.class.name().to_owned());
    let times = [
        ("start".to_owned(), readable_time(summary.total.start, zone)),
        ("end".to_owned(), end),
        ("length".to_owned(), format!("{} h {:02} min", length / 60, length % 60)),
    ];
    let entries = labels.chain(tasks).chain([class]).chain(times);
    entries.map(|(name, value)| format!("{:13} {}", shown(&name), shown(&value))).collect()
}

/// What a job may change, each in one line.
pub(super) fn notes(summary: &JobSummary) -> impl Iterator<Item = String> {
    summary.notes.iter().map(|note| shown(&note.text).into_owned())
}

/// Says whether all of the jobs is accounted for, up to when their nodes are, and which times are in the tables.
pub(super) fn accounted_until(jobs: &[JobSummary], zone: &TimeZone) -> ReportPart {
    let ends: BTreeMap<&str, Utc> =
        jobs.iter().flat_map(|job| job.settled.iter().map(|node| (&*node.node, node.until))).collect();
    let first = jobs.iter().map(|job| job.accounted_until).min().unwrap_or_default();
    let until = match ends.values().all(|end| *end == first) {
        true => readable_time(first, zone),
        false => {
            let ends = ends
                .iter()
                .map(|(node, end)| format!("{} {}", shown(node_name(node)), readable_time(*end, zone)));
            ends.collect::<Vec<_>>().join(", ")
        }
    };
    let is_coarse = jobs.iter().any(|job| job.resolution_ns > MINUTE);
    let grid = if is_coarse { "quarter hours" } else { "minutes" };
    let open = jobs.iter().filter(|job| job.goes_on()).count();
    let state = match (open, jobs.len()) {
        (0, _) => "ended on all nodes that reported".to_owned(),
        (_, 1) => "not complete: it may go on where the account ends".to_owned(),
        (open, all) => format!("{open} of {all} jobs not complete: they may go on where the account ends"),
    };
    let note = format!("{state}; accounted until {until}; start and end are those of whole {grid}");
    ReportPart::Note(wrap("", &note))
}

/// The name of a job. That of what controls pods is `KIND/NAMESPACE/NAME` in JSON; people read it as in advice.
pub(super) fn printed_name(job: &str) -> String {
    match *job.split('/').collect::<Vec<_>>() {
        [kind, namespace, name] => format!("{namespace}/{kind}/{name}"),
        _ => job.to_owned(),
    }
}

pub(super) fn node_name(node: &str) -> &str {
    if node.is_empty() { "unknown node" } else { node }
}

/// A row per GPU and their total.
fn gpu_table(summary: &JobSummary) -> ReportTable {
    let names = gpu_names(&summary.gpus, summary.nodes.len() > 1);
    let rows = names.into_iter().zip(&summary.gpus);
    let rows = rows.map(|(name, gpu)| UsageRow {
        names: vec![name],
        memory_total: gpu.memory_total_bytes,
        ..UsageRow::of(&gpu.usage)
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let sizes: BTreeSet<Option<u64>> = rows.iter().map(|row| row.memory_total).collect();
    let memory_total = sizes.first().copied().flatten().filter(|_| sizes.len() == 1);
    let total = UsageRow { names: vec!["total".to_owned()], memory_total, ..UsageRow::of(&summary.total) };
    let mut columns = Column::names(&["gpu"], |row: &UsageRow<'_>| &row.names);
    columns.extend(usage_columns(summary.currency.as_deref()));
    ReportTable::new(columns, &rows, Some(&total)).for_people()
}

fn step_table(summary: &JobSummary, zone: &TimeZone) -> ReportTable {
    let rows = summary.steps.iter().map(|step| UsageRow {
        names: vec![
            step.step.clone(),
            readable_time(step.usage.start, zone),
            readable_time(step.usage.end, zone),
        ],
        gpus: step.gpus.to_string(),
        ..UsageRow::of(&step.usage)
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let mut columns = Column::names(&["step", "start", "end"], |row: &UsageRow<'_>| &row.names);
    columns.push(gpu_count());
    columns.extend(only(&["used h", "activity", "peak GiB"], usage_columns(None)));
    let energy = Column::new("own kWh", CellUnit::Kwh, energy);
    columns.push(energy.help("energy of the processes of a step; what is idle of a board is the job's"));
    ReportTable::new(columns, &rows, None)
}

fn energy(row: &UsageRow<'_>) -> ReportCell {
    row.usage.energy_uj.map_or(ReportCell::Unknown, |energy| ReportCell::Amount(energy.0.cast_signed()))
}

/// A row for each task of an array, or pod.
fn member_table(summary: &JobSummary, zone: &TimeZone) -> ReportTable {
    let rows = summary.members.iter().map(|member| {
        let usage = &member.total;
        UsageRow {
            names: vec![
                shown(&member.job).into_owned(),
                readable_time(usage.start, zone),
                readable_time(usage.end, zone),
            ],
            gpus: member.gpus.len().to_string(),
            ..UsageRow::of(usage)
        }
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let heading = if summary.job.contains('/') { "pod" } else { "task" };
    let mut columns = Column::names(&[heading, "start", "end"], |row: &UsageRow<'_>| &row.names);
    columns.push(gpu_count());
    let currency = summary.currency.as_deref();
    let chosen = ["held h", "used h", "idle h", "efficiency", "peak GiB", currency.unwrap_or_default()];
    columns.extend(only(&chosen, usage_columns(currency)));
    ReportTable::new(columns, &rows, None)
}

/// The faults of its GPUs.
fn fault_table(summary: &JobSummary, zone: &TimeZone) -> ReportTable {
    let names = gpu_names(&summary.gpus, summary.nodes.len() > 1);
    let rows = names.into_iter().zip(&summary.gpus).flat_map(|(name, gpu)| {
        let code = |fault: &GpuIncident| fault.code.map(|code| format!(" {code}")).unwrap_or_default();
        let row = move |fault: &GpuIncident| {
            let kind = format!("{}{}", shown(&fault.kind), code(fault));
            vec![name.clone(), readable_time(fault.from, zone), readable_time(fault.to, zone), kind]
        };
        gpu.faults.iter().map(row).collect::<Vec<_>>()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    ReportTable::new(Column::names(&["gpu", "from", "to", "fault"], |row: &Vec<String>| row), &rows, None)
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
        hours("lent h", |usage| usage.lent_ns).help("held by the job, and used by others"),
        hours("idle h", |usage| usage.idle_ns).always().help("held by the job, and used by nobody"),
        hours("unmeasured h", |usage| usage.unmeasured_ns)
            .help("held while nobody knows whether it was used"),
        hours("unavailable h", |usage| usage.unavailable_ns)
            .help("held while the GPU was lost or had failed; it is not charged"),
        number("efficiency", |usage| percent(usage.efficiency))
            .help("how much of the held and measured GPU time was used"),
        number("activity", |usage| percent(usage.activity))
            .help("how busy it kept its GPUs, in the minutes in which it was there throughout"),
        Column::new("peak GiB", CellUnit::Number, |row: &UsageRow<'_>| peak(row).into())
            .help("most memory on one GPU at a time, of all that it has"),
        Column::new("kWh", CellUnit::Kwh, energy)
            .always()
            .help("energy of what it held and used: that of its processes, and its part of the idle boards"),
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

/// The memory peak, and of how much.
fn peak(row: &UsageRow<'_>) -> String {
    let peak = gibibytes(row.usage.memory_peak_bytes);
    match row.memory_total.filter(|_| row.usage.memory_peak_bytes > 0) {
        Some(total) => format!("{peak} of {}", gibibytes(total)),
        None => peak,
    }
}

/// Bytes in GiB; `-` where nothing is known.
fn gibibytes(bytes: u64) -> String {
    if bytes == 0 {
        return "-".to_owned();
    }
    let tenths = (u128::from(bytes) * 10 + (1 << 29)) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}
