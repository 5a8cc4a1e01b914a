//! `gpumeter job --user`: the Slurm jobs of a period, a line each.

use super::job_report::{UsageRow, accounted_until, gpu_count, notes, only, usage_columns};
use crate::accounting::billing::{JobReport, JobSummary, JobUsage, readable_time, zone_of};
use crate::cli::report::{Column, Report, ReportPart, ReportTable};
use crate::model::{Fact, Utc};

pub(super) fn report(found: &JobReport) -> Report {
    let zone = found.zone();
    let [from, to] = [found.from, found.to].map(|at| readable_time(at, &zone));
    let jobs = &found.jobs;
    let (simulated, example) =
        (jobs.iter().any(|job| job.simulated), jobs.iter().any(|job| job.example_prices));
    let mut report = Report {
        title: "Jobs".to_owned(),
        head: vec![format!("{from} to {to}, time zone {}", found.time_zone)],
        marks: super::text::made_up(simulated, example),
        ..Report::default()
    };
    if jobs.is_empty() {
        report.parts.push(ReportPart::Note("no job held or used a GPU in this period\n".to_owned()));
        return report;
    }
    let table = table(jobs);
    report.legend = table.legend();
    report.parts = vec![ReportPart::Table(String::new(), table), accounted_until(jobs, &zone)];
    report
}

fn table(jobs: &[JobSummary]) -> ReportTable {
    let label = |job: &JobSummary, fact: Fact| {
        let values = job.labels.iter().filter(|(label, _)| label == fact.label());
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
    };
    let minute = |job: &JobSummary, at: Utc| {
        let time = readable_time(at, &zone_of(&job.time_zone));
        time.get(..16).unwrap_or(&time).to_owned()
    };
    let rows = jobs.iter().map(|job| {
        let (total, gpus) = (&job.total, job.gpus.len().to_string());
        let [user, account] = [Fact::SlurmUser, Fact::SlurmAccount].map(|fact| label(job, fact));
        let [start, end] = [total.start, total.end].map(|at| minute(job, at));
        UsageRow { names: vec![job.job.clone(), user, account, start, end], gpus, ..UsageRow::of(total) }
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let sum = JobUsage::sum(&rows.iter().map(|row| row.usage).collect::<Vec<_>>());
    let names = ["total", "", "", "", ""].map(str::to_owned).to_vec();
    let total = UsageRow { names, ..UsageRow::of(&sum) };
    let currency = jobs.iter().find_map(|job| job.currency.as_deref());
    let heads = ["job", "user", "account", "start", "end"];
    let mut columns = Column::names(&heads, |row: &UsageRow<'_>| &row.names);
    columns.push(gpu_count());
    let chosen =
        ["held h", "used h", "idle h", "efficiency", "peak GiB", "kWh", currency.unwrap_or_default()];
    columns.extend(only(&chosen, usage_columns(currency)));
    let mut table = ReportTable::new(columns, &rows, Some(&total)).for_people();
    table.below = jobs.iter().map(|job| notes(job).map(|note| format!("    {note}\n")).collect()).collect();
    table
}
