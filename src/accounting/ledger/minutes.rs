//! Cuts a settled window at whole minutes, and adds each part to the account: its rows, its counters and its money.
//!
//! A window of 15 s lies in one minute and is passed through. A longer one (a gap that was settled at once, windows merged
//! while the disk was stuck) is divided by time, in integers: each minute's parts sum to its time, its use equals the parts
//! that were used, and the minutes sum to the window.
//!
//! Costs are the rate in force x the time for which holders are charged, and x the time that users used.

use std::sync::Arc;

use super::amounts::COUNTER;
use super::error::Cause;
use super::rolled::RolledTime;
use super::state::TransactionDraft;
use super::{MINUTE, write};
use crate::accounting::batches::{AccruedCost, ClosedWindow, CounterKey};
use crate::accounting::billing::{
    Charge, ChargedSlot, ExactMoney, PricedSlot, Rate, RateSchedule, SlotRates, charges,
};
use crate::model::{
    Amount, Amounts, HolderId, PARTS, REPORTED, Row, Settlement, SlotId, Tariff, USES, Utc, largest_remainder,
};

/// The part of a window that lies in one minute, or in one quarter hour whose minutes are rolled up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MinutePart {
    pub(super) from: Utc,
    pub(super) to: Utc,
    pub(super) rows: Vec<Row>,
}

/// The parts of a window, in order of time; where rows are rolled up, each is of a quarter hour.
pub(super) fn split_at_minutes(settlement: &Settlement, rolled: RolledTime) -> Vec<MinutePart> {
    let mut rest = MinutePart { from: settlement.from, to: settlement.to, rows: settlement.rows.clone() };
    let mut parts = Vec::new();
    loop {
        let end = rolled.end_of(rolled.row_of(rest.from.floor(MINUTE)));
        if end >= rest.to {
            parts.push(rest);
            return parts;
        }
        let rows = take_rows_until(&mut rest, end);
        parts.push(MinutePart { from: rest.from, to: end, rows });
        rest.from = end;
    }
}

/// Removes the rows of `rest.from..end` from `rest` and returns them.
fn take_rows_until(rest: &mut MinutePart, end: Utc) -> Vec<Row> {
    let (time, whole) = (end.since(rest.from).0, rest.to.since(rest.from).0);
    let cells = |kinds: &[Amount]| {
        rest.rows.iter().flat_map(|row| kinds.iter().map(|kind| kind.of(&row.amounts))).collect()
    };
    let (within, above) = USES.split_at(1);
    let (mut held, mut used_within, mut used_above): (Vec<u64>, Vec<u64>, Vec<u64>) =
        (cells(PARTS), cells(within), cells(above));
    let parts = take_share(&mut held, time, whole);
    // Use is divided as the parts that were used, so that both agree in every minute.
    let column = |cells: &[u64], part: usize| cells.iter().skip(part).step_by(PARTS.len()).sum::<u64>();
    let taken_within = take_share(&mut used_within, column(&parts, 0), column(&parts, 0) + column(&held, 0));
    let taken_above = take_share(&mut used_above, column(&parts, 1), column(&parts, 1) + column(&held, 1));
    let set = |amounts: &mut Amounts, kinds: &[Amount], index: usize, cells: &[u64]| {
        for (kind, cell) in kinds.iter().zip(&cells[index * kinds.len()..]) {
            *kind.of_mut(amounts) = *cell;
        }
    };
    rest.rows
        .iter_mut()
        .enumerate()
        .map(|(index, left)| {
            let mut taken = left.clone();
            for (amounts, held, used_within, used_above) in [
                (&mut taken.amounts, &parts, &taken_within, &taken_above),
                (&mut left.amounts, &held, &used_within, &used_above),
            ] {
                set(amounts, PARTS, index, held);
                set(amounts, within, index, used_within);
                set(amounts, above, index, used_above);
            }
            scale(&mut taken.amounts, &mut left.amounts, time, whole);
            taken
        })
        .collect()
}

/// Divides energy, memory and measured time by time; either part has the whole memory peak.
fn scale(taken: &mut Amounts, left: &mut Amounts, time: u64, whole: u64) {
    for kind in REPORTED {
        let part = share(kind.of(left), time, whole);
        *kind.of_mut(taken) = part;
        *kind.of_mut(left) -= part;
    }
    // Measured time must not exceed used time in either part.
    let least = left.measured.saturating_sub(left.used.total());
    let most = left.measured.min(taken.used.total());
    taken.measured = share(left.measured, time, whole).min(most).max(least);
    left.measured -= taken.measured;
}

