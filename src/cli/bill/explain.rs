//! `gpumeter explain`: why a line of a bill, or what a job, a pod or a GPU costs, is what it is.

use std::collections::BTreeSet;

use clap::Args;
use jiff::civil::Date;

use super::line_id::LineId;
use super::{
    BillSource, Failure, days_of, explain_text, in_one_currency, json_text, print, print_data, whole_text,
};
use crate::accounting::billing::{
    Bill, Explanation, JobId, LineDetail, LineFilter, PropertyFilters, REMAINDERS,
};
use crate::cli::report::text;
use crate::model::Fact;

/// Labels that name a person.
const PERSONAL: [Fact; 2] = [Fact::User, Fact::SlurmUser];

/// Digits of the ids that lines had before.
const OLD_DIGITS: usize = 16;

#[derive(Args, Debug)]
pub(in crate::cli) struct ExplainCommand {
    /// A line of the period's bill, by its id in the CSV (column line), such as tenant=lab+1; a Slurm job such as 4711, 4711_3 or 4711.0; a pod, by
    /// name, NAMESPACE/NAME or UID; a GPU, as gpu:3 or by UUID; a workload id such as unit:train.service; or as a whole, a day such as
    /// 2026-10-05, or a remainder such as __unallocated__.
    #[arg(value_name = "LINE|JOB|POD|GPU|DAY|REMAINDER", value_parser = Subject::parse, required_unless_present = "tenant")]
    subject: Option<Subject>,
    /// What a tenant costs as a whole: how much of what, at which rates and terms. Beside a day, on that day; beside a job, a pod, a
    /// GPU or a workload, only the lines of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Line(LineId),
    /// A job, a pod, a GPU or a workload.
    Lines {
        title: String,
        filter: LineFilter,
    },
    Day(String),
    Remainder(String),
}

