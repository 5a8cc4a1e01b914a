//! `gpumeter bill`: prints the bill of a running agent or the server of a fleet, of a ledger file that no agent is using, or over exports,
//! as text, CSV, HTML or JSON.

pub(super) mod advise;
mod against;
mod budget;
mod columns;
mod compare;
mod csv;
mod days;
pub(super) mod demand;
pub(super) mod explain;
mod explain_text;
pub(super) mod fit;
mod focus;
pub(super) mod job;
mod job_list;
mod job_report;
mod job_sum;
mod line_id;
mod progress;
mod split;
pub(super) mod text;
pub(super) mod view;
mod whole_text;

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::ToSpan;
use jiff::civil::Date;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use self::progress::ProgressMeter;
use self::view::BillView;
use super::agent::RunningAgent;
use super::{Failure, print, print_data, report};
use crate::accounting::advice::job_report;
use crate::accounting::billing::{
    Bill, BillGrouping, BillProperty, BillRequest, BillsJson, ExplainedWhole, Explanation, JobReport,
    LONGEST_BOOK, LineDetail, LineFilter, PriceBook, PropertyFilters, REMAINDERS, WholeRequest,
    bills_from_json, only_bill,
};
use crate::accounting::day_files::{self, ExportSource};
use crate::accounting::ledger::{self, Cause, Reader};
use crate::config::Config;
use crate::model::{HolderId, Utc};
use crate::runtime::clock::{system_now, system_zone};

#[derive(Args, Debug)]
struct BillSource {
    #[command(flatten)]
    agent: RunningAgent,
    /// A ledger file that no agent is using, instead of a running agent.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    ledger: Option<PathBuf>,
    /// A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["url", "ledger"])]
    exports: Option<PathBuf>,
    /// With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not
    /// report is __unobserved__.
    #[arg(long, value_name = "FILE", requires = "exports")]
    expect: Option<PathBuf>,
    /// With --exports, leave damaged files out; the bill names them.
    #[arg(long, requires = "exports")]
    skip_damaged: bool,
    /// Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the
    /// machine that makes the bill.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct BillCommand {
    #[command(flatten)]
    source: BillSource,
    /// Start of the period: a date, which means 00:00 in --time-zone, or a time such as 2026-11-01T08:00:00Z; by default the start of the month in which the period ends.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, not included: a date, which means 00:00, or a time; by default the end of the last complete
    /// minute.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// A whole month in --time-zone, such as 2026-11, instead of --from and --to.
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["from", "to"])]
    month: Option<String>,
    /// What the lines of text and CSV are grouped by: tenant, workload, gpu, model (product name), node, namespace,
    /// account, user, unit, uuid, class (price class), day, attribute:NAME (of the tenant), a label of gpu_workload_info
    /// such as k8s_pod_name, or two of these such as tenant,gpu. Usage without that label is in the line "-".
    #[arg(long, default_value = "tenant", value_name = "WHAT")]
    by: BillGrouping,
    /// Only the lines of this tenant; may be given several times.
    #[arg(long, value_name = "TENANT")]
    tenant: Vec<String>,
    /// Only the lines that have this value of a property of --by, such as node=n1; may be given several times, and of one property
    /// any of the values counts.
    #[arg(long, value_name = "PROPERTY=VALUE")]
    only: Vec<String>,
    /// Divide the money of unheld time among the tenants by charged time, in a column of its own; or that of these
    /// remainders, with commas between them.
    #[arg(long, value_name = "REMAINDERS", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = HolderId::UNALLOCATED, value_parser = REMAINDERS.map(|(name, _)| name))]
    spread: Vec<String>,
    /// Compare with another period: a month such as 2026-10, or FROM..TO.
    #[arg(long, value_name = "PERIOD", conflicts_with_all = ["csv", "html", "json", "split_by", "spread"])]
    compare: Option<String>,
    /// Write one HTML file for each tenant, or other group, into a directory.
    #[arg(long, num_args = 2, value_names = ["WHAT", "DIRECTORY"], conflicts_with_all = ["csv", "html", "json"])]
    split_by: Option<Vec<String>>,
    /// Prices and terms of a configuration file in place of the recorded ones. A running agent or the server of a fleet gets them,
    /// bills once with them, and keeps nothing.
    #[arg(long, value_name = "FILE")]
    book: Option<PathBuf>,
    /// With --book, what each group of --by costs by the recorded prices and by those of the book, and the difference.
    #[arg(long, requires = "book", conflicts_with_all = ["csv", "html", "json", "split_by", "spread", "compare"])]
    compare_book: bool,
    /// Print CSV: one line per group of --by and rate, with an id that explain takes and that stays the same while a month grows. A text that begins with =, +,
    /// - or @ has an apostrophe before it, so that no spreadsheet reads it as a formula; names are shown as in the table.
    #[arg(long, conflicts_with_all = ["json", "html"])]
    csv: bool,
    /// Print one HTML file to send on, with plots: it has no script and loads nothing.
    #[arg(long, conflicts_with = "json")]
    html: bool,
    /// Columns of the table in this order, with commas between them, such as amount,held,lent; a name of an amount in the table or in
    /// CSV, or an attribute of tenants. By default text has all that are not zero, and HTML as many as a printed page has room for.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["csv", "json", "compare", "compare_book", "focus", "against"])]
    columns: Vec<String>,
    /// Print JSON: one line per tenant, holder and GPU, exact, in nanoseconds; an array of bills where prices changed their currency.
    #[arg(long)]
    json: bool,
    /// List the tenants that cost more in --month, or in this month so far, than their budget (tenants.budgets), and exit
    /// with status 1 if there are any.
    #[arg(long, conflicts_with_all = ["from", "to", "by", "only", "spread", "compare", "compare_book", "split_by", "book", "csv", "html", "columns", "json"])]
    over_budget: bool,
    #[command(flatten)]
    against: against::AgainstOptions,
    #[command(flatten)]
    focus: focus::FocusOptions,
}

