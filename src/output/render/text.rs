//! The two text formats, Prometheus text 0.0.4 and OpenMetrics 1.0.
//!
//! Heads of families and labels of series are kept rendered, so that a page of the same roster copies them, prints the
//! numbers and allocates nothing but the page.

use std::ops::Range;

use bytes::Bytes;

use super::label_cache::LabelCache;
use super::walk::{Labels, Sample, Sink, Value, start, walk};
use super::{PageFormat, decimal, float};
use crate::model::Utc;
use crate::model::catalogue::{Family, Kind, Level};
use crate::model::snapshot::{Histogram, Snapshot};

#[derive(Debug)]
pub(super) struct TextRenderer {
    format: PageFormat,
    level: Level,
    has_created: bool,
    cache: LabelCache,
    /// The start times of a family, which text 0.0.4 prints after the family.
    created_lines: Vec<u8>,
    /// Bytes of the last page.
    length: usize,
}

impl TextRenderer {
    pub(super) fn new(format: PageFormat, level: Level, has_created: bool) -> Self {
        Self {
            format,
            level,
            has_created,
            cache: LabelCache::default(),
            created_lines: Vec::new(),
            length: 0,
        }
    }

    pub(super) fn render(&mut self, snapshot: &Snapshot) -> Bytes {
        self.cache.begin(&snapshot.roster);
        let mut page = with_room(self.length);
        let level = self.level;
        let mut writer = PageWriter { snapshot, page: &mut page, renderer: self, family: None, head: 0..0 };
        walk(snapshot, level, &mut writer);
        writer.finish_family();
        if self.format == PageFormat::OpenMetrics {
            page.extend_from_slice(b"# EOF\n");
        }
        self.cache.finish(&snapshot.roster);
        self.length = page.len();
        page.into()
    }
}

/// A buffer for a page after one of that length; numbers get longer.
pub(super) fn with_room(length: usize) -> Vec<u8> {
    Vec::with_capacity(length + length / 32)
}

struct PageWriter<'a> {
    snapshot: &'a Snapshot,
    page: &'a mut Vec<u8>,
    renderer: &'a mut TextRenderer,
    family: Option<&'static Family>,
    /// The family's head until its first value: a family without values is left out.
    head: Range<usize>,
}

impl Sink for PageWriter<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        self.family = Some(family);
        let TextRenderer { cache, format, .. } = &mut *self.renderer;
        self.head = cache.next_entry(|out| write_head(out, *format, family, false));
    }

    #[inline]
    fn sample(&mut self, sample: Sample<'_>) {
        let Some(family) = self.family else { return };
        let TextRenderer { cache, format, has_created, .. } = &mut *self.renderer;
        let entry = cache.next_entry(|out| write_labels(out, family, sample.labels));
        let Some(value) = sample.value else { return };
        self.page.extend_from_slice(cache.entry(std::mem::take(&mut self.head)));
        let labels = cache.entry(entry.clone());
        match value {
            Value::Number(number) => {
                self.page.extend_from_slice(labels);
                decimal::write(self.page, number, family.unit.decimals());
                self.page.push(b'\n');
            }
            Value::Histogram(histogram) => {
                write_histogram(self.page, family.name, labels, histogram, *format);
            }
        }
        if *has_created && family.kind != Kind::Gauge {
            self.write_created(family, entry, sample.start);
        }
    }
}

impl PageWriter<'_> {
    fn finish_family(&mut self) {
        self.page.append(&mut self.renderer.created_lines);
    }

    /// Writes when a series began: in OpenMetrics a line beside the series; in text 0.0.4, which has no start times,
    /// a family of gauges, as client libraries print them.
    fn write_created(&mut self, family: &Family, entry: Range<usize>, own: Option<Utc>) {
        let Some(start) = own.or_else(|| start(self.snapshot, family)) else { return };
        let TextRenderer { format, cache, created_lines, .. } = &mut *self.renderer;
        let entry = cache.entry(entry);
        // A counter's entry begins with its name and ends in a space; a histogram's has neither.
        let (labels, end) = match family.kind {
            Kind::Histogram => (entry, end_of_labels(entry)),
            _ => (entry.get(family.name.len()..).unwrap_or_default(), ""),
        };
        let out = if *format == PageFormat::OpenMetrics { &mut *self.page } else { created_lines };
        if *format == PageFormat::Text && out.is_empty() {
            write_head(out, PageFormat::Text, family, true);
        }
        append(out, [stem(family), "_created"]);
        out.extend_from_slice(labels);
        append(out, [end]);
        decimal::write(out, i128::from(start.0), 9);
        out.push(b'\n');
    }
}

