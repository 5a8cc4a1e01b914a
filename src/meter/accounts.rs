//! What the ledger has acknowledged, by tenant: the only account that is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::folded::AccountKey;
use crate::catalogue::AccountValue;
use crate::ledger::{
    Acknowledged, Anchor, CounterKey, HolderCounter, Recovered, SlotTotal, Tariff, TenantKey,
};
use crate::model::snapshot::AccountState;
use crate::model::{HolderId, Nanoseconds, UnattributedReason, Utc};

/// Counters by GPU and holder as last acknowledged.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    counters: BTreeMap<CounterKey, TrackedCounter>,
    /// For each tenant with one of these, the sum of its counters that the ledger keeps alone.
    unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// The GPUs of which somebody has energy: no GPU draws nothing, so of the others it is not measured.
    metered: BTreeSet<Arc<str>>,
    pub(super) slots: BTreeMap<Arc<str>, SlotTotal>,
    pub(super) imbalance: i128,
    pub(super) bytes: Option<u64>,
}

/// A counter, and when it last changed; of one that was recovered, when that was.
#[derive(Debug)]
struct TrackedCounter {
    counter: HolderCounter,
    changed: Utc,
}

/// A tenant that is gone keeps its series for so long after its last change, so that every scraper has seen
/// its last value.
const LINGER: Nanoseconds = Nanoseconds::from_seconds(600);

/// A tenant's account on one slot, ready to be shown.
pub(super) struct TenantAccount {
    pub(super) tenant: Arc<str>,
    pub(super) uuid: Arc<str>,
    pub(super) gpu_instance: Option<u32>,
    pub(super) state: AccountState,
}

impl TenantAccount {
    pub(super) fn key(&self) -> AccountKey {
        AccountKey {
            tenant: Arc::clone(&self.tenant),
            uuid: Arc::clone(&self.uuid),
            gpu_instance: self.gpu_instance,
        }
    }
}

/// A workload's account on one slot, ready to be shown.
pub(super) struct WorkloadAccount {
    pub(super) workload: Arc<str>,
    pub(super) uuid: Arc<str>,
    pub(super) gpu_instance: Option<u32>,
    pub(super) state: AccountState,
}

/// A workload, the UUID of a GPU, and the GPU instance id; none for a whole GPU.
pub(super) type WorkloadKey = (Arc<str>, Arc<str>, Option<u32>);

impl WorkloadAccount {
    /// Whose it is, and on which slot.
    pub(super) fn key(&self) -> WorkloadKey {
        (Arc::clone(&self.workload), Arc::clone(&self.uuid), self.gpu_instance)
    }
}

impl Accounts {
    /// Goes on from what the ledger holds.
    pub(super) fn recover(&mut self, recovered: &Recovered, now: Utc) {
        self.update_counters(&recovered.counters, now);
        self.unloaded_sums.clone_from(&recovered.unloaded_sums);
        self.imbalance = recovered.imbalance;
        for (uuid, gpu) in &recovered.gpus {
            let instances = gpu.instances.clone();
            let total = SlotTotal { settled_until: gpu.settled_until, slot: gpu.slot, instances };
            self.slots.insert(Arc::clone(uuid), total);
        }
    }

    /// Moves what happened in this boot from the provisional axis to the real one.
    pub(super) fn apply_anchor(&mut self, anchor: &Anchor) {
        for known in self.counters.values_mut() {
            known.changed = anchor.moved(known.changed);
        }
    }

