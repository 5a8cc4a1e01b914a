//! Reports as one HTML file to send on: it has no script, loads nothing, and every text in it is escaped.

use super::{CellUnit, DayPlot, PAGE_COLUMNS, Report, ReportCell, ReportPart, ReportTable, TableColumn};
use crate::model::{printable, shown};

const STYLE: &str = "
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1d22; --line: #c9ccd3; --mark: #8a1c1c; --bar: #dbe7f6; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15171b; --text: #e7e8ea; --line: #454a54; --mark: #ff9c93; --bar: #23344c; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; overflow-wrap: anywhere; }
.mark { color: var(--mark); font-weight: 700; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: 15px; font-weight: 700; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .4rem; text-align: right; overflow-wrap: normal; }
td { background: linear-gradient(var(--bar), var(--bar)) right / 0 100% no-repeat; }
th.name { text-align: left; font-weight: 400; min-width: 9rem; max-width: 24rem; overflow-wrap: anywhere; }
thead th, thead th.name, tfoot th.name, tfoot td { font-weight: 700; }
.days { display: flex; gap: 2px; height: 14rem; max-width: 48rem; margin-bottom: 1.5rem; font-size: 11px; }
.days div { flex: 1; display: flex; flex-direction: column-reverse; align-items: center; min-width: 0; }
.days i { width: 90%; }
.key { margin-right: 1rem; white-space: nowrap; } .key i { display: inline-block; width: .8rem; height: .8rem; }
.series-0 { background: #3b76c4; } .series-1 { background: #c8662b; } .series-2 { background: #3f9a5f; }
.series-3 { background: #8a63b8; } .series-4 { background: #b8912e; } .series-5 { background: #8b8f98; }
dt { font-weight: 700; } dd { margin: 0 0 .3rem 1.5rem; }
@page { size: A4 portrait; margin: 15mm; }
@media print {
  :root { color-scheme: light; --back: #ffffff; --text: #000000; --line: #9aa0ab; --mark: #8a1c1c; --bar: #ffffff; }
  body { font-size: 9.5pt; margin: 0; max-width: none; padding: 0; }
  .table { overflow: visible; }
  table { font-size: 8pt; margin-bottom: 4mm; width: 100%; }
  caption { font-size: 9.5pt; }
  th, td { padding: .15rem .2rem; white-space: nowrap; }
  th.name { min-width: 7em; white-space: normal; }
  thead th:not(.name) { vertical-align: bottom; }
  tr, dt, section { break-inside: avoid; } dt, h2, caption { break-after: avoid; }
  tfoot { display: table-row-group; }
  .days { height: 60mm; } .days i, .key i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
";

pub(in crate::cli) fn page(reports: &[Report], head: &[String], tail: &[String]) -> String {
    let title = escape(reports.first().map_or("", |report| &report.title));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{}{}{}</main>\n</body>\n</html>\n",
        paragraphs(&head.join("\n")),
        reports.iter().map(section).collect::<String>(),
        paragraphs(&tail.join("\n"))
    )
}

fn section(report: &Report) -> String {
    let mut page = paragraphs(&report.head.join("\n"));
    page.extend(report.marks.iter().map(|mark| format!("<p class=\"mark\">{}</p>\n", escape(mark))));
    page.extend(report.parts.iter().map(|part| match part {
        ReportPart::Table(caption, of_part) => table(caption.trim_end(), of_part),
        ReportPart::Note(note) => paragraphs(note),
        ReportPart::Plot(plot) => days(plot),
    }));
    if !report.legend.is_empty() {
        let entry = |(name, meaning): &(String, String)| {
            format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(meaning))
        };
        page +=
            &format!("<h2>Legend</h2>\n<dl>\n{}</dl>\n", report.legend.iter().map(entry).collect::<String>());
    }
    page
}

fn paragraphs(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("<p>{}</p>\n", escape(line))).collect()
}

/// A table of more columns than a page has room for goes on below, with the names of its rows again.
fn table(caption: &str, table: &ReportTable) -> String {
    let (names, amounts): (Vec<&TableColumn>, Vec<&TableColumn>) =
        table.columns.iter().partition(|column| column.heading.unit == CellUnit::Text);
    let room = PAGE_COLUMNS.saturating_sub(names.len()).max(1);
    let parts = amounts.chunks(room).enumerate().map(|(number, amounts)| {
        let caption = if number == 0 { caption.to_owned() } else { format!("{caption}, more columns") };
        table_part(&caption, table, &[&names, amounts].concat())
    });
    match amounts.len() {
        0 => table_part(caption, table, &names),
        _ => parts.collect(),
    }
}

fn table_part(caption: &str, table: &ReportTable, columns: &[&TableColumn]) -> String {
    let heads = columns.iter().map(|column| match column.heading.unit {
        CellUnit::Text => head_cell("col", &column.heading.name),
        _ => format!("<th scope=\"col\">{}</th>", escape(&column.heading.name)),
    });
    let line = |row: usize| {
        let cells = columns.iter().map(|column| match column.heading.unit {
            CellUnit::Text => head_cell("row", &column.text(row).unwrap_or_default()),
            _ => amount_cell(column, row, table.rows),
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let caption = escape(caption);
    let foot = if table.has_total { format!("<tfoot>{}</tfoot>\n", line(table.rows)) } else { String::new() };
    format!(
        "<div class=\"table\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n<table>\n<caption>{caption}</caption>\n\
         <thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n{foot}</table>\n</div>\n",
        heads.collect::<String>(),
        (0..table.rows).map(line).collect::<String>(),
    )
}

/// A name that heads a column or a row; the total has no second name.
fn head_cell(scope: &str, text: &str) -> String {
    if text.is_empty() {
        return "<td></td>".to_owned();
    }
    format!("<th scope=\"{scope}\" class=\"name\">{}</th>", escape_name(text))
}

/// A number above a bar of its share of the largest one in the column; the total, which is after the rows, has none.
fn amount_cell(column: &TableColumn, row: usize, rows: usize) -> String {
    let amount = |cell: &ReportCell| if let ReportCell::Amount(amount) = cell { (*amount).max(0) } else { 0 };
    let largest = column.cells[..rows].iter().map(amount).max().unwrap_or(0).max(1);
    let share = if row < rows { amount(&column.cells[row]) * 100 / largest } else { 0 };
    let bar = if share > 0 { format!(" style=\"background-size: {share}% 100%\"") } else { String::new() };
    format!("<td{bar}>{}</td>", escape(&column.text(row).unwrap_or("-".into())))
}

fn days(plot: &DayPlot) -> String {
    let sum = |amounts: &[i128]| amounts.iter().sum::<i128>();
    let largest = plot.days.iter().map(|(_, amounts)| sum(amounts)).max().unwrap_or(0).max(1);
    let key = plot.series.iter().enumerate().map(|(number, name)| {
        format!("<span class=\"key\"><i class=\"series-{number}\"></i> {}</span> ", escape_name(name))
    });
    let day = |(date, amounts): &(String, Vec<i128>)| {
        let date = escape(date);
        // A tenth of the height is left for the date.
        let bars = amounts.iter().enumerate().filter(|(_, amount)| **amount > 0).map(|(number, amount)| {
            format!("<i class=\"series-{number}\" style=\"height: {}%\"></i>", amount * 90 / largest)
        });
        let label = date.get(8..).unwrap_or(&date);
        let bars: String = bars.collect();
        format!("<div title=\"{date}: {}\"><span>{label}</span>{bars}</div>\n", plot.unit.print(sum(amounts)))
    };
    let title = escape(&plot.title);
    format!(
        "<section>\n<h2>{title}</h2>\n<p>{}</p>\n<p>The highest day: {}</p>\n<div class=\"days\" role=\"img\" aria-label=\"{title}\">\n{}</div>\n</section>\n",
        key.collect::<String>(),
        plot.unit.print(largest),
        plot.days.iter().map(day).collect::<String>()
    )
}

/// A name as content of an element; the text around it keeps its direction.
fn escape_name(name: &str) -> String {
    format!("<bdi>{}</bdi>", escape(&shown(name)))
}

/// A text as content of an element or a quoted attribute.
fn escape(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::super::{Column, text};
    use super::*;

    fn report(names: &[&str]) -> Report {
        let columns = [
            Column::new("tenant", CellUnit::Text, |name: &&str| (*name).to_owned().into()),
            Column::new("EUR", CellUnit::Money, |name: &&str| {
                ReportCell::Amount(i128::from(*name != "free") * 2_000_000_000)
            })
            .help("<i>money</i>"),
        ];
        let table = ReportTable::new(columns, names, Some(&"total")).for_people();
        let days = [1, 2].map(|day| (format!("2026-11-0{day}"), vec![day, 3]));
        let series = names.iter().map(|name| (*name).to_owned()).collect();
        let plot = DayPlot { title: names.concat(), unit: CellUnit::Money, series, days: days.into() };
        Report {
            title: names.concat(),
            head: vec![names.concat()],
            marks: vec![names.concat()],
            legend: table.legend(),
            parts: vec![
                ReportPart::Table(names.concat() + "\n", table),
                ReportPart::Note(format!("{}\nreconciles\n", names.concat())),
                ReportPart::Plot(plot),
            ],
        }
    }

    fn page(names: &[&str]) -> String {
        super::page(&[report(names)], &[names.concat()], &[names.concat()])
    }

    /// The names of all elements, and whether every tag is closed in order.
    fn elements(page: &str) -> Vec<String> {
        let mut open: Vec<&str> = Vec::new();
        let mut names = Vec::new();
        for tag in page.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
            match tag {
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{tag}"),
                _ if tag.ends_with('/') || ["!DOCTYPE", "meta"].contains(&name) => {}
                _ => open.push(name),
            }
            names.push(name.to_owned());
        }
        assert!(open.is_empty(), "{open:?}");
        names
    }

    #[test]
    fn no_name_becomes_an_element_or_leaves_its_attribute() {
        let long = "x".repeat(3_000);
        let hostile = [
            "<script>alert(1)</script>",
            "\"><img src=x onerror=alert(1)>",
            "]]>",
            "</svg></style>",
            "' onload='x",
            "&lt;b&gt;",
            "\u{202e}gnp.exe",
            "\u{05d0}\u{05d1}\u{05d2} (1)",
            "a\u{0}b\u{1b}[31m",
            &long,
        ];
        let known = elements(&page(&["plain"]));
        for name in hostile {
            let told = page(&[name]);
            assert_eq!(elements(&told), known, "{name}");
            for broken in ["<script", "<img", "]]>", "\u{0}", "\u{1b}"] {
                assert!(!told.contains(broken), "{name}: {broken:?}");
            }
        }
        let told = page(&["&lt;b&gt;", "<b>"]);
        assert!(
            told.contains("<bdi>&amp;lt;b&amp;gt;</bdi>") && told.contains("<bdi>&lt;b&gt;</bdi>"),
            "{told}"
        );
    }

    #[test]
    fn the_file_loads_nothing_and_says_so_to_the_browser() {
        let told = page(&["plain"]);
        assert!(told.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""), "{told}");
        for outside in ["http:", "https:", "//", "url(", "@import", "<script", "<link", "src="] {
            let head = told.replace("default-src", "").replace("style-src", "");
            assert!(!head.contains(outside), "{outside}: {told}");
        }
    }

    #[test]
    fn it_has_what_the_text_has() {
        let report = report(&["lab", "free"]);
        let told = super::page(std::slice::from_ref(&report), &[], &[]);
        let text = text::report(&report);
        for word in text.split_whitespace().filter(|word| !word.contains('<')) {
            assert!(told.contains(word), "{word}: {told}");
        }
        assert!(told.contains("<dt>EUR</dt><dd>&lt;i&gt;money&lt;/i&gt;</dd>"), "{told}");
    }

    #[test]
    fn a_bar_is_a_share_of_the_largest_number_of_its_column_or_of_the_highest_day() {
        let told = page(&["lab", "free"]);
        assert!(told.contains("<td style=\"background-size: 100% 100%\">2.0000</td>"), "{told}");
        assert!(told.contains("<td>0.0000</td>") && told.contains("<td>2.0000</td>"), "{told}");
        assert!(told.contains("<i class=\"series-0\" style=\"height: 18%\"></i>"), "{told}");
    }
}
