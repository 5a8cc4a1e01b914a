//! `gpumeter explain`: why a line of a bill, or what a job, a pod or a GPU costs, is what it is.

use std::collections::BTreeSet;

use clap::Args;
use jiff::civil::Date;

use super::by::BillGrouping;
use super::csv::line_id;
use super::job_report::zone;
use super::{BillSource, Failure, days_of, explain_text, print, print_data};
use crate::billing::{Bill, ExplainedLine, Explanation, JobId, LineDetail, LineFilter, day_begin};
use crate::cli::report::text;
use crate::model::{Fact, Utc};

/// Labels that name a person.
const PERSONAL: [Fact; 2] = [Fact::User, Fact::SlurmUser];

/// Digits of the id of a line.
const LINE_DIGITS: usize = 16;

/// Options of the command.
#[derive(Args, Debug)]
pub(in crate::cli) struct ExplainCommand {
    /// A line of the period's bill, by its id in the CSV (column line); a Slurm job such as 4711, 4711_3 or 4711.0; a pod, by
    /// name, NAMESPACE/NAME or UID; a GPU, as gpu:3 or by UUID; or a workload id such as unit:train.service.
    #[arg(value_name = "LINE|JOB|POD|GPU", value_parser = Subject::parse)]
    subject: Subject,
    #[command(flatten)]
    source: BillSource,
    /// Cluster of the job, if several clusters had a job with this id.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Start of the period, as for gpumeter bill.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, as for gpumeter bill; that of the bill, if a line is explained.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// A whole month, such as 2026-11, instead of --from and --to.
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["from", "to"])]
    month: Option<String>,
    /// Also print labels that name a person: user_name and slurm_user. Tenants and workloads of users are named anyway.
    #[arg(long)]
    names: bool,
    /// Print JSON, exact: each line with its minutes, rates and rules.
    #[arg(long)]
    json: bool,
}

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// The id of a line.
    Line(String),
    Job(JobId),
    /// Labels of a pod.
    Pod(Vec<(Fact, String)>),
    Gpu(String),
    Workload(String),
}

impl Subject {
    /// Tells by its form what a text names.
    fn parse(text: &str) -> Result<Self, String> {
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(gpu) = text.strip_prefix("gpu:") {
            return match gpu.parse::<u32>() {
                Ok(index) => Ok(Self::Gpu(index.to_string())),
                Err(_) => Err(format!("{gpu:?} is not the number of a GPU; write it like gpu:3")),
            };
        }
        let job = JobId::parse(text);
        Ok(match text {
            "" => return Err("it is empty; name a line, a job, a pod or a GPU".to_owned()),
            _ if text.starts_with("GPU-") => Self::Gpu(text.to_owned()),
            _ if text.len() == LINE_DIGITS && is_hex(text) => Self::Line(text.to_ascii_lowercase()),
            _ if text.contains(':') || text.starts_with("__") => Self::Workload(text.to_owned()),
            _ => match (job, text.split_once('/')) {
                (Ok(job), _) => Self::Job(job),
                (_, Some((namespace, pod))) => {
                    Self::Pod(vec![(Fact::Namespace, namespace.to_owned()), (Fact::Pod, pod.to_owned())])
                }
                _ if is_uid(text) => Self::Pod(vec![(Fact::PodUid, text.to_owned())]),
                _ => Self::Pod(vec![(Fact::Pod, text.to_owned())]),
            },
        })
    }

    /// The lines, where no bill is needed to find them.
    fn filter(&self) -> LineFilter {
        let labels = |labels: &[(Fact, String)]| {
            labels.iter().map(|(fact, text)| (fact.label().to_owned(), text.clone())).collect()
        };
        let empty = LineFilter::default();
        match self.clone() {
            Self::Line(_) => empty,
            Self::Job(job) => LineFilter { job: Some(job), ..empty },
            Self::Pod(pod) => LineFilter { labels: labels(&pod), ..empty },
            Self::Gpu(gpu) => LineFilter { gpu: Some(gpu), ..empty },
            Self::Workload(workload) => LineFilter { workload: Some(workload), ..empty },
        }
    }

    /// What it is called in the heading and in errors.
    fn name(&self) -> String {
        match self {
            Self::Line(id) => format!("Line {id}"),
            Self::Job(job) => format!("Job {job}"),
            Self::Pod(pod) => {
                format!("Pod {}", pod.iter().map(|(_, text)| &**text).collect::<Vec<_>>().join("/"))
            }
            Self::Gpu(gpu) => format!("GPU {gpu}"),
            Self::Workload(workload) => format!("Workload {workload}"),
        }
    }
}

