//! `gpumeter job --list`: the Slurm jobs of a period, a line each.

use serde::Serialize;

use super::Failure;
use super::job_report::{legend, local, rows, usage_columns, zone};
use super::text::{align_columns, marks, period};
use crate::billing::{Explanation, JobSummary, JobUsage, explained_jobs};
use crate::model::{Fact, shown};

/// The jobs as JSON.
#[derive(Serialize)]
struct JobList<'a> {
    from: &'a str,
    to: &'a str,
    jobs: &'a [JobSummary],
}

/// The page, or its JSON.
pub(super) fn page(explanation: &Explanation, json: bool) -> Result<String, Failure> {
    let jobs: Vec<JobSummary> = explained_jobs(explanation).into_iter().map(|job| job.summary).collect();
    let bill = &explanation.bill;
    if json {
        let list = JobList { from: &bill.from_local, to: &bill.to_local, jobs: &jobs };
        return serde_json::to_string_pretty(&list).map(|text| text + "\n").map_err(Failure::found);
    }
    let heading = format!("Jobs of {}\n{}\n", shown(super::job_report::node_name(&bill.node)), period(bill));
    let marks: String = marks(bill).iter().map(|mark| format!("{mark}\n")).collect();
    if jobs.is_empty() {
        return Ok(heading + &marks + "\nno job held or used a GPU in this period\n");
    }
    let zone = zone(&bill.time_zone);
    Ok(heading
        + &marks
        + &table(&jobs, bill.currency.as_deref())
        + &legend(&local(bill.to, &zone), Some("activity")))
}

fn table(jobs: &[JobSummary], currency: Option<&str>) -> String {
    let column = |head: &str, of: &dyn Fn(&JobSummary) -> String| {
        let total = if head == "job" { "total" } else { "" };
        let cells: Vec<String> = jobs.iter().map(of).chain([total.to_owned()]).collect();
        (head.to_owned(), cells)
    };
    let label = |job: &JobSummary, fact: Fact| {
        let values = job.labels.iter().filter(|(label, _)| label == fact.label());
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
    };
    let times = |at| {
        move |job: &JobSummary| {
            let times =
                local(if at == "start" { job.total.start } else { job.total.end }, &zone(&job.time_zone));
            times.get(..16).unwrap_or(&times).to_owned()
        }
    };
    let mut columns = vec![
        column("job", &|job| job.job.clone()),
        column("user", &|job| label(job, Fact::SlurmUser)),
        column("account", &|job| label(job, Fact::SlurmAccount)),
        column("start", &times("start")),
        column("end", &times("end")),
        column("gpus", &|job| job.gpus.len().to_string()),
    ];
    let names = columns.len() - 1;
    let usage: Vec<&JobUsage> = jobs.iter().map(|job| &job.total).collect();
    let total = JobUsage::sum(&usage);
    let shown = ["held h", "used h", "efficiency", "peak GiB", "kWh"];
    let usage = usage_columns(&usage, &total, currency).into_iter();
    columns.extend(usage.filter(|(head, _)| shown.contains(&&**head) || Some(&**head) == currency));
    "\n".to_owned() + &align_columns(&rows(&columns), names)
}
