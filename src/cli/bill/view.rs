//! A bill with what a statement adds to it, as text, CSV or HTML.

use std::slice::from_ref;

pub(in crate::cli) use super::by::BillGrouping;
pub(in crate::cli) use super::text::period;
use super::{csv, html, text};
use crate::billing::Bill;
use crate::billing::statement::GrantedCredit;

/// What a statement adds to its bill.
pub(in crate::cli) struct BillView<'a> {
    /// Lines before the bill.
    pub(in crate::cli) head: &'a [String],
    /// Lines after it.
    pub(in crate::cli) tail: &'a [String],
    /// Credits, as lines of CSV.
    pub(in crate::cli) credits: &'a [GrantedCredit],
}

/// The bill as CSV, HTML or text.
pub(in crate::cli) fn print_bill(
    bill: &Bill,
    by: &BillGrouping,
    view: &BillView<'_>,
    (is_csv, is_html): (bool, bool),
) -> String {
    if is_csv {
        return csv::table(from_ref(bill), by) + &csv::credits(bill, by, view.credits);
    }
    if is_html {
        return html::page_with(from_ref(bill), by, view.head, view.tail);
    }
    let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let tail = if view.tail.is_empty() { String::new() } else { format!("\n{}", lines(view.tail)) };
    format!("{}\n{}{tail}", lines(view.head), text::page(bill, by))
}