    /// Takes what a commit changed.
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
        self.bytes = Some(acknowledged.bytes);
    }

    fn update_counters(&mut self, counters: &BTreeMap<CounterKey, HolderCounter>, changed: Utc) {
        for (CounterKey { gpu: uuid, .. }, counter) in counters {
            if counter.amounts.energy_static.max(counter.amounts.energy_dynamic).0 > 0
                && !self.metered.contains(uuid)
            {
                self.metered.insert(Arc::clone(uuid));
            }
        }
        let known = |counter: &HolderCounter| TrackedCounter { counter: counter.clone(), changed };
        self.counters.extend(counters.iter().map(|(key, counter)| (key.clone(), known(counter))));
    }

    /// The accounts by tenant and GPU of all tenants that are here or have just gone; one that returns goes
    /// on from where it was. A series that is younger than `birth_delay` shows 0, so that a scraper sees
    /// where it begins.
    pub(super) fn by_tenant(
        &self,
        now: Utc,
        birth_delay: Nanoseconds,
        tariff: Option<&Tariff>,
    ) -> Vec<TenantAccount> {
        let mut sums: BTreeMap<AccountKey, (AccountState, Utc)> = BTreeMap::new();
        for (key, TrackedCounter { counter, changed }) in &self.counters {
            let old = |born: Utc| now >= born.plus(birth_delay);
            let priced =
                tariff.and_then(|tariff| counter.costs.get(tariff)).is_some_and(|cost| old(cost.born));
            let grown = old(counter.born);
            let metered = self.metered.contains(&key.gpu);
            let values = values(key.holder.is_remainder(), counter, tariff, metered);
            let account = AccountKey {
                tenant: Arc::clone(&counter.tenant),
                uuid: Arc::clone(&key.gpu),
                gpu_instance: key.gpu_instance,
            };
            let (sum, latest) = sums.entry(account).or_insert_with(|| {
                // A sum stays whole while anybody in it is here, or it would go back.
                let rest = self.unloaded_sums.get(&key.with_tenant(&counter.tenant));
                let values = rest.map(|rest| self::values(false, rest, tariff, metered));
                (AccountState { values: values.unwrap_or_default() }, *changed)
            });
            *latest = (*latest).max(*changed);
            for ((sum, value), kind) in sum.values.iter_mut().zip(values).zip(AccountValue::ALL) {
                let shown = match kind {
                    AccountValue::HeldCost | AccountValue::UsedCost => priced,
                    _ => grown,
                };
                let value = value.map(|value| if shown { value } else { 0 });
                *sum = match (*sum, value) {
                    (Some(sum), Some(value)) => Some(sum + value),
                    (sum, value) => sum.or(value),
                };
            }
        }
        sums.into_iter()
            .filter(|(_, (_, latest))| now < latest.plus(LINGER))
            .map(|(AccountKey { tenant, uuid, gpu_instance }, (state, _))| TenantAccount {
                tenant,
                uuid,
                gpu_instance,
                state,
            })
            .collect()
    }

    /// The accounts by workload and GPU, of those that are here or have just gone, without costs. A series that is
    /// younger than `birth_delay` shows 0.
    pub(super) fn by_workload(&self, now: Utc, birth_delay: Nanoseconds) -> Vec<WorkloadAccount> {
        let live = self
            .counters
            .iter()
            .filter(|(key, known)| !key.holder.is_remainder() && now < known.changed.plus(LINGER));
        live.map(|(key, TrackedCounter { counter, .. })| {
            let mut values = values(false, counter, None, self.metered.contains(&key.gpu));
            if now < counter.born.plus(birth_delay) {
                values.iter_mut().flatten().for_each(|value| *value = 0);
            }
            WorkloadAccount {
                workload: key.holder.as_str().into(),
                uuid: Arc::clone(&key.gpu),
                gpu_instance: key.gpu_instance,
                state: AccountState { values },
            }
        })
        .collect()
    }

    /// What [`HolderId::UNATTRIBUTED`] used on a GPU, by reason. It is shown for as long as anything of it is known, so
    /// the reasons sum to what [`Accounts::by_tenant`] shows of that tenant for as long as it shows it.
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
                let old = now >= known.counter.born.plus(birth_delay);
                Some(if old { known.counter.amounts.used.total() } else { 0 })
            };
            let known = instances.chain([whole.clone()]).filter_map(used);
            known.reduce(|one, other| one.saturating_add(other))
        })
    }

    /// When that changes though nothing is learned: a series is old enough to be shown whole, or has lingered.
    pub(super) fn change_after(&self, now: Utc, birth_delay: Nanoseconds) -> Utc {
        let moments = self.counters.values().flat_map(|TrackedCounter { counter, changed }| {
            let born = counter.costs.values().map(|cost| cost.born).chain([counter.born]);
            born.map(|born| born.plus(birth_delay)).chain([changed.plus(LINGER)])
        });
        moments.filter(|moment| *moment > now).min().unwrap_or(Utc(u64::MAX))
    }
}

