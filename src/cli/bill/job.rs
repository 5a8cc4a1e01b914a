//! `gpumeter job`: what one Slurm job held, used and cost on this node, for the end of the job and for its owner.
//!
//! In: the lines of a bill that are the job's or its steps'. Out: one row per GPU and their total, as text or JSON.

use std::collections::BTreeSet;

use clap::Args;
use jiff::{Timestamp, ToSpan};
use serde::Serialize;

use super::by::By;
use super::sheet::{Row, Sheet, apportion, decimal};
use super::text::readable;
use super::{BillSource, Failure, print};
use crate::clock::system_now;
use crate::ledger::{Statement, StatementLine};

/// How far back a job is looked for by default.
const DAYS: i64 = 30;

/// The last printed digit of hours, in nanoseconds.
const UNIT: u128 = 360_000_000;

/// Options of the command.
#[derive(Args, Debug)]
pub(in crate::cli) struct JobCommand {
    /// The job: its number, or ARRAY_TASK of a job array, such as 4711_3.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    source: BillSource,
    /// The job's cluster, where several had a job of this number.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Where to begin to look, a date or a time as of gpumeter bill; by default 30 days ago.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Print JSON, exact: times in nanoseconds, energy in microjoules.
    #[arg(long)]
    json: bool,
}

/// What the job did on one GPU, or on all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct JobAmounts {
    held_ns: u128,
    used_ns: u128,
    /// Held, and not used by the job.
    idle_ns: u128,
    unmeasured_ns: u128,
    unavailable_ns: u128,
    /// Held and used, of what was held while use could be measured; absent where nothing was.
    efficiency: Option<f64>,
    /// Absent where no GPU's energy was measured.
    energy_uj: Option<u128>,
}

/// The summary as JSON.
#[derive(Debug, Serialize)]
struct JobSummary<'a> {
    job: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    node: &'a str,
    simulated: bool,
    /// Until when the account is closed; what the job did afterwards is not in the sums.
    accounted_until: &'a str,
    total: JobAmounts,
    currency: Option<&'a str>,
    money: Option<String>,
    lines: &'a [StatementLine],
}

impl JobCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let from = match &self.from {
            Some(from) => from.clone(),
            None => days_ago(DAYS)?,
        };
        let mut statement = self.source.statement("job", Some(&from), None)?;
        statement.lines.retain(|line| self.is_of_job(line));
        if statement.lines.is_empty() {
            return Err(Failure::found(format!(
                "no job {} in the account of this node from {from} to {}; the last minute is accounted for when it is over, and \
                 a job that no prolog recorded holds nothing",
                self.id, statement.to_local
            )));
        }
        self.check_cluster(&statement)?;
        if self.json { print(&self.json(&statement)?) } else { print(&self.text(&statement)) }
    }

    fn is_of_job(&self, line: &StatementLine) -> bool {
        let label = |name: &str| line.labels.get(name).map(String::as_str);
        let is_job = label("slurm_job_id") == Some(&self.id)
            || self.id.split_once('_').is_some_and(|(array, task)| {
                (label("slurm_array_job_id"), label("slurm_array_task_id")) == (Some(array), Some(task))
            });
        is_job && self.cluster.as_deref().is_none_or(|cluster| label("slurm_cluster") == Some(cluster))
    }

    /// Two clusters may have given the same number to different jobs.
    fn check_cluster(&self, statement: &Statement) -> Result<(), Failure> {
        let clusters: BTreeSet<&str> = statement
            .lines
            .iter()
            .filter_map(|line| Some(line.labels.get("slurm_cluster")?.as_str()))
            .collect();
        if clusters.len() > 1 {
            let clusters: Vec<&str> = clusters.into_iter().collect();
            return Err(Failure::wrong(format!(
                "there is a job {} of each of the clusters {}; say which with --cluster",
                self.id,
                clusters.join(", ")
            )));
        }
        Ok(())
    }

    fn json(&self, statement: &Statement) -> Result<String, Failure> {
        let exact: u128 =
            statement.lines.iter().filter_map(|line| line.money.as_deref()).map(super::sheet::nano).sum();
        let money = statement
            .currency
            .as_ref()
            .map(|_| format!("{}.{:09}", exact / 1_000_000_000, exact % 1_000_000_000));
        let summary = JobSummary {
            job: &self.id,
            labels: labels(statement),
            node: &statement.node,
            simulated: statement.simulated,
            accounted_until: &statement.to,
            total: JobAmounts::of(&statement.lines),
            currency: statement.currency.as_deref(),
            money,
            lines: &statement.lines,
        };
        serde_json::to_string_pretty(&summary).map(|text| text + "\n").map_err(Failure::found)
    }

    fn text(&self, statement: &Statement) -> String {
        let mut page = format!("Job {} on {}\n", self.id, node(statement));
        for (label, value) in labels(statement) {
            page += &format!("{:13} {value}\n", label.trim_start_matches("slurm_"));
        }
        if statement.simulated {
            page += "SIMULATED: the GPUs are simulated, every number is made up\n";
        }
        if statement.example_prices {
            page += "EXAMPLE PRICES: made up by gpumeter, not the operator's\n";
        }
        page += &table(statement);
        page += &format!(
            "\naccounted until {}; used is all use, efficiency what was held and used of what was held and measured\n",
            readable(&statement.to_local)
        );
        page
    }
}