/// A family's name without `_total`.
fn stem(family: &Family) -> &'static str {
    family.name.strip_suffix("_total").unwrap_or(family.name)
}

pub(super) fn append<const N: usize>(out: &mut Vec<u8>, texts: [&str; N]) {
    texts.into_iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
}

fn write_head(out: &mut Vec<u8>, format: PageFormat, family: &Family, is_created: bool) {
    let is_open_metrics = format == PageFormat::OpenMetrics;
    // OpenMetrics names families without `_total`, escapes quotes in help, and says the unit that the name ends in.
    let name = if is_created || is_open_metrics { stem(family) } else { family.name };
    let (suffix, kind) = if is_created { ("_created", "gauge") } else { ("", family.kind.name()) };
    append(out, ["# HELP ", name, suffix, " "]);
    escape(out, family.help, is_open_metrics);
    append(out, ["\n# TYPE ", name, suffix, " ", kind, "\n"]);
    let unit = family.unit.suffix();
    if is_open_metrics && !unit.is_empty() {
        append(out, ["# UNIT ", name, " ", unit, "\n"]);
    }
}

/// Writes a series' name and labels up to its value; of a histogram only the labels without their closing brace, since
/// the suffix of its name and the label `le` differ by line.
fn write_labels(out: &mut Vec<u8>, family: &Family, labels: Labels<'_>) {
    let is_histogram = family.kind == Kind::Histogram;
    append(out, [if is_histogram { "" } else { family.name }]);
    let mut separator = "{";
    for (name, value) in labels.pairs() {
        append(out, [separator, name, "=\""]);
        escape(out, value, true);
        out.push(b'"');
        separator = ",";
    }
    match (is_histogram, separator) {
        (true, _) => {}
        (false, "{") => out.push(b' '),
        (false, _) => append(out, ["} "]),
    }
}

/// Escapes backslashes and newlines, and quotes where `escapes_quotes`. Label values come from processes, units and
/// users, none of whom may write a line of the page.
pub(super) fn escape(out: &mut Vec<u8>, text: &str, escapes_quotes: bool) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'"' if escapes_quotes => out.extend_from_slice(b"\\\""),
            _ => out.push(byte),
        }
    }
}

/// The text between the labels of a histogram and its value.
const fn end_of_labels(labels: &[u8]) -> &'static str {
    if labels.is_empty() { " " } else { "} " }
}

fn write_histogram(out: &mut Vec<u8>, name: &str, labels: &[u8], histogram: &Histogram, format: PageFormat) {
    let bounds = histogram.bounds.iter().copied().zip(histogram.cumulative.iter().copied());
    for (bound, count) in bounds.chain([(f64::INFINITY, histogram.count)]) {
        append(out, [name, "_bucket"]);
        out.extend_from_slice(labels);
        append(out, [if labels.is_empty() { "{le=\"" } else { ",le=\"" }]);
        float::write(out, bound, format == PageFormat::OpenMetrics);
        append(out, ["\"} "]);
        decimal::write(out, i128::from(count), 0);
        out.push(b'\n');
    }
    for suffix in ["_sum", "_count"] {
        append(out, [name, suffix]);
        out.extend_from_slice(labels);
        append(out, [end_of_labels(labels)]);
        match suffix {
            "_sum" => float::write(out, histogram.sum, false),
            _ => decimal::write(out, i128::from(histogram.count), 0),
        }
        out.push(b'\n');
    }
}
