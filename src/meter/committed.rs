//! The account as the ledger has committed it; nothing else of the account is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::accounting::batches::{
    Acknowledged, CounterKey, HolderCounter, MonthCosts, Recovered, SlotTotal, TenantKey,
};
use crate::accounting::billing::RateSchedule;
use crate::accounting::tenants::RuleSchedule;
use crate::model::catalogue::AccountValue;
use crate::model::snapshot::AccountState;
use crate::model::{HolderId, Nanoseconds, Tariff, UnattributedReason, Utc};

/// Counters by GPU and holder as last committed.
#[derive(Debug, Default)]
pub(super) struct CommittedAccounts {
    counters: BTreeMap<CounterKey, TrackedCounter>,
    /// For each tenant in `counters`: the sum of its counters that were unloaded from memory and are only in the ledger
    /// file.
    unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// The GPUs with energy in any counter. The energy of the others is not measured, since every GPU draws power.
    with_energy: BTreeSet<Arc<str>>,
    pub(super) slots: BTreeMap<Arc<str>, SlotTotal>,
    /// The rates that the ledger has recorded; none without a ledger.
    pub(super) rates: Option<Arc<RateSchedule>>,
    /// The tenant rules that the ledger has recorded; none without a ledger.
    pub(super) tenant_rules: Option<Arc<RuleSchedule>>,
    /// What tenants are charged in the month so far; none where that is not known.
    pub(super) month: Option<Arc<MonthCosts>>,
    pub(super) imbalance: i128,
    pub(super) bytes: Option<u64>,
}

#[derive(Debug)]
struct TrackedCounter {
    counter: HolderCounter,
    /// When it last changed; for a counter loaded at the start, the agent's start.
    changed: Utc,
}

/// How long an account keeps its series after its last change, so that every scraper sees its last value.
const LINGER: Nanoseconds = Nanoseconds::from_seconds(600);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountKey {
    /// Tenant or workload id.
    pub(super) owner: Arc<str>,
    pub(super) uuid: Arc<str>,
    /// GPU instance id; none for a whole GPU.
    pub(super) gpu_instance: Option<u32>,
}

impl AccountKey {
    fn new(owner: Arc<str>, counter: &CounterKey) -> Self {
        Self { owner, uuid: Arc::clone(&counter.gpu), gpu_instance: counter.gpu_instance }
    }
}

pub(super) struct SlotAccount {
    pub(super) key: AccountKey,
    pub(super) state: AccountState,
}

impl CommittedAccounts {
    pub(super) fn recover(&mut self, recovered: &Recovered, now: Utc) {
        self.update_counters(&recovered.counters, now);
        self.unloaded_sums.clone_from(&recovered.unloaded_sums);
        self.imbalance = recovered.imbalance;
        self.rates = Some(Arc::clone(&recovered.rates));
        self.tenant_rules = Some(Arc::clone(&recovered.tenant_rules));
        for (uuid, gpu) in &recovered.gpus {
            let instances = gpu.instances.clone();
            let total = SlotTotal { settled_until: gpu.settled_until, slot: gpu.slot, instances };
            self.slots.insert(Arc::clone(uuid), total);
        }
    }

    pub(super) fn acknowledge(&mut self, acknowledged: &Acknowledged, now: Utc) {
        self.update_counters(&acknowledged.counters, now);
        self.unloaded_sums
            .extend(acknowledged.unloaded_sums.iter().map(|(tenant, sum)| (tenant.clone(), sum.clone())));
        if !acknowledged.unloaded.is_empty() {
            for key in &acknowledged.unloaded {
                self.counters.remove(key);
            }
            let live: BTreeSet<TenantKey> =
                self.counters.iter().map(|(key, known)| key.with_tenant(&known.counter.tenant)).collect();
            self.unloaded_sums.retain(|tenant, _| live.contains(tenant));
        }
        self.slots.extend(acknowledged.slots.iter().map(|(uuid, total)| (Arc::clone(uuid), total.clone())));
        self.imbalance = acknowledged.imbalance;
        self.rates = Some(Arc::clone(&acknowledged.rates));
        self.tenant_rules = Some(Arc::clone(&acknowledged.tenant_rules));
        self.month.clone_from(&acknowledged.month);
        self.bytes = Some(acknowledged.bytes);
    }

