//! One piece of a window, counted: its money, its rows, its counters.
//!
//! The money of a piece is a difference of the money since the price interval began, so it never drifts
//! from rate x time; it is split along what the holders held, and the money of what was used among users.

use std::sync::Arc;

use rusqlite::Transaction;

use super::MINUTE;
use super::batch::ClosedWindow;
use super::book::{PriceRate, in_force};
use super::error::Cause;
use super::minutes::MinutePart;
use super::state::{AccruedCost, CounterKey, TransactionDraft};
use super::write;
use crate::attribution::{HeldParts, charged_times, money, split_money};
use crate::model::{Amounts, HolderId, Money, Nanoseconds, Row, Utc};

/// Adds a piece to the GPU and to the counters of its holders, in the draft.
pub(super) fn count_piece(
    draft: &mut TransactionDraft<'_>,
    uuid: &Arc<str>,
    piece: &MinutePart,
    now: Utc,
) -> Result<(), Cause> {
    let time = piece.to.since(piece.from).0;
    let version = in_force(&draft.base.prices, piece.from.floor(MINUTE));
    let unknown = || Cause::UnknownGpu { gpu: Arc::clone(uuid) };
    let gpu = draft.gpu(uuid).ok_or_else(unknown)?;
    if gpu.price != version.map(|version| version.id) {
        gpu.price = version.map(|version| version.id);
        gpu.price_time = 0;
    }
    let begin = gpu.price_time;
    gpu.price_time += time;
    gpu.slot += time;
    let end = gpu.price_time;
    for row in piece.rows.iter().filter(|row| row.gpu_instance.is_some()) {
        let id = row.gpu_instance.unwrap_or_default();
        *gpu.instances.entry(id).or_default() += row.amounts.parts.held();
    }
    for row in &piece.rows {
        if is_zero(row) {
            continue;
        }
        let key =
            CounterKey { gpu: Arc::clone(uuid), gpu_instance: row.gpu_instance, holder: row.holder.clone() };
        let counter = draft.counter(key, now)?;
        // The table of counters has neither memory nor measured time.
        counter.amounts.add(&Amounts { memory_byte_seconds: 0, measured: 0, ..row.amounts });
    }
    let held: i128 = piece.rows.iter().map(|row| i128::from(row.amounts.parts.held())).sum();
    draft.changes.imbalance += i128::from(time) - held;
    if let Some(rate) = version.and_then(|version| version.rate.as_ref()) {
        let total = money_between(rate, begin, end);
        add_costs(draft, PieceMoney { uuid, piece, rate, total }, now)?;
    }
    Ok(())
}

/// The money of GPU time from `begin` to `end`, both since the price interval began.
pub(super) fn money_between(rate: &PriceRate, begin: u64, end: u64) -> Money {
    let until = |time: u64| money(rate.nano_per_gpu_hour.into(), Nanoseconds(time));
    until(end) - until(begin)
}

/// The money of a piece under the price in force.
#[derive(Clone, Copy)]
struct PieceMoney<'a> {
    uuid: &'a Arc<str>,
    piece: &'a MinutePart,
    rate: &'a PriceRate,
    total: Money,
}

/// Adds the money of a piece to the costs of its holders and users.
fn add_costs(
    draft: &mut TransactionDraft<'_>,
    PieceMoney { uuid, piece, rate, total }: PieceMoney<'_>,
    now: Utc,
) -> Result<(), Cause> {
    let held = charged_times(piece.rows.iter().map(|row| HeldParts {
        gpu_instance: row.gpu_instance,
        holder: &row.holder,
        parts: &row.amounts.parts,
    }));
    let users: Vec<(HolderId, u64)> =
        piece.rows.iter().map(|row| (row.holder.clone(), row.amounts.used.total())).collect();
    let held_shares = split_money(total, &held.times)?;
    let used_time: i128 = users.iter().map(|(_, time)| i128::from(*time)).sum();
    let time = i128::from(piece.to.since(piece.from).0.max(1));
    let used_shares = split_money(Money(total.0 * used_time.min(time) / time), &users)?;
    let of_rows = || piece.rows.iter().map(|row| row.gpu_instance);
    let mut cost_of = |gpu_instance, holder: HolderId, add: &dyn Fn(&mut AccruedCost)| -> Result<(), Cause> {
        let counter = draft.counter(CounterKey { gpu: Arc::clone(uuid), gpu_instance, holder }, now)?;
        let cost = counter.costs.entry(rate.tariff.clone());
        add(cost.or_insert_with(|| AccruedCost { born: now, ..AccruedCost::default() }));
        Ok(())
    };
    let slots = of_rows().chain(held.added);
    for (((holder, time), share), slot) in held.times.into_iter().zip(held_shares).zip(slots) {
        if time > 0 {
            cost_of(slot, holder, &|cost| cost.held += share)?;
        }
    }
    for (((holder, time), share), slot) in users.into_iter().zip(used_shares).zip(of_rows()) {
        if time > 0 {
            cost_of(slot, holder, &|cost| cost.used += share)?;
        }
    }
    Ok(())
}

fn is_zero(row: &Row) -> bool {
    let Amounts { parts, used, energy_static, energy_dynamic, .. } = &row.amounts;
    parts.held() == 0 && used.total() == 0 && energy_static.0 == 0 && energy_dynamic.0 == 0
}

/// Adds a piece to the minute's rows, in the transaction; after [`count`].
pub(super) fn store_piece(
    transaction: &Transaction<'_>,
    draft: &mut TransactionDraft<'_>,
    closed: &ClosedWindow,
    piece: &MinutePart,
) -> Result<(), Cause> {
    let unknown = || Cause::UnknownGpu { gpu: Arc::clone(&closed.gpu) };
    write::add_to_minute(transaction, draft.gpu(&closed.gpu).ok_or_else(unknown)?, piece, closed.coarse)?;
    let gpu = draft.gpu(&closed.gpu).ok_or_else(unknown)?.id;
    for row in &piece.rows {
        let holder = draft.holder(&row.holder)?.ok_or_else(unknown)?.id;
        write::add_to_account(transaction, piece.from.floor(MINUTE), gpu, holder, row)?;
    }
    Ok(())
}
