//! Merges adjacent windows of one GPU, so that a disk that hangs for hours costs no memory and loses nothing.
//!
//! Windows of one minute are merged first, since rows have minutes only; then the shortest. That loses the times within the
//! merged window, so it is marked coarse.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::MINUTE;
use crate::accounting::batches::ClosedWindow;
use crate::model::{HolderId, Row, Settlement, SlotId};

/// Merges the adjacent pair that loses least, the shortest of these; none where there is no pair. Returns whether it has become
/// coarse.
pub(super) fn merge_best_pair(windows: &mut Vec<ClosedWindow>) -> Option<bool> {
    let (is_coarse, _, index) = windows
        .windows(2)
        .enumerate()
        // The ledger settles a gap between two windows as unobserved.
        .filter(|(_, pair)| pair[0].settlement.to == pair[1].settlement.from)
        .map(|(index, pair)| {
            let (from, to) = (pair[0].settlement.from, pair[1].settlement.to);
            (to > from.floor(MINUTE).plus(MINUTE), to.since(from), index)
        })
        .min()?;
    let second = windows.remove(index + 1);
    let first = &mut windows[index];
    first.coarse |= second.coarse || is_coarse;
    append_window(&mut first.settlement, second.settlement);
    Some(is_coarse)
}

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
    first.evidence.append(second.evidence);
    for flag in second.flags {
        if !first.flags.contains(&flag) {
            first.flags.push(flag);
        }
    }
}
