//! `gpumeter bill --against`: the GPU time of Slurm's accounting beside that of the ledger, by job.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::text::{begin, counted};
use super::{BillSource, Failure, json_text, print, print_data};
use crate::accounting::billing::{
    Bill, ComparedJob, JobComparison, LineDetail, LineFilter, compare_jobs, parse_sacct, zone_of,
};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable, text};
use crate::cli::wrap;
use crate::model::Nanoseconds;
use crate::runtime::file;

#[derive(Args, Debug)]
pub(super) struct AgainstOptions {
    /// Compare with what sacct --parsable2 printed to this file, by job, instead of printing the bill. Exit status 1 if any
    /// job differs. It needs the columns JobID, Elapsed (or ElapsedRaw) and AllocTRES, and uses JobIDRaw, Cluster, Account,
    /// User, Start, End, Suspended, NodeList and NNodes; with --duplicates it has all runs of requeued jobs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "html", "by", "tenant", "spread", "compare", "compare_book", "split_by", "book", "over_budget"])]
    against: Option<PathBuf>,
    /// Difference that is accepted for each GPU of a job, in seconds: a job holds its GPUs from prolog to epilog.
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "against")]
    tolerance: u32,
}

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
    pub(super) fn run(
        &self,
        source: &BillSource,
        period: [Option<&str>; 2],
        json: bool,
    ) -> Result<bool, Failure> {
        let Some(file) = &self.against else { return Ok(false) };
        let filter = LineFilter::of([("kind", "slurm")]).map_err(Failure::wrong)?;
        let text = read(file)?;
        let explanation = source.explanation("bill", period, filter, LineDetail::whole())?;
        let bill = &explanation.bill;
        if bill.time_zone.starts_with(['+', '-']) {
            return Err(Failure::wrong(
                "the time zone has no name, in which sacct printed times; give --time-zone",
            ));
        }
        let jobs = parse_sacct(&text, &zone_of(&bill.time_zone))
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
            print_data(&json_text(&all)?)?;
        } else {
            print(&text::report(&report(bill, &comparison, self.tolerance)))?;
        }
        let differing = comparison.jobs.iter().filter(|job: &&ComparedJob| job.differs).count();
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

fn report(bill: &Bill, comparison: &JobComparison, tolerance: u32) -> Report {
    let mut report = begin(bill);
    report.title += ", against Slurm";
    let (differing, agreeing): (Vec<_>, Vec<_>) =
        comparison.jobs.iter().partition(|job: &&ComparedJob| job.differs);
    let count = differing.len();
    if count > 0 {
        report.parts.push(ReportPart::Table("GPU time in seconds\n".to_owned(), table(&differing)));
    }
    let differ = format!("{} differ{}", counted(count as u64, "job"), if count == 1 { "s" } else { "" });
    report.parts.push(ReportPart::Note(format!(
        "{differ} by more than {tolerance} s per GPU or in their account, {} agree; left out: {} on other nodes, {} outside the \
         period\n",
        agreeing.len(),
        comparison.elsewhere,
        comparison.outside
    )));
    report
}

/// A row per job with its reasons below it.
fn table(jobs: &[&ComparedJob]) -> ReportTable {
    let columns = [
        Column::new("job", CellUnit::Text, |job: &&ComparedJob| job.job.clone().into()),
        Column::new("user", CellUnit::Text, |job: &&ComparedJob| job.user.clone().into()),
        Column::new("account", CellUnit::Text, |job: &&ComparedJob| job.account.clone().into()),
        Column::new("gpus", CellUnit::Number, |job: &&ComparedJob| ReportCell::Amount(job.gpus.into())),
        Column::new("slurm", CellUnit::Seconds, |job: &&ComparedJob| job.slurm_ns.into()),
        Column::new("account holds", CellUnit::Seconds, |job: &&ComparedJob| job.held_ns.into()),
        Column::new("difference", CellUnit::Seconds, |job: &&ComparedJob| {
            ReportCell::Amount(job.difference_ns())
        }),
    ];
    let reasons = |job: &&ComparedJob| match &job.reasons[..] {
        [] => wrap("    ", "no reason is known"),
        all => all.iter().map(|reason| wrap("    ", reason)).collect(),
    };
    let mut table = ReportTable::new(columns, jobs, None);
    table.below = jobs.iter().map(reasons).collect();
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TimeSum;

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
        let page = text::table(&table(&jobs.iter().skip(1).collect::<Vec<_>>()));
        let expected = "\
job  user  account  gpus  slurm  account holds  difference
8    ada   -           2  100.0           40.0       -60.0
    one
    another
9    ada   -           2      -            5.0         5.0
    no reason is known
";
        assert_eq!(page, expected);
    }
}