/// Removes `part / whole` of the sum of all cells from them and returns what each gave: the floor or the ceiling of its
/// quota, the ceilings to the largest fractions, ties in order.
fn take_share(cells: &mut [u64], part: u64, whole: u64) -> Vec<u64> {
    let sum: u64 = cells.iter().sum();
    if sum == 0 || whole == 0 {
        return vec![0; cells.len()];
    }
    // This is `part` where the cells sum to the whole, as in a balanced window.
    let amount = share(sum, part, whole);
    let quotas = cells.iter().map(|cell| {
        let product = u128::from(*cell) * u128::from(amount);
        ((product / u128::from(sum)).cast_signed(), product % u128::from(sum))
    });
    let taken = largest_remainder(quotas, amount.into());
    let taken: Vec<u64> = taken.into_iter().map(|part| u64::try_from(part).unwrap_or(0)).collect();
    for (cell, taken) in cells.iter_mut().zip(&taken) {
        *cell -= taken;
    }
    taken
}

/// `value * part / whole`, rounded down; `part <= whole`, so it fits.
fn share(value: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(value) * u128::from(part) / u128::from(whole)) as u64 }
}

/// Adds a part of a window to the rows of its minute, to the GPU and to the counters of its holders.
pub(super) fn add_minute_part(
    draft: &mut TransactionDraft<'_>,
    closed: &ClosedWindow,
    part: &MinutePart,
    now: Utc,
) -> Result<(), Cause> {
    let connection = draft.connection;
    let minute = part.from.floor(MINUTE);
    let time = part.to.since(part.from).0;
    let gpu = draft.gpu(&closed.gpu)?;
    gpu.slot += time;
    let gpu_key = gpu.id;
    let row_begin = draft.base.rolled.row_of(minute);
    write::add_to_minute(connection, (row_begin, gpu_key), part, closed.coarse)?;
    for row in &part.rows {
        if let Some(id) = row.slot.gpu_instance {
            *draft.gpu(&closed.gpu)?.instances.entry(id).or_default() += row.amounts.parts.held();
        }
        if !is_zero(row) {
            // Counters have only their columns.
            let mut amounts = Amounts::default();
            COUNTER.iter().for_each(|kind| *kind.of_mut(&mut amounts) = kind.of(&row.amounts));
            draft.counter(CounterKey::of_row(&closed.gpu, row), now)?.amounts.add(&amounts);
        }
        write::add_to_account(connection, row_begin, gpu_key, draft.stored_holder(&row.holder)?.id, row)?;
    }
    let held: i128 = part.rows.iter().map(|row| i128::from(row.amounts.parts.held())).sum();
    draft.changes.imbalance += i128::from(time) - held;
    let rates = Arc::clone(&draft.base.rates);
    if rates.has_prices() { add_costs(draft, &closed.gpu, part, &rates, now) } else { Ok(()) }
}

/// Adds the money of a part to the costs of its holders and users, at the rates then in force and without terms.
fn add_costs(
    draft: &mut TransactionDraft<'_>,
    uuid: &Arc<str>,
    part: &MinutePart,
    schedule: &RateSchedule,
    now: Utc,
) -> Result<(), Cause> {
    let model = Arc::clone(&draft.gpu(uuid)?.model);
    let minute = part.from.floor(MINUTE);
    let held = charges(part.rows.iter().map(|row| ChargedSlot {
        slot: &row.slot,
        holder: &row.holder,
        parts: &row.amounts.parts,
    }));
    draft.charge_month(uuid, minute, &part.rows)?;
    let mut add = |slot: &SlotId, holder: &HolderId, tariff: &Tariff, [held, used]: [ExactMoney; 2]| {
        let gpu_instance = slot.gpu_instance;
        let key = CounterKey { gpu: Arc::clone(uuid), gpu_instance, holder: holder.clone() };
        let cost = draft.counter(key, now)?.costs.entry(tariff.clone());
        let cost = cost.or_insert_with(|| AccruedCost { born: now, ..AccruedCost::default() });
        (cost.held, cost.used) = (cost.held.plus(held)?, cost.used.plus(used)?);
        Ok::<(), Cause>(())
    };
    for Charge { slot, holder, time } in held.iter().filter(|charge| charge.time > 0) {
        let priced = PricedSlot { uuid, model: &model, profile: slot.profile.as_ref() };
        let rates = SlotRates::find(schedule, priced, minute);
        if let Some(tariff) = rates.tariff() {
            let money = ExactMoney::of_time(rates.nano_per_gpu_hour(), *time);
            add(slot, holder, tariff, [money, ExactMoney::ZERO])?;
        }
    }
    for row in &part.rows {
        let priced = PricedSlot { uuid, model: &model, profile: row.slot.profile.as_ref() };
        let (rates, time) = (SlotRates::find(schedule, priced, minute), row.amounts.used.total());
        if let Some(tariff) = rates.tariff().filter(|_| time > 0) {
            let money = ExactMoney::of_time(rates.nano_per_gpu_hour(), time);
            add(&row.slot, &row.holder, tariff, [ExactMoney::ZERO, money])?;
        }
        let energy = [row.amounts.energy_static, row.amounts.energy_dynamic];
        if let Some(rate) = rates.energy.filter(|_| energy.iter().any(|energy| energy.0 > 0)) {
            let Rate { nano, tariff, .. } = &rate.entry;
            let [floor, dynamic] = energy.map(|energy| ExactMoney::of_energy(*nano, energy.0));
            add(&row.slot, &row.holder, tariff, [floor.plus(dynamic)?, dynamic])?;
        }
    }
    Ok(())
}