    fn update_counters(&mut self, counters: &BTreeMap<CounterKey, HolderCounter>, changed: Utc) {
        for (CounterKey { gpu: uuid, .. }, counter) in counters {
            if counter.amounts.energy_static.max(counter.amounts.energy_dynamic).0 > 0
                && !self.with_energy.contains(uuid)
            {
                self.with_energy.insert(Arc::clone(uuid));
            }
        }
        let known = |counter: &HolderCounter| TrackedCounter { counter: counter.clone(), changed };
        self.counters.extend(counters.iter().map(|(key, counter)| (key.clone(), known(counter))));
    }

    /// The accounts by tenant of all tenants that changed within [`LINGER`]; a tenant that returns continues its old
    /// sums. A value younger than `birth_delay` is 0, so that scrapers see the series begin at 0. Costs are those under the
    /// tariff of each GPU, by UUID.
    pub(super) fn by_tenant(
        &self,
        now: Utc,
        birth_delay: Nanoseconds,
        tariffs: &BTreeMap<Arc<str>, Tariff>,
    ) -> Vec<SlotAccount> {
        let mut sums: BTreeMap<AccountKey, (AccountState, Utc)> = BTreeMap::new();
        for (key, TrackedCounter { counter, changed }) in &self.counters {
            let is_old = |born: Utc| now >= born.plus(birth_delay);
            let tariff = tariffs.get(&key.gpu);
            let cost = tariff.and_then(|tariff| counter.costs.get(tariff));
            let is_cost_old = cost.is_some_and(|cost| is_old(cost.born));
            let is_counter_old = is_old(counter.born);
            let with_energy = self.with_energy.contains(&key.gpu);
            let values = values(key.holder.is_remainder(), counter, tariff, with_energy);
            let account = AccountKey::new(Arc::clone(&counter.tenant), key);
            let (sum, latest) = sums.entry(account).or_insert_with(|| {
                // The sum includes unloaded counters, or it would go back when the ledger unloads one.
                let unloaded = self.unloaded_sums.get(&key.with_tenant(&counter.tenant));
                let values = unloaded.map(|unloaded| self::values(false, unloaded, tariff, with_energy));
                (AccountState { values: values.unwrap_or_default() }, *changed)
            });
            *latest = (*latest).max(*changed);
            for ((sum, value), kind) in sum.values.iter_mut().zip(values).zip(AccountValue::ALL) {
                let is_published = if is_cost(kind) { is_cost_old } else { is_counter_old };
                if let Some(value) = value {
                    *sum = Some(sum.unwrap_or(0) + if is_published { value } else { 0 });
                }
            }
        }
        let live = sums.into_iter().filter(|(_, (_, latest))| now < latest.plus(LINGER));
        live.map(|(key, (state, _))| SlotAccount { key, state }).collect()
    }

    /// The accounts by workload of those that changed within [`LINGER`]: the sum of all versions of a workload. That of a version
    /// younger than `birth_delay` is 0. Costs are those under the tariff of each GPU, by UUID.
    pub(super) fn by_workload(
        &self,
        now: Utc,
        birth_delay: Nanoseconds,
        tariffs: &BTreeMap<Arc<str>, Tariff>,
    ) -> Vec<SlotAccount> {
        let mut sums: BTreeMap<AccountKey, (AccountState, Utc)> = BTreeMap::new();
        let holders = self.counters.iter().filter(|(key, _)| !key.holder.is_remainder());
        for (key, TrackedCounter { counter, changed }) in holders {
            let tariff = tariffs.get(&key.gpu);
            let mut values = values(false, counter, tariff, self.with_energy.contains(&key.gpu));
            let is_young = |born: Utc| now < born.plus(birth_delay);
            let cost = tariff.and_then(|tariff| counter.costs.get(tariff));
            let is_cost_young = cost.is_some_and(|cost| is_young(cost.born));
            for (value, kind) in values.iter_mut().zip(AccountValue::ALL) {
                if if is_cost(kind) { is_cost_young } else { is_young(counter.born) } {
                    *value = value.map(|_| 0);
                }
            }
            // The ledger keeps the counters of all versions of a workload in memory as long as that of one.
            let (sum, latest) = sums.entry(AccountKey::new(key.holder.workload(), key)).or_default();
            *latest = (*latest).max(*changed);
            for (sum, value) in sum.values.iter_mut().zip(values) {
                *sum = value.map(|value| sum.unwrap_or(0) + value).or(*sum);
            }
        }
        let live = sums.into_iter().filter(|(_, (_, latest))| now < latest.plus(LINGER));
        live.map(|(key, (state, _))| SlotAccount { key, state }).collect()
    }