impl BillCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let [from, to] = match &self.month {
            Some(month) => days_of("--month", month)?.map(Some),
            None => [self.from.clone(), self.to.clone()],
        };
        if self.against.run(&self.source, [from.as_deref(), to.as_deref()], self.json)? {
            return Ok(());
        }
        let book = self.book.as_deref().map(read_book).transpose()?;
        if let Some(book) = book.as_ref().filter(|_| self.compare_book) {
            return self.compare_book(book, [from.as_deref(), to.as_deref()]);
        }
        let bills = self.bills([from.as_deref(), to.as_deref()], book.as_ref())?;
        if let Some(problem) = self.by.unknown(bills.iter()) {
            tracing::warn!("--by: {problem}");
        }
        let needs_one_currency = self.focus.is_asked_for()
            || self.over_budget
            || self.compare.is_some()
            || self.split_by.is_some();
        if needs_one_currency {
            let bill = in_one_currency(bills)?;
            return if self.over_budget { report_budgets(&bill) } else { self.write(bill, book.as_ref()) };
        }
        if self.csv && self.tenant.is_empty() && bills.iter().any(|bill| bill.partial) {
            tracing::warn!("the bill is partial: it has only the lines of tenants that this user may see");
        }
        let page = self.printed(&bills)?;
        if self.json || self.csv || self.html { print_data(&page) } else { print(&page) }?;
        balanced(&bills)
    }

    /// Prints both bills of one account side by side.
    fn compare_book(&self, book: &PriceBook, period: [Option<&str>; 2]) -> Result<(), Failure> {
        if self.filters()?.properties().any(|property| property.word() == Some("class")) {
            let text = "--only class selects other lines by each book; leave it out, or use --by class";
            return Err(Failure::wrong(text));
        }
        let new = in_one_currency(self.bills(period, Some(book))?)?;
        // The account of an agent goes on. Exports may end within a quarter hour, at which no bill over them may.
        let same = [new.from, new.to].map(|at| at.to_string());
        let same = same.each_ref().map(|at| Some(&**at));
        let old = in_one_currency(self.bills(if new.fleet.is_some() { period } else { same }, None)?)?;
        if let Some(problem) = self.by.unknown([&new].into_iter()) {
            tracing::warn!("--by: {problem}");
        }
        let compared = compare::report_books(&old, &new, &self.by).map_err(Failure::wrong)?;
        print(&report::text::report(&compared))?;
        balanced(&[old, new])
    }

    fn write(&self, bill: Bill, book: Option<&PriceBook>) -> Result<(), Failure> {
        if let Some(period) = &self.compare {
            let [from, to] = match period.split_once("..") {
                Some((from, to)) => [from, to].map(str::to_owned),
                None => days_of("--compare", period)?,
            };
            let other = in_one_currency(self.bills([Some(&*from), Some(&*to)], book)?)?;
            let compared = compare::report(&bill, &other, &self.by).map_err(Failure::wrong)?;
            print(&report::text::report(&compared))?;
        } else if let (Some(what), Some([_, directory])) = (self.split()?, self.split_by.as_deref()) {
            if let Some(problem) = what.unknown(std::iter::once(&bill)) {
                tracing::warn!("--split-by: {problem}");
            }
            let columns = view::page_columns(&self.columns);
            let by = split::within(&what, &self.by);
            print_data(&split::write(bill.clone(), &what, &by, &columns, Path::new(directory))?)?;
        } else {
            self.focus.write(&bill)?;
        }
        balanced(&[bill])
    }

    fn split(&self) -> Result<Option<BillGrouping>, Failure> {
        let what = self.split_by.as_ref().and_then(|split| split.first());
        let parse =
            |what: &String| what.parse().map_err(|error| Failure::wrong(format!("--split-by: {error}")));
        what.map(parse).transpose()
    }

    /// The bills of a period, each of a span in one currency, with what the options select and add.
    fn bills(&self, period: [Option<&str>; 2], book: Option<&PriceBook>) -> Result<Vec<Bill>, Failure> {
        let needs_days =
            self.by.needs_days() || self.html || self.split_by.is_some() || self.focus.is_asked_for();
        let detail = match self.split()? {
            _ if self.json || self.focus.is_asked_for() => LineDetail::whole(),
            // Each part says how many nodes it is of.
            Some(what) => {
                LineDetail { node: true, ..split::within(&what, &self.by).detail().and(what.detail()) }
            }
            None => self.by.detail(),
        };
        let only = self.filters()?;
        let detail = only.properties().fold(detail, |detail, property| detail.and(property.detail()));
        let detail = LineDetail { day: needs_days || detail.day, ..detail };
        let mut bills = self.source.bills("bill", period, detail, book)?;
        for bill in &mut bills {
            if !self.spread.is_empty() {
                bill.spread(&self.spread).map_err(Failure::found)?;
            }
            if !self.tenant.is_empty() {
                bill.keep_lines(|line| self.tenant.contains(&line.tenant));
            }
            if only.properties().next().is_some() {
                let mut selected = only.selected(bill).into_iter();
                bill.keep_lines(|_| selected.next() == Some(true));
            }
        }
        Ok(bills)
    }

    fn filters(&self) -> Result<PropertyFilters, Failure> {
        let mut filters = PropertyFilters::default();
        for text in &self.only {
            let wrong = |problem| Failure::wrong(format!("--only: {text:?}: {problem}"));
            let (name, value) =
                text.split_once('=').ok_or_else(|| wrong("write PROPERTY=VALUE".to_owned()))?;
            let property: BillProperty = name.parse().map_err(wrong)?;
            filters.add(property, value.to_owned()).map_err(wrong)?;
        }
        Ok(filters)
    }

    fn printed(&self, bills: &[Bill]) -> Result<String, Failure> {
        if self.json {
            return json_text(&BillsJson(bills));
        }
        let form = view::BillForm::new(self.csv, self.html, &self.columns);
        view::print_bills(bills, &self.by, &BillView::default(), &form)
    }
}

