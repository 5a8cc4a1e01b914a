//! The windows of the account, and how spans are cut into them and joined into segments.
//!
//! State, activity source, method, holdings and the division into slots are constant within a segment. A span is cut by
//! time: the first part gets the floor of each integral, the second the rest, so nothing is lost.

use std::sync::Arc;

use crate::model::{
    Holding, InstanceSpan, Microjoules, MigLayout, MigSpan, Nanoseconds, SlotState, Span, Utc,
};

/// Length of a window. Windows lie on a UTC grid of this length.
pub const WINDOW: Nanoseconds = Nanoseconds::from_seconds(15);

/// End of the window that contains `from`: the next multiple of [`WINDOW`] after it.
pub const fn window_end(from: Utc) -> Utc {
    from.floor(WINDOW).plus(WINDOW)
}

/// Cuts a span at `at`, or at its nearest end where `at` lies outside of it; the two parts sum to the span.
///
/// Busy time and energies are divided. Shares of the tick are copied, and both parts keep its share of busy time. Weights and
/// memory are copied too: weights only split their own tick's busy time, and
/// dividing them as integers would change the split at every cut, which law L6 forbids.
pub fn split(span: &Span, at: Utc) -> (Span, Span) {
    let at = at.min(span.to).max(span.from);
    let (part, whole) = (at.since(span.from), span.length());
    let (mut first, mut second) = (span.clone(), span.clone());
    first.to = at;
    second.from = at;
    (first.busy, second.busy) = divided(span.busy, part, whole);
    first.shares = span.shares.of_part(span.busy_share());
    second.shares = first.shares;
    if let (Some(one), Some(other)) = (&mut first.instances, &mut second.instances) {
        for (one, other) in one.slots.values_mut().zip(other.slots.values_mut()) {
            one.shares = one.shares.of_part(one.busy_share(whole));
            other.shares = one.shares;
            (one.busy, other.busy) = divided(one.busy, part, whole);
        }
    }
    (first.idle_energy.0, second.idle_energy.0) = divided(span.idle_energy.0, part, whole);
    if let Some(energy) = span.energy {
        let (one, other) = divided(energy.0, part, whole);
        (first.energy, second.energy) = (Some(Microjoules(one)), Some(Microjoules(other)));
    }
    (first, second)
}

/// The floor of `amount x part / whole`, and the rest.
fn divided(amount: u64, part: Nanoseconds, whole: Nanoseconds) -> (u64, u64) {
    if whole.0 == 0 {
        return (0, amount);
    }
    let first = u128::from(amount) * u128::from(part.0.min(whole.0)) / u128::from(whole.0);
    let first = u64::try_from(first).unwrap_or(amount);
    (first, amount - first)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WindowSegment<'a> {
    /// The first span, from which everything constant is read.
    pub(super) constant: &'a Span,
    /// All spans, at least one.
    pub(super) spans: &'a [Span],
}

impl<'a> WindowSegment<'a> {
    /// A segment of spans in which everything is constant; none of no spans.
    pub(super) fn new(spans: &'a [Span]) -> Option<Self> {
        spans.first().map(|constant| Self { constant, spans })
    }

    /// Whether a holder that is missing here has gone. An empty segment and one without observation do not show that.
    pub(super) fn shows_departures(&self) -> bool {
        self.length() > 0 && self.constant.state != SlotState::Unobserved
    }

    /// How the GPU is divided; none while it is not.
    pub(super) fn layout(&self) -> Option<&'a MigLayout> {
        self.constant.instances.as_ref().map(|mig| &*mig.layout)
    }

    /// Slot time, in nanoseconds.
    pub(super) fn length(&self) -> u64 {
        self.spans.iter().map(|span| span.length().0).sum()
    }

    /// Busy time, in nanoseconds: activity x slot time.
    pub(super) fn busy(&self) -> u64 {
        self.spans.iter().map(|span| span.busy).sum()
    }
}

/// The segments of a window, in order of time.
pub(super) fn segments(spans: &[Span]) -> Vec<WindowSegment<'_>> {
    spans.chunk_by(is_constant).filter_map(WindowSegment::new).collect()
}

fn is_constant(one: &Span, other: &Span) -> bool {
    one.state == other.state
        && one.source == other.source
        && one.method == other.method
        && one.covered_by == other.covered_by
        && have_equal_holdings(&one.holdings, &other.holdings)
        && match (&one.instances, &other.instances) {
            (None, None) => true,
            (Some(one), Some(other)) => are_constant_instances(one, other),
            _ => false,
        }
}

/// A change in one slot ends the segment of all slots of its GPU.
fn are_constant_instances(one: &MigSpan, other: &MigSpan) -> bool {
    let is_constant = |one: &InstanceSpan, other: &InstanceSpan| {
        one.state == other.state
            && one.source == other.source
            && one.covered_by == other.covered_by
            && have_equal_holdings(&one.holdings, &other.holdings)
    };
    (Arc::ptr_eq(&one.layout, &other.layout) || one.layout == other.layout)
        && one.slots.len() == other.slots.len()
        && one
            .slots
            .iter()
            .zip(&other.slots)
            .all(|((name, one), (others, other))| name == others && is_constant(one, other))
}

fn have_equal_holdings(one: &Arc<[Holding]>, other: &Arc<[Holding]>) -> bool {
    Arc::ptr_eq(one, other) || ordered_by_holder(one) == ordered_by_holder(other)
}

/// The order in which holdings are listed has no meaning (law L7).
fn ordered_by_holder(holdings: &[Holding]) -> Vec<&Holding> {
    let mut ordered: Vec<&Holding> = holdings.iter().collect();
    ordered.sort_by_key(|holding| &holding.holder);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_on_the_next_multiple_of_fifteen_seconds() {
        assert_eq!(window_end(Utc(0)), Utc(15_000_000_000));
        assert_eq!(window_end(Utc(14_999_999_999)), Utc(15_000_000_000));
        assert_eq!(window_end(Utc(15_000_000_000)), Utc(30_000_000_000));
    }

    #[test]
    fn the_first_part_gets_the_floor_and_the_second_the_rest() {
        assert_eq!(divided(10, Nanoseconds(1), Nanoseconds(3)), (3, 7));
        assert_eq!(divided(7, Nanoseconds(0), Nanoseconds(0)), (0, 7));
        assert_eq!(divided(u64::MAX, Nanoseconds(u64::MAX), Nanoseconds(u64::MAX)), (u64::MAX, 0));
    }
}
