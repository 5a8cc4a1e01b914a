//! The accounts as they are shown, kept for as long as nothing of them changes: windows close every 15 s, ticks come
//! every second.
//!
//! In: what the ledger has acknowledged, by tenant, and which of it fits. Out: entries of the roster with their values,
//! the same `Arc`s until the accounts, the holders, the policy, the GPUs or the room for series are others. It adds up
//! nothing itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::accounts::{TenantAccount, WorkloadAccount};
use super::budget::SeriesBudget;
use super::folded::AccountKey;
use super::{Meter, TrackedGpu};
use crate::catalogue::Level;
use crate::ledger::Tariff;
use crate::model::snapshot::{AccountEntry, AccountState, WorkloadAccountEntry};
use crate::model::{HolderId, Stamp, UnattributedReason, Utc};

/// What is shown, and what it was made for.
pub(super) struct Shown {
    /// When time alone changes it.
    until: Utc,
    /// UUIDs in the order of the roster.
    gpus: Vec<Arc<str>>,
    tariff: Option<Tariff>,
    room: usize,
    left_off: usize,
    pub(super) entries: Arc<[AccountEntry]>,
    pub(super) states: Arc<[AccountState]>,
    pub(super) workloads: ShownWorkloads,
    /// By GPU and reason.
    pub(super) unattributed: Arc<[[Option<u64>; UnattributedReason::ALL.len()]]>,
}

/// The workloads' accounts that are shown.
pub(super) struct ShownWorkloads {
    pub(super) entries: Arc<[WorkloadAccountEntry]>,
    pub(super) states: Arc<[AccountState]>,
    left_off: usize,
}

impl Meter {
    /// The accounts by tenant and GPU that fit: those that were `shown`, where they still stand.
    pub(super) fn shown(
        &self,
        shown: Option<Shown>,
        (now, gpus): (Stamp, &[&TrackedGpu]),
        series_budget: &mut SeriesBudget<'_>,
    ) -> Shown {
        let at = self.timeline.at(now.boottime);
        let price = self.policy.price(at);
        let stands = |shown: &Shown| {
            let tariff = shown.tariff.as_ref().map(|tariff| (&tariff.currency, &tariff.class));
            at < shown.until
                && shown.room == series_budget.entries_left(&self.costs.account)
                && tariff == price.map(|price| (&price.currency, &price.class))
                && shown.gpus.iter().eq(gpus.iter().map(|gpu| &gpu.id.uuid))
        };
        if let Some(shown) = shown.filter(stands) {
            series_budget.charge(&self.costs.account, shown.entries.len(), shown.left_off);
            let ShownWorkloads { entries, left_off, .. } = &shown.workloads;
            series_budget.charge(&self.costs.workload_account, entries.len(), *left_off);
            return shown;
        }
        let tariff = price
            .map(|price| Tariff { currency: Arc::clone(&price.currency), class: Arc::clone(&price.class) });
        self.show((at, tariff), gpus, series_budget)
    }

    fn show(
        &self,
        (at, tariff): (Utc, Option<Tariff>),
        gpus: &[&TrackedGpu],
        series_budget: &mut SeriesBudget<'_>,
    ) -> Shown {
        let places: BTreeMap<&str, usize> =
            gpus.iter().enumerate().map(|(place, gpu)| (&*gpu.id.uuid, place)).collect();
        let delay = self.policy.birth_delay;
        let mut accounts = self.accounts.by_tenant(at, delay, tariff.as_ref());
        // Of a GPU that is forgotten nothing is shown, and nothing is left off.
        accounts.retain(|account| places.contains_key(&*account.uuid));
        let (all, room) = (accounts.len(), series_budget.entries_left(&self.costs.account));
        fold_what_does_not_fit(&mut accounts, (room, gpus.len()), tariff.as_ref(), series_budget);
        let (entries, states): (Vec<_>, Vec<_>) = accounts
            .into_iter()
            .filter_map(|account| {
                let gpu = *places.get(&*account.uuid)?;
                let gpu_instance = instance_label(account.gpu_instance);
                Some((AccountEntry { tenant: account.tenant, gpu, gpu_instance }, account.state))
            })
            .unzip();
        let with_series = entries.iter().filter(|entry| &*entry.tenant != HolderId::OTHER).count();
        let left_off = all.saturating_sub(with_series);
        series_budget.charge(&self.costs.account, entries.len(), left_off);
        let workloads = self.show_workloads(at, &places, series_budget);
        let unattributed = gpus.iter().map(|gpu| self.accounts.unattributed(&gpu.id.uuid, at, delay));
        Shown {
            unattributed: unattributed.collect(),
            until: self.accounts.change_after(at, delay),
            gpus: gpus.iter().map(|gpu| Arc::clone(&gpu.id.uuid)).collect(),
            tariff,
            room,
            left_off,
            entries: entries.into(),
            states: states.into(),
            workloads,
        }
    }
}

