//! `gpumeter fit`: whether workloads would have fitted on one GPU or instance, from their past.

use clap::Args;
use jiff::tz::TimeZone;

use super::progress::ProgressMeter;
use super::text::{counted, made_up, readable};
use super::{BillSource, Failure, json_text, print, print_data};
use crate::accounting::billing::{local_time, zone_name};
use crate::accounting::day_files;
use crate::accounting::planning::{Fit, FitRequest, FitStretch, FittedWorkload};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable, text};
use crate::cli::wrap;
use crate::model::{Bytes, Money, Nanoseconds, TimeSum, Utc, shown};

#[derive(Args, Debug)]
pub(in crate::cli) struct FitCommand {
    #[command(flatten)]
    source: BillSource,
    /// Two workloads or more, each by its id, or by the name that all its runs have, such as pod:ml/Deployment/embed or
    /// ml/Deployment/embed.
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// The product name of a GPU, or the profile of an instance such as 1g.10gb; by default a GPU as the one that they held most.
    #[arg(long, value_name = "MODEL|PROFILE")]
    on: Option<String>,
    /// Print JSON, exact: times in nanoseconds.
    #[arg(long)]
    json: bool,
}

impl FitCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let request = FitRequest { workloads: self.workloads.clone(), on: self.on.clone() };
        request.check().map_err(Failure::wrong)?;
        let fit = self.fit(&request)?;
        if self.json {
            return print_data(&json_text(&fit)?);
        }
        let zone = self.source.request([None, None])?.zone;
        print(&text::report(&report(&fit, &zone)))
    }

    fn fit(&self, request: &FitRequest) -> Result<Fit, Failure> {
        if let Some(directory) = &self.source.exports {
            let mut meter = ProgressMeter::default();
            let fit = day_files::make_fit(&self.source.fleet(directory)?, request, |done, total| {
                meter.show(done, total);
                Ok(())
            });
            meter.clear();
            return fit.map_err(Failure::wrong);
        }
        if self.source.ledger.is_some() {
            return self.source.read("fit", |reader| reader.fit(request));
        }
        let workloads = request.workloads.iter().map(|name| ("workload", name.clone()));
        let on = request.on.iter().map(|on| ("on", on.clone()));
        self.source.ask("/api/v1/fit", workloads.chain(on), None, |text| serde_json::from_str(text))
    }
}

fn report(fit: &Fit, zone: &TimeZone) -> Report {
    let time = |at: Utc| readable(&local_time(at, zone));
    let period = format!("{} to {}, time zone {}", time(fit.from), time(fit.to), zone_name(zone, fit.to));
    let of = match (fit.on.of_slices, fit.on.memory) {
        (1, Some(memory)) => format!(", {}", gibibytes(memory)),
        (1, None) => String::new(),
        (of, memory) => {
            let memory = memory.map(|memory| format!(", {}", gibibytes(memory))).unwrap_or_default();
            format!(", {} of {of} memory slices of a GPU{memory}", fit.on.slices)
        }
    };
    let mut report = Report {
        title: format!("Would they have fitted on one {}{of}?", shown(&fit.on.name)),
        head: vec![period],
        marks: made_up(fit.source.simulated, false).into_iter().collect(),
        ..Report::default()
    };
    let table = workloads(fit);
    report.legend = table.legend();
    report.parts.push(ReportPart::Table(String::new(), table));
    report.parts.push(ReportPart::Note(answer(fit)));
    if !fit.together.worst.is_empty() {
        report.parts.push(ReportPart::Table("The worst stretches\n".to_owned(), worst(fit, zone)));
    }
    let notes = fit.notes.iter().map(|note| wrap("- ", note));
    report.parts.push(ReportPart::Note(notes.collect::<String>()));
    report
}