fn json_text(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(value).map_err(Failure::found)? + "\n")
}

/// Prints the tenants that are over their budget, and fails if there are any.
fn report_budgets(bill: &Bill) -> Result<(), Failure> {
    let over = budget::over_budget(bill);
    print(&report::text::report(&budget::report(bill, &over)))?;
    // What is set aside is in no tenant's costs, so that none may be over its budget.
    balanced(std::slice::from_ref(bill))?;
    match over.len() {
        0 => Ok(()),
        1 => Err(Failure::found("a tenant is over its budget")),
        over => Err(Failure::found(format!("{over} tenants are over their budgets"))),
    }
}

pub(super) fn in_one_currency(bills: Vec<Bill>) -> Result<Bill, Failure> {
    only_bill(bills).map_err(Failure::wrong)
}

/// Fails if the sums of a bill do not agree, or time is set aside.
fn balanced(bills: &[Bill]) -> Result<(), Failure> {
    if !bills.iter().all(Bill::is_balanced) {
        return Err(Failure::found("the bill does not reconcile"));
    }
    let conflicts = bills.iter().filter_map(|bill| bill.fleet.as_ref()).flat_map(|fleet| &fleet.conflicts);
    let conflicts: Vec<String> = conflicts.map(|conflict| format!("\n  {conflict}")).collect();
    if conflicts.is_empty() {
        return Ok(());
    }
    Err(Failure::found(format!(
        "two ledgers hold a GPU at one time, and its days are not billed; if one is a copy of the other, remove its files of \
         these days and bill again:{}",
        conflicts.concat()
    )))
}

