//! The accounts that have series: entries of the roster with their values.
//!
//! They are built when a commit arrives, or when the policy, the prices or the GPUs change: windows close every 15 s, ticks
//! come every second. Tenants without series are summed as tenant
//! `__other__` on each slot. These sums begin at 0 with the agent and grow by increments, so no series jumps when a tenant
//! gets or loses its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::budget::{SeriesBudget, SeriesList, select_accounts};
use super::committed::{AccountKey, CommittedAccounts, SlotAccount, is_cost};
use super::{Policy, TrackedGpu};
use crate::model::catalogue::{AccountValue, Level};
use crate::model::snapshot::{AccountEntry, AccountState};
use crate::model::{HolderId, Price, Tariff, UnattributedReason, Utc};

#[derive(Default)]
pub(super) struct AccountPublisher {
    tenants: BTreeSet<AccountKey>,
    workloads: BTreeSet<AccountKey>,
    others: OtherTenants,
    /// None after a commit, or another change that requires new entries.
    published: Option<PublishedAccounts>,
}

#[derive(Clone, Copy)]
pub(super) struct AccountSources<'a> {
    pub(super) committed: &'a CommittedAccounts,
    pub(super) policy: &'a Policy,
    /// Account time of the tick.
    pub(super) at: Utc,
    /// In the order of the roster.
    pub(super) gpus: &'a [&'a TrackedGpu],
    pub(super) prices: &'a Arc<[Option<Price>]>,
}

pub(super) struct PublishedAccounts {
    pub(super) tenants: PublishedRows,
    pub(super) workloads: PublishedRows,
    pub(super) unattributed: Arc<[[Option<u64>; UnattributedReason::ALL.len()]]>,
}

pub(super) struct PublishedRows {
    pub(super) entries: Arc<[AccountEntry]>,
    pub(super) states: Arc<[AccountState]>,
    left_off: usize,
}

impl PublishedRows {
    fn new(
        accounts: impl IntoIterator<Item = SlotAccount>,
        positions: &BTreeMap<&str, usize>,
        left_off: usize,
    ) -> Self {
        let rows = accounts.into_iter().filter_map(|SlotAccount { key, state }| {
            let (gpu, gpu_instance) = (*positions.get(&*key.uuid)?, instance_label(key.gpu_instance));
            Some((AccountEntry { owner: key.owner, gpu, gpu_instance }, state))
        });
        let (entries, states): (Vec<_>, Vec<_>) = rows.unzip();
        Self { entries: entries.into(), states: states.into(), left_off }
    }
}

impl AccountPublisher {
    pub(super) fn invalidate(&mut self) {
        self.published = None;
    }

    /// The accounts that fit into the budget, which is charged for them.
    pub(super) fn update(
        &mut self,
        sources: AccountSources<'_>,
        budget: &mut SeriesBudget<'_>,
    ) -> &PublishedAccounts {
        let published = match self.published.take() {
            Some(current) => {
                let PublishedAccounts { tenants, workloads, .. } = &current;
                budget.charge(SeriesList::Accounts, tenants.entries.len(), tenants.left_off);
                budget.charge(SeriesList::WorkloadAccounts, workloads.entries.len(), workloads.left_off);
                current
            }
            None => self.build(sources, budget),
        };
        self.published.insert(published)
    }

