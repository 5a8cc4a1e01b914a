//! `gpumeter job`: what one Slurm job held, used and cost on this node, per GPU, from the bill lines of the job and its
//! steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use jiff::{Timestamp, ToSpan};
use serde::Serialize;

use super::by::gpu_groups;
use super::job_id::JobId;
use super::job_sum::{self, NodeSummary};
use super::sheet::{BillRow, Sheet, decimal, in_hour_units, signed_decimal};
use super::text::{align_columns, readable};
use super::{BillSource, Failure, print};
use crate::billing::{Bill, BillLine, print_money, print_time};
use crate::clock::system_now;
use crate::model::{Amounts, Money};

/// How many days are searched by default.
const DAYS: i64 = 30;

/// Options of the command.
#[derive(Args, Debug)]
pub(in crate::cli) struct JobCommand {
    /// Job id such as 4711, with 4711_3 for a task of a job array, 4711+1 for a component of a heterogeneous job, and .0 or
    /// .batch after it for one step.
    #[arg(value_name = "ID", value_parser = JobId::parse, required_unless_present = "sum")]
    id: Option<JobId>,
    /// Add up what the nodes of one job printed with --json, each file from another node.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["id", "url", "ledger", "cluster", "from"])]
    sum: Vec<PathBuf>,
    #[command(flatten)]
    source: BillSource,
    /// Cluster of the job, if several clusters had a job with this id.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Start of the searched period, a date or a time as for gpumeter bill; by default 30 days ago.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Print JSON, exact: times in nanoseconds, energy in microjoules.
    #[arg(long)]
    json: bool,
}

/// The usage of the job on one GPU, or on all, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct JobAmounts {
    held_ns: u128,
    used_ns: u128,
    /// Held, and used by others than the job.
    lent_ns: u128,
    /// Held, and used by nobody.
    idle_ns: u128,
    unmeasured_ns: u128,
    unavailable_ns: u128,
    /// Held and used time divided by held and measured time; absent if that is 0.
    efficiency: Option<f64>,
    /// Absent if no GPU's energy was measured.
    energy_uj: Option<u128>,
}

/// The sums over the job's lines on one GPU, or on all.
#[derive(Default)]
struct JobUsage {
    exact: BillRow,
    /// Lent by one of the lines, and used by another one.
    shared: u128,
}

/// The summary as JSON.
#[derive(Debug, Serialize)]
struct JobSummary<'a> {
    job: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    /// The node; absent in a sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    /// The nodes of a sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<&'a str>,
    simulated: bool,
    example_prices: bool,
    /// End of the accounted period; later usage is not in the sums.
    accounted_until: &'a str,
    total: JobAmounts,
    currency: Option<&'a str>,
    money: Option<String>,
    lines: &'a [BillLine],
}

/// What is known of a job on one node, or on several.
struct JobReport {
    job: String,
    nodes: Vec<String>,
    simulated: bool,
    example_prices: bool,
    /// In RFC 3339; of several nodes the earliest.
    accounted_until: String,
    /// The same as the text shows it.
    shown_until: String,
    currency: Option<String>,
    lines: Vec<BillLine>,
    /// Sort key and name of the row of each line.
    rows: Vec<(u32, String)>,
}

impl JobCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let report = match &self.id {
            Some(id) => JobReport::of_bill(id, self.statement(id)?),
            None => JobReport::of_nodes(job_sum::read(&self.sum)?),
        };
        if self.json { print(&report.json(self.id.is_none())?) } else { print(&report.text()) }
    }

    /// The bill with the lines of the job only.
    fn statement(&self, id: &JobId) -> Result<Bill, Failure> {
        let from = match &self.from {
            Some(from) => from.clone(),
            None => days_ago(DAYS)?,
        };
        let mut statement = self.source.statement("job", Some(&from), None)?;
        retain_job(&mut statement.lines, id, self.cluster.as_deref());
        if statement.lines.is_empty() {
            return Err(Failure::found(format!(
                "no job {id} in the account of this node from {from} to {}; the current minute is accounted for when it is over, and \
                 a job without a record of the prolog holds nothing",
                statement.to_local
            )));
        }
        check_cluster(id, &statement)?;
        Ok(statement)
    }
}