/// In words, how often it would have been too much, and what both ways cost.
fn answer(fit: &Fit) -> String {
    let one = &fit.together;
    let mut lines = vec![match (fit.workloads.len(), one.shared.0) {
        (1, _) => format!("It was there for {}.", hours(one.shared)),
        (_, 0) => "They were never there at one time.".to_owned(),
        _ => format!("Two or more were there at one time for {}.", hours(one.shared)),
    }];
    if one.shared.0 > 0 {
        let busy = format!(
            "In that time {} kept {:.2} GPUs busy on average and {:.2} at most",
            if fit.workloads.len() == 1 { "it" } else { "they" },
            one.busy,
            one.busy_peak
        );
        let memory = one.memory_peak.map(|peak| format!(", and took at most {}", gibibytes(peak)));
        lines.push(format!("{busy}{}.", memory.unwrap_or_default()));
        let share = one.too_much.0 as f64 * 100.0 / one.shared.0 as f64;
        lines.push(match one.too_much.0 {
            0 => "It would never have been too much.".to_owned(),
            _ => format!(
                "It would have been too much for {}, {share:.1} % of the time, in {}: too much work for {}, too much memory for {}.",
                hours(one.too_much),
                counted(one.stretches as u64, "stretch").replace("stretchs", "stretches"),
                hours(one.too_busy),
                hours(one.too_full),
            ),
        });
    }
    if one.unmeasured.0 > 0 {
        lines.push(format!("For {} of it some use was not measured.", hours(one.unmeasured)));
    }
    if let (Some(apart), Some(joined), Some(currency)) = (fit.apart, fit.joined, &fit.currency) {
        let (they, of_any) = match fit.workloads.len() {
            1 => ("it", "all its time"),
            _ => ("they", "all the time of any of them"),
        };
        lines.push(format!(
            "What {they} held cost {} {currency} before terms; on one for {of_any} it would have cost {} {currency}.",
            CellUnit::Money.print(apart.0),
            CellUnit::Money.print(joined.0)
        ));
    }
    lines.iter().map(|line| wrap("", line)).collect()
}

fn workloads(fit: &Fit) -> ReportTable {
    let money = fit.currency.clone().unwrap_or_default();
    let number = |number: f64| ReportCell::Text(format!("{number:.2}"));
    let columns = [
        Column::new("workload", CellUnit::Text, |one: &FittedWorkload| {
            ReportCell::Text(shown(&one.name).into_owned())
        }),
        Column::new("there", CellUnit::Hours, |one: &FittedWorkload| TimeSum::from(one.present).into())
            .help("hours in which it was there, on one GPU or many"),
        Column::new("held", CellUnit::Hours, |one: &FittedWorkload| one.held.into()).help("GPU-hours"),
        Column::new("used", CellUnit::Hours, |one: &FittedWorkload| one.used.into()).help("GPU-hours"),
        Column::new("busy", CellUnit::Number, move |one: &FittedWorkload| number(one.busy))
            .help("GPUs that it kept busy on average while it was there"),
        Column::new("memory peak", CellUnit::Number, |one: &FittedWorkload| {
            one.memory_peak.map(gibibytes).map_or(ReportCell::Unknown, ReportCell::Text)
        }),
        Column::new("bandwidth", CellUnit::Number, |one: &FittedWorkload| {
            one.dram.map_or(ReportCell::Unknown, |share| ReportCell::Text(format!("{:.0} %", share * 100.0)))
        })
        .help("mean share of the memory bandwidth while it was alone on its GPU"),
        Column::new(money.clone(), CellUnit::Money, |one: &FittedWorkload| amount(one.amount))
            .help("what it held, before terms")
            .hidden_if(money.is_empty()),
    ];
    ReportTable::new(columns, &fit.workloads, None).for_people()
}

fn amount(amount: Option<Money>) -> ReportCell {
    amount.map_or(ReportCell::Unknown, |amount| ReportCell::Amount(amount.0))
}

fn worst(fit: &Fit, zone: &TimeZone) -> ReportTable {
    let time = |at: Utc| ReportCell::Text(readable(&local_time(at, zone)));
    let columns = [
        Column::new("from", CellUnit::Text, move |one: &FitStretch| time(one.from)),
        Column::new("to", CellUnit::Text, move |one: &FitStretch| time(one.to)),
        Column::new("busy", CellUnit::Number, |one: &FitStretch| {
            ReportCell::Text(format!("{:.2}", one.busy))
        }),
        Column::new("memory", CellUnit::Number, |one: &FitStretch| ReportCell::Text(gibibytes(one.memory))),
    ];
    ReportTable::new(columns, &fit.together.worst, None)
}

fn gibibytes(bytes: Bytes) -> String {
    format!("{:.1} GiB", bytes.0 as f64 / (1_u64 << 30) as f64)
}

fn hours(time: Nanoseconds) -> String {
    let minutes = (time.0 + 30_000_000_000) / 60_000_000_000;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}
