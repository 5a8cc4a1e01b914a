//! Reports as text.

use super::{CellUnit, Report, ReportPart, ReportTable, TableColumn};
use crate::model::shown;

pub(in crate::cli) fn page(reports: &[Report], head: &[String], tail: &[String]) -> String {
    let pages: Vec<String> = reports.iter().map(report).collect();
    let before = if head.is_empty() { String::new() } else { lines(head) + "\n" };
    let after = if tail.is_empty() { String::new() } else { format!("\n{}", lines(tail)) };
    before + &pages.join("\n") + &after
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

pub(in crate::cli) fn report(report: &Report) -> String {
    let mut page = format!("{}\n{}{}", report.title, lines(&report.head), lines(&report.marks));
    for part in &report.parts {
        match part {
            ReportPart::Table(caption, of_part) => page += &format!("\n{caption}{}", table(of_part)),
            ReportPart::Note(note) => page += &format!("\n{note}"),
            ReportPart::Plot(_) => {}
        }
    }
    if !report.legend.is_empty() {
        let width = report.legend.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let entry = |(name, meaning): &(String, String)| format!("{name:width$}  {meaning}\n");
        page += &format!("\n{}", report.legend.iter().map(entry).collect::<String>());
    }
    page
}

/// Columns that a table has at most, where one space between its columns makes it fit.
const WIDTH: usize = 100;

/// Names are aligned to the left, and all other columns to the right.
pub(in crate::cli) fn table(table: &ReportTable) -> String {
    let cells = |column: &TableColumn| -> Vec<String> {
        let rows = (0..column.cells.len()).map(|row| column.text(row).unwrap_or("-".into()));
        let all = [column.heading.name.as_str().into()].into_iter().chain(rows);
        all.map(|text| shown(&text).into_owned()).collect()
    };
    let columns: Vec<Vec<String>> = table.columns.iter().map(cells).collect();
    let width = |cells: &Vec<String>| cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let is_wide = widths.iter().map(|width| width + 2).sum::<usize>() > WIDTH + 2;
    let gap = if is_wide { " " } else { "  " };
    let mut page = String::new();
    for row in 0..=table.rows + usize::from(table.has_total) {
        let cells = table.columns.iter().zip(&columns).zip(&widths).map(|((column, cells), width)| {
            let cell = &cells[row];
            if column.heading.unit == CellUnit::Text {
                format!("{cell:width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        page += &format!("{}\n", cells.collect::<Vec<_>>().join(gap));
        page += row.checked_sub(1).and_then(|row| table.below.get(row)).map_or("", String::as_str);
    }
    page
}