/// Two clusters may have given the same number to different jobs.
fn check_cluster(id: &JobId, statement: &Bill) -> Result<(), Failure> {
    let lines = statement.lines.iter();
    let clusters: BTreeSet<&str> =
        lines.filter_map(|line| Some(line.labels.get("slurm_cluster")?.as_str())).collect();
    if clusters.len() > 1 {
        let clusters: Vec<&str> = clusters.into_iter().collect();
        return Err(Failure::wrong(format!(
            "the clusters {} each have a job {id}; choose one with --cluster",
            clusters.join(", ")
        )));
    }
    Ok(())
}

impl JobReport {
    fn of_bill(id: &JobId, bill: Bill) -> Self {
        Self {
            job: id.to_string(),
            rows: gpu_groups(&bill.lines),
            nodes: vec![bill.node],
            simulated: bill.simulated,
            example_prices: bill.example_prices,
            accounted_until: print_time(bill.to),
            shown_until: readable(&bill.to_local),
            currency: bill.currency,
            lines: bill.lines,
        }
    }

    /// The sum over nodes, whose GPUs are rows of their own.
    fn of_nodes(summaries: Vec<NodeSummary>) -> Self {
        let until = summaries.iter().map(|one| one.accounted_until.clone()).min().unwrap_or_default();
        let mut sum = Self {
            job: summaries.first().map(|first| first.job.clone()).unwrap_or_default(),
            nodes: Vec::new(),
            simulated: summaries.iter().any(|one| one.simulated),
            example_prices: summaries.iter().any(|one| one.example_prices),
            shown_until: readable(&until),
            accounted_until: until,
            currency: summaries.first().and_then(|first| first.currency.clone()),
            lines: Vec::new(),
            rows: Vec::new(),
        };
        // A key for each node keeps its GPUs together; of one node, they are in the order of their numbers.
        let mut first = 0;
        for summary in summaries {
            let groups = gpu_groups(&summary.lines);
            let last = groups.iter().map(|(gpu, _)| *gpu).max().unwrap_or(0);
            let row = |(gpu, name): (u32, String)| {
                (gpu.saturating_add(first), format!("{} gpu {name}", node_name(&summary.node)))
            };
            sum.rows.extend(groups.into_iter().map(row));
            first = first.saturating_add(last).saturating_add(1);
            sum.nodes.push(summary.node);
            sum.lines.extend(summary.lines);
        }
        sum
    }

    fn json(&self, is_sum: bool) -> Result<String, Failure> {
        let money: Money = self.lines.iter().filter_map(|line| line.money).sum();
        let nodes = self.nodes.iter().map(String::as_str);
        let summary = JobSummary {
            job: &self.job,
            labels: labels(&self.lines),
            node: nodes.clone().next().filter(|_| !is_sum),
            nodes: nodes.filter(|_| is_sum).collect(),
            simulated: self.simulated,
            example_prices: self.example_prices,
            accounted_until: &self.accounted_until,
            total: JobUsage::total(&self.usage()).amounts(),
            currency: self.currency.as_deref(),
            money: self.currency.as_ref().map(|_| print_money(money)),
            lines: &self.lines,
        };
        serde_json::to_string_pretty(&summary).map(|text| text + "\n").map_err(Failure::found)
    }

