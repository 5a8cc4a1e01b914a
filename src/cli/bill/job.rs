//! `gpumeter job`: what a job of Slurm, a pod, or what controls pods held, used and cost, over all of its nodes where a fleet is asked.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Args;

use super::{BillSource, Failure, job_list, job_report, job_sum, json_text, print, print_data};
use crate::accounting::advice::add_notes;
use crate::accounting::billing::{JobId, JobReport, JobSummary, readable_time};
use crate::cli::agent::RunningAgent;
use crate::cli::report::text;
use crate::config;
use crate::model::{DAY, Fact, Nanoseconds, QUARTER_HOUR, Utc};

/// What is searched by default.
const PERIOD: Nanoseconds = Nanoseconds(30 * DAY.0);

/// The server of a fleet in the environment, so that everybody on a login node asks it.
const URL_VARIABLE: &str = "GPUMETER_URL";

#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.help("URL of the running agent, or of the server of a fleet, with the path where a proxy has one for it; by default $GPUMETER_URL").default_value(default_url())))]
pub(in crate::cli) struct JobCommand {
    /// The number of a Slurm job such as 4711, which is a whole array where one has it; 4711_3 for a task of an array, 4711+1 for a
    /// component of a heterogeneous job, and .0 or .batch after it for one step. Or NAMESPACE/NAME, for a pod or for what controls pods,
    /// such as a Job, RayCluster or PyTorchJob; NAMESPACE/KIND/NAME where several have the name. Without it, the jobs of Slurm are listed.
    #[arg(value_name = "ID", value_parser = JobId::parse)]
    id: Option<JobId>,
    /// List the jobs of that user of Slurm.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "sum"])]
    user: Option<String>,
    /// List the jobs of that account of Slurm.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "sum"])]
    slurm_account: Option<String>,
    /// The number is that of one job, as in SLURM_JOB_ID, also where an array has the same.
    #[arg(long, requires = "id")]
    raw: bool,
    /// Add up what the nodes of one job printed with --json, each file from another node.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["id", "url", "ledger", "cluster", "from", "to", "last"])]
    sum: Vec<PathBuf>,
    #[command(flatten)]
    source: BillSource,
    /// Cluster of the job, if several clusters had a job with this id.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// How much is searched before the end, such as 12h or 7d; by default 30d.
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "from")]
    last: Option<Nanoseconds>,
    /// Start of the searched period, a date or a time as for gpumeter bill.
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

fn span(text: &str) -> Result<Nanoseconds, config::Complaint> {
    config::duration(text, QUARTER_HOUR, Nanoseconds(3_660 * DAY.0))
}

fn default_url() -> &'static str {
    static SET: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty()));
    SET.as_deref().unwrap_or(RunningAgent::DEFAULT_URL)
}

impl JobCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let mut summary = match &self.id {
            Some(id) => self.job(id)?,
            None if self.sum.is_empty() => return self.list(),
            None => {
                let mut sum = job_sum::read(&self.sum)?;
                add_notes(&mut sum);
                sum
            }
        };
        if self.brief {
            summary.lines.clear();
        }
        if !self.json {
            return print(&text::report(&job_report::report(&summary)));
        }
        print_data(&json_text(&summary)?)
    }

    fn list(&self) -> Result<(), Failure> {
        let report = self.report(None)?;
        if self.json {
            return print_data(&json_text(&report)?);
        }
        print(&text::report(&job_list::report(&report)))
    }

    fn job(&self, id: &JobId) -> Result<JobSummary, Failure> {
        if self.raw && id.to_string().parse::<u32>().is_err() {
            return Err(Failure::wrong("--raw: give the number of a job alone, as SLURM_JOB_ID has it"));
        }
        let report = self.report(Some(id))?;
        let searched = [report.from, report.to].map(|at| readable_time(at, &report.zone()));
        let mut jobs = report.jobs;
        if jobs.len() > 1 {
            return Err(ambiguous(id, &jobs));
        }
        jobs.pop().ok_or_else(|| {
            let [from, to] = searched;
            let why = match id.is_of_slurm() {
                true => ", and a job without a record of the prolog holds nothing",
                false => "",
            };
            let who = if report.partial { " that you may see" } else { "" };
            Failure::found(format!(
                "no job {id}{who} in the account from {from} to {to}; the current minute is accounted for when it is over{why}"
            ))
        })
    }

    fn report(&self, id: Option<&JobId>) -> Result<JobReport, Failure> {
        let from = match &self.from {
            Some(from) => from.clone(),
            None => self.begin()?,
        };
        let id = id.map(ToString::to_string);
        let given = [
            (if self.raw { Fact::SlurmJob.label() } else { "job" }, id.as_deref()),
            (Fact::SlurmCluster.label(), self.cluster.as_deref()),
            (Fact::SlurmUser.label(), self.user.as_deref()),
            (Fact::SlurmAccount.label(), self.slurm_account.as_deref()),
        ];
        let given = given.into_iter().filter_map(|(name, text)| Some((name, text?.to_owned())));
        self.source.jobs([Some(&*from), self.to.as_deref()], given)
    }

    /// The begin of the quarter hour some days before the end of the period or, where that is later, of the account: old minutes
    /// may be kept as quarter hours only.
    fn begin(&self) -> Result<String, Failure> {
        let to = self.source.request([None, self.to.as_deref()])?.to;
        let end = self.source.account_end("job")?;
        let end = to.map_or(end, |to| to.min(end)).floor(QUARTER_HOUR);
        let last = self.last.unwrap_or(PERIOD);
        Ok(Utc(end.0.saturating_sub(last.0)).floor(QUARTER_HOUR).to_string())
    }
}

/// Several clusters, or kinds of controllers, have that id.
fn ambiguous(id: &JobId, jobs: &[JobSummary]) -> Failure {
    let names: BTreeSet<String> = jobs.iter().map(|job| job_report::printed_name(&job.job)).collect();
    if names.len() > 1 {
        let names = super::text::list_names(names.iter().map(String::as_str));
        return Failure::wrong(format!("several have the name {id}: {names}; give one of these"));
    }
    let is_cluster = |label: &&(String, String)| label.0 == Fact::SlurmCluster.label();
    let clusters = jobs.iter().flat_map(|job| job.labels.iter().filter(is_cluster).map(|(_, name)| &**name));
    let clusters: BTreeSet<&str> = clusters.collect();
    if clusters.is_empty() {
        return Failure::wrong(format!(
            "several clusters have pods of {id}; ask the agent of a node, or the server of one cluster"
        ));
    }
    Failure::wrong(format!(
        "the clusters {} each have a job {id}; choose one with --cluster",
        super::text::list_names(clusters.into_iter())
    ))
}
