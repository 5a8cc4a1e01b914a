//! What one Slurm job held, used and cost: on each GPU, in each step, and in all.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::bill::{Bill, BillLine};
use super::explanation::{ExplainedLine, Explanation, WorkloadUsage};
use super::json;
use crate::model::{EnergySum, Fact, HolderId, Microjoules, Money, TimeSum, Utc, WorkloadClass};

/// The summary of a job on one node, or on several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Its id, as it was asked for.
    pub job: String,
    /// What it is for, by `advice.classes` or by default.
    #[serde(default)]
    pub class: WorkloadClass,
    /// Labels of the job with their values.
    pub labels: Vec<(String, String)>,
    pub nodes: Vec<String>,
    pub simulated: bool,
    /// Whether the prices are gpumeter's example prices.
    #[serde(default)]
    pub example_prices: bool,
    /// End of the account, of several nodes the earliest; later usage is not in the sums.
    #[serde(with = "json::time")]
    pub accounted_until: Utc,
    /// Time zone of the bills; UTC where they have several.
    pub time_zone: String,
    pub currency: Option<String>,
    pub total: JobUsage,
    pub gpus: Vec<JobGpu>,
    /// In the order in which they began.
    pub steps: Vec<JobStep>,
    /// The lines of the bill; a summary may leave them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<BillLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobGpu {
    pub node: String,
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// What the job held and used of it.
    #[serde(flatten)]
    pub usage: JobUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStep {
    /// A number, batch, extern or interactive.
    pub step: String,
    pub gpus: usize,
    /// What it used, and what it held within the job.
    #[serde(flatten)]
    pub usage: JobUsage,
}

/// What a job or a step held and used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobUsage {
    /// Begin of the first minute.
    #[serde(with = "json::time")]
    pub start: Utc,
    /// End of the last minute.
    #[serde(with = "json::time")]
    pub end: Utc,
    #[serde(with = "json::integer")]
    pub held_ns: TimeSum,
    #[serde(with = "json::integer")]
    pub used_ns: TimeSum,
    /// Held, and used by others.
    #[serde(with = "json::integer")]
    pub lent_ns: TimeSum,
    /// Held, and used by nobody.
    #[serde(with = "json::integer")]
    pub idle_ns: TimeSum,
    /// Held while activity was unknown.
    #[serde(with = "json::integer")]
    pub unmeasured_ns: TimeSum,
    /// Held while the GPU was lost or failed.
    #[serde(with = "json::integer")]
    pub unavailable_ns: TimeSum,
    /// Held and used time divided by held and measured time; absent if that is 0.
    pub efficiency: Option<f64>,
    /// The part of the minutes in which it was there throughout that it kept the GPU busy; absent without such a minute.
    pub activity: Option<f64>,
    /// Used time in these minutes.
    #[serde(with = "json::integer")]
    pub busy_ns: TimeSum,
    /// Measured time of its slots in these minutes.
    #[serde(with = "json::integer")]
    pub measured_slot_ns: TimeSum,
    /// Its most memory on one GPU in a tick; where several steps had some at once, at least their mean over a minute.
    #[serde(with = "json::integer")]
    pub memory_peak_bytes: u64,
    /// Absent if no GPU's energy was measured.
    #[serde(default, with = "json::optional_integer")]
    pub energy_uj: Option<EnergySum>,
    /// What it costs; absent without prices.
    #[serde(default, with = "json::optional_money")]
    pub money: Option<Money>,
}

#[derive(Clone, Debug)]
pub struct ExplainedJob<'a> {
    pub cluster: Option<&'a str>,
    /// The number by which Slurm knows it.
    pub raw_id: &'a str,
    pub lines: Vec<&'a ExplainedLine>,
    /// Its summary, under the id that Slurm prints, without lines.
    pub summary: JobSummary,
}

