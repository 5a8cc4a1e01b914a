//! The grid of windows, and cutting a span in time where the grid or a recorded event asks for it.
//!
//! Integrals are divided by time: the first part gets the floor, the second the rest, so nothing is lost. It
//! does not know which events cut.

use crate::model::{Microjoules, Nanoseconds, Span, Utc};

/// Accounts are settled in windows of this length, on the UTC grid.
pub const WINDOW: Nanoseconds = Nanoseconds::from_seconds(15);

/// Where the window that holds `from` ends: the next multiple of [`WINDOW`] after it.
pub const fn window_end(from: Utc) -> Utc {
    from.floor(WINDOW).plus(WINDOW)
}

/// Cuts a span at `at`, which is moved into the span where it lies outside; the parts sum to the span.
///
/// Busy time and energies are divided. Weights, like memory, are copied: they only say how their own tick's
/// busy time is shared, and dividing integers would change that share at every cut, which L6 forbids.
pub fn split(span: &Span, at: Utc) -> (Span, Span) {
    let at = at.min(span.to).max(span.from);
    let (part, whole) = (at.since(span.from), span.length());
    let (mut first, mut second) = (span.clone(), span.clone());
    first.to = at;
    second.from = at;
    (first.busy, second.busy) = divided(span.busy, part, whole);
    if let (Some(one), Some(other)) = (&mut first.instances, &mut second.instances) {
        for (one, other) in one.slots.values_mut().zip(other.slots.values_mut()) {
            (one.busy, other.busy) = divided(one.busy, part, whole);
        }
    }
    (first.idle_energy, second.idle_energy) = divided_energy(span.idle_energy, part, whole);
    if let Some(energy) = span.energy {
        let (one, other) = divided_energy(energy, part, whole);
        (first.energy, second.energy) = (Some(one), Some(other));
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

fn divided_energy(energy: Microjoules, part: Nanoseconds, whole: Nanoseconds) -> (Microjoules, Microjoules) {
    let (first, second) = divided(energy.0, part, whole);
    (Microjoules(first), Microjoules(second))
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
