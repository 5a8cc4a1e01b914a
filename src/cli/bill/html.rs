//! The bill as one HTML file to send on: it has no script, loads nothing, and every text in it is escaped.

use std::cmp::Reverse;

use super::by::BillGrouping;
use super::days;
use super::rounding::decimal;
use super::sheet::{BillRow, Sheet};
use super::text::{NO_TIME, marks, notes, pending, period, title};
use crate::billing::Bill;
use crate::model::{printable, shown};

/// Groups that a plot has at most; the others are summed.
const MOST_BARS: usize = 12;
/// Characters of a group's name in a plot; the whole name is in its title.
const NAME_LENGTH: usize = 28;

/// Measures of a plot, in the units of its view box.
const WIDTH: usize = 760;
const NAMES_WIDTH: usize = 220;
const BARS_WIDTH: u128 = 440;
const BAR_HEIGHT: usize = 14;
const GAP: usize = 8;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1d22; --line: #c9ccd3; --mark: #8a1c1c; --first: #2f66ad; --second: #b85c12; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15171b; --text: #e7e8ea; --line: #454a54; --mark: #ff9c93; --first: #7fabea; --second: #e59d58; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; overflow-wrap: anywhere; }
.mark { color: var(--mark); font-weight: 700; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: 15px; font-weight: 700; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .4rem; text-align: right; overflow-wrap: normal; }
th.name { text-align: left; font-weight: 400; min-width: 9rem; max-width: 24rem; overflow-wrap: anywhere; }
thead th, thead th.name, tfoot th.name, tfoot td { font-weight: 700; }
svg { display: block; max-width: 760px; width: 100%; height: auto; margin: .5rem 0 1.5rem; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; unicode-bidi: isolate; }
.first { fill: var(--first); } .second { fill: var(--second); }
.key { margin-right: 1rem; white-space: nowrap; } .key i { display: inline-block; width: .8rem; height: .8rem; }
.series-0 { fill: #3b76c4; background: #3b76c4; } .series-1 { fill: #c8662b; background: #c8662b; }
.series-2 { fill: #3f9a5f; background: #3f9a5f; } .series-3 { fill: #8a63b8; background: #8a63b8; }
.series-4 { fill: #b8912e; background: #b8912e; } .series-5 { fill: #8b8f98; background: #8b8f98; }
dt { font-weight: 700; } dd { margin: 0 0 .3rem 1.5rem; }
";

/// The whole file of the bills, which are of one account.
pub(super) fn page(bills: &[Bill], by: &BillGrouping) -> String {
    page_with(bills, by, &[], &[])
}

/// The page with lines before and after the bills.
pub(super) fn page_with(bills: &[Bill], by: &BillGrouping, head: &[String], tail: &[String]) -> String {
    let heading = escape(&bills.first().map(title).unwrap_or_default());
    let sections = bills.iter().map(|bill| match bills {
        [_] => section(bill, by),
        _ => {
            format!("<h2>{}, {}</h2>\n{}", escape(&title(bill)), escape(currency(bill)), section(bill, by))
        }
    });
    let sections: String = sections.collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{heading}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{heading}</h1>\n{}{sections}{}</main>\n</body>\n</html>\n",
        paragraphs(&head.join("\n")),
        paragraphs(&tail.join("\n"))
    )
}

/// The currency, in words where there is none.
fn currency(bill: &Bill) -> &str {
    bill.currency.as_deref().unwrap_or("without prices")
}

/// The period of a bill, its table and its plots.
fn section(bill: &Bill, by: &BillGrouping) -> String {
    let sheet = Sheet::new(bill, by);
    let mut parts = vec![format!("<p>{}</p>\n", escape(&period(bill)))];
    parts.extend(marks(bill).iter().map(|mark| format!("<p class=\"mark\">{}</p>\n", escape(mark))));
    if sheet.rows.is_empty() {
        parts.extend([paragraphs(NO_TIME), paragraphs(&pending(bill))]);
    } else {
        parts.extend([
            table(bill, &sheet, by),
            paragraphs(&notes(bill, &sheet.total)),
            days::draw(bill, by),
            plots(bill, &sheet.rows, by),
            legend(bill, &sheet, by),
        ]);
    }
    parts.concat()
}

fn paragraphs(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("<p>{}</p>\n", escape(line))).collect()
}

fn table(bill: &Bill, sheet: &Sheet, by: &BillGrouping) -> String {
    let names = by.names().len();
    let heads = sheet.heads(bill, by);
    let heads: String =
        heads.iter().enumerate().map(|(place, head)| head_cell(place < names, "col", head)).collect();
    let line = |row: &BillRow| {
        let names = row.names.iter().map(|name| head_cell(true, "row", name));
        let cells = sheet.cells(bill, row).into_iter().map(|cell| format!("<td>{}</td>", escape(&cell)));
        format!("<tr>{}</tr>\n", names.chain(cells).collect::<String>())
    };
    let lines: String = sheet.rows.iter().map(line).collect();
    format!(
        "<div class=\"table\" role=\"region\" aria-label=\"bill, {}\" tabindex=\"0\">\n<table>\n<caption>GPU time in hours</caption>\n\
         <thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n<tfoot>{}</tfoot>\n</table>\n</div>\n",
        escape(currency(bill)),
        line(&sheet.total)
    )
}

/// A cell that heads a column or a row; the total has no second name.
fn head_cell(is_name: bool, scope: &str, text: &str) -> String {
    if text.is_empty() {
        return "<td></td>".to_owned();
    }
    let class = if is_name { " class=\"name\"" } else { "" };
    format!("<th scope=\"{scope}\"{class}>{}</th>", escape_name(text))
}

/// One or two amounts of each group.
struct Plot {
    title: String,
    /// What the bars of a group are.
    bars: Vec<PlotBar>,
}

/// The meaning of a bar.
struct PlotBar {
    name: &'static str,
    of: fn(&BillRow) -> u128,
}

/// A group in a plot, with the value of each of its bars.
struct PlotGroup {
    name: String,
    values: Vec<u128>,
}

fn plots(bill: &Bill, rows: &[BillRow], by: &BillGrouping) -> String {
    let by = by.names().join(" and ");
    let mut plots = vec![
        Plot {
            title: format!("GPU time held and used by {by}, in hours"),
            bars: vec![
                PlotBar { name: "held", of: BillRow::held },
                PlotBar { name: "used", of: |row| row.used },
            ],
        },
        Plot {
            title: format!("GPU time held and used by nobody (idle) by {by}, in hours"),
            bars: vec![PlotBar { name: "idle", of: |row| row.parts[2] }],
        },
        Plot {
            title: format!("Energy by {by}, in kWh"),
            bars: vec![PlotBar { name: "energy", of: |row| row.energy.unwrap_or(0) }],
        },
    ];
    if let Some(currency) = &bill.currency {
        plots.push(Plot {
            title: format!("Money by {by}, in {currency}"),
            bars: vec![PlotBar { name: "money", of: |row| row.money.max(0).unsigned_abs() }],
        });
    }
    plots.iter().enumerate().map(|(number, plot)| draw(plot, number, rows)).collect()
}

/// The groups with the largest values, and the sum of the others.
fn largest(plot: &Plot, rows: &[BillRow]) -> Vec<PlotGroup> {
    let group = |row: &BillRow| PlotGroup {
        name: row.names.join(" / "),
        values: plot.bars.iter().map(|bar| (bar.of)(row)).collect(),
    };
    let mut groups: Vec<PlotGroup> = rows.iter().map(group).collect();
    groups.retain(|group| group.values.iter().any(|value| *value > 0));
    groups.sort_by_key(|group| Reverse(group.values.iter().max().copied()));
    if groups.len() > MOST_BARS {
        let others = groups.split_off(MOST_BARS - 1);
        let sum = |place: usize| others.iter().map(|group| group.values[place]).sum();
        let values = (0..plot.bars.len()).map(sum).collect();
        groups.push(PlotGroup { name: format!("others ({})", others.len()), values });
    }
    groups
}

/// A plot as a section; nothing where every value is zero.
fn draw(plot: &Plot, number: usize, rows: &[BillRow]) -> String {
    let groups = largest(plot, rows);
    let Some(largest) = groups.iter().flat_map(|group| &group.values).max() else { return String::new() };
    let height = plot.bars.len() * BAR_HEIGHT + GAP;
    let drawn =
        groups.iter().enumerate().map(|(place, group)| draw_group(plot, group, place * height, *largest));
    let key = if plot.bars.len() > 1 {
        format!("<p>Upper bar: {}; lower bar: {}.</p>\n", plot.bars[0].name, plot.bars[1].name)
    } else {
        String::new()
    };
    let title = escape(&plot.title);
    format!(
        "<section>\n<h2>{title}</h2>\n{key}<svg role=\"img\" aria-labelledby=\"plot-{number}\" viewBox=\"0 0 {WIDTH} {}\">\n\
         <title id=\"plot-{number}\">{title}</title>\n{}</svg>\n</section>\n",
        groups.len() * height,
        drawn.collect::<String>()
    )
}

/// The name and the bars of a group; `top` is its upper edge, and `largest` the largest value of the plot.
fn draw_group(plot: &Plot, group: &PlotGroup, top: usize, largest: u128) -> String {
    let PlotGroup { name, values } = group;
    let told = plot.bars.iter().zip(values).map(|(bar, value)| format!("{} {}", bar.name, decimal(*value)));
    let told = format!("{}: {}", shown(name), told.collect::<Vec<_>>().join(", "));
    let bars = values.iter().zip(["first", "second"]).enumerate().map(|(place, (value, class))| {
        let y = top + place * BAR_HEIGHT;
        let width = value * BARS_WIDTH / largest.max(1);
        let end = NAMES_WIDTH as u128 + width;
        format!(
            "<rect class=\"{class}\" x=\"{NAMES_WIDTH}\" y=\"{y}\" width=\"{width}\" height=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            BAR_HEIGHT - 2,
            end + 6,
            y + BAR_HEIGHT - 4,
            decimal(*value)
        )
    });
    format!(
        "<g><title>{}</title><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>{}</g>\n",
        escape(&told),
        NAMES_WIDTH - 8,
        top + plot.bars.len() * BAR_HEIGHT / 2 + 4,
        escape(&shortened(name)),
        bars.collect::<String>()
    )
}

/// The begin of a long name.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_LENGTH {
        return name.to_owned();
    }
    name.chars().take(NAME_LENGTH - 1).chain(['…']).collect()
}

