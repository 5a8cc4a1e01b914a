//! The warm render: copies the layout's piece of each visit and writes the number behind it.
//!
//! In: a snapshot, a layout that fits it, a buffer. Out: the page in that buffer. It allocates nothing as
//! long as the buffer is large enough.

use super::layout::Layout;
use super::walk::{Sample, Sink, Value, start, walk};
use super::{Variant, decimal, float, openmetrics, pieces, text};
use crate::catalogue::{Family, Kind, Level};
use crate::model::Utc;
use crate::model::snapshot::{Histogram, Snapshot};

/// The two buffers of a page: the page, and lines that have to wait for the end of their family.
#[derive(Debug, Default)]
pub(super) struct Paper {
    pub(super) page: Vec<u8>,
    aside: Vec<u8>,
}

/// What a page is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) variant: Variant,
    pub(super) level: Level,
    pub(super) created: bool,
}

/// Renders the page of a snapshot into `paper`, which is cleared before.
pub(super) fn render(snapshot: &Snapshot, layout: &Layout, order: Order, paper: &mut Paper) {
    paper.page.clear();
    paper.aside.clear();
    let mut press = Render { snapshot, order, paper, pieces: layout.pieces(), family: None, head: None };
    walk(snapshot, order.level, &mut press);
    press.finish_family();
    if order.variant == Variant::OpenMetrics {
        press.paper.page.extend_from_slice(openmetrics::END);
    }
}

struct Render<'a> {
    snapshot: &'a Snapshot,
    order: Order,
    paper: &'a mut Paper,
    pieces: pieces::Iter<'a>,
    family: Option<&'static Family>,
    /// The head of the family, until a value needs it: a family without values is not named.
    head: Option<&'a [u8]>,
}

impl Sink for Render<'_> {
    fn family(&mut self, family: &'static Family) {
        self.finish_family();
        self.family = Some(family);
        self.head = self.pieces.next();
    }

    #[inline]
    fn sample(&mut self, sample: Sample<'_>) {
        let (Some(piece), Some(family)) = (self.pieces.next(), self.family) else { return };
        let Some(value) = sample.value else { return };
        if let Some(head) = self.head.take() {
            self.paper.page.extend_from_slice(head);
        }
        match value {
            Value::Number(number) => {
                self.paper.page.extend_from_slice(piece);
                decimal::write(&mut self.paper.page, number, family.unit.decimals());
                self.paper.page.push(b'\n');
            }
            Value::Histogram(histogram) => self.histogram(family, piece, histogram),
        }
        if self.order.created && family.kind != Kind::Gauge {
            self.created(family, piece, sample.start);
        }
    }
}

impl Render<'_> {
    fn finish_family(&mut self) {
        if !self.paper.aside.is_empty() {
            self.paper.page.extend_from_slice(&self.paper.aside);
            self.paper.aside.clear();
        }
    }

    fn created(&mut self, family: &Family, piece: &[u8], own: Option<Utc>) {
        let Some(start) = own.or_else(|| start(self.snapshot, family)) else { return };
        // The piece of a counter begins with its name and ends in a space, that of a histogram has neither.
        let histogram = family.kind == Kind::Histogram;
        let labels = if histogram { piece } else { piece.get(family.name.len()..).unwrap_or_default() };
        let out = match self.order.variant {
            // A series' lines stand together.
            Variant::OpenMetrics => &mut self.paper.page,
            Variant::Text => {
                if self.paper.aside.is_empty() {
                    text::created_head(&mut self.paper.aside, family);
                }
                &mut self.paper.aside
            }
        };
        out.extend_from_slice(text::stem(family).as_bytes());
        out.extend_from_slice(b"_created");
        out.extend_from_slice(labels);
        if histogram {
            out.extend_from_slice(if labels.is_empty() { b" " } else { b"} " });
        }
        decimal::write(out, i128::from(start.0), 9);
        out.push(b'\n');
    }

    fn histogram(&mut self, family: &Family, labels: &[u8], histogram: &Histogram) {
        let name = family.name.as_bytes();
        let out = &mut self.paper.page;
        let bounds = histogram.bounds.iter().copied().zip(histogram.cumulative.iter().copied());
        for (bound, count) in bounds.chain([(f64::INFINITY, histogram.count)]) {
            out.extend_from_slice(name);
            out.extend_from_slice(b"_bucket");
            out.extend_from_slice(labels);
            out.extend_from_slice(if labels.is_empty() { b"{le=\"" } else { b",le=\"" });
            float::write(out, bound, self.order.variant == Variant::OpenMetrics);
            out.extend_from_slice(b"\"} ");
            decimal::write(out, i128::from(count), 0);
            out.push(b'\n');
        }
        let close: &[u8] = if labels.is_empty() { b" " } else { b"} " };
        for suffix in ["_sum", "_count"] {
            out.extend_from_slice(name);
            out.extend_from_slice(suffix.as_bytes());
            out.extend_from_slice(labels);
            out.extend_from_slice(close);
            match suffix {
                "_sum" => float::write(out, histogram.sum, false),
                _ => decimal::write(out, i128::from(histogram.count), 0),
            }
            out.push(b'\n');
        }
    }
}