fn is_zero(row: &Row) -> bool {
    COUNTER.iter().all(|kind| kind.of(&row.amounts) == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{ActivitySource, Grade, HolderId, Method, Microjoules, Nanoseconds, Parts, Use};

    fn window(from: u64, cells: &[[u32; 5]]) -> Settlement {
        let rows: Vec<Row> = cells
            .iter()
            .enumerate()
            .map(|(index, cells)| {
                let [within, lent, idle, unmeasured, unavailable] = cells.map(u64::from);
                Row {
                    slot: SlotId::default(),
                    holder: HolderId::new(format!("user:{index}")),
                    amounts: Amounts {
                        parts: Parts { within, lent, idle, unmeasured, unavailable },
                        used: Use { within, beyond: lent, ..Use::default() },
                        energy_static: Microjoules(within),
                        energy_dynamic: Microjoules(idle),
                        memory_byte_seconds: lent,
                        energy_waiting: Microjoules(unmeasured),
                        measured: within,
                        memory_peak: idle,
                    },
                    grade: Grade::Measured,
                    method: Method::Observed,
                    source: ActivitySource::Gpm,
                    granted_by: None,
                }
            })
            .collect();
        let length = rows.iter().map(|row| row.amounts.parts.held()).sum();
        Settlement {
            from: Utc(from),
            to: Utc(from).plus(Nanoseconds(length)),
            rows,
            carry: Default::default(),
            weights: Default::default(),
            flags: Vec::new(),
            ..Settlement::default()
        }
    }

    #[test]
    fn a_window_within_a_minute_passes_through() {
        let window = window(3 * MINUTE.0, &[[15_000, 0, 0, 0, 0]]);
        let parts = split_at_minutes(&window, RolledTime::default());
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].rows, window.rows);
    }

    #[test]
    fn a_window_that_ends_with_its_minute_leaves_no_empty_part() {
        let mut window = window(0, &[[0, 0, 1, 0, 0]]);
        window.rows[0].amounts.parts.idle = 2 * MINUTE.0;
        window.to = Utc(2 * MINUTE.0);
        assert_eq!(
            split_at_minutes(&window, RolledTime::default()).iter().map(|part| part.to.0).collect::<Vec<_>>(),
            [MINUTE.0, 2 * MINUTE.0]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parts_balance_and_sum_to_the_window(
            from in 0..2 * MINUTE.0,
            cells in prop::collection::vec(any::<[u32; 5]>(), 1..12),
        ) {
            // Up to 12 x 5 x 4.3 s: several minutes.
            let window = window(from, &cells);
            let parts = split_at_minutes(&window, RolledTime::default());
            let mut sums = vec![Amounts::default(); cells.len()];
            let mut at = window.from;
            for part in &parts {
                prop_assert_eq!(part.from, at);
                prop_assert_eq!(part.from.floor(MINUTE), Utc(part.to.0 - 1).floor(MINUTE));
                at = part.to;
                let held: u64 = part.rows.iter().map(|row| row.amounts.parts.held()).sum();
                prop_assert_eq!(held, part.to.since(part.from).0);
                let used = |f: fn(&Row) -> u64| part.rows.iter().map(f).sum::<u64>();
                prop_assert_eq!(used(|row| row.amounts.used.within), used(|row| row.amounts.parts.within));
                prop_assert_eq!(used(|row| row.amounts.used.beyond), used(|row| row.amounts.parts.lent));
                for (row, sum) in part.rows.iter().zip(&mut sums) {
                    prop_assert!(row.amounts.measured <= row.amounts.used.total());
                    sum.add(&row.amounts);
                }
            }
            prop_assert_eq!(at, window.to);
            for (row, sum) in window.rows.iter().zip(sums) {
                prop_assert_eq!(row.amounts, sum);
            }
        }
    }
}