/// The jobs of an explanation, in the order in which they began.
pub fn explained_jobs(explanation: &Explanation) -> Vec<ExplainedJob<'_>> {
    let mut by_job = BTreeMap::<(Option<&str>, &str), Vec<&ExplainedLine>>::new();
    for line in &explanation.lines {
        let label = |fact: Fact| line.line.labels.get(fact.label()).map(String::as_str);
        let job = label(Fact::SlurmJob).unwrap_or_default();
        by_job.entry((label(Fact::SlurmCluster), job)).or_default().push(line);
    }
    let jobs = by_job.into_iter().map(|((cluster, raw_id), lines)| {
        let class = last_class(lines.iter().copied());
        let own: Vec<BillLine> = lines.iter().map(|line| line.line.clone()).collect();
        let summary = JobSummary::new(printed_id(&own, raw_id), &explanation.bill, own, &explanation.usage);
        ExplainedJob { cluster, raw_id, lines, summary: JobSummary { class, lines: Vec::new(), ..summary } }
    });
    let mut jobs: Vec<ExplainedJob<'_>> = jobs.collect();
    jobs.sort_by(|left, right| {
        (left.summary.total.start, &left.summary.job).cmp(&(right.summary.total.start, &right.summary.job))
    });
    jobs
}

/// What the workload of these lines was for at last.
pub fn last_class<'a>(lines: impl Iterator<Item = &'a ExplainedLine>) -> WorkloadClass {
    let tenancies = lines.flat_map(|line| &line.tenancies);
    tenancies.max_by_key(|tenancy| tenancy.to).map(|tenancy| tenancy.class).unwrap_or_default()
}

/// The id as Slurm prints it. Lines that were stored before the ids of an array were known have only that of the job.
fn printed_id(lines: &[BillLine], raw_id: &str) -> String {
    let label = |fact: Fact| lines.iter().find_map(|line| line.labels.get(fact.label()));
    if let (Some(array), Some(task)) = (label(Fact::SlurmArrayJob), label(Fact::SlurmArrayTask)) {
        return format!("{array}_{task}");
    }
    let leader = label(Fact::SlurmHetJob).and_then(|leader| leader.parse::<u32>().ok());
    let component = leader.and_then(|leader| raw_id.parse::<u32>().ok()?.checked_sub(leader));
    match leader.zip(component) {
        Some((leader, component)) => format!("{leader}+{component}"),
        None => raw_id.to_owned(),
    }
}

impl JobSummary {
    /// The summary of a job by the lines of the job and its steps.
    pub fn new(job: String, bill: &Bill, lines: Vec<BillLine>, usage: &[WorkloadUsage]) -> Self {
        let mut gpus = BTreeMap::<(String, u32, String), Vec<&BillLine>>::new();
        let mut steps = BTreeMap::<HolderId, Vec<&BillLine>>::new();
        let mut jobs = BTreeSet::new();
        for line in &lines {
            let workload = HolderId::new(line.holder.name());
            // Only a bill over exports is of several nodes.
            let node = line.node.as_ref().map_or(&bill.node, |node| &node.name).clone();
            gpus.entry((node, line.gpu.index, line.gpu.uuid.to_string())).or_default().push(line);
            jobs.insert(workload.outer().unwrap_or_else(|| workload.clone()));
            steps.entry(workload).or_default().push(line);
        }
        let gpus = gpus.into_iter().map(|((node, gpu, uuid), lines)| {
            let own = usage.iter().filter(|one| *one.gpu.uuid == *uuid && jobs.contains(&one.workload));
            let usage = JobUsage::new(&lines, own);
            JobGpu { node, gpu, uuid, usage }
        });
        let gpus: Vec<JobGpu> = gpus.collect();
        let mut nodes: Vec<String> = gpus.iter().map(|gpu| gpu.node.clone()).collect();
        nodes.dedup();
        let steps = steps.iter().filter_map(|(holder, lines)| {
            let own = usage.iter().filter(|one| one.workload == *holder);
            let uuids: BTreeSet<&str> = lines.iter().map(|line| &*line.gpu.uuid).collect();
            let step = holder.facts().get(Fact::SlurmStep)?.to_string();
            Some(JobStep { step, gpus: uuids.len(), usage: JobUsage::new(lines, own) })
        });
        let steps: Vec<JobStep> = steps.collect();
        let mut summary = Self {
            job,
            class: WorkloadClass::Unknown,
            labels: labels(&lines),
            nodes,
            simulated: bill.simulated,
            example_prices: bill.example_prices,
            accounted_until: bill.to,
            time_zone: bill.time_zone.clone(),
            currency: bill.currency.clone(),
            total: JobUsage::default(),
            gpus,
            steps,
            lines,
        };
        summary.add_up();
        summary
    }