    fn text(&self) -> String {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node_name(node)).collect();
        let mut page = format!("Job {} on {}\n", self.job, nodes.join(", "));
        for (label, value) in labels(&self.lines) {
            page += &format!("{:13} {value}\n", label.trim_start_matches("slurm_"));
        }
        if self.simulated {
            page += "SIMULATED: the GPUs are simulated, every number is made up\n";
        }
        if self.example_prices {
            page += "EXAMPLE PRICES: made up by gpumeter, not the operator's\n";
        }
        page += &self.table();
        page += &format!(
            "\naccounted until {}; used is all use; efficiency is the held and used time of all steps divided by the held and measured time\n",
            self.shown_until
        );
        page
    }

    /// The usage of each GPU, in the order of the rows.
    fn usage(&self) -> Vec<JobUsage> {
        usage_by_row(&self.lines, &self.rows)
    }

    /// A row per GPU and their total, in the digits of the bill, so that they add up.
    fn table(&self) -> String {
        let sheet = Sheet::of_groups(&self.lines, self.rows.clone());
        let by_gpu = self.usage();
        let amounts: Vec<JobAmounts> = by_gpu.iter().map(JobUsage::amounts).collect();
        let used = in_hour_units(&amounts.iter().map(|one| one.used_ns).collect::<Vec<_>>());
        let shared = in_hour_units(&by_gpu.iter().map(|usage| usage.shared).collect::<Vec<_>>());
        // Derived from the rounded rows of the bill, so that the columns add up.
        let lent: Vec<u128> =
            sheet.rows.iter().zip(shared).map(|(row, shared)| row.parts[1].saturating_sub(shared)).collect();
        let currency = self.currency.as_deref();
        let mut head =
            ["gpu", "held h", "used h", "lent h", "idle h", "efficiency", "kWh"].map(str::to_owned).to_vec();
        head.extend(currency.map(str::to_owned));
        let cells = |row: &BillRow, used: u128, lent: u128, efficiency: Option<f64>| {
            let efficiency =
                efficiency.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            let energy = row.energy.map_or_else(|| "-".to_owned(), decimal);
            let hours = [row.held(), used, lent, row.parts[2]].map(decimal);
            let mut cells = [row.names.clone(), hours.to_vec(), vec![efficiency, energy]].concat();
            cells.extend(currency.map(|_| signed_decimal(row.money)));
            cells
        };
        let mut rows = vec![head];
        for (place, (row, amounts)) in sheet.rows.iter().zip(&amounts).enumerate() {
            rows.push(cells(row, used[place], lent[place], amounts.efficiency));
        }
        let total = JobUsage::total(&by_gpu).amounts();
        rows.push(cells(&sheet.total, used.iter().sum(), lent.iter().sum(), total.efficiency));
        "\n".to_owned() + &align_columns(&rows, 1)
    }
}

/// The start of the minute that many days ago.
fn days_ago(days: i64) -> Result<String, Failure> {
    let now = i64::try_from(system_now().utc.0 / 1_000_000_000).unwrap_or(i64::MAX);
    let minute = Timestamp::from_second(now - now.rem_euclid(60)).map_err(Failure::found)?;
    minute.checked_sub((days * 24).hours()).map(|from| from.to_string()).map_err(Failure::found)
}

fn node_name(node: &str) -> &str {
    if node.is_empty() { "unknown node" } else { node }
}

/// The labels of the job, each value of any of its lines once; labels of a single step are left out.
fn labels(lines: &[BillLine]) -> Vec<(&str, &str)> {
    let shown = ["slurm_cluster", "slurm_account", "slurm_user", "slurm_partition", "slurm_qos"];
    let values = |name: &'static str| {
        let values: BTreeSet<&str> =
            lines.iter().filter_map(|line| Some(line.labels.get(name)?.as_str())).collect();
        values.into_iter().map(move |value| (name, value))
    };
    shown.into_iter().flat_map(values).collect()
}

impl JobUsage {
    /// The sums over the lines of one GPU.
    fn of_gpu(lines: &[&BillLine]) -> Self {
        let mut exact = BillRow::default();
        lines.iter().for_each(|line| exact.add_line(line));
        let lent_used: Vec<[u128; 2]> = lines
            .iter()
            .map(|BillLine { amounts: Amounts { parts, used, .. }, .. }| {
                [parts.lent, used.beyond + used.outside].map(u128::from)
            })
            .collect();
        Self { exact, shared: used_by_others(&lent_used) }
    }

    fn total(by_gpu: &[Self]) -> Self {
        let mut total = Self::default();
        for usage in by_gpu {
            total.exact.add(&usage.exact);
            total.shared += usage.shared;
        }
        total
    }

    fn amounts(&self) -> JobAmounts {
        let Self { exact, shared } = self;
        let [within, lent, idle, unmeasured, unavailable] = exact.parts;
        let (used, lent) = (within + shared, lent - shared);
        JobAmounts {
            held_ns: exact.held(),
            used_ns: within + exact.beside.iter().sum::<u128>(),
            lent_ns: lent,
            idle_ns: idle,
            unmeasured_ns: unmeasured,
            unavailable_ns: unavailable,
            efficiency: ratio(used, used + lent + idle),
            energy_uj: exact.energy,
        }
    }
}