impl Meter {
    /// The workloads' accounts that fit; below level full there are none.
    fn show_workloads(
        &self,
        at: Utc,
        places: &BTreeMap<&str, usize>,
        series_budget: &mut SeriesBudget<'_>,
    ) -> ShownWorkloads {
        if self.policy.level < Level::Full {
            return ShownWorkloads { entries: Arc::default(), states: Arc::default(), left_off: 0 };
        }
        let mut accounts = self.accounts.by_workload(at, self.policy.birth_delay);
        accounts.retain(|account| places.contains_key(&*account.uuid));
        let keys = accounts.iter().map(WorkloadAccount::key).collect();
        let fit = series_budget.admit_workloads(&self.costs.workload_account, keys);
        let left_off = accounts.len() - fit.len();
        accounts.retain(|account| fit.contains(&account.key()));
        let (entries, states): (Vec<_>, Vec<_>) = accounts
            .into_iter()
            .filter_map(|account| {
                let gpu = *places.get(&*account.uuid)?;
                let (workload, gpu_instance) = (account.workload, instance_label(account.gpu_instance));
                Some((WorkloadAccountEntry { workload, gpu, gpu_instance }, account.state))
            })
            .unzip();
        ShownWorkloads { entries: entries.into(), states: states.into(), left_off }
    }
}

/// The label of a GPU instance; empty without one.
pub(super) fn instance_label(id: Option<u32>) -> Arc<str> {
    id.map(|id| id.to_string().into()).unwrap_or_default()
}