/// Whether a text has the form of a UID of Kubernetes.
fn is_uid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.concat().bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl ExplainCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let [from, to] = match &self.month {
            Some(month) => days_of("--month", month)?.map(Some),
            None => [self.from.clone(), self.to.clone()],
        };
        let period = [from.as_deref(), to.as_deref()];
        let (title, mut explanation) = match &self.subject {
            Subject::Line(id) => self.line(id, period)?,
            subject => {
                let mut filter = subject.filter();
                let cluster =
                    self.cluster.as_ref().map(|name| (Fact::SlurmCluster.label().to_owned(), name.clone()));
                filter.labels.extend(cluster);
                (subject.name(), self.source.explanation("explain", period, filter)?)
            }
        };
        if explanation.lines.is_empty() {
            let bill = &explanation.bill;
            return Err(Failure::found(format!(
                "{title} has no line in the bill from {} to {}; give another period with --from and --to",
                bill.from_local, bill.to_local
            )));
        }
        if !self.names {
            remove_names(&mut explanation);
        }
        if self.json {
            let json = serde_json::to_string_pretty(&explanation).map_err(Failure::found)?;
            return print_data(&(json + "\n"));
        }
        print(&text::report(&explain_text::report(&title, &explanation)))
    }

    /// What a line of the bill is called, and the explanation of what it sums up.
    fn line(&self, id: &str, [from, to]: [Option<&str>; 2]) -> Result<(String, Explanation), Failure> {
        let search = |by_day: bool| -> Result<_, Failure> {
            let detail = LineDetail { day: by_day, ..LineDetail::whole() };
            let bills = self.source.bills("explain", [from, to], detail, None)?;
            let ends = bills.first().zip(bills.last());
            let ends = ends.map(|(first, last)| [first.from_local.clone(), last.to_local.clone()]);
            let found = bills.into_iter().find_map(|bill| Some((find_line(&bill, id)?, bill)));
            Ok((found, ends.unwrap_or_default()))
        };
        let (mut found, ends) = search(false)?;
        if found.is_none() {
            // Lines are told apart by day only where somebody asks for that.
            found = search(true)?.0;
        }
        let Some(((by, lines), bill)) = found else {
            return Err(Failure::found(format!(
                "no line {id} in the bill from {} to {}; a line has its id in one period only, so give that of its bill with \
                 --from and --to, or --month",
                ends[0], ends[1]
            )));
        };
        let filter = common_filter(&bill, &lines);
        let days = lines.iter().filter_map(|at| bill.lines[*at].day.as_deref());
        let period = period_of(&bill, days.collect())?.map(|at| at.to_string());
        let mut explanation =
            self.source.explanation("explain", [Some(&*period[0]), Some(&*period[1])], filter)?;
        let is_in = |explained: &ExplainedLine| lines.iter().any(|at| is_same(&bill, *at, explained));
        explanation.lines.retain(is_in);
        let workloads: Vec<_> =
            explanation.lines.iter().map(|line| line.line.holder.name().to_owned()).collect();
        explanation.usage.retain(|usage| workloads.iter().any(|name| usage.workload.name() == name));
        Ok((format!("Line {id}, {by}"), explanation))
    }
}

/// The group of the bill that has that id, in words, and its lines.
fn find_line(bill: &Bill, id: &str) -> Option<(String, Vec<usize>)> {
    let (by, lines) = BillGrouping::find(bill, |by, names| line_id(bill, by, names) == id)?;
    let groups = by.groups(bill);
    let group = groups.get(*lines.first()?)?;
    let names = by.names().into_iter().zip(group).filter(|(_, (_, name))| !name.is_empty());
    let names = names.map(|(by, (_, name))| format!("{by} {name}"));
    Some((names.collect::<Vec<_>>().join(", "), lines))
}

/// The period of the bill, or of the one day to which all these lines belong.
fn period_of(bill: &Bill, days: BTreeSet<&str>) -> Result<[Utc; 2], Failure> {
    let mut days = days.into_iter();
    let (Some(day), None) = (days.next(), days.next()) else { return Ok([bill.from, bill.to]) };
    let wrong = || Failure::found(format!("{day:?} is not a day in {}", bill.time_zone));
    let begin = |date: Date| day_begin(date, &zone(&bill.time_zone));
    let date: Date = day.parse().map_err(|_| wrong())?;
    let next = date.tomorrow().map_err(|_| wrong())?;
    let [first, end] = [date, next].map(begin);
    Ok([first.ok_or_else(wrong)?.max(bill.from), end.ok_or_else(wrong)?.min(bill.to)])
}