fn legend(bill: &Bill, sheet: &Sheet, by: &BillGrouping) -> String {
    let entries = sheet.legend(bill, by.whose());
    let entry = |(name, meaning): &(String, String)| {
        format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(meaning))
    };
    format!("<h2>Legend</h2>\n<dl>\n{}</dl>\n", entries.iter().map(entry).collect::<String>())
}

/// A name as content of an element; the text around it keeps its direction.
pub(super) fn escape_name(name: &str) -> String {
    format!("<bdi>{}</bdi>", escape(&shown(name)))
}

/// A text as content of an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::super::by::BillProperty;
    use super::*;
    use crate::billing::made;

    fn bill(tenants: &[&str], other: &Value) -> Bill {
        let hour = 3_600_000_000_000_u64;
        let line = |tenant: &&str| {
            made::line(
                &json!({"tenant": tenant, "held_ns": hour, "idle_ns": hour, "charged_ns": hour, "money": "2.000000000"}),
            )
        };
        let mut fields = json!({"from_local": "2026-11-01T00:00:00+00:00", "to_local": "2026-11-01T01:00:00+00:00",
            "time_zone": "UTC", "currency": "EUR", "lines": tenants.iter().map(line).collect::<Vec<Value>>()});
        fields.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        made::bill(&fields)
    }

    fn page(tenants: &[&str], other: &Value) -> String {
        super::page(&[bill(tenants, other)], &BillProperty::Tenant.into())
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
        let known = elements(&page(&["plain"], &json!({})));
        for name in hostile {
            let told = page(&[name], &json!({"node": name, "cluster": name, "time_zone": name}));
            assert_eq!(elements(&told), known, "{name}");
            for broken in ["<script", "<img", "]]>", "\u{0}", "\u{1b}"] {
                assert!(!told.contains(broken), "{name}: {broken:?}");
            }
        }
        let told = page(&["&lt;b&gt;", "<b>"], &json!({}));
        assert!(
            told.contains("<bdi>&amp;lt;b&amp;gt;</bdi>") && told.contains("<bdi>&lt;b&gt;</bdi>"),
            "{told}"
        );
    }

    #[test]
    fn the_file_loads_nothing_and_says_so_to_the_browser() {
        let told = page(&["plain"], &json!({}));
        assert!(told.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""), "{told}");
        for outside in ["http:", "https:", "//", "url(", "@import", "<script", "<link", "src="] {
            let head = told.replace("default-src", "").replace("style-src", "");
            assert!(!head.contains(outside), "{outside}: {told}");
        }
    }

    #[test]
    fn it_has_what_the_text_has() {
        let other = json!({"partial": true, "simulated": true, "example_prices": true});
        let (marked, text) = (
            page(&["lab"], &other),
            super::super::text::page(&bill(&["lab"], &other), &BillProperty::Tenant.into()),
        );
        let (before_legend, _) = text.rsplit_once("\n\n").unwrap();
        for line in before_legend.lines().filter(|line| line.contains(": ")) {
            assert!(marked.contains(&escape(line)), "{line}: {marked}");
        }
        for mark in ["PARTIAL: ", "SIMULATED: ", "EXAMPLE PRICES: "] {
            assert!(marked.contains(mark), "{mark}");
        }
        assert!(page(&["lab"], &json!({})).contains("<p>reconciles: "));
        for (name, meaning) in Sheet::new(&bill(&["lab"], &other), &BillProperty::Tenant.into())
            .legend(&bill(&["lab"], &other), "the tenant")
        {
            assert!(marked.contains(&format!("<dt>{name}</dt><dd>{}</dd>", escape(&meaning))), "{name}");
        }
        assert!(page(&[], &json!({})).contains(NO_TIME.trim_end()));
    }

    #[test]
    fn the_plots_have_the_largest_groups_and_the_sum_of_the_others() {
        let names: Vec<String> = (10..40).map(|number| format!("lab-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let told = page(&names, &json!({}));
        assert_eq!(told.matches("<svg role=\"img\"").count(), 3, "no energy was measured");
        assert!(told.contains("<title>others (19): held 19.0000, used 0.0000</title>"), "{told}");
        assert!(told.contains("<title>others (19): money 38.0000</title>"), "{told}");
        assert_eq!(told.matches("<th scope=\"row\"").count(), names.len() + 1);
    }
}
