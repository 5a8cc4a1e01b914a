//! `gpumeter demand`: how many GPUs were held, used and free in each hour of the week, and what the next week may be like.

use clap::Args;

use super::progress::ProgressMeter;
use super::text::{made_up, readable};
use super::{BillSource, Failure, json_text, print, print_data};
use crate::accounting::billing::{local_time, zone_name};
use crate::accounting::day_files;
use crate::accounting::planning::{Demand, DemandHour, DemandRequest, WorkloadStarts};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable, text};
use crate::cli::wrap;
use crate::model::{Nanoseconds, Utc, shown};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

#[derive(Args, Debug)]
pub(in crate::cli) struct DemandCommand {
    #[command(flatten)]
    source: BillSource,
    /// Only the nodes of this pool (node.pool).
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl DemandCommand {
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let demand = self.demand()?;
        if self.json {
            return print_data(&json_text(&demand)?);
        }
        print(&text::report(&self.report(&demand)?))
    }

    fn demand(&self) -> Result<Demand, Failure> {
        let request =
            DemandRequest { pool: self.pool.clone(), zone: self.source.request([None, None])?.zone };
        if let Some(directory) = &self.source.exports {
            let mut meter = ProgressMeter::default();
            let demand = day_files::make_demand(&self.source.fleet(directory)?, &request, |done, total| {
                meter.show(done, total);
                Ok(())
            });
            meter.clear();
            return demand.map_err(Failure::wrong);
        }
        if self.source.ledger.is_some() {
            return self.source.read("demand", |reader| reader.demand(&request));
        }
        let pool = self.pool.iter().map(|pool| ("pool", pool.clone()));
        let zone = self.source.time_zone.iter().map(|zone| ("time_zone", zone.clone()));
        self.source.ask("/api/v1/demand", pool.chain(zone), None, |text| serde_json::from_str(text))
    }

    fn report(&self, demand: &Demand) -> Result<Report, Failure> {
        let zone = &self.source.request([None, None])?.zone;
        let time = |at: Utc| readable(&local_time(at, zone));
        let of = demand.pool.as_deref().map(|pool| format!(" of pool {}", shown(pool))).unwrap_or_default();
        let hours_in = demand.time_zone.clone().unwrap_or_else(|| zone_name(zone, demand.to));
        let mut report = Report {
            title: format!("Demand for GPUs{of}, by hour of the week"),
            head: vec![
                format!(
                    "{} to {}, time zone {}",
                    time(demand.from),
                    time(demand.to),
                    zone_name(zone, demand.to)
                ),
                format!("hours of the week in time zone {hours_in}"),
            ],
            marks: made_up(demand.source.simulated, false).into_iter().collect(),
            ..Report::default()
        };
        let (table, starts) = (hours(demand), starts(demand));
        report.legend = table.legend();
        report.parts.push(ReportPart::Note(answer(demand)));
        report.parts.push(ReportPart::Table(String::new(), table));
        if !demand.workloads.is_empty() {
            report.legend.extend(starts.legend());
            report.parts.push(ReportPart::Table("From holding a GPU to its first use\n".to_owned(), starts));
        }
        let notes = demand.notes.iter().map(|note| wrap("- ", note));
        report.parts.push(ReportPart::Note(notes.collect::<String>()));
        Ok(report)
    }
}

/// The hours off-peak and how well weeks told the next one, in words.
fn answer(demand: &Demand) -> String {
    let of = |is_off: fn(&DemandHour) -> bool| {
        let places: Vec<bool> = demand.hours.iter().map(is_off).collect();
        ranges(&places)
    };
    let mut lines = vec![
        format!("Off-peak by use, at most half of the busiest hour: {}.", of(|hour| hour.off_peak_use)),
        format!("Off-peak by price: {}.", of(|hour| hour.off_peak_price)),
    ];
    if demand.tested > 0 {
        lines.push(format!(
            "Of {} hours of past weeks {} ({:.0} %) were within the range of the four weeks before.",
            demand.tested,
            demand.hits,
            demand.hits as f64 * 100.0 / demand.tested as f64
        ));
    }
    lines.iter().map(|line| wrap("", line)).collect()
}

