//! Merges adjacent windows of one GPU, so that a disk that hangs for hours costs no memory and loses nothing.
//!
//! Windows of one minute are merged first, since rows have minutes only; then windows in which the same holders hold the
//! same shares in the same state; then the shortest. The last two lose the times within the merged window, so it is marked
//! coarse.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::MINUTE;
use crate::accounting::batches::ClosedWindow;
use crate::model::{HolderId, Parts, Row, Settlement, SlotId};

/// What a merge of two windows loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MergeQuality {
    /// Nothing: both lie in one minute.
    Minute,
    /// The times of use; holdings and state are equal.
    Equal,
    /// The times of use and of holdings.
    Forced,
}

/// Merges the adjacent pair that loses least, the shortest of these; none where there is no pair.
pub(super) fn merge_best_pair(windows: &mut Vec<ClosedWindow>) -> Option<MergeQuality> {
    let (quality, _, index) = windows
        .windows(2)
        .enumerate()
        // The ledger settles a gap between two windows as unobserved.
        .filter(|(_, pair)| pair[0].settlement.to == pair[1].settlement.from)
        .map(|(index, pair)| {
            let (one, two) = (&pair[0].settlement, &pair[1].settlement);
            (merge_quality(one, two), two.to.since(one.from), index)
        })
        .min()?;
    let second = windows.remove(index + 1);
    let first = &mut windows[index];
    first.coarse |= second.coarse || quality > MergeQuality::Minute;
    append_window(&mut first.settlement, second.settlement);
    Some(quality)
}

fn merge_quality(one: &Settlement, two: &Settlement) -> MergeQuality {
    let minute = one.from.floor(MINUTE);
    if two.to <= minute.plus(MINUTE) {
        MergeQuality::Minute
    } else if have_equal_holdings(one, two) {
        MergeQuality::Equal
    } else {
        MergeQuality::Forced
    }
}

/// Whether the same holders hold the same shares in the same state, except for rounding.
fn have_equal_holdings(one: &Settlement, two: &Settlement) -> bool {
    let (length, other) = (one.to.since(one.from).0, two.to.since(two.from).0);
    let rounding = 2 * (u128::from(length) + u128::from(other));
    one.rows.len() == two.rows.len()
        && one.rows.iter().zip(&two.rows).all(|(a, b)| {
            let (held, since) = (a.amounts.parts.held(), b.amounts.parts.held());
            let (x, y) = (u128::from(held) * u128::from(other), u128::from(since) * u128::from(length));
            (&a.slot, &a.holder) == (&b.slot, &b.holder)
                && x.abs_diff(y) <= rounding
                && state(&a.amounts.parts) == state(&b.amounts.parts)
                && (a.method, a.source) == (b.method, b.source)
        })
}

const fn state(parts: &Parts) -> (bool, bool) {
    (parts.unmeasured > 0, parts.unavailable > 0)
}

/// Adds the following window to `first`.
fn append_window(first: &mut Settlement, second: Settlement) {
    let key = |row: &Row| (row.slot.clone(), row.holder.clone());
    let mut rows: BTreeMap<(SlotId, HolderId), Row> =
        first.rows.drain(..).map(|row| (key(&row), row)).collect();
    for row in second.rows {
        match rows.entry(key(&row)) {
            Entry::Occupied(mut sum) => sum.get_mut().add(&row),
            Entry::Vacant(vacant) => {
                vacant.insert(row);
            }
        }
    }
    first.rows = rows.into_values().collect();
    first.to = second.to;
    first.carry = second.carry;
    first.weights = second.weights;
    for flag in second.flags {
        if !first.flags.contains(&flag) {
            first.flags.push(flag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ActivitySource, Amounts, Nanoseconds, Utc};

    /// A window of 15 s that ends with a minute (0) or begins with one (1), held by one holder.
    fn window(index: u64, holder: &str, parts: Parts) -> Settlement {
        let from = Utc(MINUTE.0 - 15_000_000_000 * (1 - index));
        let amounts = Amounts { parts, ..Amounts::default() };
        let row = Row { amounts, source: ActivitySource::Gpm, ..Row::empty(HolderId::new(holder)) };
        let to = from.plus(Nanoseconds::from_seconds(15));
        let (carry, weights, flags) = Default::default();
        Settlement { from, to, rows: vec![row], carry, weights, flags }
    }

    #[test]
    fn neighbours_are_equal_by_holder_share_and_state_but_not_by_use() {
        let idle = Parts { idle: 15_000_000_000, ..Parts::default() };
        let rounded = Parts { within: 9_000_000_001, idle: 6_000_000_000, ..Parts::default() };
        let dark = Parts { unmeasured: 15_000_000_000, ..Parts::default() };
        let half = Parts { idle: 7_500_000_000, ..Parts::default() };
        let first = window(0, "user:a", idle);
        assert_eq!(merge_quality(&first, &window(1, "user:a", rounded)), MergeQuality::Equal);
        for (holder, parts) in [("user:b", idle), ("user:a", dark), ("user:a", half)] {
            assert_eq!(merge_quality(&first, &window(1, holder, parts)), MergeQuality::Forced);
        }
    }
}
