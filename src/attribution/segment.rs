//! Cuts a window into segments in which state, source, method and holdings are constant.
//!
//! In go spans, out come runs of them; nothing is divided here, since a recorded event already cut its span.
//! It does not know what a segment is worth.

use std::sync::Arc;

use crate::model::{Holding, InstanceSpan, MigSpan, SlotState, Span};

/// A run of spans that are settled as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowSegment<'a> {
    first: &'a Span,
    /// Its spans, at least one.
    pub(super) spans: &'a [Span],
}

impl<'a> WindowSegment<'a> {
    /// Spans in which everything is constant, as one segment; none without spans.
    pub(super) fn of(spans: &'a [Span]) -> Option<Self> {
        spans.first().map(|first| Self { first, spans })
    }

    /// Whether it shows who is gone: a moment without length, and one in which nobody looked, show nobody going.
    pub(super) fn shows_who_went(&self) -> bool {
        self.length() > 0 && self.first.state != SlotState::Unobserved
    }

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
pub(super) fn segments(spans: &[Span]) -> Vec<WindowSegment<'_>> {
    spans.chunk_by(is_constant).filter_map(WindowSegment::of).collect()
}

fn is_constant(one: &Span, other: &Span) -> bool {
    one.state == other.state
        && one.source == other.source
        && one.method == other.method
        && one.covered_by == other.covered_by
        && are_equal(&one.holdings, &other.holdings)
        && match (&one.instances, &other.instances) {
            (None, None) => true,
            (Some(one), Some(other)) => are_divided_alike(one, other),
            _ => false,
        }
}

/// A cut of one slot cuts the whole GPU.
fn are_divided_alike(one: &MigSpan, other: &MigSpan) -> bool {
    let is_constant = |one: &InstanceSpan, other: &InstanceSpan| {
        one.state == other.state
            && one.source == other.source
            && one.covered_by == other.covered_by
            && are_equal(&one.holdings, &other.holdings)
    };
    (Arc::ptr_eq(&one.layout, &other.layout) || one.layout == other.layout)
        && one.slots.len() == other.slots.len()
        && one
            .slots
            .iter()
            .zip(&other.slots)
            .all(|((name, one), (others, other))| name == others && is_constant(one, other))
}

fn are_equal(one: &Arc<[Holding]>, other: &Arc<[Holding]>) -> bool {
    Arc::ptr_eq(one, other) || ordered(one) == ordered(other)
}

/// Holdings by holder: the order in which they were listed is no change (L7).
fn ordered(holdings: &[Holding]) -> Vec<&Holding> {
    let mut ordered: Vec<&Holding> = holdings.iter().collect();
    ordered.sort_by_key(|holding| &holding.holder);
    ordered
}
