//! Cuts a settled window at whole minutes.
//!
//! A window of 15 s lies in one minute and is passed through. A longer one (a gap that was settled at
//! once, windows added together while the disk was stuck) is divided by time, in integers: each minute's
//! parts sum to its time, its use equals the parts that were used, and the minutes sum to the window.

use super::MINUTE;
use crate::model::{Microjoules, Parts, Row, Settlement, Use, Utc};

/// The part of a window that lies in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from: Utc,
    pub(super) to: Utc,
    pub(super) rows: Vec<Row>,
}

/// The pieces of a window, in order of time.
pub(super) fn pieces(settlement: &Settlement) -> Vec<Piece> {
    let mut rest = Piece { from: settlement.from, to: settlement.to, rows: settlement.rows.clone() };
    let mut pieces = Vec::new();
    loop {
        let end = rest.from.floor(MINUTE).plus(MINUTE);
        if end >= rest.to {
            pieces.push(rest);
            return pieces;
        }
        let rows = first(&mut rest, end);
        pieces.push(Piece { from: rest.from, to: end, rows });
        rest.from = end;
    }
}

/// Takes the rows of `rest.from..end` out of `rest`.
fn first(rest: &mut Piece, end: Utc) -> Vec<Row> {
    let (time, whole) = (end.since(rest.from).0, rest.to.since(rest.from).0);
    let rows = &mut rest.rows;
    let mut held: Vec<u64> = rows.iter().flat_map(|row| of_parts(&row.parts)).collect();
    let mut within: Vec<u64> = rows.iter().map(|row| row.used.within).collect();
    let mut above: Vec<u64> =
        rows.iter().flat_map(|row| [row.used.beyond, row.used.outside, row.used.unheld]).collect();
    let parts = take(&mut held, time, whole);
    // Use follows the parts that were used, so that both sides of the account agree in every minute.
    let column = |cells: &[u64], part: usize| cells.iter().skip(part).step_by(5).sum::<u64>();
    let used_within = take(&mut within, column(&parts, 0), column(&parts, 0) + column(&held, 0));
    let used_above = take(&mut above, column(&parts, 1), column(&parts, 1) + column(&held, 1));
    rows.iter_mut()
        .enumerate()
        .map(|(index, left)| {
            let taken = Row {
                parts: to_parts(&parts[index * 5..]),
                used: to_use(used_within[index], &used_above[index * 3..]),
                ..left.clone()
            };
            left.parts = to_parts(&held[index * 5..]);
            left.used = to_use(within[index], &above[index * 3..]);
            scale(taken, left, time, whole)
        })
        .collect()
}

/// The quantities that follow time alone.
fn scale(mut taken: Row, left: &mut Row, time: u64, whole: u64) -> Row {
    let share = |value: u64| share(value, time, whole);
    taken.energy_static = Microjoules(share(left.energy_static.0));
    taken.energy_dynamic = Microjoules(share(left.energy_dynamic.0));
    taken.memory_byte_seconds = share(left.memory_byte_seconds);
    // No minute has more measured time than use.
    let least = left.measured.saturating_sub(left.used.total());
    let most = left.measured.min(taken.used.total());
    taken.measured = share(left.measured).min(most).max(least);
    left.energy_static.0 -= taken.energy_static.0;
    left.energy_dynamic.0 -= taken.energy_dynamic.0;
    left.memory_byte_seconds -= taken.memory_byte_seconds;
    left.measured -= taken.measured;
    taken
}

/// Takes `part / whole` of all cells together out of them, each the floor or the ceiling of its quota,
/// ceilings to the largest fractions, then in order.
fn take(cells: &mut [u64], part: u64, whole: u64) -> Vec<u64> {
    let sum: u64 = cells.iter().sum();
    if sum == 0 || whole == 0 {
        return vec![0; cells.len()];
    }
    // The sum itself where the cells sum to the whole, as they do in a balanced window.
    let amount = share(sum, part, whole);
    let quota = |cell: u64| u128::from(cell) * u128::from(amount);
    let mut taken: Vec<u64> = cells.iter().map(|cell| share(*cell, amount, sum)).collect();
    let missing = amount - taken.iter().sum::<u64>();
    if missing > 0 {
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(quota(cells[*index]) % u128::from(sum)));
        for index in order.into_iter().take(usize::try_from(missing).unwrap_or(usize::MAX)) {
            taken[index] += 1;
        }
    }
    for (cell, taken) in cells.iter_mut().zip(&taken) {
        *cell -= taken;
    }
    taken
}

/// `value * part / whole`, rounded down; `part <= whole`, so it fits.
fn share(value: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(value) * u128::from(part) / u128::from(whole)) as u64 }
}

const fn of_parts(parts: &Parts) -> [u64; 5] {
    [parts.within, parts.lent, parts.waste, parts.unmeasured, parts.unavailable]
}

fn to_parts(cells: &[u64]) -> Parts {
    Parts { within: cells[0], lent: cells[1], waste: cells[2], unmeasured: cells[3], unavailable: cells[4] }
}

fn to_use(within: u64, above: &[u64]) -> Use {
    Use { within, beyond: above[0], outside: above[1], unheld: above[2] }
}
