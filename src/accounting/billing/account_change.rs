//! What differs between the bill of a statement and the one that its account makes now.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::json::print_money;
use super::money::{ExactMoney, SumOverflow};
use super::{Bill, BillLine};
use crate::model::{Amounts, GpuId, HolderId, Microjoules, SlotId};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SumKey {
    tenant: String,
    holder: HolderId,
    gpu: Arc<str>,
    slot: SlotId,
    node: Option<String>,
    day: Option<String>,
}

/// Differences between an account and what a statement has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountChange {
    pub count: usize,
    /// The first of them, in words; empty where none does.
    pub first: String,
}

impl AccountChange {
    fn add(&mut self, told: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = told();
        }
        self.count += 1;
    }
}

/// What differs between the bill of a statement and that of the same account now. Neither the numbers of rates nor what bills say
/// beside the account are compared. With gaps, `__unobserved__` may be time that nobody reported, so it is not compared either.
///
/// # Errors
/// The money of a bill does not fit.
pub fn account_change(closed: &Bill, now: &Bill, has_gaps: bool) -> Result<AccountChange, SumOverflow> {
    // Days in a zone without a name may have been others.
    let by_day = !closed.time_zone.starts_with(['+', '-']);
    let [old, new] = [sums(closed, by_day)?, sums(now, by_day)?];
    let mut change = AccountChange::default();
    if closed.currency != now.currency {
        let name = |currency: &Option<String>| currency.clone().unwrap_or_else(|| "no currency".to_owned());
        change
            .add(|| format!("prices are in {}, and were in {}", name(&now.currency), name(&closed.currency)));
    }
    for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(key))) {
        let [was, is] = [&old, &new].map(|sums| sums.get(key));
        if was != is && !(has_gaps && key.holder.as_str() == HolderId::UNOBSERVED) {
            change.add(|| told(key, was, is));
        }
    }
    Ok(change)
}

fn sums(bill: &Bill, by_day: bool) -> Result<BTreeMap<SumKey, BillLine>, SumOverflow> {
    let mut sums = BTreeMap::<SumKey, BillLine>::new();
    for line in &bill.lines {
        let key = SumKey {
            tenant: line.tenant.clone(),
            // A document has no versions of holders.
            holder: line.holder.with_version(0),
            gpu: Arc::clone(&line.gpu.uuid),
            slot: line.slot.clone(),
            node: line.node.as_ref().map(|node| node.name.clone()),
            day: line.day.clone().filter(|_| by_day),
        };
        let sum = sums.entry(key).or_insert_with(|| empty_of(line));
        sum.add(&comparable(line))?;
    }
    Ok(sums)
}

/// A line without time. The index of a GPU may be another one after a boot.
fn empty_of(line: &BillLine) -> BillLine {
    let gpu = GpuId { index: 0, uuid: Arc::clone(&line.gpu.uuid) };
    BillLine::empty(gpu, line.holder.with_version(0))
}

/// The part of a line that comes from the account and is in a document.
fn comparable(line: &BillLine) -> BillLine {
    let energy = |energy: Microjoules| if line.has_energy { energy } else { Microjoules(0) };
    let amounts = Amounts {
        energy_static: energy(line.amounts.energy_static),
        energy_dynamic: energy(line.amounts.energy_dynamic),
        memory_byte_seconds: 0,
        energy_waiting: Microjoules(0),
        memory_peak: 0,
        ..line.amounts
    };
    let money = |exact: ExactMoney, rounded: Option<_>| rounded.map_or(ExactMoney::ZERO, |_| exact);
    BillLine {
        amounts,
        charged: line.charged,
        unpriced: line.unpriced,
        exact: money(line.exact, line.money),
        exact_energy: money(line.exact_energy, line.energy_money),
        ..empty_of(line)
    }
}

fn told(key: &SumKey, was: Option<&BillLine>, is: Option<&BillLine>) -> String {
    let SumKey { tenant, holder, gpu, slot, node, day } = key;
    let sum = |sum: Option<&BillLine>| {
        sum.map_or_else(
            || "nothing".to_owned(),
            |sum| {
                let (held, used) = (sum.amounts.parts.held(), sum.amounts.used.total());
                format!("held {held} ns, used {used} ns, money {}", print_money(sum.exact.floor()))
            },
        )
    };
    let of = [
        Some(format!("{tenant}, {} on {gpu}", holder.as_str())),
        slot.gpu_instance.map(|instance| format!("instance {instance}")),
        node.clone(),
        day.clone(),
    ];
    let of: Vec<String> = of.into_iter().flatten().collect();
    format!("{}: {} now, {} in the statement", of.join(", "), sum(is), sum(was))
}