    fn build(&mut self, sources: AccountSources<'_>, budget: &mut SeriesBudget<'_>) -> PublishedAccounts {
        let AccountSources { committed, policy, at, gpus, prices } = sources;
        let tariffs: BTreeMap<Arc<str>, Tariff> = gpus
            .iter()
            .zip(&**prices)
            .filter_map(|(gpu, price)| Some((Arc::clone(&gpu.id.uuid), price.as_ref()?.tariff.clone())))
            .collect();
        let positions: BTreeMap<&str, usize> =
            gpus.iter().enumerate().map(|(position, gpu)| (&*gpu.id.uuid, position)).collect();
        let delay = policy.birth_delay;
        let has_workloads = match policy.level {
            Level::Lean => false,
            Level::Standard => policy.workload_counters,
            Level::Full => true,
        };
        let mut workloads =
            if has_workloads { committed.by_workload(at, delay, &tariffs) } else { Vec::new() };
        let mut accounts = committed.by_tenant(at, delay, &tariffs);
        // A forgotten GPU has no series, and none are counted as left off.
        accounts.retain(|account| positions.contains_key(&*account.key.uuid));
        let tenants = self.tenant_rows(accounts, &positions, tariffs, budget);
        workloads.retain(|account| positions.contains_key(&*account.key.uuid));
        let workloads = self.workload_rows(workloads, &positions, budget);
        let unattributed = gpus.iter().map(|gpu| committed.unattributed(&gpu.id.uuid, at, delay));
        PublishedAccounts { unattributed: unattributed.collect(), tenants, workloads }
    }

    /// Selects the tenants with series, and adds `__other__` for the growth of those without.
    fn tenant_rows(
        &mut self,
        mut accounts: Vec<SlotAccount>,
        positions: &BTreeMap<&str, usize>,
        tariffs: BTreeMap<Arc<str>, Tariff>,
        budget: &mut SeriesBudget<'_>,
    ) -> PublishedRows {
        let (all, room) = (accounts.len(), budget.entries_left(SeriesList::Accounts));
        // Where not all fit, `__other__` may have a series on each GPU, but at most as many as tenants have.
        let reserved = if all > room { positions.len().min(room / 2) } else { 0 };
        let keys = accounts.iter().map(|account| account.key.clone()).collect();
        self.tenants = select_accounts(&self.tenants, keys, room - reserved);
        let mut others = self.others.add(&accounts, &self.tenants, tariffs);
        accounts.retain(|account| self.tenants.contains(&account.key));
        let left_off = all - accounts.len();
        others.truncate(room.saturating_sub(accounts.len()));
        accounts.append(&mut others);
        let rows = PublishedRows::new(accounts, positions, left_off);
        budget.charge(SeriesList::Accounts, rows.entries.len(), left_off);
        rows
    }

    fn workload_rows(
        &mut self,
        accounts: Vec<SlotAccount>,
        positions: &BTreeMap<&str, usize>,
        budget: &mut SeriesBudget<'_>,
    ) -> PublishedRows {
        let room = budget.admit(SeriesList::WorkloadAccounts, accounts.len());
        let keys = accounts.iter().map(|account| account.key.clone()).collect();
        self.workloads = select_accounts(&self.workloads, keys, room);
        let left_off = accounts.len() - self.workloads.len();
        let admitted = accounts.into_iter().filter(|account| self.workloads.contains(&account.key));
        PublishedRows::new(admitted, positions, left_off)
    }
}

/// The label of a GPU instance; empty without one.
pub(super) fn instance_label(id: Option<u32>) -> Arc<str> {
    id.map(|id| id.to_string().into()).unwrap_or_default()
}

/// The growth of the accounts without series, by slot.
#[derive(Debug, Default)]
struct OtherTenants {
    tariffs: BTreeMap<Arc<str>, Tariff>,
    last: BTreeMap<AccountKey, AccountState>,
    sums: BTreeMap<AccountKey, AccountState>,
}

impl OtherTenants {
    fn add(
        &mut self,
        accounts: &[SlotAccount],
        with_series: &BTreeSet<AccountKey>,
        tariffs: BTreeMap<Arc<str>, Tariff>,
    ) -> Vec<SlotAccount> {
        if self.tariffs != tariffs {
            // Costs under another tariff are other series, which begin at 0.
            let last = std::mem::replace(&mut self.tariffs, tariffs);
            let is_other = |key: &AccountKey| last.get(&key.uuid) != self.tariffs.get(&key.uuid);
            let states = self.last.iter_mut().chain(&mut self.sums);
            for (_, state) in states.filter(|(key, _)| is_other(key)) {
                for (value, kind) in state.values.iter_mut().zip(AccountValue::ALL) {
                    *value = value.filter(|_| !is_cost(kind));
                }
            }
        }
        let mut now = BTreeMap::new();
        for SlotAccount { key, state } in accounts {
            if !with_series.contains(key) {
                let sum = self.sums.entry(AccountKey { owner: HolderId::OTHER.into(), ..key.clone() });
                // A new account has grown by nothing.
                add_growth(sum.or_default(), self.last.get(key).unwrap_or(state), state);
            }
            now.insert(key.clone(), state.clone());
        }
        self.last = now;
        let account = |(key, state): (&AccountKey, &AccountState)| SlotAccount {
            key: key.clone(),
            state: state.clone(),
        };
        self.sums.iter().map(account).collect()
    }
}

