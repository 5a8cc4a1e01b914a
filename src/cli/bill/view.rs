//! A bill with what a statement adds to it, as text, CSV or HTML.

use super::columns::{ShownColumns, report};
use super::csv;
pub(in crate::cli) use super::split::{SplitDirectory, within};
pub(in crate::cli) use super::text::period;
use crate::accounting::billing::statement::GrantedCredit;
use crate::accounting::billing::{Bill, BillGrouping};
use crate::cli::Failure;
use crate::cli::report::{Report, html, text};

/// What a statement adds to its bill.
#[derive(Default)]
pub(in crate::cli) struct BillView<'a> {
    pub(in crate::cli) head: &'a [String],
    pub(in crate::cli) tail: &'a [String],
    /// Credits, as lines of CSV.
    pub(in crate::cli) credits: &'a [GrantedCredit],
}

/// In which form a bill is printed.
#[derive(Debug)]
pub(in crate::cli) enum BillForm {
    Text(ShownColumns),
    Html(ShownColumns),
    Csv,
}

impl BillForm {
    /// HTML has the columns for which a page has room, and text all, unless some are named.
    pub(in crate::cli) fn new(is_csv: bool, is_html: bool, columns: &[String]) -> Self {
        match () {
            () if is_csv => Self::Csv,
            () if is_html => Self::Html(page_columns(columns)),
            () if columns.is_empty() => Self::Text(ShownColumns::Every),
            () => Self::Text(ShownColumns::Named(columns.to_vec())),
        }
    }
}

pub(in crate::cli) fn page_columns(columns: &[String]) -> ShownColumns {
    if columns.is_empty() { ShownColumns::Page } else { ShownColumns::Named(columns.to_vec()) }
}

pub(in crate::cli) fn unknown_column(problem: String) -> Failure {
    Failure::wrong(format!("--columns: {problem}"))
}

pub(in crate::cli) fn print_bills(
    bills: &[Bill],
    by: &BillGrouping,
    view: &BillView<'_>,
    form: &BillForm,
) -> Result<String, Failure> {
    let (BillForm::Html(columns) | BillForm::Text(columns)) = form else {
        return csv::page(bills, by, view.credits);
    };
    let reports: Result<Vec<Report>, String> = bills.iter().map(|bill| report(bill, by, columns)).collect();
    let page = if matches!(form, BillForm::Html(_)) { html::page } else { text::page };
    Ok(page(&reports.map_err(unknown_column)?, view.head, view.tail))
}
