//! `gpumeter bill --against`: the GPU time of Slurm's accounting beside that of the ledger, by job.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::job_report::zone;
use super::text::{align_columns, marks, period, title};
use super::{BillSource, Failure, print, print_data};
use crate::billing::{Bill, ComparedJob, JobComparison, LineFilter, compare_jobs, parse_sacct};
use crate::cli::wrap;
use crate::file;
use crate::model::{Nanoseconds, TimeSum};

/// Options of the comparison.
#[derive(Args, Debug)]
pub(super) struct AgainstOptions {
    /// Compare with what sacct --parsable2 printed to this file, by job, instead of printing the bill. Exit status 1 if any
    /// job differs. It needs the columns JobID, Elapsed (or ElapsedRaw) and AllocTRES, and uses JobIDRaw, Cluster, Account,
    /// User, Start, End, Suspended, NodeList and NNodes; with --duplicates it has all runs of requeued jobs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "html", "by", "tenant", "spread", "compare", "split_by", "book", "over_budget"])]
    against: Option<PathBuf>,
    /// Difference that is accepted for each GPU of a job, in seconds: a job holds its GPUs from prolog to epilog.
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "against")]
    tolerance: u32,
}

/// The comparison as JSON.
#[derive(Serialize)]
struct ComparisonJson<'a> {
    node: &'a str,
    from: &'a str,
    to: &'a str,
    tolerance_seconds: u32,
    #[serde(flatten)]
    comparison: &'a JobComparison,
}

impl AgainstOptions {
    /// Prints the comparison, if one is asked for.
    pub(super) fn run(
        &self,
        source: &BillSource,
        period: [Option<&str>; 2],
        json: bool,
    ) -> Result<bool, Failure> {
        let Some(file) = &self.against else { return Ok(false) };
        let filter = LineFilter { kind: Some("slurm".into()), ..LineFilter::default() };
        let text = read(file)?;
        let explanation = source.explanation("bill", period, &filter)?;
        let bill = &explanation.bill;
        if bill.time_zone.starts_with(['+', '-']) {
            return Err(Failure::wrong(
                "the time zone has no name, in which sacct printed times; give --time-zone",
            ));
        }
        let jobs = parse_sacct(&text, &zone(&bill.time_zone))
            .map_err(|problem| Failure::wrong(format!("{}: {problem}", file.display())))?;
        let tolerance = Nanoseconds::from_seconds(self.tolerance.into());
        let comparison = compare_jobs(&jobs, &explanation, tolerance);
        if json {
            let (from, to) = (&*bill.from_local, &*bill.to_local);
            let all = ComparisonJson {
                node: &bill.node,
                from,
                to,
                tolerance_seconds: self.tolerance,
                comparison: &comparison,
            };
            print_data(&(serde_json::to_string_pretty(&all).map_err(Failure::found)? + "\n"))?;
        } else {
            print(&page(bill, &comparison, self.tolerance))?;
        }
        let differing = comparison.jobs.iter().filter(|job| job.differs).count();
        match differing {
            0 => Ok(true),
            _ => Err(Failure::found(format!(
                "{differing} of {} jobs differ from Slurm",
                comparison.jobs.len()
            ))),
        }
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    file::read_text(file).map_err(|error| Failure::wrong(format!("{}: {error}", file.display())))
}

/// The jobs that differ, and how many do not.
fn page(bill: &Bill, comparison: &JobComparison, tolerance: u32) -> String {
    let mut page = format!("{}, against Slurm\n{}\n", title(bill), period(bill));
    page += &marks(bill).iter().map(|mark| format!("{mark}\n")).collect::<String>();
    let (differing, agreeing): (Vec<_>, Vec<_>) = comparison.jobs.iter().partition(|job| job.differs);
    if !differing.is_empty() {
        page += "\nGPU time in seconds\n";
        page += &table(&differing);
    }
    page += &format!(
        "\n{} by more than {tolerance} s per GPU or in their account, {} agree; left out: {} on other nodes, {} \
         outside the period\n",
        differ(differing.len()),
        agreeing.len(),
        comparison.elsewhere,
        comparison.outside
    );
    page
}

fn differ(jobs: usize) -> String {
    if jobs == 1 { "1 job differs".to_owned() } else { format!("{jobs} jobs differ") }
}

/// A row per job with its reasons below it.
fn table(jobs: &[&ComparedJob]) -> String {
    let heads = ["job", "user", "account", "gpus", "slurm", "account holds", "difference"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let time = |time: Option<TimeSum>| {
        time.map_or_else(|| "-".to_owned(), |time| tenths(time.difference(TimeSum(0))))
    };
    for job in jobs {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        rows.push(vec![
            job.job.clone(),
            text(&job.user),
            text(&job.account),
            job.gpus.to_string(),
            time(job.slurm_ns),
            time(job.held_ns),
            tenths(job.difference_ns()),
        ]);
    }
    let aligned = align_columns(&rows, 3);
    let mut lines = aligned.lines();
    let head = lines.next().map(|head| format!("{head}\n")).unwrap_or_default();
    let reasons = |job: &ComparedJob| match &job.reasons[..] {
        [] => wrap("    ", "no reason is known"),
        all => all.iter().map(|reason| wrap("    ", reason)).collect(),
    };
    let rows = lines.zip(jobs).map(|(line, job)| format!("{line}\n{}", reasons(job)));
    head + &rows.collect::<String>()
}

/// Seconds with one decimal, rounded to the nearest.
fn tenths(nanoseconds: i128) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let tenths = (nanoseconds.unsigned_abs() + 50_000_000) / 100_000_000;
    let sign = if tenths == 0 { "" } else { sign };
    format!("{sign}{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_differ_are_listed_with_their_reasons_and_the_others_are_counted() {
        let job =
            |id: &str, slurm: Option<u128>, held: Option<u128>, differs, reasons: &[&str]| ComparedJob {
                job: id.to_owned(),
                user: Some("ada".to_owned()),
                gpus: 2,
                slurm_ns: slurm.map(TimeSum),
                held_ns: held.map(TimeSum),
                differs,
                reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
                ..ComparedJob::default()
            };
        let second = 1_000_000_000;
        let jobs = [
            job("7", Some(100 * second), Some(99 * second), false, &[]),
            job("8", Some(100 * second), Some(40 * second), true, &["one", "another"]),
            job("9", None, Some(5 * second), true, &[]),
        ];
        let page = table(&jobs.iter().skip(1).collect::<Vec<_>>());
        let expected = "\
job  user  account  gpus  slurm  account holds  difference
8    ada   -           2  100.0           40.0       -60.0
    one
    another
9    ada   -           2      -            5.0         5.0
    no reason is known
";
        assert_eq!(page, expected);
        assert_eq!([-40_000_000, 149_999_999, -60_000_000_000].map(tenths), ["0.0", "0.1", "-60.0"]);
    }
}