    /// Adds the summary of another node.
    pub fn add(&mut self, other: Self) {
        self.labels.extend(other.labels);
        self.labels.sort();
        self.labels.dedup();
        self.nodes.extend(other.nodes);
        if self.class == WorkloadClass::Unknown {
            self.class = other.class;
        }
        self.simulated |= other.simulated;
        self.example_prices |= other.example_prices;
        self.accounted_until = self.accounted_until.min(other.accounted_until);
        if self.time_zone != other.time_zone {
            self.time_zone = "UTC".to_owned();
        }
        self.gpus.extend(other.gpus);
        for step in other.steps {
            match self.steps.iter_mut().find(|known| known.step == step.step) {
                Some(known) => {
                    known.gpus += step.gpus;
                    known.usage.add(&step.usage);
                }
                None => self.steps.push(step),
            }
        }
        self.lines.extend(other.lines);
        self.add_up();
    }

    /// Sets the total, and the order of the steps.
    fn add_up(&mut self) {
        let gpus: Vec<&JobUsage> = self.gpus.iter().map(|gpu| &gpu.usage).collect();
        self.total = JobUsage::sum(&gpus);
        self.steps
            .sort_by(|left, right| (left.usage.start, &left.step).cmp(&(right.usage.start, &right.step)));
    }
}

impl JobUsage {
    /// The use of lines, and the times and memory that were found of them.
    fn new<'a>(lines: &[&BillLine], found: impl Iterator<Item = &'a WorkloadUsage>) -> Self {
        let mut usage = Self { start: Utc(u64::MAX), ..Self::default() };
        let mut lent_used = Vec::new();
        for line in lines {
            let BillLine { amounts, has_energy, money, .. } = line;
            let parts = &amounts.parts;
            let time = |time: u64| TimeSum(time.into());
            lent_used.push([parts.lent, amounts.used.beyond + amounts.used.outside].map(u128::from));
            usage.add(&Self {
                start: Utc(u64::MAX),
                held_ns: time(parts.held()),
                used_ns: time(amounts.used.total()),
                lent_ns: time(parts.lent),
                idle_ns: time(parts.idle),
                unmeasured_ns: time(parts.unmeasured),
                unavailable_ns: time(parts.unavailable),
                energy_uj: has_energy.then(|| Microjoules(line.energy()).into()),
                money: *money,
                ..Self::default()
            });
        }
        usage.lent_ns.0 -= used_by_others(&lent_used);
        for one in found {
            usage.add(&Self {
                start: one.from,
                end: one.to,
                busy_ns: one.busy.into(),
                measured_slot_ns: one.measured_slot.into(),
                memory_peak_bytes: one.memory_peak_bytes,
                ..Self::default()
            });
        }
        usage.set_ratios();
        usage
    }

    /// The sum, from the first start to the last end.
    pub fn sum(all: &[&Self]) -> Self {
        let mut sum = all.first().copied().cloned().unwrap_or_default();
        all.iter().skip(1).for_each(|one| sum.add(one));
        sum
    }

    fn add(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
        let sums: [(&mut TimeSum, TimeSum); 8] = [
            (&mut self.held_ns, other.held_ns),
            (&mut self.used_ns, other.used_ns),
            (&mut self.lent_ns, other.lent_ns),
            (&mut self.idle_ns, other.idle_ns),
            (&mut self.unmeasured_ns, other.unmeasured_ns),
            (&mut self.unavailable_ns, other.unavailable_ns),
            (&mut self.busy_ns, other.busy_ns),
            (&mut self.measured_slot_ns, other.measured_slot_ns),
        ];
        for (sum, one) in sums {
            *sum += one;
        }
        self.memory_peak_bytes = self.memory_peak_bytes.max(other.memory_peak_bytes);
        if let Some(energy) = other.energy_uj {
            *self.energy_uj.get_or_insert_default() += energy;
        }
        self.money = self.money.map_or(other.money, |sum| Some(sum + other.money.unwrap_or_default()));
        self.set_ratios();
    }

    fn set_ratios(&mut self) {
        let measured = self.held_ns.0.saturating_sub(self.unmeasured_ns.0 + self.unavailable_ns.0);
        let unused = self.lent_ns.0 + self.idle_ns.0;
        self.efficiency = ratio(measured.saturating_sub(unused), measured);
        self.activity = ratio(self.busy_ns.0, self.measured_slot_ns.0);
    }
}

/// A ratio with four decimals.
fn ratio(part: u128, whole: u128) -> Option<f64> {
    let ten_thousandths = (part * 10_000).checked_div(whole)?;
    u32::try_from(ten_thousandths).ok().map(|share| f64::from(share) / 10_000.0)
}

