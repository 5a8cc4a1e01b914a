//! `gpumeter advise`: what tenants may change to spend less, with the evidence.

use std::path::PathBuf;

use clap::Args;
use jiff::tz::TimeZone;

use super::progress::ProgressMeter;
use super::text::{counted, made_up, readable};
use super::{BillSource, Failure, json_text, print, print_data};
use crate::accounting::advice::{Advice, AdviceFinding, AdviceRequest, FindingGpu, FindingStretch};
use crate::accounting::billing::{local_time, zone_name};
use crate::accounting::day_files;
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable, text};
use crate::cli::{read_config, wrap};
use crate::model::{Money, Nanoseconds, TimeSum, Utc, shown};

#[derive(Args, Debug)]
pub(in crate::cli) struct AdviseCommand {
    #[command(flatten)]
    source: BillSource,
    /// Only findings about this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only the finding with this id, with the times that it is made of, each with its seconds, rate and money.
    #[arg(long, value_name = "ID")]
    explain: Option<String>,
    /// Configuration file whose advice.dismiss is used; a running agent uses its own.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    /// Print JSON, exact: times in nanoseconds.
    #[arg(long)]
    json: bool,
}

impl AdviseCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let advice = self.advice()?;
        if let Some(id) = self.explain.as_ref().filter(|_| advice.findings.is_empty()) {
            return Err(Failure::found(format!(
                "there is no finding {id:?}; gpumeter advise lists those of the last four weeks"
            )));
        }
        if self.json {
            return print_data(&json_text(&advice)?);
        }
        let zone = self.source.request([None, None])?.zone;
        print(&text::report(&report(&advice, &zone, self.explain.is_some())))
    }

    fn advice(&self) -> Result<Advice, Failure> {
        if self.source.exports.is_none() && self.source.ledger.is_none() {
            if self.config.is_some() {
                let text =
                    "--config is for --ledger and --exports; a running agent uses its own advice.dismiss";
                return Err(Failure::wrong(text));
            }
            let parameters = [("tenant", &self.tenant), ("explain", &self.explain)];
            let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
            return self.source.ask("/api/v1/advice", given, None, |text| serde_json::from_str(text));
        }
        let request = AdviceRequest {
            tenant: self.tenant.clone(),
            explain: self.explain.clone(),
            dismissed: read_config(self.config.as_ref())?.advice.dismiss.into(),
            ..AdviceRequest::default()
        };
        let Some(directory) = &self.source.exports else {
            return self.source.read("advise", |reader| reader.advice(&request));
        };
        let mut meter = ProgressMeter::default();
        let advice = day_files::make_advice(&self.source.fleet(directory)?, &request, |done, total| {
            meter.show(done, total);
            Ok(())
        });
        meter.clear();
        advice.map_err(Failure::wrong)
    }
}

fn report(advice: &Advice, zone: &TimeZone, is_explained: bool) -> Report {
    let of = match &advice.source.node {
        Some(node) => shown(node).into_owned(),
        None if advice.source.nodes == 0 => "what you may see".to_owned(),
        None => counted(advice.source.nodes as u64, "node"),
    };
    let time = |at: Utc| readable(&local_time(at, zone));
    let period =
        format!("{} to {}, time zone {}", time(advice.from), time(advice.to), zone_name(zone, advice.to));
    let partial = "PARTIAL: only what you may see was looked at".to_owned();
    let mut marks: Vec<String> = advice.partial.then_some(partial).into_iter().collect();
    marks.extend(made_up(advice.source.simulated, false));
    let mut report =
        Report { title: format!("Advice for {of}"), head: vec![period], marks, ..Report::default() };
    let table = findings(advice, zone);
    report.legend = table.legend();
    report.parts = match advice.findings.as_slice() {
        [] => vec![ReportPart::Note("nothing was found that is sure enough to say\n".to_owned())],
        _ => vec![ReportPart::Table(String::new(), table)],
    };
    for finding in advice.findings.iter().filter(|one| is_explained && !one.stretches.is_empty()) {
        report.parts.push(ReportPart::Table(String::new(), stretches(finding, advice, zone)));
    }
    report.parts.extend(notes(advice).map(ReportPart::Note));
    report
}

fn notes(advice: &Advice) -> impl Iterator<Item = String> {
    let dismissed = (advice.dismissed > 0)
        .then(|| format!("{} left out by advice.dismiss\n", counted(advice.dismissed as u64, "finding")));
    let organisation = advice.findings.iter().any(|finding| finding.organisation.is_some());
    let nothing = "the organisation pays as much as before unless a node or a commitment goes; the hours are there for others\n";
    let notes = advice.notes.iter().map(|note| format!("{note}\n"));
    notes.chain(dismissed).chain(organisation.then(|| nothing.to_owned())).collect::<Vec<_>>().into_iter()
}