/// What all these lines have in common, so that no more is read than is needed.
fn common_filter(bill: &Bill, lines: &[usize]) -> LineFilter {
    let common = |of: fn(&crate::billing::BillLine) -> &str| {
        let mut values = lines.iter().map(|at| of(&bill.lines[*at]));
        let first = values.next()?;
        values.all(|value| value == first).then(|| first.to_owned())
    };
    LineFilter {
        tenant: common(|line| &line.tenant),
        gpu: common(|line| &line.gpu.uuid),
        workload: common(|line| line.holder.name()),
        ..LineFilter::default()
    }
}

fn is_same(bill: &Bill, at: usize, explained: &ExplainedLine) -> bool {
    let (one, other) = (&bill.lines[at], &explained.line);
    // JSON has workload ids without their versions.
    (&one.tenant, one.holder.name(), &one.gpu, &one.slot, one.rates)
        == (&other.tenant, other.holder.name(), &other.gpu, &other.slot, other.rates)
}

/// Removes labels that name a person.
fn remove_names(explanation: &mut Explanation) {
    for line in &mut explanation.lines {
        PERSONAL.iter().for_each(|fact| drop(line.line.labels.remove(fact.label())));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::billing::made;

    #[test]
    fn a_line_is_found_by_its_id_whatever_the_bill_was_grouped_by() {
        let line = |tenant: &str, holder: &str, gpu: u32| {
            made::line(
                &json!({"tenant": tenant, "holder": holder, "labels": {"user_name": tenant}, "gpu": gpu,
                "uuid": format!("GPU-{gpu}"), "held_ns": 1, "idle_ns": 1}),
            )
        };
        let lines = [line("a", "user:a", 0), line("b", "user:b", 0), line("a", "user:a", 1)];
        let bill = made::bill(&json!({"lines": lines}));
        for (by, group, lines) in [
            ("tenant", "a", vec![0, 2]),
            ("gpu", "0", vec![0, 1]),
            ("user", "b", vec![1]),
            ("gpu,tenant", "1", vec![2]),
            ("slurm_account,user_name", "-", vec![0, 2]),
        ] {
            let by: BillGrouping = by.parse().unwrap();
            let names = by.by_rate().groups(&bill);
            let name = names.iter().find(|names| names[0].1 == group).unwrap();
            let names: Vec<String> = name.iter().map(|(_, name)| name.clone()).collect();
            let (title, found) = find_line(&bill, &line_id(&bill, &by.by_rate(), &names)).unwrap();
            assert_eq!(found, lines, "{title}");
            assert!(title.contains(&format!("{} {group}", by.names()[0])), "{title}");
        }
        assert_eq!(find_line(&bill, "0123456789abcdef"), None);
        let filter = common_filter(&bill, &[0, 2]);
        assert_eq!(filter.parameters(), [("tenant", "a".to_owned()), ("workload", "user:a".to_owned())]);
    }

    #[test]
    fn the_form_of_a_text_tells_what_it_names() {
        let name = |text: &str| Subject::parse(text).map(|subject| subject.name());
        for (text, expected) in [
            ("4711", "Job 4711"),
            ("4711_3.batch", "Job 4711_3.batch"),
            ("0123456789ABCDEF", "Line 0123456789abcdef"),
            ("1234567890123456", "Line 1234567890123456"),
            ("gpu:3", "GPU 3"),
            ("GPU-4efc442e-5524-41ed-93c8-201d52fd2df4", "GPU GPU-4efc442e-5524-41ed-93c8-201d52fd2df4"),
            ("train-0", "Pod train-0"),
            ("ml/train-0", "Pod ml/train-0"),
            ("4efc442e-5524-41ed-93c8-201d52fd2df4", "Pod 4efc442e-5524-41ed-93c8-201d52fd2df4"),
            ("unit:train.service", "Workload unit:train.service"),
            ("__unallocated__", "Workload __unallocated__"),
        ] {
            assert_eq!(name(text).as_deref(), Ok(expected), "{text}");
        }
        assert!(name("gpu:x").unwrap_err().contains("gpu:3") && name("").is_err());
        let uid = Subject::parse("4efc442e-5524-41ed-93c8-201d52fd2df4").unwrap().filter();
        assert!(uid.labels.contains_key("k8s_pod_uid"), "{uid:?}");
    }
}