/// The most that one line lent and another line used, given what each line lent and used outside its holding. A line
/// never uses what it lends itself.
fn used_by_others(lent_used: &[[u128; 2]]) -> u128 {
    let lent: u128 = lent_used.iter().map(|[lent, _]| lent).sum();
    let used: u128 = lent_used.iter().map(|[_, used]| used).sum();
    let without_own = lent_used.iter().map(|[own_lent, own_used]| lent + used - own_lent - own_used);
    without_own.min().unwrap_or(0).min(lent).min(used)
}

/// The labels of a job, each value of any of its lines once; labels of a single step are left out.
fn labels(lines: &[BillLine]) -> Vec<(String, String)> {
    let shown = [
        Fact::SlurmCluster,
        Fact::SlurmAccount,
        Fact::SlurmUser,
        Fact::SlurmPartition,
        Fact::SlurmQos,
        Fact::SlurmJobName,
    ];
    let values = |fact: Fact| {
        let values: BTreeSet<&String> =
            lines.iter().filter_map(|line| line.labels.get(fact.label())).collect();
        values.into_iter().map(move |value| (fact.label().to_owned(), value.clone()))
    };
    shown.into_iter().flat_map(values).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::accounting::billing::made;
    use crate::model::{Amounts, GpuId, Nanoseconds, Parts, Use};

    fn line(holder: &str, parts: Parts, used: Use) -> BillLine {
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let amounts = Amounts { parts, used, ..Amounts::default() };
        BillLine { amounts, ..BillLine::empty(gpu, HolderId::new(holder)) }
    }

    fn use_of(lines: &[BillLine]) -> JobUsage {
        JobUsage::new(&lines.iter().collect::<Vec<_>>(), std::iter::empty())
    }

    #[test]
    fn time_that_a_step_lends_and_the_batch_step_uses_is_used_by_the_job() {
        let parts = Parts { within: 2, lent: 6, idle: 2, ..Parts::default() };
        let step = line("slurm:c/1.0", parts, Use { within: 2, ..Use::default() });
        let batch = line("slurm:c/1.batch", Parts::default(), Use { outside: 5, ..Use::default() });
        let job = use_of(&[step.clone(), batch]);
        let times = [job.held_ns, job.used_ns, job.lent_ns, job.idle_ns];
        assert_eq!(times, [10, 7, 1, 2].map(TimeSum));
        assert_eq!(job.efficiency, Some(0.7));
        let mut own = step;
        own.amounts.used.beyond = 5;
        let job = use_of(&[own]);
        let found = (job.lent_ns.0, job.idle_ns.0, job.efficiency);
        assert_eq!(found, (6, 2, Some(0.2)), "its own use was at other times");
    }

    #[test]
    fn a_job_has_the_times_and_the_memory_of_all_its_steps_and_each_step_its_own() {
        let bill = made::bill(&serde_json::json!({"to": "2026-11-01T02:00:00Z"}));
        let usage = |workload: &str, from, to, memory_peak_bytes| WorkloadUsage {
            workload: HolderId::new(workload),
            gpu: GpuId { index: 0, uuid: "GPU-0".into() },
            from: Utc(from),
            to: Utc(to),
            memory_peak_bytes,
            busy: Nanoseconds(1),
            measured_slot: Nanoseconds(4),
        };
        let found = [
            usage("slurm:c/1", 60, 300, 9),
            usage("slurm:c/1.0", 60, 120, 5),
            usage("slurm:c/1.1", 120, 240, 7),
            usage("slurm:c/2", 0, 900, 99),
        ];
        let idle = Parts { idle: 3, ..Parts::default() };
        let used = Use { within: 2, ..Use::default() };
        let lines = vec![
            line("slurm:c/1", idle, Use::default()),
            line("slurm:c/1.1", Parts::default(), used),
            line("slurm:c/1.0", Parts::default(), used),
        ];
        let job = JobSummary::new("1".into(), &bill, lines, &found);
        let total = &job.total;
        assert_eq!((total.start, total.end, total.memory_peak_bytes), (Utc(60), Utc(300), 9));
        assert_eq!((total.held_ns.0, total.used_ns.0, total.activity), (3, 4, Some(0.25)));
        let steps: Vec<_> =
            job.steps.iter().map(|step| (&*step.step, step.usage.memory_peak_bytes)).collect();
        assert_eq!(steps, [("0", 5), ("1", 7)]);
        assert_eq!((job.gpus.len(), job.accounted_until), (1, bill.to));
    }
}