fn add_growth(sum: &mut AccountState, last: &AccountState, now: &AccountState) {
    for ((sum, last), now) in sum.values.iter_mut().zip(last.values).zip(now.values) {
        if let Some(now) = now {
            let growth = last.map_or(0, |last| (now - last).max(0));
            *sum = Some(sum.unwrap_or(0) + growth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::batches::{AccruedCost, Acknowledged, CounterKey, HolderCounter};
    use crate::accounting::billing::ExactMoney;
    use crate::meter::Meter;
    use crate::meter::account::Account;
    use crate::meter::budget::DroppedSeries;
    use crate::model::catalogue::{self, AccountRows, Rows};
    use crate::model::{Amounts, GpuId, Holder, HowHeld, Money, Nanoseconds, Parts, Stamp};

    const WIDE: usize = 1_000;
    const GPUS: [&str; 2] = ["GPU-0", "GPU-1"];

    fn at(second: u64) -> Stamp {
        let time = Nanoseconds::from_seconds(second);
        Stamp { boottime: time, utc: Utc(time.0) }
    }

    fn tariff(currency: &str) -> Tariff {
        Tariff { currency: currency.into(), class: "spot".into() }
    }

    /// A meter of two GPUs, on each of which alice held for 5 euros or 7 dollars.
    fn meter() -> Meter {
        let policy = Policy {
            level: Level::Full,
            dcgm: false,
            workload_counters: false,
            intervals: [Nanoseconds::SECOND; 3],
            allocations: Arc::default(),
            standing: Vec::new(),
            how_held: HowHeld::Grants,
            birth_delay: Nanoseconds(0),
            processes: 1,
            series: WIDE,
            rates: Arc::default(),
            tenant_rules: Arc::default(),
        };
        let mut meter = Meter::new(Arc::new(policy), at(900), None);
        for (index, uuid) in (0..).zip(GPUS) {
            let gpu =
                TrackedGpu::new(GpuId { index, uuid: uuid.into() }, Account::begin(at(900).utc), at(900).utc);
            meter.gpus.insert(uuid.into(), gpu);
            hold(&mut meter, "alice", uuid);
        }
        meter
    }

    fn hold(meter: &mut Meter, tenant: &str, uuid: &str) {
        let costs = [("EUR", 5), ("USD", 7)].map(|(currency, held)| {
            let held = ExactMoney::from_parts(Money(held), 0).unwrap();
            (tariff(currency), AccruedCost { held, ..AccruedCost::default() })
        });
        let parts = Parts { idle: 1, ..Parts::default() };
        let tenant: Arc<str> = tenant.into();
        let holder = Holder::user(&tenant, None).id;
        let amounts = Amounts { parts, ..Amounts::default() };
        let counter = HolderCounter { tenant, amounts, costs: costs.into(), ..HolderCounter::default() };
        let counters = BTreeMap::from([(CounterKey::of_gpu(uuid.into(), holder), counter)]);
        let acknowledged = Acknowledged { counters, ..Acknowledged::default() };
        meter.accounts.acknowledge(&acknowledged, at(900).utc);
    }

    /// Tenant, position of the GPU, and held cost.
    type TenantRow<'a> = (&'a str, usize, Option<i128>);

    fn prices(currency: &str) -> Arc<[Option<Price>]> {
        vec![Some(Price { tariff: tariff(currency), nano_per_gpu_hour: 1 }); 2].into()
    }

    fn update<'a>(
        series: &'a mut AccountPublisher,
        meter: &Meter,
        second: u64,
        (gpus, prices): (&[&TrackedGpu], &Arc<[Option<Price>]>),
        limit: usize,
    ) -> (&'a PublishedAccounts, Vec<TenantRow<'a>>) {
        let (policy, at) = (&*meter.policy, at(second).utc);
        let sources = AccountSources { committed: &meter.accounts, policy, at, gpus, prices };
        let (level, mut dropped) = (Level::Full, DroppedSeries::new());
        let published =
            series.update(sources, &mut SeriesBudget { level, dropped: &mut dropped, left: limit });
        let cost = AccountValue::ALL.iter().position(|value| *value == AccountValue::HeldCost).unwrap();
        let rows = published.tenants.entries.iter().zip(&*published.tenants.states);
        (published, rows.map(|(entry, state)| (&*entry.owner, entry.gpu, state.values[cost])).collect())
    }

    fn limit_for(accounts: usize) -> usize {
        let families = catalogue::families();
        accounts
            * families
                .map(|family| match family.rows {
                    Rows::Account(AccountRows::Tenant(points)) => points.len(),
                    _ => 0,
                })
                .sum::<usize>()
    }

    #[test]
    fn workloads_have_the_costs_of_their_tenants_below_level_full_too_where_they_are_asked_for() {
        let mut meter = meter();
        for (level, asked, wanted) in [
            (Level::Full, false, 2),
            (Level::Standard, true, 2),
            (Level::Standard, false, 0),
            (Level::Lean, true, 0),
        ] {
            meter.policy = Arc::new(Policy { level, workload_counters: asked, ..(*meter.policy).clone() });
            let gpus: Vec<&TrackedGpu> = meter.gpus.values().collect();
            let mut series = AccountPublisher::default();
            let (published, _) = update(&mut series, &meter, 900, (&gpus, &prices("EUR")), WIDE);
            let cost = |rows: &PublishedRows| -> i128 {
                let states = rows.states.iter();
                states.filter_map(|state| state.values[AccountValue::HeldCost as usize]).sum()
            };
            assert_eq!(published.workloads.entries.len(), wanted, "{level:?} {asked}");
            assert_eq!(cost(&published.workloads), if wanted > 0 { cost(&published.tenants) } else { 0 });
        }
    }

    #[test]
    fn published_accounts_stay_until_they_are_built_again_for_a_commit_a_price_or_a_gpu() {
        let meter = meter();
        let both: Vec<&TrackedGpu> = meter.gpus.values().collect();
        let turned: Vec<&TrackedGpu> = both.iter().copied().rev().collect();
        let (euros, dollars) = (prices("EUR"), prices("USD"));
        let mixed: Arc<[Option<Price>]> = [euros[0].clone(), dollars[0].clone()].into();
        for (second, gpus, limit, expected, why) in [
            (901, (&both[..], &euros), WIDE, &[(0, 5), (1, 5)][..], "nothing has changed"),
            (901, (&both, &euros), limit_for(1), &[(0, 5)], "there is room for one"),
            (901, (&both, &dollars), WIDE, &[(0, 7), (1, 7)], "the prices are in dollars"),
            (901, (&both, &mixed), WIDE, &[(0, 5), (1, 7)], "each GPU has its own tariff"),
            (901, (&turned, &euros), WIDE, &[(1, 5), (0, 5)], "the GPUs have other positions"),
            (901, (&turned[..1], &euros), WIDE, &[(0, 5)], "one GPU is forgotten"),
            (1_500, (&both, &euros), WIDE, &[], "alice left ten minutes ago"),
        ] {
            let mut series = AccountPublisher::default();
            let (first, rows) = update(&mut series, &meter, 900, (&both, &euros), WIDE);
            assert_eq!(rows, [("alice", 0, Some(5)), ("alice", 1, Some(5))]);
            let first = Arc::clone(&first.tenants.entries);
            // Without an event nothing changes.
            let (published, _) = update(&mut series, &meter, second, gpus, limit);
            assert!(Arc::ptr_eq(&published.tenants.entries, &first), "{why}");
            series.invalidate();
            let (_, rows) = update(&mut series, &meter, second, gpus, limit);
            let expected: Vec<_> = expected.iter().map(|(gpu, cost)| ("alice", *gpu, Some(*cost))).collect();
            assert_eq!(rows, expected, "{why}");
        }
    }

    #[test]
    fn a_tenant_without_series_is_left_off_though_another_series_counts_its_time() {
        let mut meter = meter();
        for uuid in GPUS {
            ["bob", "carol"].iter().for_each(|tenant| hold(&mut meter, tenant, uuid));
        }
        let gpus: Vec<&TrackedGpu> = meter.gpus.values().collect();
        let mut series = AccountPublisher::default();
        let (published, rows) = update(&mut series, &meter, 900, (&gpus, &prices("EUR")), limit_for(4));
        let tenants: Vec<&str> = rows.iter().map(|(tenant, ..)| *tenant).collect();
        assert_eq!(tenants, ["alice", "alice", HolderId::OTHER, HolderId::OTHER]);
        assert_eq!(published.tenants.left_off, 4, "bob and carol, on two GPUs");
    }

    fn key(tenant: &str) -> AccountKey {
        AccountKey { owner: tenant.into(), uuid: "GPU-0".into(), gpu_instance: None }
    }

    fn account(tenant: &str, held: i128, cost: i128) -> SlotAccount {
        let values = AccountValue::ALL.map(|kind| match kind {
            AccountValue::Held => Some(held),
            AccountValue::HeldCost => Some(cost),
            _ => None,
        });
        SlotAccount { key: key(tenant), state: AccountState { values } }
    }

    fn other(accounts: &[SlotAccount]) -> Option<[Option<i128>; 2]> {
        let [account] = accounts else { return None };
        let position = |of| AccountValue::ALL.iter().position(|kind| *kind == of);
        Some([AccountValue::Held, AccountValue::HeldCost].map(|of| account.state.values[position(of)?]))
    }

    #[test]
    fn other_tenants_grow_by_increments_while_a_tenant_has_no_series() {
        let mut others = OtherTenants::default();
        let euros = BTreeMap::from([("GPU-0".into(), tariff("EUR"))]);
        let mut add = |held: [i128; 2], with: &[&str]| {
            let accounts = [account("alice", held[0], 7 * held[0]), account("bob", held[1], 0)];
            let with_series = with.iter().map(|tenant| key(tenant)).collect();
            other(&others.add(&accounts, &with_series, euros.clone()))
        };
        assert_eq!(add([100, 200], &["alice", "bob"]), None);
        assert_eq!(add([110, 200], &["bob"]), Some([Some(10), Some(70)]), "not the total of 110");
        assert_eq!(add([110, 205], &[]), Some([Some(15), Some(70)]));
        assert_eq!(add([150, 215], &["alice"]), Some([Some(25), Some(70)]), "alice has series again");
        assert_eq!(add([160, 216], &[]), Some([Some(36), Some(140)]));
    }

    #[test]
    fn costs_of_other_tenants_under_another_tariff_begin_at_0() {
        let mut others = OtherTenants::default();
        let mut add = |held, cost, currency: &str| {
            let tariffs = BTreeMap::from([("GPU-0".into(), tariff(currency))]);
            other(&others.add(&[account("alice", held, cost)], &BTreeSet::new(), tariffs))
        };
        assert_eq!(add(10, 5, "EUR"), Some([Some(0), Some(0)]), "a series begins at 0");
        assert_eq!(add(20, 9, "EUR"), Some([Some(10), Some(4)]));
        assert_eq!(add(30, 900, "USD"), Some([Some(20), Some(0)]));
        assert_eq!(add(40, 907, "USD"), Some([Some(30), Some(7)]));
    }
}