/// The most that one line lent and another line used, given what each line lent and used outside its holding. A line
/// never uses what it lends itself.
fn used_by_others(lent_used: &[[u128; 2]]) -> u128 {
    let lent: u128 = lent_used.iter().map(|[lent, _]| lent).sum();
    let used: u128 = lent_used.iter().map(|[_, used]| used).sum();
    let without_own = lent_used.iter().map(|[own_lent, own_used]| lent + used - own_lent - own_used);
    without_own.min().unwrap_or(0).min(lent).min(used)
}

/// Keeps the lines of one job, or of one of its steps. Lines of a task of an array that were stored before the ids of the array
/// were known have only its job id, so they are found by that of the others.
fn retain_job(lines: &mut Vec<BillLine>, id: &JobId, cluster: Option<&str>) {
    let label = |line: &BillLine, name: &str| line.labels.get(name).cloned();
    let key = |line: &BillLine| (label(line, "slurm_cluster"), label(line, "slurm_job_id"));
    let is_of_cluster = |line: &BillLine| {
        cluster.is_none_or(|cluster| label(line, "slurm_cluster").as_deref() == Some(cluster))
    };
    let jobs: BTreeSet<_> =
        lines.iter().filter(|line| id.names(line) && is_of_cluster(line)).map(key).collect();
    lines.retain(|line| jobs.contains(&key(line)) && id.names_step(line));
}

/// The usage of each row, in their order.
fn usage_by_row(lines: &[BillLine], rows: &[(u32, String)]) -> Vec<JobUsage> {
    let mut gpus: BTreeMap<&(u32, String), Vec<&BillLine>> = BTreeMap::new();
    for (line, gpu) in lines.iter().zip(rows) {
        gpus.entry(gpu).or_default().push(line);
    }
    gpus.values().map(|lines| JobUsage::of_gpu(lines)).collect()
}