    /// What [`HolderId::UNATTRIBUTED`] used on a GPU, by reason. It does not end after [`LINGER`], so the reasons sum
    /// to that tenant's use in [`CommittedAccounts::by_tenant`] for as long as that has the tenant.
    pub(super) fn unattributed(
        &self,
        uuid: &Arc<str>,
        now: Utc,
        birth_delay: Nanoseconds,
    ) -> [Option<u64>; UnattributedReason::ALL.len()] {
        UnattributedReason::ALL.map(|reason| {
            let remainder = HolderId::unattributed(reason);
            let whole = CounterKey::of_gpu(Arc::clone(uuid), remainder.clone());
            let instances = self.slots.get(uuid).into_iter().flat_map(|total| total.instances.keys());
            let instances = instances.map(|id| CounterKey { gpu_instance: Some(*id), ..whole.clone() });
            let used = |key: CounterKey| {
                let known = self.counters.get(&key)?;
                let is_old = now >= known.counter.born.plus(birth_delay);
                Some(if is_old { known.counter.amounts.used.total() } else { 0 })
            };
            let known = instances.chain([whole.clone()]).filter_map(used);
            known.reduce(|one, other| one.saturating_add(other))
        })
    }
}

/// A counter's values by [`AccountValue::ALL`]. A remainder has only values with a meaning that are not 0.
fn values(
    is_remainder: bool,
    counter: &HolderCounter,
    tariff: Option<&Tariff>,
    with_energy: bool,
) -> [Option<i128>; 12] {
    let cost = tariff.and_then(|tariff| counter.costs.get(tariff));
    AccountValue::ALL.map(|value| {
        let amount = match value {
            AccountValue::Held => counter.amounts.parts.held().into(),
            AccountValue::Used => counter.amounts.used.total().into(),
            AccountValue::Idle => counter.amounts.parts.idle.into(),
            AccountValue::Lent => counter.amounts.parts.lent.into(),
            AccountValue::BeyondShare => counter.amounts.used.beyond.into(),
            AccountValue::OutsideHolding => counter.amounts.used.outside.into(),
            AccountValue::Unmeasured => counter.amounts.parts.unmeasured.into(),
            AccountValue::Unavailable => counter.amounts.parts.unavailable.into(),
            AccountValue::EnergyStatic | AccountValue::EnergyDynamic if !with_energy => return None,
            AccountValue::EnergyStatic => counter.amounts.energy_static.0.into(),
            AccountValue::EnergyDynamic => counter.amounts.energy_dynamic.0.into(),
            AccountValue::HeldCost => cost?.held.floor().0,
            AccountValue::UsedCost => cost?.used.floor().0,
        };
        (!is_remainder || (has_meaning(value) && amount != 0)).then_some(amount)
    })
}

/// Whether a remainder has the value: it can be held and used, and has energy and costs, but is not idle.
const fn has_meaning(value: AccountValue) -> bool {
    use AccountValue::{EnergyDynamic, EnergyStatic, Held, Used};
    is_cost(value) || matches!(value, Held | Used | EnergyStatic | EnergyDynamic)
}

pub(super) const fn is_cost(value: AccountValue) -> bool {
    matches!(value, AccountValue::HeldCost | AccountValue::UsedCost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amounts, Parts};

    #[test]
    fn idle_time_is_what_nobody_used_and_lent_time_is_not_in_it() {
        let parts = Parts { within: 1, lent: 2, idle: 4, unmeasured: 8, unavailable: 16 };
        let counter =
            HolderCounter { amounts: Amounts { parts, ..Amounts::default() }, ..HolderCounter::default() };
        let values = values(false, &counter, None, false);
        use AccountValue::{Held, Idle, Lent, Unavailable, Unmeasured};
        let found = [Held, Lent, Idle, Unmeasured, Unavailable].map(|value| values[value as usize]);
        assert_eq!(found, [31, 2, 4, 8, 16].map(Some));
    }
}