/// The begin of the minute so many days ago.
fn days_ago(days: i64) -> Result<String, Failure> {
    let now = i64::try_from(system_now().utc.0 / 1_000_000_000).unwrap_or(i64::MAX);
    let minute = Timestamp::from_second(now - now.rem_euclid(60)).map_err(Failure::found)?;
    minute.checked_sub((days * 24).hours()).map(|from| from.to_string()).map_err(Failure::found)
}

fn node(statement: &Statement) -> &str {
    if statement.node.is_empty() { "unknown node" } else { &statement.node }
}

/// What is known of the job, from any of its lines; a step's own label is not the job's.
fn labels(statement: &Statement) -> Vec<(&str, &str)> {
    let shown = ["slurm_cluster", "slurm_account", "slurm_user", "slurm_partition", "slurm_qos"];
    let find = |name: &str| statement.lines.iter().find_map(|line| line.labels.get(name));
    shown.into_iter().filter_map(|name| Some((name, find(name)?.as_str()))).collect()
}

impl JobAmounts {
    fn of<'a>(lines: impl IntoIterator<Item = &'a StatementLine>) -> Self {
        let (mut sum, mut within) = (Self::default(), 0);
        for line in lines {
            sum.held_ns += u128::from(line.held_ns);
            sum.used_ns += u128::from(line.used_ns);
            sum.idle_ns += u128::from(line.lent_ns) + u128::from(line.waste_ns);
            sum.unmeasured_ns += u128::from(line.unmeasured_ns);
            sum.unavailable_ns += u128::from(line.unavailable_ns);
            within += u128::from(line.within_ns);
            let energy = line.energy_static_uj.zip(line.energy_dynamic_uj);
            let energy = energy.map(|(floor, rest)| u128::from(floor) + u128::from(rest));
            sum.energy_uj =
                sum.energy_uj.zip(energy).map(|(sum, one)| sum + one).or(sum.energy_uj).or(energy);
        }
        sum.efficiency = ratio(within, within + sum.idle_ns);
        sum
    }
}

/// A share to four decimals.
fn ratio(part: u128, whole: u128) -> Option<f64> {
    let ten_thousandths = (part * 10_000).checked_div(whole)?;
    u32::try_from(ten_thousandths).ok().map(|share| f64::from(share) / 10_000.0)
}

/// A row per GPU and their total, in the digits of the bill, so that they add up.
fn table(statement: &Statement) -> String {
    let sheet = Sheet::new(statement, &By::Gpu);
    let gpus: BTreeSet<u32> = statement.lines.iter().map(|line| line.gpu).collect();
    let by_gpu: Vec<JobAmounts> = gpus
        .iter()
        .map(|gpu| JobAmounts::of(statement.lines.iter().filter(|line| line.gpu == *gpu)))
        .collect();
    let exact: Vec<u128> = by_gpu.iter().map(|amounts| amounts.used_ns).collect();
    let total: u128 = exact.iter().sum();
    let used = apportion((total + UNIT / 2) / UNIT, &exact);
    let all = JobAmounts::of(&statement.lines);
    let currency = statement.currency.as_deref();
    let mut head = ["gpu", "held h", "used h", "idle h", "efficiency", "kWh"].map(str::to_owned).to_vec();
    head.extend(currency.map(str::to_owned));
    let mut rows = vec![head];
    for ((row, amounts), used) in sheet.rows.iter().zip(&by_gpu).zip(used.iter().copied()) {
        rows.push(cells(row, used, amounts, currency.is_some()));
    }
    rows.push(cells(&sheet.total, used.iter().sum(), &all, currency.is_some()));
    aligned(&rows)
}

fn cells(row: &Row, used: u128, amounts: &JobAmounts, has_money: bool) -> Vec<String> {
    let idle = row.parts[1] + row.parts[2];
    let efficiency =
        amounts.efficiency.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let energy = row.energy.map_or_else(|| "-".to_owned(), decimal);
    let mut cells =
        vec![row.name.clone(), decimal(row.held()), decimal(used), decimal(idle), efficiency, energy];
    cells.extend(has_money.then(|| decimal(row.money)));
    cells
}

fn aligned(rows: &[Vec<String>]) -> String {
    let width = |place: usize| rows.iter().map(|row| row[place].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    rows.iter().fold("\n".to_owned(), |page, row| {
        let cells = row.iter().zip(&widths).enumerate();
        let text = cells.map(|(place, (cell, width))| match place {
            0 => format!("{cell:width$}"),
            _ => format!("  {cell:>width$}"),
        });
        page + &text.collect::<String>() + "\n"
    })
}
