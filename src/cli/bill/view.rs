//! A bill with what a statement adds to it, as text, CSV or HTML.

use super::columns::report;
use super::csv;
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

pub(in crate::cli) fn print_bills(
    bills: &[Bill],
    by: &BillGrouping,
    view: &BillView<'_>,
    is_csv: bool,
    is_html: bool,
) -> Result<String, Failure> {
    if is_csv {
        return csv::page(bills, by, view.credits);
    }
    let reports: Vec<Report> = bills.iter().map(|bill| report(bill, by)).collect();
    let page = if is_html { html::page } else { text::page };
    Ok(page(&reports, view.head, view.tail))
}
