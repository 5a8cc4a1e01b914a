//! Tables as CSV (RFC 4180).
//!
//! Spreadsheets read a text that begins like a formula as one, so such a text has an apostrophe before it.

use csv::{Terminator, WriterBuilder};

use super::{CellUnit, ReportTable, TableColumn};
use crate::cli::Failure;
use crate::model::shown;

/// Tables of the same columns under one heading; nothing is left out but what has no name in CSV.
pub(in crate::cli) fn page(tables: &[ReportTable]) -> Result<String, Failure> {
    let heads =
        tables.first().map(|table| table.named_in_csv().map(|column| column.heading.csv.clone()).collect());
    let rows = tables.iter().flat_map(|table| {
        (0..table.rows).map(|row| table.named_in_csv().map(|column| field(column, row)).collect())
    });
    records(heads.into_iter().chain(rows))
}

impl ReportTable {
    fn named_in_csv(&self) -> impl Iterator<Item = &TableColumn> {
        self.columns.iter().filter(|column| !column.heading.csv.is_empty())
    }
}

fn field(column: &TableColumn, row: usize) -> String {
    let text = column.text(row).unwrap_or_default();
    if column.heading.unit == CellUnit::Text { safe_text(&text) } else { text.into_owned() }
}

pub(in crate::cli) fn records(records: impl Iterator<Item = Vec<String>>) -> Result<String, Failure> {
    let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
    for record in records {
        writer.write_record(&record).map_err(Failure::found)?;
    }
    String::from_utf8(writer.into_inner().map_err(Failure::found)?).map_err(Failure::found)
}

/// A text as it is shown, which no spreadsheet takes for a formula. The lone dash of usage without a label is none.
fn safe_text(text: &str) -> String {
    let text = shown(text);
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text != "-";
    if is_formula { format!("'{text}") } else { text.into_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_would_break_the_line_is_quoted() {
        let record = ["lab.service", "a,\"b\"", "c\r\nd"].map(str::to_owned).to_vec();
        let page = records([record].into_iter()).unwrap();
        assert_eq!(page, "lab.service,\"a,\"\"b\"\"\",\"c\r\nd\"\r\n");
    }

    #[test]
    fn a_text_that_looks_like_a_formula_has_an_apostrophe() {
        for text in ["=1+1", "+1", "-1", "@sum", "--"] {
            assert_eq!(safe_text(text), format!("'{text}"));
        }
        assert_eq!(["\t=1", "\r=1"].map(safe_text), ["\\t=1", "\\r=1"]);
        for text in ["", "-", "a=1", "'=1", "lab-1", "__unallocated__"] {
            assert_eq!(safe_text(text), text);
        }
    }
}