/// Hours of the week in words, days with the same hours together.
fn ranges(hours: &[bool]) -> String {
    let of_day = |day: &[bool]| {
        let mut parts = Vec::new();
        let mut begin = None;
        for (hour, is_in) in day.iter().copied().chain([false]).enumerate() {
            match (begin, is_in) {
                (None, true) => begin = Some(hour),
                (Some(from), false) => {
                    parts.push(format!("{from:02}-{hour:02}"));
                    begin = None;
                }
                _ => {}
            }
        }
        parts.join(", ")
    };
    let days: Vec<String> = hours.chunks(24).map(of_day).collect();
    let mut listed = Vec::new();
    let mut first = 0;
    for day in 1..=days.len() {
        if days.get(day) == days.get(first) {
            continue;
        }
        let names = if day - first == 1 {
            DAYS[first].to_owned()
        } else {
            format!("{} to {}", DAYS[first], DAYS[day - 1])
        };
        if !days[first].is_empty() {
            listed.push(format!("{names} {}", days[first]));
        }
        first = day;
    }
    if listed.is_empty() { "none".to_owned() } else { listed.join("; ") }
}

fn hours(demand: &Demand) -> ReportTable {
    type Of = fn(&DemandHour) -> f64;
    let column = |name: &'static str, help: &'static str, of: Of| {
        Column::new(name, CellUnit::Number, move |one: &DemandHour| match one.quarters {
            0 => ReportCell::Unknown,
            _ => ReportCell::Text(format!("{:.1}", of(one))),
        })
        .help(help)
    };
    let currency = demand.currency.clone().unwrap_or_default();
    let columns = [
        Column::new("hour", CellUnit::Text, |one: &DemandHour| {
            format!("{} {:02}", DAYS.get(one.weekday - 1).unwrap_or(&"?"), one.hour).into()
        }),
        column("held", "GPUs held by tenants on average", |one| one.held.mean),
        column("held p95", "in 95 of 100 quarter hours at most so many", |one| one.held.p95),
        column("used", "GPUs used on average", |one| one.used.mean),
        column("idle", "GPUs held and not used on average", |one| one.idle.mean),
        column("free", "GPUs that nobody held on average", |one| one.unallocated.mean),
        Column::new("starts", CellUnit::Number, |one: &DemandHour| one.starts.to_string().into())
            .help("GPUs and instances on which a run began, in all weeks"),
        Column::new("at once", CellUnit::Number, |one: &DemandHour| one.most_starts.to_string().into())
            .help("the most of them in ten minutes"),
        Column::new(format!("{currency} per h"), CellUnit::Money, |one: &DemandHour| {
            one.price.map_or(ReportCell::Unknown, |price| ReportCell::Amount(price.0))
        })
        .help("what a GPU-hour cost in the last week, before terms")
        .hidden_if(currency.is_empty()),
        Column::new("next week", CellUnit::Number, |one: &DemandHour| {
            one.expected.map_or(ReportCell::Unknown, |of| {
                ReportCell::Text(format!("{:.1} ({:.1}-{:.1})", of.mean, of.lowest, of.highest))
            })
        })
        .help("GPUs that will be held if it is as the last four weeks: their mean, and from the least to the most"),
    ];
    ReportTable::new(columns, &demand.hours, None)
}

fn starts(demand: &Demand) -> ReportTable {
    let seconds = |wait: Option<Nanoseconds>| {
        wait.map_or(ReportCell::Unknown, |wait| ReportCell::Amount(i128::from(wait.0)))
    };
    let columns = [
        Column::new("workload", CellUnit::Text, |one: &WorkloadStarts| {
            ReportCell::Text(shown(&one.name).into_owned())
        }),
        Column::new("runs", CellUnit::Number, |one: &WorkloadStarts| one.runs.to_string().into()),
        Column::new("GPUs", CellUnit::Number, |one: &WorkloadStarts| one.most_starts.to_string().into())
            .help("the most GPUs and instances on which a run began in ten minutes"),
        Column::new("wait p50", CellUnit::Seconds, move |one: &WorkloadStarts| seconds(one.wait_p50))
            .help("seconds from holding a GPU to its first use; in half of the runs at most so many"),
        Column::new("wait p95", CellUnit::Seconds, move |one: &WorkloadStarts| seconds(one.wait_p95)),
        Column::new("waited", CellUnit::Hours, |one: &WorkloadStarts| one.waited.into())
            .help("GPU-hours from holding to first use in all runs"),
    ];
    ReportTable::new(columns, &demand.workloads, None).for_people()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_of_the_week_are_told_by_days_with_the_same_hours() {
        let mut hours = vec![false; 168];
        assert_eq!(ranges(&hours), "none");
        for day in 0..5 {
            (0..6).chain(22..24).for_each(|hour| hours[day * 24 + hour] = true);
        }
        hours[144..].fill(true);
        assert_eq!(ranges(&hours), "Mon to Fri 00-06, 22-24; Sun 00-24");
    }
}