fn findings(advice: &Advice, zone: &TimeZone) -> ReportTable {
    let text = |text: &str| ReportCell::Text(shown(text).into_owned());
    let money = advice.currency.clone().unwrap_or_default();
    let columns = [
        Column::new("finding", CellUnit::Text, |one: &AdviceFinding| one.id.clone().into()),
        Column::new("tenant", CellUnit::Text, move |one: &AdviceFinding| text(&one.tenant)),
        Column::new("workload", CellUnit::Text, move |one: &AdviceFinding| text(&one.workload)),
        Column::new("hours", CellUnit::Hours, |one: &AdviceFinding| {
            // What is said of clocks, shares and commitments is of no such time.
            if one.time.0 == 0 { ReportCell::Unknown } else { hours(one.time) }
        })
        .help("GPU time that nobody would have missed"),
        Column::new(money.clone(), CellUnit::Money, |one: &AdviceFinding| saved(one, false))
            .help("what that time cost the tenant, under his terms; of nodes and commitments what the organisation stops paying")
            .hidden_if(money.is_empty()),
        Column::new(format!("{money} credit"), CellUnit::Money, |one: &AdviceFinding| saved(one, true))
            .help("what that time cost the tenant, which may be given back to him")
            .hidden_if(!advice.findings.iter().any(|finding| finding.is_credit)),
    ];
    let mut table = ReportTable::new(columns, &advice.findings, None).for_people();
    table.below = advice.findings.iter().map(|finding| below(finding, zone)).collect();
    table
}

fn hours(time: Nanoseconds) -> ReportCell {
    TimeSum::from(time).into()
}

/// What is saved, or given back: of its tenant, and of a node or a commitment of the organisation.
fn saved(finding: &AdviceFinding, is_credit: bool) -> ReportCell {
    let of_organisation = finding.organisation.filter(|_| finding.tenant.is_empty());
    let amount = of_organisation.map_or(finding.amount, |saving| saving.amount);
    amount.filter(|_| finding.is_credit == is_credit).map_or(ReportCell::Unknown, money)
}

const fn money(amount: Money) -> ReportCell {
    ReportCell::Amount(amount.0)
}

/// What is below the row of a finding.
fn below(finding: &AdviceFinding, zone: &TimeZone) -> String {
    let day = |at: Utc| local_time(at, zone).get(..10).unwrap_or_default().to_owned();
    let seen = format!(
        "{}; from {} to {}; class {}",
        finding.what,
        day(finding.first_seen),
        day(finding.last_seen),
        finding.class.name()
    );
    let places: Vec<String> = finding.gpus.iter().map(place).collect();
    let more = finding.gpu_count - places.len().min(finding.gpu_count);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let lines = [
        ("found", seen),
        ("on", places.join(", ") + &more),
        ("rule", finding.rule.clone()),
        ("to do", finding.how.clone()),
        ("risk", finding.risk.clone()),
        ("dismiss", finding.dismiss.clone()),
    ];
    lines.iter().map(|(name, line)| wrap(&format!("  {name:8} "), line)).collect::<String>() + "\n"
}

fn place(gpu: &FindingGpu) -> String {
    let instance = gpu.gpu_instance.map(|id| format!(", instance {id}")).unwrap_or_default();
    let node = if gpu.node.is_empty() { String::new() } else { format!("{} ", shown(&gpu.node)) };
    format!("{node}GPU {}{instance}", gpu.gpu)
}

fn stretches(finding: &AdviceFinding, advice: &Advice, zone: &TimeZone) -> ReportTable {
    let zone = zone.clone();
    let time = move |at: Utc| ReportCell::Text(readable(&local_time(at, &zone)));
    let other = time.clone();
    let currency = advice.currency.clone().unwrap_or_default();
    let columns = [
        Column::new("workload", CellUnit::Text, |one: &FindingStretch| {
            ReportCell::Text(shown(&one.workload).into_owned())
        }),
        Column::new("GPU", CellUnit::Text, |one: &FindingStretch| place(&one.gpu).into()),
        Column::new("from", CellUnit::Text, move |one: &FindingStretch| time(one.from)),
        Column::new("to", CellUnit::Text, move |one: &FindingStretch| other(one.to)),
        Column::new("seconds", CellUnit::Seconds, |one: &FindingStretch| hours(one.time)),
        Column::new(format!("{currency} per h"), CellUnit::Money, |one: &FindingStretch| {
            one.rate.map_or(ReportCell::Unknown, money)
        }),
        Column::new(currency, CellUnit::Money, |one: &FindingStretch| {
            one.amount.map_or(ReportCell::Unknown, money)
        }),
    ];
    ReportTable::new(columns, &finding.stretches, None)
}