/// A counter's values, of a remainder or of another holder, in the order of [`AccountValue`]. A remainder appears only where it has meaning: from
/// its first value that is not 0.
fn values(
    is_remainder: bool,
    counter: &HolderCounter,
    tariff: Option<&Tariff>,
    metered: bool,
) -> [Option<i128>; 12] {
    let cost = tariff.and_then(|tariff| counter.costs.get(tariff));
    AccountValue::ALL.map(|value| {
        let amount = match value {
            AccountValue::Held => counter.amounts.parts.held().into(),
            AccountValue::Used => counter.amounts.used.total().into(),
            AccountValue::Idle => counter.amounts.parts.idle().into(),
            AccountValue::Lent => counter.amounts.parts.lent.into(),
            AccountValue::BeyondShare => counter.amounts.used.beyond.into(),
            AccountValue::OutsideHolding => counter.amounts.used.outside.into(),
            AccountValue::Unmeasured => counter.amounts.parts.unmeasured.into(),
            AccountValue::Unavailable => counter.amounts.parts.unavailable.into(),
            AccountValue::EnergyStatic | AccountValue::EnergyDynamic if !metered => return None,
            AccountValue::EnergyStatic => counter.amounts.energy_static.0.into(),
            AccountValue::EnergyDynamic => counter.amounts.energy_dynamic.0.into(),
            AccountValue::HeldCost => cost?.held.0,
            AccountValue::UsedCost => cost?.used.0,
        };
        (!is_remainder || (has_meaning(value) && amount != 0)).then_some(amount)
    })
}

/// Whether a remainder has the value: it is held or used, and has energy and money, but owes nobody use.
const fn has_meaning(value: AccountValue) -> bool {
    matches!(
        value,
        AccountValue::Held
            | AccountValue::Used
            | AccountValue::EnergyStatic
            | AccountValue::EnergyDynamic
            | AccountValue::HeldCost
            | AccountValue::UsedCost
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amounts, Parts};

    #[test]
    fn between_two_changes_the_sums_are_as_if_they_were_added_up_in_every_second() {
        const DELAY: Nanoseconds = Nanoseconds::from_seconds(60);
        let at = |second| Utc(0).plus(Nanoseconds::from_seconds(second));
        let mut accounts = Accounts::default();
        for (user, born) in [("user:alice", 100), ("user:bob", 130)] {
            let parts = Parts { waste: born, ..Parts::default() };
            let amounts = Amounts { parts, ..Amounts::default() };
            let counter =
                HolderCounter { tenant: user.into(), born: at(born), amounts, ..HolderCounter::default() };
            let counters =
                BTreeMap::from([(CounterKey::of_gpu("GPU-0".into(), HolderId::new(user)), counter)]);
            accounts.acknowledge(&Acknowledged { counters, ..Acknowledged::default() }, at(born));
        }
        let added_up = |now: Utc| -> Vec<_> {
            let accounts = accounts.by_tenant(now, DELAY, None);
            accounts.into_iter().map(|account| (account.tenant, account.state.values)).collect()
        };
        let (mut until, mut shown, mut changes) = (at(0), Vec::new(), Vec::new());
        for second in 130..800 {
            let now = at(second);
            if now >= until {
                changes.push(second);
                (until, shown) = (accounts.change_after(now, DELAY), added_up(now));
            }
            assert_eq!(shown, added_up(now), "{second}");
        }
        assert_eq!(changes, [130, 160, 190, 700, 730]);
    }
}
