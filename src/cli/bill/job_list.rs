//! `gpumeter job --list`: the Slurm jobs of a period, a line each.

use serde::Serialize;

use super::Failure;
use super::job_report::{UsageRow, accounted_until, gpu_count, local, node_name, only, usage_columns, zone};
use super::text::begin;
use crate::accounting::billing::{Explanation, JobSummary, JobUsage, explained_jobs};
use crate::cli::report::{Column, ReportPart, ReportTable, text};
use crate::model::{Fact, Utc, shown};

#[derive(Serialize)]
struct JobList<'a> {
    from: &'a str,
    to: &'a str,
    jobs: &'a [JobSummary],
}

pub(super) fn page(explanation: &Explanation, json: bool) -> Result<String, Failure> {
    let jobs: Vec<JobSummary> = explained_jobs(explanation).into_iter().map(|job| job.summary).collect();
    let bill = &explanation.bill;
    if json {
        let list = JobList { from: &bill.from_local, to: &bill.to_local, jobs: &jobs };
        return super::json_text(&list);
    }
    let mut report = begin(bill);
    report.title = format!("Jobs of {}", shown(node_name(&bill.node)));
    if jobs.is_empty() {
        report.parts.push(ReportPart::Note("no job held or used a GPU in this period\n".to_owned()));
    } else {
        let table = table(&jobs, bill.currency.as_deref());
        report.legend = table.legend();
        report.parts =
            vec![ReportPart::Table(String::new(), table), accounted_until(bill.to, &zone(&bill.time_zone))];
    }
    Ok(text::report(&report))
}

fn table(jobs: &[JobSummary], currency: Option<&str>) -> ReportTable {
    let label = |job: &JobSummary, fact: Fact| {
        let values = job.labels.iter().filter(|(label, _)| label == fact.label());
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
    };
    let minute = |job: &JobSummary, at: Utc| {
        let time = local(at, &zone(&job.time_zone));
        time.get(..16).unwrap_or(&time).to_owned()
    };
    let rows = jobs.iter().map(|job| {
        let (total, gpus) = (&job.total, job.gpus.len().to_string());
        let [user, account] = [Fact::SlurmUser, Fact::SlurmAccount].map(|fact| label(job, fact));
        let [start, end] = [total.start, total.end].map(|at| minute(job, at));
        UsageRow { names: vec![job.job.clone(), user, account, start, end], gpus, usage: total }
    });
    let rows: Vec<UsageRow<'_>> = rows.collect();
    let sum = JobUsage::sum(&rows.iter().map(|row| row.usage).collect::<Vec<_>>());
    let names = ["total", "", "", "", ""].map(str::to_owned).to_vec();
    let total = UsageRow { names, gpus: String::new(), usage: &sum };
    let heads = ["job", "user", "account", "start", "end"];
    let mut columns = Column::names(&heads, |row: &UsageRow<'_>| &row.names);
    columns.push(gpu_count());
    let shown = ["held h", "used h", "efficiency", "peak GiB", "kWh", currency.unwrap_or_default()];
    columns.extend(only(&shown, usage_columns(currency)));
    ReportTable::new(columns, &rows, Some(&total)).for_people()
}