impl Subject {
    /// Recognizes by its form what a text names.
    fn parse(text: &str) -> Result<Self, String> {
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(id) = LineId::parse(text) {
            return Ok(Self::Line(id));
        }
        if text.parse::<Date>().is_ok_and(|day| day.to_string() == text) {
            return Ok(Self::Day(text.to_owned()));
        }
        if REMAINDERS.iter().any(|(name, _)| *name == text) {
            return Ok(Self::Remainder(text.to_owned()));
        }
        let [namespace, pod, uid] = [Fact::Namespace, Fact::Pod, Fact::PodUid].map(Fact::label);
        let (kind, name, filter) = match text {
            "" => return Err("it is empty; name a line, a job, a pod or a GPU".to_owned()),
            _ if text.len() == OLD_DIGITS && is_hex(text) => {
                return Err(
                    "lines have ids such as tenant=lab+1 now; take it from the column line of the bill's CSV"
                        .to_owned(),
                );
            }
            _ if text.starts_with("GPU-") => ("GPU", text, vec![("gpu", text)]),
            _ => match (text.strip_prefix("gpu:"), text.split_once('/')) {
                (Some(index), _) if index.parse::<u32>().is_ok() => ("GPU", index, vec![("gpu", index)]),
                (Some(index), _) => {
                    return Err(format!("{index:?} is not the number of a GPU; write it like gpu:3"));
                }
                _ if text.contains(':') || text.starts_with("__") => {
                    ("Workload", text, vec![("workload", text)])
                }
                _ if JobId::parse(text).is_ok_and(|id| id.is_of_slurm()) => {
                    ("Job", text, vec![("job", text)])
                }
                (_, Some((of, name))) => ("Pod", text, vec![(namespace, of), (pod, name)]),
                _ if is_uid(text) => ("Pod", text, vec![(uid, text)]),
                _ => ("Pod", text, vec![(pod, text)]),
            },
        };
        Ok(Self::Lines { title: format!("{kind} {name}"), filter: LineFilter::of(filter)? })
    }
}

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
            None => return self.whole(None, None, period),
            Some(Subject::Day(day)) => return self.whole(Some(day), None, period),
            Some(Subject::Remainder(name)) => return self.whole(None, Some(name), period),
            Some(Subject::Line(_)) if self.tenant.is_some() => {
                return Err(Failure::wrong("a line is of one tenant; leave --tenant out"));
            }
            Some(Subject::Line(id)) => (format!("Line {}", id.as_str()), self.line(id, period)?),
            Some(Subject::Lines { title, filter }) => {
                let mut filter = filter.clone();
                if let Some(tenant) = &self.tenant {
                    filter.set("tenant", tenant).map_err(Failure::wrong)?;
                }
                if let Some(name) = &self.cluster {
                    filter.set(Fact::SlurmCluster.label(), name).map_err(Failure::wrong)?;
                }
                let explained = self.source.explanation("explain", period, filter, LineDetail::whole())?;
                (title.clone(), explained)
            }
        };
        if explanation.lines.is_empty() {
            return Err(no_line(&title, &explanation.bill));
        }
        if !self.names {
            remove_names(&mut explanation);
        }
        if self.json {
            return print_data(&json_text(&explanation)?);
        }
        print(&text::report(&explain_text::report(&title, &explanation)))
    }

    /// A tenant or remainder, or all of a bill, on a day or in the period.
    fn whole(
        &self,
        day: Option<&str>,
        remainder: Option<&str>,
        period: [Option<&str>; 2],
    ) -> Result<(), Failure> {
        if self.tenant.is_some() && remainder.is_some() {
            return Err(Failure::wrong("a remainder is of no tenant; give one of both"));
        }
        let days = day.map(|day| days_from(day, period)).transpose()?;
        let span = days.as_ref().map_or(period, |[from, to]| [Some(&**from), Some(&**to)]);
        let mut filters = PropertyFilters::default();
        if let Some(tenant) = self.tenant.as_deref().or(remainder) {
            let property = "tenant".parse().map_err(Failure::wrong)?;
            filters.add(property, tenant.to_owned()).map_err(Failure::wrong)?;
        }
        let name = match (&self.tenant, remainder) {
            (Some(tenant), _) => format!("Tenant {tenant}"),
            (None, Some(name)) => format!("Remainder {name}"),
            (None, None) => "Everything".to_owned(),
        };
        let title = day.map_or(name.clone(), |day| format!("{name} on {day}"));
        let whole = self.source.whole(span, filters)?;
        for conflict in whole.bill.fleet.iter().flat_map(|fleet| &fleet.conflicts) {
            tracing::warn!("{conflict}: this day of the GPU is left out");
        }
        if whole.total.lines == 0 {
            return Err(no_line(&title, &whole.bill));
        }
        if self.json {
            return print_data(&json_text(&whole)?);
        }
        print(&text::report(&whole_text::report(&title, &whole)))
    }

    fn line(&self, id: &LineId, period: [Option<&str>; 2]) -> Result<Explanation, Failure> {
        let mut detail = LineDetail::whole();
        let filter = id.filter().map_err(Failure::wrong)?;
        let day = id.day().map(|day| days_from(day, period)).transpose()?;
        let mut span = period;
        if self.source.exports.is_some() || day.is_none() {
            // Over exports, rates have other numbers in another period.
            detail.day = id.needs_days();
        } else if let Some([from, to]) = &day {
            span = [Some(from), Some(to)];
        }
        let mut explanation = self.source.explanation("explain", span, filter, detail)?;
        let mut part = explanation.bill.clone();
        if id.needs_bill() {
            let whole = self.source.bills("explain", period, LineDetail::whole(), None)?;
            let whole = in_one_currency(whole)?;
            (part.gpus, part.tenant_attributes) = (whole.gpus, whole.tenant_attributes);
        }
        part.lines = explanation.lines.iter().map(|line| line.line.clone()).collect();
        for line in &mut part.lines {
            line.day = line.day.take().or_else(|| id.day().map(str::to_owned));
        }
        let mut selected = id.selects(&part).into_iter();
        explanation.lines.retain(|_| selected.next() == Some(true));
        let workloads: BTreeSet<String> =
            explanation.lines.iter().map(|line| line.line.holder.name().to_owned()).collect();
        explanation.usage.retain(|usage| workloads.contains(usage.workload.name()));
        Ok(explanation)
    }
}

