//! `gpumeter job`: what Slurm jobs held, used and cost on this node, from the lines of the jobs and their steps.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::{BillSource, Failure, job_list, job_report, job_sum, json_text, print, print_data};
use crate::accounting::billing::{Explanation, JobId, JobSummary, LineDetail, LineFilter, last_class};
use crate::cli::report::text;
use crate::model::{DAY, Fact, QUARTER_HOUR, Utc};

/// How many days are searched by default.
const DAYS: u64 = 30;

#[derive(Args, Debug)]
pub(in crate::cli) struct JobCommand {
    /// Job id such as 4711, with 4711_3 for a task of a job array, 4711+1 for a component of a heterogeneous job, and .0 or
    /// .batch after it for one step.
    #[arg(value_name = "ID", value_parser = JobId::parse, required_unless_present_any = ["sum", "list"])]
    id: Option<JobId>,
    /// List the jobs of the period, a line each, instead of one job.
    #[arg(long, conflicts_with_all = ["id", "sum"])]
    list: bool,
    /// List the jobs of that user only.
    #[arg(long, value_name = "NAME", requires = "list")]
    slurm_user: Option<String>,
    /// List the jobs of that account only.
    #[arg(long, value_name = "NAME", requires = "list")]
    slurm_account: Option<String>,
    /// Add up what the nodes of one job printed with --json, each file from another node.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["id", "url", "ledger", "cluster", "from", "to"])]
    sum: Vec<PathBuf>,
    #[command(flatten)]
    source: BillSource,
    /// Cluster of the job, if several clusters had a job with this id.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Start of the searched period, a date or a time as for gpumeter bill; by default 30 days before the end.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the searched period, not included; by default the end of the last complete minute.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Print JSON, exact: times in nanoseconds, energy in microjoules.
    #[arg(long)]
    json: bool,
    /// Leave the lines of the bill out of the JSON.
    #[arg(long, requires = "json")]
    brief: bool,
}

impl JobCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        if self.list {
            let explanation = self.explanation(None)?;
            let page = job_list::page(&explanation, self.json)?;
            return if self.json { print_data(&page) } else { print(&page) };
        }
        let mut summary = match &self.id {
            Some(id) => self.summary(id)?,
            None => job_sum::read(&self.sum)?,
        };
        if self.brief {
            summary.lines.clear();
        }
        if !self.json {
            return print(&text::report(&job_report::report(&summary)));
        }
        print_data(&json_text(&summary)?)
    }

    fn summary(&self, id: &JobId) -> Result<JobSummary, Failure> {
        let explanation = self.explanation(Some(id))?;
        if explanation.lines.is_empty() {
            let readable = super::text::readable;
            return Err(Failure::found(format!(
                "no job {id} in the account from {} to {}; the current minute is accounted for when it is over, \
                 and a job without a record of the prolog holds nothing",
                readable(&explanation.bill.from_local),
                readable(&explanation.bill.to_local)
            )));
        }
        check_cluster(id, &explanation)?;
        let Explanation { bill, lines, usage, .. } = explanation;
        let class = last_class(lines.iter());
        let lines = lines.into_iter().map(|line| line.line).collect();
        Ok(JobSummary { class, ..JobSummary::new(id.to_string(), &bill, lines, &usage) })
    }

    fn explanation(&self, job: Option<&JobId>) -> Result<Explanation, Failure> {
        let from = match &self.from {
            Some(from) => from.clone(),
            None => self.first_day()?,
        };
        let job = job.map(ToString::to_string);
        let given = [
            ("job", job.as_deref()),
            (Fact::SlurmCluster.label(), self.cluster.as_deref()),
            (Fact::SlurmUser.label(), self.slurm_user.as_deref()),
            (Fact::SlurmAccount.label(), self.slurm_account.as_deref()),
            ("kind", Some("slurm")),
        ];
        let given = given.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let filter = LineFilter::of(given).map_err(Failure::wrong)?;
        self.source.explanation("job", [Some(&*from), self.to.as_deref()], filter, LineDetail::whole())
    }

    /// The start of the quarter hour some days before the end of the period or, where that is later, of the account: old minutes
    /// may be kept as quarter hours only.
    fn first_day(&self) -> Result<String, Failure> {
        let to = self.source.request([None, self.to.as_deref()])?.to;
        let end = self.source.account_end("job")?;
        let end = to.map_or(end, |to| to.min(end)).floor(QUARTER_HOUR);
        Ok(Utc(end.0.saturating_sub(DAYS * DAY.0)).to_string())
    }
}

/// Two clusters may have given the same number to different jobs.
fn check_cluster(id: &JobId, explanation: &Explanation) -> Result<(), Failure> {
    let lines = explanation.lines.iter();
    let clusters: BTreeSet<&str> =
        lines.filter_map(|line| Some(line.line.labels.get(Fact::SlurmCluster.label())?.as_str())).collect();
    if clusters.len() > 1 {
        return Err(Failure::wrong(format!(
            "the clusters {} each have a job {id}; choose one with --cluster",
            super::text::list_names(clusters.into_iter())
        )));
    }
    Ok(())
}
