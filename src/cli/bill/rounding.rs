//! Rounds a bill's rows to the digits that are printed, such that the parts of each row add up, and the rows of each column to
//! its total.
//!
//! The totals of held time, energy and money are rounded to the nearest and divided among rows by largest remainder, and the held
//! time of each row among its parts.

use std::cmp::Reverse;

use super::sheet::{BillRow, UNAVAILABLE};
use crate::model::Money;

/// Decimals of hours, kWh and money.
const PLACES: u32 = 4;
/// The last printed digit of hours, in nanoseconds, and of kWh, in microjoules.
const UNIT: u128 = 360_000_000;
/// The last printed digit of money, in nano-units.
const MONEY_UNIT: i128 = 100_000;

/// Money columns of a row.
const MONEY: [fn(&mut BillRow) -> Option<&mut i128>; 4] = [
    |row| Some(&mut row.money),
    |row| row.energy_money.as_mut(),
    |row| row.spread.as_mut(),
    |row| row.emissions.as_mut(),
];

/// Exact sums to units of the last printed digit, in place; with these totals of parts and of charged time. Terms charge
/// other time than what is held, so it is rounded by itself.
pub(super) fn round(rows: &mut [BillRow], totals: Option<&BillRow>, has_terms: bool) {
    let exact = rows.to_vec();
    let held: Vec<u128> = rows.iter().map(BillRow::held).collect();
    for (row, held) in rows.iter_mut().zip(in_hour_units(&held)) {
        divide(held, row.parts.iter_mut().collect());
    }
    if let Some(totals) = totals {
        let exact: Vec<[u128; 5]> = exact.iter().map(|row| row.parts).collect();
        fit_columns(rows.iter_mut().map(|row| &mut row.parts).collect(), &exact, &totals.parts);
    }
    for place in 0..3 {
        let total = nearest(rows.iter().map(|row| row.beside[place]).sum(), UNIT);
        divide(total, rows.iter_mut().map(|row| &mut row.beside[place]).collect());
    }
    round_used(rows, &exact);
    if has_terms {
        let columns: [fn(&mut BillRow) -> &mut u128; 2] = [|row| &mut row.charged, |row| &mut row.unpriced];
        for charged in columns {
            let total = nearest(rows.iter_mut().map(|row| *charged(row)).sum(), UNIT);
            divide(total, rows.iter_mut().map(charged).collect());
        }
    } else {
        round_charged(rows, &exact);
    }
    if let Some(totals) = totals.filter(|_| !has_terms) {
        let prices = |row: &BillRow| [row.charged, row.unpriced];
        let exact: Vec<[u128; 2]> = exact.iter().map(prices).collect();
        let mut cells: Vec<[u128; 2]> = rows.iter().map(prices).collect();
        fit_columns(cells.iter_mut().collect(), &exact, &prices(totals));
        for (row, [charged, unpriced]) in rows.iter_mut().zip(cells) {
            (row.charged, row.unpriced) = (charged, unpriced);
        }
    }
    let energy = nearest(rows.iter().filter_map(|row| row.energy).sum(), UNIT);
    divide(energy, rows.iter_mut().filter_map(|row| row.energy.as_mut()).collect());
    for column in MONEY {
        round_money(rows.iter_mut().filter_map(column).collect());
    }
}

/// Rounds money such that it sums to its total, which is rounded half up: each is rounded down, and the largest fractions are
/// raised, ties in their order.
fn round_money(cells: Vec<&mut i128>) {
    let exact: Vec<i128> = cells.iter().map(|cell| **cell).collect();
    let total = (exact.iter().sum::<i128>() + MONEY_UNIT / 2).div_euclid(MONEY_UNIT);
    let mut rounded: Vec<i128> = exact.iter().map(|money| money.div_euclid(MONEY_UNIT)).collect();
    let missing = total - rounded.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by_key(|place| Reverse(exact[*place].rem_euclid(MONEY_UNIT)));
    for (_, place) in (0..missing).zip(order) {
        rounded[place] += 1;
    }
    for (cell, rounded) in cells.into_iter().zip(rounded) {
        *cell = rounded;
    }
}