/// Begin and end of a local day, within a period that is given by times of that day.
fn days_from(day: &str, [from, to]: [Option<&str>; 2]) -> Result<[String; 2], Failure> {
    let date = day.parse::<Date>().and_then(|date| Ok([date, date.tomorrow()?]));
    let [_, next] = date.map_err(|_| Failure::wrong(format!("{day:?} is not a day")))?;
    let within = |time: Option<&str>| time.filter(|time| time.starts_with(day)).map(str::to_owned);
    Ok([within(from).unwrap_or_else(|| day.to_owned()), within(to).unwrap_or_else(|| next.to_string())])
}

fn no_line(title: &str, bill: &Bill) -> Failure {
    Failure::found(format!(
        "{title} has no line in the bill from {} to {}; give another period with --from and --to",
        bill.from_local, bill.to_local
    ))
}

fn remove_names(explanation: &mut Explanation) {
    for line in &mut explanation.lines {
        PERSONAL.iter().for_each(|fact| drop(line.line.labels.remove(fact.label())));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_cut_where_the_period_begins_or_ends_within_it() {
        let days = |period| days_from("2026-11-30", period).unwrap();
        assert_eq!(days([None, None]), ["2026-11-30", "2026-12-01"]);
        assert_eq!(days([Some("2026-11-01"), Some("2026-12-01")]), ["2026-11-30", "2026-12-01"]);
        assert_eq!(days([Some("2026-11-30T08:00"), None]), ["2026-11-30T08:00", "2026-12-01"]);
        assert!(days_from("november", [None, None]).is_err());
    }

    #[test]
    fn the_form_of_a_text_tells_what_it_names() {
        let name = |text: &str| {
            Subject::parse(text).map(|subject| match subject {
                Subject::Line(id) => format!("Line {}", id.as_str()),
                Subject::Lines { title, .. } => title,
                Subject::Day(day) => format!("Day {day}"),
                Subject::Remainder(name) => format!("Remainder {name}"),
            })
        };
        for (text, expected) in [
            ("4711", "Job 4711"),
            ("4711_3.batch", "Job 4711_3.batch"),
            ("tenant+gpu=lab+0+1", "Line tenant+gpu=lab+0+1"),
            ("k8s:ml/a=b", "Workload k8s:ml/a=b"),
            ("gpu:3", "GPU 3"),
            ("GPU-4efc442e-5524-41ed-93c8-201d52fd2df4", "GPU GPU-4efc442e-5524-41ed-93c8-201d52fd2df4"),
            ("train-0", "Pod train-0"),
            ("ml/train-0", "Pod ml/train-0"),
            ("4efc442e-5524-41ed-93c8-201d52fd2df4", "Pod 4efc442e-5524-41ed-93c8-201d52fd2df4"),
            ("unit:train.service", "Workload unit:train.service"),
            ("__unallocated__", "Remainder __unallocated__"),
            ("__mine__", "Workload __mine__"),
            ("2026-10-05", "Day 2026-10-05"),
        ] {
            assert_eq!(name(text).as_deref(), Ok(expected), "{text}");
        }
        for old in ["0123456789ABCDEF", "1234567890123456"] {
            assert!(name(old).unwrap_err().contains("such as tenant=lab+1"), "{old}");
        }
        assert!(name("gpu:x").unwrap_err().contains("gpu:3") && name("").is_err());
        let uid = "4efc442e-5524-41ed-93c8-201d52fd2df4";
        let filter = LineFilter::of([("k8s_pod_uid", uid)]).unwrap();
        assert_eq!(Subject::parse(uid), Ok(Subject::Lines { title: format!("Pod {uid}"), filter }));
    }
}