fn read_book(path: &Path) -> Result<PriceBook, Failure> {
    let book = Config::read(path).map_err(Failure::wrong)?.prices;
    if book.currency().is_none() {
        let text = format!("{}: has no prices; give prices.rates with a currency", path.display());
        return Err(Failure::wrong(text));
    }
    Ok(book)
}

/// A book as a server takes it.
fn book_json(book: &PriceBook) -> Result<String, Failure> {
    let json = serde_json::to_string(book).map_err(Failure::found)?;
    if json.len() > LONGEST_BOOK {
        return Err(Failure::wrong(format!(
            "--book: its rates and terms are {} bytes as JSON, and a server takes {LONGEST_BOOK}; give fewer, or use --ledger or \
             --exports",
            json.len()
        )));
    }
    Ok(json)
}

/// The bills over exports, each of a span in one currency, with their progress on a terminal.
pub(super) fn fleet_bills(source: &ExportSource<'_>, request: &BillRequest) -> Result<Vec<Bill>, Failure> {
    let mut meter = ProgressMeter::default();
    let made = day_files::make_bills(source, request, |done, total| meter.show(done, total));
    meter.clear();
    made.map_err(Failure::wrong)
}

/// The request for that period; times without an offset are those of the time zone, by default that of this machine.
pub(super) fn request_of(
    [from, to]: [Option<&str>; 2],
    time_zone: Option<&str>,
) -> Result<BillRequest, Failure> {
    BillRequest::parse(parameters([from, to], time_zone), system_zone(), system_now().utc)
        .map_err(Failure::wrong)
}

/// The parameters of a period that are given, as the API has them.
fn parameters<'a>(
    [from, to]: [Option<&str>; 2],
    time_zone: Option<&str>,
) -> impl Iterator<Item = (&'a str, String)> {
    let all = [("from", from), ("to", to), ("time_zone", time_zone)];
    let given = all.map(|(name, value)| value.map(|value| (name, value.to_owned())));
    given.into_iter().flatten()
}