/// Rounds charged and unpriced time, which are together held time less unavailable time, plus the unavailable time that the
/// row pays for: its own where it is grouped with it, else that of others in rows of `__unavailable__`.
fn round_charged(rows: &mut [BillRow], exact: &[BillRow]) {
    let (mut printed, mut unavailable, mut paid_by_others) = (0, 0, Vec::new());
    let mut paid: Vec<u128> = Vec::new();
    for (row, exact) in rows.iter().zip(exact) {
        let own = exact.parts[UNAVAILABLE];
        let pays = (exact.charged + exact.unpriced).saturating_sub(exact.held() - own);
        if pays == own {
            paid.push(row.parts[UNAVAILABLE]);
            paid_by_others.push(0);
        } else {
            printed += row.parts[UNAVAILABLE];
            unavailable += own;
            paid.push(0);
            paid_by_others.push(pays);
        }
    }
    // A bill of some tenants may have the one row and not the other.
    let is_complete = unavailable == paid_by_others.iter().sum::<u128>();
    let total = if is_complete { printed } else { nearest(paid_by_others.iter().sum(), UNIT) };
    let shares = apportion(total, &paid_by_others);
    for ((row, own), others) in rows.iter_mut().zip(paid).zip(shares) {
        let due = row.held() - row.parts[UNAVAILABLE] + own + others;
        divide(due, vec![&mut row.charged, &mut row.unpriced]);
    }
}

/// Moves units within rows, where that adds least to the errors of rounding, until the columns have these totals.
fn fit_columns<const N: usize>(mut cells: Vec<&mut [u128; N]>, exact: &[[u128; N]], totals: &[u128; N]) {
    loop {
        let sums: Vec<u128> = (0..N).map(|place| cells.iter().map(|row| row[place]).sum()).collect();
        let above = (0..N).find(|place| sums[*place] > totals[*place]);
        let below = (0..N).find(|place| sums[*place] < totals[*place]);
        let (Some(above), Some(below)) = (above, below) else { return };
        let error = |row: usize| {
            let less = (cells[row][above] * UNIT).cast_signed() - exact[row][above].cast_signed();
            let more = exact[row][below].cast_signed() - (cells[row][below] * UNIT).cast_signed();
            // A part that is zero stays zero if there is another row.
            (exact[row][below] == 0, -(less + more))
        };
        let rows = (0..cells.len()).filter(|row| cells[*row][above] > 0);
        let Some(row) = rows.min_by_key(|row| error(*row)) else { return };
        cells[row][above] -= 1;
        cells[row][below] += 1;
    }
}

/// Rounds all use: to the printed within + beside where that is exact, else by largest remainder.
fn round_used(rows: &mut [BillRow], exact: &[BillRow]) {
    let (mut printed, mut within_and_beside, mut used) = (0, 0, 0);
    let mut nested = Vec::new();
    for (row, exact) in rows.iter_mut().zip(exact) {
        if exact.used == exact.within_and_beside() {
            row.used = row.within_and_beside();
            continue;
        }
        printed += row.within_and_beside();
        within_and_beside += exact.within_and_beside();
        used += exact.used;
        nested.push(&mut row.used);
    }
    // A bill of some tenants may have the one holder and not the other.
    divide(if used == within_and_beside { printed } else { nearest(used, UNIT) }, nested);
}

/// Replaces each exact value by its share of `total`.
fn divide(total: u128, cells: Vec<&mut u128>) {
    let exact: Vec<u128> = cells.iter().map(|cell| **cell).collect();
    for (cell, share) in cells.into_iter().zip(apportion(total, &exact)) {
        *cell = share;
    }
}

/// Shares of `total` in proportion to `exact`, by largest remainder, ties in their order; they sum to it unless
/// all of `exact` is 0.
pub(super) fn apportion(total: u128, exact: &[u128]) -> Vec<u128> {
    let sum: u128 = exact.iter().sum();
    if sum == 0 {
        return vec![0; exact.len()];
    }
    let quota = |value: &u128| total.saturating_mul(*value);
    let mut shares: Vec<u128> = exact.iter().map(|value| quota(value) / sum).collect();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by_key(|place| Reverse(quota(&exact[*place]) % sum));
    let left = total.saturating_sub(shares.iter().sum());
    for (_, place) in (0..left).zip(order) {
        shares[place] += 1;
    }
    shares
}