/// Takes out the accounts that have no series, and adds those of `__other__` for what they grew by.
fn fold_what_does_not_fit(
    accounts: &mut Vec<TenantAccount>,
    (room, gpus): (usize, usize),
    tariff: Option<&Tariff>,
    series_budget: &mut SeriesBudget<'_>,
) {
    // Where not all fit, each GPU may have a place for the others, but never more of them than of tenants.
    let reserved = if accounts.len() > room { gpus.min(room / 2) } else { 0 };
    let keys: Vec<AccountKey> = accounts.iter().map(TenantAccount::key).collect();
    let fit = series_budget.admit_accounts(keys, room - reserved);
    let mut others = series_budget.budget.folded.fold(accounts, &fit, tariff);
    accounts.retain(|account| fit.contains(&account.key()));
    others.truncate(room.saturating_sub(accounts.len()));
    accounts.append(&mut others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::AccountValue;
    use crate::ledger::{AccruedCost, Acknowledged, CounterKey, HolderCounter};
    use crate::meter::Policy;
    use crate::meter::account::Account;
    use crate::meter::budget::BudgetHistory;
    use crate::model::snapshot::PriceEntry;
    use crate::model::{Amounts, GpuId, Holder, Money, Nanoseconds, Parts};

    const WIDE: usize = 1_000;
    const GPUS: [&str; 2] = ["GPU-0", "GPU-1"];

    fn at(second: u64) -> Stamp {
        let time = Nanoseconds::from_seconds(second);
        Stamp { boottime: time, utc: Utc(time.0) }
    }

    /// A meter of two GPUs, on each of which alice held for 5 euros; from 1000 s on the price is in dollars, of which
    /// it were 7.
    fn meter() -> Meter {
        let price = |currency: &str| {
            Some(PriceEntry { currency: currency.into(), class: "spot".into(), nano_per_gpu_hour: 1 })
        };
        let policy = Policy {
            level: Level::Full,
            intervals: [Nanoseconds::SECOND; 3],
            allocations: Arc::default(),
            standing: Vec::new(),
            presence: false,
            birth_delay: Nanoseconds(0),
            processes: 1,
            series: WIDE,
            prices: vec![(Utc(0), price("EUR")), (at(1_000).utc, price("USD"))],
        };
        let mut meter = Meter::new(Arc::new(policy), at(900), None);
        for (index, uuid) in (0..).zip(GPUS) {
            let gpu = TrackedGpu::new(
                GpuId { index, uuid: uuid.into() },
                Account::begin(at(900).utc),
                at(900).utc,
                Level::Full,
            );
            meter.gpus.insert(uuid.into(), gpu);
            hold(&mut meter, "alice", uuid);
        }
        meter
    }

    fn hold(meter: &mut Meter, tenant: &str, uuid: &str) {
        let tariff = |currency: &str| Tariff { currency: currency.into(), class: "spot".into() };
        let costs = [("EUR", 5), ("USD", 7)].map(|(currency, held)| {
            (tariff(currency), AccruedCost { held: Money(held), ..AccruedCost::default() })
        });
        let parts = Parts { waste: 1, ..Parts::default() };
        let tenant: Arc<str> = tenant.into();
        let holder = Holder::user(&tenant, None).id;
        let amounts = Amounts { parts, ..Amounts::default() };
        let counter = HolderCounter { tenant, amounts, costs: costs.into(), ..HolderCounter::default() };
        let counters = BTreeMap::from([(CounterKey::of_gpu(uuid.into(), holder), counter)]);
        let acknowledged = Acknowledged { counters, ..Acknowledged::default() };
        meter.accounts.acknowledge(&acknowledged, at(900).utc);
    }

    /// Tenant, place of the GPU, and cost of what was held.
    fn rows(shown: &Shown) -> Vec<(&str, usize, Option<i128>)> {
        const COST: AccountValue = AccountValue::HeldCost;
        let place = AccountValue::ALL.iter().position(|value| *value == COST).unwrap_or_default();
        let rows = shown.entries.iter().zip(&*shown.states);
        rows.map(|(entry, state)| (&*entry.tenant, entry.gpu, state.values[place])).collect()
    }

    #[test]
    fn what_is_shown_stands_until_the_room_the_price_or_the_gpus_are_others() {
        let meter = meter();
        let both: Vec<&TrackedGpu> = meter.gpus.values().collect();
        let turned: Vec<&TrackedGpu> = both.iter().copied().rev().collect();
        let narrow = (1..).find(|limit| {
            BudgetHistory::default().series_budget(*limit, 0).entries_left(&meter.costs.account) == 1
        });
        let show = |shown: Shown, second, gpus: &[&TrackedGpu], room| {
            let shown = meter.shown(
                Some(shown),
                (at(second), gpus),
                &mut BudgetHistory::default().series_budget(room, 0),
            );
            (Arc::clone(&shown.entries), shown)
        };
        let first = meter.shown(None, (at(900), &both), &mut BudgetHistory::default().series_budget(WIDE, 0));
        assert_eq!(rows(&first), [("alice", 0, Some(5)), ("alice", 1, Some(5))]);
        let made = Arc::clone(&first.entries);
        let (entries, shown) = show(first, 901, &both, WIDE);
        assert!(Arc::ptr_eq(&entries, &made), "nothing is another");
        let (_, shown) = show(shown, 902, &both, narrow.unwrap_or_default());
        assert_eq!(rows(&shown), [("alice", 0, Some(5))], "there is room for one");
        let (_, shown) = show(shown, 903, &both, WIDE);
        assert_eq!(rows(&shown), [("alice", 0, Some(5)), ("alice", 1, Some(5))]);
        let (_, shown) = show(shown, 1_000, &both, WIDE);
        assert_eq!(rows(&shown), [("alice", 0, Some(7)), ("alice", 1, Some(7))], "dollars");
        let (_, shown) = show(shown, 1_001, &turned, WIDE);
        assert_eq!(rows(&shown), [("alice", 1, Some(7)), ("alice", 0, Some(7))], "the places are others");
        let (_, shown) = show(shown, 1_002, &turned[..1], WIDE);
        assert_eq!(rows(&shown), [("alice", 0, Some(7))], "one GPU is forgotten");
        let (_, shown) = show(shown, 1_500, &turned[..1], WIDE);
        assert_eq!(rows(&shown), [], "alice left ten minutes ago");
    }

    #[test]
    fn a_tenant_without_series_is_left_off_though_another_series_counts_its_time() {
        let mut meter = meter();
        GPUS.iter()
            .for_each(|uuid| ["bob", "carol"].iter().for_each(|tenant| hold(&mut meter, tenant, uuid)));
        let gpus: Vec<&TrackedGpu> = meter.gpus.values().collect();
        let room = |limit: &usize| {
            BudgetHistory::default().series_budget(*limit, 0).entries_left(&meter.costs.account)
        };
        let limit = (1..).find(|limit| room(limit) == 4).unwrap_or_default();
        let shown =
            meter.shown(None, (at(900), &gpus), &mut BudgetHistory::default().series_budget(limit, 0));
        let tenants: Vec<&str> = rows(&shown).into_iter().map(|(tenant, ..)| tenant).collect();
        assert_eq!(tenants, ["alice", "alice", HolderId::OTHER, HolderId::OTHER]);
        assert_eq!(shown.left_off, 4, "bob and carol, on two GPUs");
    }
}