/// A ratio with four decimals.
fn ratio(part: u128, whole: u128) -> Option<f64> {
    let ten_thousandths = (part * 10_000).checked_div(whole)?;
    u32::try_from(ten_thousandths).ok().map(|share| f64::from(share) / 10_000.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// A line of a board with these amounts and labels.
    fn line(uuid: &str, amounts: &[(&str, u64)], labels: &[(&str, &str)]) -> BillLine {
        let zero = ["held", "within", "lent", "idle", "unmeasured", "unavailable", "used", "beyond_share"];
        let zero = zero.into_iter().chain(["outside_holding", "unheld", "measured"]);
        let mut line: serde_json::Map<_, _> = zero.map(|name| (format!("{name}_ns"), 0.into())).collect();
        let texts = [("tenant", "x"), ("holder", "x"), ("grade", "measured"), ("method", "observed")];
        line.extend(texts.map(|(name, text)| (name.into(), text.into())));
        line.extend([("gpu".into(), 0.into()), ("sources".into(), serde_json::json!([]))]);
        line.insert("uuid".into(), uuid.into());
        for (name, amount) in amounts {
            line.insert(format!("{name}_ns"), (*amount).into());
        }
        let mut line: BillLine = serde_json::from_value(line.into()).unwrap();
        line.labels.extend(labels.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        line
    }

    #[test]
    fn two_boards_with_the_same_index_are_two_rows() {
        let lines = [
            line("b", &[("held", 4), ("used", 4), ("within", 4)], &[]),
            line("a", &[("held", 7), ("used", 1), ("within", 1), ("idle", 6)], &[]),
        ];
        let held: Vec<u128> =
            usage_by_row(&lines, &gpu_groups(&lines)).iter().map(|usage| usage.exact.held()).collect();
        assert_eq!(held, [7, 4], "in the order of the bill's rows");
    }

    #[test]
    fn time_that_a_step_lends_and_the_batch_step_uses_is_used_by_the_job() {
        let step = line("a", &[("held", 10), ("within", 2), ("lent", 6), ("idle", 2), ("used", 2)], &[]);
        let batch = line("a", &[("outside_holding", 5), ("used", 5)], &[]);
        let amounts =
            |lines: &[BillLine]| JobUsage::total(&usage_by_row(lines, &gpu_groups(lines))).amounts();
        let gpu = amounts(&[step.clone(), batch]);
        assert_eq!((gpu.held_ns, gpu.used_ns, gpu.lent_ns, gpu.idle_ns), (10, 7, 1, 2));
        assert_eq!(gpu.efficiency, Some(0.7));
        let mut own = step;
        own.amounts.used.beyond = 5;
        let gpu = amounts(&[own]);
        let found = (gpu.lent_ns, gpu.idle_ns, gpu.efficiency);
        assert_eq!(found, (6, 2, Some(0.2)), "its own use was at other times");
    }

    #[test]
    fn lines_of_an_array_task_that_were_stored_without_its_array_are_found() {
        let job = |cluster, id| vec![("slurm_cluster", cluster), ("slurm_job_id", id)];
        let named = [job("alpha", "213"), vec![("slurm_array_job_id", "210"), ("slurm_array_task_id", "3")]];
        let labels = [job("alpha", "213"), named.concat(), job("beta", "213"), job("alpha", "214")];
        let lines: Vec<BillLine> = labels.iter().map(|labels| line("a", &[], labels)).collect();
        let count = |id: &str, cluster| {
            let mut lines = lines.clone();
            retain_job(&mut lines, &JobId::parse(id).unwrap(), cluster);
            lines.len()
        };
        assert_eq!((count("210_3", None), count("210_3", Some("beta")), count("210_4", None)), (2, 0, 0));
        assert_eq!((count("213", None), count("213", Some("alpha"))), (3, 2));
    }

    #[test]
    fn a_step_and_a_component_of_a_heterogeneous_job_are_found_by_their_ids() {
        let job = [("slurm_cluster", "alpha"), ("slurm_job_id", "301"), ("slurm_het_job_id", "300")];
        let step = [&job[..], &[("slurm_step_id", "0")]].concat();
        let first = vec![("slurm_cluster", "alpha"), ("slurm_job_id", "300"), ("slurm_het_job_id", "300")];
        let lines: Vec<BillLine> =
            [job.to_vec(), step, first].iter().map(|labels| line("a", &[], labels)).collect();
        let count = |id: &str| {
            let mut lines = lines.clone();
            retain_job(&mut lines, &JobId::parse(id).unwrap(), None);
            lines.len()
        };
        let ids = ["300", "301", "301.0", "300+0", "300+1", "300+1.0", "300+2", "301.batch"];
        assert_eq!(ids.map(count), [1, 2, 1, 1, 2, 1, 0, 0]);
    }

    #[test]
    fn a_sum_has_a_row_for_each_gpu_of_each_node_and_the_total_of_all() {
        const HOUR: u64 = 3_600_000_000_000;
        let node = |name: &str, uuids: &[&str], until: &str| NodeSummary {
            job: "7".into(),
            node: name.into(),
            simulated: false,
            example_prices: false,
            accounted_until: until.into(),
            currency: Some("EUR".into()),
            lines: uuids
                .iter()
                .map(|uuid| BillLine {
                    money: Some(Money(1_500_000_000)),
                    ..line(
                        uuid,
                        &[("held", HOUR), ("used", HOUR), ("within", HOUR)],
                        &[("slurm_account", "bio")],
                    )
                })
                .collect(),
        };
        let sum = JobReport::of_nodes(vec![
            node("n1", &["a"], "2026-11-01T02:00:00Z"),
            node("n2", &["b", "c"], "2026-11-01T01:00:00Z"),
        ]);
        let text = sum.text();
        assert!(text.starts_with("Job 7 on n1, n2\naccount       bio\n"), "{text}");
        let cells = |row: &str| {
            let line = text.lines().find(|line| line.starts_with(row)).unwrap();
            line[row.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells("n1 gpu 0"), ["1.0000", "1.0000", "0.0000", "0.0000", "100.0", "%", "-", "1.5000"]);
        assert_eq!(cells("n2 gpu 0 (c)")[0], "1.0000");
        assert_eq!(cells("total"), ["3.0000", "3.0000", "0.0000", "0.0000", "100.0", "%", "-", "4.5000"]);
        assert!(text.contains("accounted until 2026-11-01 01:00 Z;"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&sum.json(true).unwrap()).unwrap();
        assert_eq!(
            (&json["nodes"], &json["money"]),
            (&serde_json::json!(["n1", "n2"]), &"4.500000000".into())
        );
        assert!(json.get("node").is_none());
    }
}