impl BillSource {
    /// The bills of a period, each of a span in one currency, with these prices in place of the recorded ones where there are
    /// some; `command` is named in errors.
    fn bills(
        &self,
        command: &str,
        period: [Option<&str>; 2],
        detail: LineDetail,
        book: Option<&PriceBook>,
    ) -> Result<Vec<Bill>, Failure> {
        if self.exports.is_none() && self.ledger.is_none() {
            let by = detail.day.then(|| ("by", "day".to_owned()));
            let parameters = parameters(period, self.time_zone.as_deref()).chain(by);
            let book = book.map(book_json).transpose()?;
            return self.ask("/api/v1/bill", parameters, book, bills_from_json);
        }
        let request = BillRequest { detail, book: book.cloned(), ..self.request(period)? };
        match &self.exports {
            Some(directory) => fleet_bills(&self.fleet(directory)?, &request),
            None => self.read(command, |reader| reader.bills(&request)),
        }
    }

    fn request(&self, period: [Option<&str>; 2]) -> Result<BillRequest, Failure> {
        request_of(period, self.time_zone.as_deref())
    }

    fn fleet<'a>(&self, directory: &'a Path) -> Result<ExportSource<'a>, Failure> {
        let expected =
            self.expect.as_deref().map(day_files::read_expected).transpose().map_err(Failure::wrong)?;
        Ok(ExportSource {
            expected: expected.unwrap_or_default(),
            skip_damaged: self.skip_damaged,
            ..ExportSource::of(directory)
        })
    }

    fn read<T>(
        &self,
        command: &str,
        read: impl FnOnce(&mut Reader) -> Result<T, ledger::Error>,
    ) -> Result<T, Failure> {
        let path = self.ledger.as_deref().unwrap_or(Path::new(""));
        check_unowned(path, command)?;
        Reader::open(path).and_then(|mut reader| read(&mut reader)).map_err(Failure::wrong)
    }

    /// The end of the account; of a running agent, now.
    fn account_end(&self, command: &str) -> Result<Utc, Failure> {
        match (&self.exports, &self.ledger) {
            (Some(directory), _) => {
                let source = ExportSource { skip_damaged: self.skip_damaged, ..ExportSource::of(directory) };
                source.exported_until().map_err(Failure::wrong)
            }
            (None, Some(_)) => self.read(command, |reader| reader.closed_until()),
            (None, None) => Ok(system_now().utc),
        }
    }

    fn explanation(
        &self,
        command: &str,
        period: [Option<&str>; 2],
        filter: LineFilter,
        detail: LineDetail,
    ) -> Result<Explanation, Failure> {
        if self.exports.is_none() && self.ledger.is_none() {
            let period = parameters(period, self.time_zone.as_deref());
            let parameters = period.chain(filter.parameters());
            return self.ask("/api/v1/explain", parameters, None, |text| serde_json::from_str(text));
        }
        let request = BillRequest { filter, detail, ..self.request(period)? };
        let Some(directory) = &self.exports else {
            return self.read(command, |reader| reader.explain(&request));
        };
        let bill = in_one_currency(fleet_bills(&self.fleet(directory)?, &request)?)?;
        for conflict in bill.fleet.iter().flat_map(|fleet| &fleet.conflicts) {
            tracing::warn!("{conflict}: this day of the GPU is left out");
        }
        Ok(Explanation::of_bill(bill))
    }

    /// The jobs of these parameters of the API.
    fn jobs<'a>(
        &self,
        period: [Option<&'a str>; 2],
        given: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<JobReport, Failure> {
        let parameters = parameters(period, self.time_zone.as_deref()).chain(given);
        if self.exports.is_none() && self.ledger.is_none() {
            return self.ask("/api/v1/jobs", parameters, None, |text| serde_json::from_str(text));
        }
        let request =
            JobReport::parse(parameters, system_zone(), system_now().utc).map_err(Failure::wrong)?;
        let Some(directory) = &self.exports else {
            return self.read("job", |reader| reader.jobs(&request));
        };
        let bill = in_one_currency(fleet_bills(&self.fleet(directory)?, &request)?)?;
        for conflict in bill.fleet.iter().flat_map(|fleet| &fleet.conflicts) {
            tracing::warn!("{conflict}: this day of the GPU is left out");
        }
        Ok(job_report(&Explanation::of_bill(bill), &request))
    }

    /// What the lines of a period that have these properties are made of.
    fn whole(&self, period: [Option<&str>; 2], filters: PropertyFilters) -> Result<ExplainedWhole, Failure> {
        if self.exports.is_none() && self.ledger.is_none() {
            let asked = filters.asked();
            let asked =
                asked.iter().flat_map(|(name, values)| values.iter().map(|value| (&**name, value.clone())));
            let parameters = parameters(period, self.time_zone.as_deref()).chain(asked);
            return self.ask("/api/v1/explain/whole", parameters, None, |text| serde_json::from_str(text));
        }
        let WholeRequest { bill, filters } = WholeRequest::of(self.request(period)?, filters);
        let bills = self.bills("explain", period, bill.detail, None)?;
        Ok(ExplainedWhole::of_bill(in_one_currency(bills)?, &filters))
    }

    fn ask<'a, T>(
        &self,
        path: &str,
        parameters: impl Iterator<Item = (&'a str, String)>,
        json: Option<String>,
        parse: impl FnOnce(&str) -> serde_json::Result<T>,
    ) -> Result<T, Failure> {
        let mut path = path.to_owned();
        for (name, value) in parameters {
            path += if path.contains('?') { "&" } else { "?" };
            path += &format!("{name}={}", encode(&value));
        }
        let body = self.agent.ask(&path, json)?;
        parse(&body).map_err(|error| {
            Failure::found(format!(
                "{}{path}: the response is not what an agent sends: {error}",
                self.agent.url
            ))
        })
    }
}