/// Exact values in units of the last printed digit of hours, such that they sum to their rounded total.
pub(super) fn in_hour_units(exact: &[u128]) -> Vec<u128> {
    apportion(nearest(exact.iter().sum(), UNIT), exact)
}

/// A number of units, rounded half up.
fn nearest(value: u128, unit: u128) -> u128 {
    (value + unit / 2) / unit
}

/// Units of the last printed digit, as a decimal.
pub(super) fn decimal(units: u128) -> String {
    let one = 10_u128.pow(PLACES);
    format!("{}.{:0places$}", units / one, units % one, places = PLACES as usize)
}

/// The same of an amount that may be negative.
pub(super) fn signed_decimal(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    format!("{sign}{}", decimal(units.unsigned_abs()))
}

/// Money in units of the last printed digit, such that it sums to its rounded total.
pub(super) fn in_money_units(money: impl IntoIterator<Item = Money>) -> Vec<i128> {
    let mut units: Vec<i128> = money.into_iter().map(|money| money.0).collect();
    round_money(units.iter_mut().collect());
    units
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::sheet::{Sheet, WITHIN};
    use super::*;
    use crate::billing::Bill;
    use crate::billing::made;
    use crate::model::HolderId;

    /// A line with these parts, time beside what is held, and shares in quarters that are unpriced.
    fn line((tenant, gpu): (usize, u32), parts: [u64; 5], beside: [u64; 3], quarters: u64) -> Value {
        let [within_ns, lent_ns, idle_ns, unmeasured_ns, unavailable_ns] = parts;
        let [beyond, outside, unheld] = beside;
        let due = within_ns + lent_ns + idle_ns + unmeasured_ns;
        let unpriced = due / 4 * quarters;
        made::line(
            &json!({"tenant": format!("tenant-{tenant}"), "holder": format!("unit:{tenant}"), "gpu": gpu,
            "uuid": format!("GPU-{gpu}"), "held_ns": due + unavailable_ns, "within_ns": within_ns,
            "lent_ns": lent_ns, "idle_ns": idle_ns, "unmeasured_ns": unmeasured_ns,
            "unavailable_ns": unavailable_ns, "used_ns": within_ns + beyond + outside + unheld,
            "beyond_share_ns": beyond, "outside_holding_ns": outside, "unheld_ns": unheld,
            "energy_static_uj": lent_ns, "energy_dynamic_uj": within_ns, "charged_ns": due - unpriced,
            "unpriced_ns": unpriced, "money": format!("{}.{:09}", due / 1_000_000_000_000, due % 1_000_000_000)}),
        )
    }

    /// A bill of random lines, with the price of unavailable time of each GPU on its reserved tenant.
    fn bills() -> impl Strategy<Value = Bill> {
        let time = || (0..=2_592_000_000_000_000_u64, 0..16_u32).prop_map(|(time, less)| time >> (3 * less));
        let parts = [time(), time(), time(), time(), time()];
        let one = ((0..6_usize, 0..4_u32), parts, [time(), time(), time()], 0..=4_u64);
        proptest::collection::vec(one, 0..30).prop_map(|lines| {
            let mut all: Vec<Value> = Vec::new();
            for (key, parts, beside, quarters) in lines {
                let mut of_others = line(key, [0; 5], [0; 3], 0);
                of_others["tenant"] = HolderId::UNAVAILABLE.into();
                of_others["holder"] = HolderId::UNAVAILABLE.into();
                of_others["charged_ns"] = parts[UNAVAILABLE].into();
                all.extend([line(key, parts, beside, quarters), of_others]);
            }
            made::bill(&json!({"currency": "EUR", "lines": all,
                "gpus": (0..3).map(|gpu| json!({"gpu": gpu, "uuid": format!("GPU-{gpu}"), "model": format!("H{}", gpu / 2),
                    "slot_ns": 0, "settled_until": "2026-11-01T01:00:00Z"})).collect::<Vec<_>>()}))
        })
    }

    fn rows() -> impl Strategy<Value = Vec<BillRow>> {
        // From nothing to a month, in nanoseconds, with many short times.
        let time = || (0..=2_592_000_000_000_000_u128, 0..16_u32).prop_map(|(time, less)| time >> (3 * less));
        let parts = [time(), time(), time(), time(), time()];
        let others = (time(), time(), time(), 0..=4_u128, proptest::option::of(time()), time());
        let row = (parts, others).prop_map(|(parts, (beyond, outside, unheld, quarter, energy, money))| {
            let due = parts[..UNAVAILABLE].iter().sum::<u128>();
            let unpriced = due * quarter / 4;
            let beside = [beyond, outside, unheld];
            let used = parts[WITHIN] + beyond + outside + unheld;
            BillRow {
                parts,
                beside,
                used,
                charged: due - unpriced,
                unpriced,
                energy,
                money: money.cast_signed(),
                ..BillRow::default()
            }
        });
        proptest::collection::vec(row, 0..20).prop_map(|mut rows| {
            let unavailable = rows.iter().map(|row| row.parts[UNAVAILABLE]).sum();
            rows.push(BillRow {
                names: vec![HolderId::UNAVAILABLE.into()],
                charged: unavailable,
                ..BillRow::default()
            });
            rows
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_grouping_has_the_same_totals_and_rows_that_add_up(bill in bills()) {
            let total = |by: &str| {
                let sheet = Sheet::new(&bill, &by.parse().unwrap());
                for row in &sheet.rows {
                    assert_eq!(row.used, row.within_and_beside(), "{by}: {row:?}");
                }
                BillRow { names: Vec::new(), ..sheet.total }
            };
            let expected = total("tenant");
            for by in ["workload", "gpu", "model", "node", "user", "tenant,gpu", "model,tenant", "node,workload"] {
                prop_assert_eq!(&total(by), &expected, "by {}", by);
            }
        }

        #[test]
        fn every_row_and_every_column_adds_up_and_totals_are_rounded_to_the_nearest(exact in rows()) {
            let mut printed = exact.clone();
            round(&mut printed, None, false);
            let column = |rows: &[BillRow], cell: fn(&BillRow) -> u128| rows.iter().map(cell).sum::<u128>();
            for (cell, unit) in [
                (BillRow::held as fn(&BillRow) -> u128, UNIT),
                (|row| row.beside[0], UNIT),
                (|row| row.energy.unwrap_or(0), UNIT),
                (|row| row.money.unsigned_abs(), MONEY_UNIT.unsigned_abs()),
                (|row| row.charged + row.unpriced, UNIT),
            ] {
                prop_assert_eq!(column(&printed, cell), nearest(column(&exact, cell), unit));
            }
            let unavailable = printed.iter().map(|row| row.parts[UNAVAILABLE]).sum::<u128>();
            for (row, exact) in printed.iter().zip(&exact) {
                prop_assert_eq!(row.used, row.within_and_beside());
                prop_assert!((row.held() * UNIT).abs_diff(exact.held()) < 2 * UNIT);
                let others = if row.names.is_empty() { 0 } else { unavailable };
                let due = row.held() - row.parts[UNAVAILABLE] + others;
                prop_assert!(exact.charged + exact.unpriced == 0 || row.charged + row.unpriced == due);
                for (part, exact) in row.parts.iter().zip(exact.parts) {
                    prop_assert!((part * UNIT).abs_diff(exact) < 2 * UNIT);
                }
            }
        }
    }

    #[test]
    fn the_largest_remainder_is_served_first_and_ties_in_their_order() {
        assert_eq!(apportion(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(apportion(3, &[25, 0, 45, 30]), [1, 0, 1, 1]);
        assert_eq!(apportion(0, &[1, 2]), [0, 0]);
        assert_eq!(apportion(1, &[0, 0]), [0, 0]);
    }

    #[test]
    fn units_are_printed_with_every_place() {
        assert_eq!((decimal(0), decimal(12_345)), ("0.0000".to_owned(), "1.2345".to_owned()));
    }
}
