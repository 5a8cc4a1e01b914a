//! Cuts a window into segments in which state, source, method and holdings are constant.
//!
//! In go spans, out come runs of them; nothing is divided here, since a recorded event already cut its span.
//! It does not know what a segment is worth.

use std::sync::Arc;

use crate::model::{Holding, Span};

/// A run of spans that are settled as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    first: &'a Span,
    /// Its spans, at least one.
    pub(super) spans: &'a [Span],
}

impl<'a> Segment<'a> {
    /// The span that stands for all in what is constant.
    pub(super) const fn constant(&self) -> &'a Span {
        self.first
    }

    /// The slot time P of the segment, in nanoseconds.
    pub(super) fn length(&self) -> u64 {
        self.spans.iter().map(|span| span.length().0).sum()
    }

    /// The busy time A x P, in nanoseconds.
    pub(super) fn busy(&self) -> u64 {
        self.spans.iter().map(|span| span.busy).sum()
    }
}

/// The segments of a window, in order.
pub(super) fn segments(spans: &[Span]) -> Vec<Segment<'_>> {
    spans
        .chunk_by(is_constant)
        .filter_map(|run| run.first().map(|first| Segment { first, spans: run }))
        .collect()
}

fn is_constant(one: &Span, other: &Span) -> bool {
    one.state == other.state
        && one.source == other.source
        && one.method == other.method
        && one.covered_by == other.covered_by
        && (Arc::ptr_eq(&one.holdings, &other.holdings) || ordered(&one.holdings) == ordered(&other.holdings))
}

/// Holdings by holder: the order in which they were listed is no change (L7).
fn ordered(holdings: &[Holding]) -> Vec<&Holding> {
    let mut ordered: Vec<&Holding> = holdings.iter().collect();
    ordered.sort_by_key(|holding| &holding.holder);
    ordered
}