/// The first day of a month and that of the next; `option` is named in errors.
pub(super) fn days_of(option: &str, month: &str) -> Result<[String; 2], Failure> {
    let wrong = || Failure::wrong(format!("{option}: {month:?} is not a month; write it like 2026-11"));
    let first: Date = format!("{month}-01").parse().map_err(|_| wrong())?;
    let next = first.checked_add(1.month()).map_err(|_| wrong())?;
    Ok([first, next].map(|day| day.to_string()))
}

/// Percent-encodes a value for a query or an id.
fn encode(value: &str) -> String {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~')
        .remove(b':')
        .remove(b'/')
        .remove(b'@');
    utf8_percent_encode(value, PLAIN).to_string()
}

/// Checks that no running agent writes this ledger; if one does, the error says to ask that agent.
pub(super) fn check_unowned(path: &Path, command: &str) -> Result<(), Failure> {
    ledger::check_unowned(path).map_err(|error| match error.cause {
        Cause::Owned { .. } => Failure::wrong(format!(
            "{}: a running agent writes it; ask that agent with `gpumeter {command}` without --ledger",
            path.display()
        )),
        _ => Failure::wrong(error),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_from_its_first_day_to_that_of_the_next() {
        assert_eq!(days_of("--month", "2026-11").unwrap(), ["2026-11-01", "2026-12-01"]);
        assert_eq!(days_of("--month", "2026-12").unwrap(), ["2026-12-01", "2027-01-01"]);
        for wrong in ["", "11", "2026", "2026-13", "2026-11-01", "november"] {
            let message = days_of("--month", wrong).unwrap_err().message;
            assert_eq!(message, format!("--month: {wrong:?} is not a month; write it like 2026-11"));
        }
    }

    #[test]
    fn a_time_with_a_space_or_an_offset_is_encoded() {
        assert_eq!(encode("2026-11-01 08:00+01:00"), "2026-11-01%2008:00%2B01:00");
    }
}
