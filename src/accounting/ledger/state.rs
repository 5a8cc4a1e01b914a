//! The owner's state in memory, and the draft of one transaction on it.
//!
//! A draft copies what it changes. It is applied to the state when its transaction is committed and dropped when that
//! fails, so memory is never ahead of the disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::error::Cause;
use super::rolled::RolledTime;
use super::{counters, write};
use crate::accounting::batches::{CounterKey, HolderCounter, MonthCosts, TenantKey, XidSums};
use crate::accounting::billing::{BillLine, PricedSpan, RateSchedule};
use crate::accounting::tenants::{RuleSchedule, TenantRules, tenant};
use crate::model::{Evidence, GpuId, Holder, HolderId, Holding, Nanoseconds, Row, Utc};

/// A counter that has not changed for this long is unloaded from memory; its series ended a minute before.
const UNLOAD_AFTER: Nanoseconds = Nanoseconds::from_seconds(660);

const UNLOAD_EVERY: Nanoseconds = Nanoseconds::from_seconds(60);

#[derive(Clone, Debug, Default)]
pub(super) struct LedgerGpu {
    pub(super) id: i64,
    pub(super) settled_until: Utc,
    /// GPU time settled, in nanoseconds.
    pub(super) slot: u64,
    /// Slot time settled of each GPU instance, in nanoseconds.
    pub(super) instances: BTreeMap<u32, u64>,
    pub(super) model: Arc<str>,
    /// The stored raw spans: begin to end.
    pub(super) raw: BTreeMap<Utc, Utc>,
    /// Holdings at the end of the last of them.
    pub(super) holdings: Arc<[Holding]>,
    /// The end of the span from which `holdings` were taken.
    pub(super) seen: Utc,
    /// Shapes of the open hour, and open runs.
    pub(super) evidence: Arc<Evidence>,
}

impl LedgerGpu {
    /// An account that begins at that time.
    pub(super) fn new(id: i64, model: &Arc<str>, at: Utc) -> Self {
        Self { id, settled_until: at, model: Arc::clone(model), seen: at, ..Self::default() }
    }
}

/// Identifies tenant rules: the version that decides on them, and their begin; none where there are none.
pub(super) type RulesKey = Option<(i64, Utc)>;

#[derive(Clone, Debug)]
pub(super) struct StoredHolder {
    pub(super) id: i64,
    /// The tenant whose counters it is added to.
    pub(super) tenant: Arc<str>,
    /// The tenant rules under which the tenant was last found; none where it was loaded from the file.
    pub(super) rules: Option<RulesKey>,
}

#[derive(Debug)]
pub(super) struct LiveCounter {
    pub(super) counter: HolderCounter,
    pub(super) changed: Utc,
}

/// The owner's state. It has only those holders and counters that changed lately; the file has all.
#[derive(Debug, Default)]
pub(super) struct LedgerState {
    pub(super) boot_id: String,
    pub(super) created: Utc,
    /// Account time of the last commit when the ledger was opened.
    pub(super) last_commit: Utc,
    pub(super) gpus: BTreeMap<Arc<str>, LedgerGpu>,
    pub(super) holders: HashMap<HolderId, StoredHolder>,
    pub(super) counters: BTreeMap<CounterKey, LiveCounter>,
    /// For each tenant with a counter in memory, the sum of its unloaded counters.
    pub(super) unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    pub(super) unloaded_at: Utc,
    /// What tenants are charged in the current month; none until it is asked for.
    pub(super) month: Option<Arc<MonthCosts>>,
    pub(super) rates: Arc<RateSchedule>,
    pub(super) tenant_rules: Arc<RuleSchedule>,
    pub(super) rolled: RolledTime,
    /// The latest begin of a window, whose tenant rules apply to counters. It never goes back, so that no holder alternates
    /// between two tenants where windows of several GPUs arrive late.
    pub(super) rules_at: Utc,
    pub(super) imbalance: i128,
}

pub(super) struct TransactionDraft<'a> {
    pub(super) base: &'a LedgerState,
    pub(super) connection: &'a Connection,
    pub(super) changes: Changes,
}

#[derive(Default)]
pub(super) struct Changes {
    pub(super) gpus: BTreeMap<Arc<str>, LedgerGpu>,
    pub(super) holders: HashMap<HolderId, StoredHolder>,
    pub(super) counters: BTreeMap<CounterKey, HolderCounter>,
    pub(super) unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    pub(super) xids: Vec<XidSums>,
    pub(super) month: Option<MonthCosts>,
    pub(super) rules_at: Utc,
    pub(super) imbalance: i128,
    pub(super) unobserved: Nanoseconds,
}

impl<'a> TransactionDraft<'a> {
    pub(super) fn new(base: &'a LedgerState, connection: &'a Connection) -> Self {
        let (rules_at, imbalance) = (base.rules_at, base.imbalance);
        Self { base, connection, changes: Changes { rules_at, imbalance, ..Changes::default() } }
    }

    /// A GPU to change; an error where it was never registered.
    pub(super) fn gpu(&mut self, uuid: &Arc<str>) -> Result<&mut LedgerGpu, Cause> {
        match self.changes.gpus.entry(Arc::clone(uuid)) {
            Entry::Occupied(changed) => Ok(changed.into_mut()),
            Entry::Vacant(vacant) => {
                let gpu = self.base.gpus.get(uuid);
                let gpu = gpu.ok_or_else(|| Cause::UnknownGpu { gpu: Arc::clone(uuid) })?;
                Ok(vacant.insert(gpu.clone()))
            }
        }
    }

    pub(super) fn holder(&mut self, id: &HolderId) -> rusqlite::Result<Option<StoredHolder>> {
        if let Some(known) = self.changes.holders.get(id).or_else(|| self.base.holders.get(id)) {
            return Ok(Some(known.clone()));
        }
        let stored = counters::holder(self.connection, id)?;
        if let Some(stored) = &stored {
            self.changes.holders.insert(id.clone(), stored.clone());
        }
        Ok(stored)
    }

    /// Stores a holder. What was not known of it yet is added to its facts. Where others differ, or its tenant would change,
    /// its id names a new version from now on, and the one before keeps under another id what was booked to it.
    pub(super) fn store_holder(&mut self, holder: &Holder, now: Utc) -> Result<(), Cause> {
        let mut counted = BTreeSet::new();
        if let Some(known) = self.holder(&holder.id)? {
            let facts = counters::facts(self.connection, &known)?;
            let complete = facts.completed_by(&holder.facts);
            let complete = complete.map(|facts| Holder { id: holder.id.clone(), facts });
            let stored = Holder { id: holder.id.clone(), facts: facts.clone() };
            let keeps_tenant = |complete: &Holder| {
                tenant(complete, self.rules()) == known.tenant
                    && self.base.tenant_rules.keeps_tenant(&stored, complete)
            };
            match complete.filter(keeps_tenant) {
                Some(complete) if complete.facts == facts => return Ok(()),
                Some(complete) => return write::update_facts(self.connection, &known, &complete.facts),
                None => counted = self.retire_version(&holder.id, known)?,
            }
        }
        let stored = StoredHolder {
            id: write::insert_holder(self.connection, holder, &tenant(holder, self.rules()), now)?,
            tenant: tenant(holder, self.rules()),
            rules: Some(self.rules_key()),
        };
        self.changes.holders.insert(holder.id.clone(), stored);
        for key in counted {
            let counter = self.load(&key, now)?;
            self.changes.counters.insert(key, counter);
        }
        Ok(())
    }

    /// Applies the tenant rules of that time to holders, unless later ones were applied before.
    pub(super) fn apply_tenant_rules(&mut self, at: Utc) {
        self.changes.rules_at = self.changes.rules_at.max(at);
    }

    fn rules(&self) -> &'a TenantRules {
        self.base.tenant_rules.rules(self.changes.rules_at)
    }

    fn rules_key(&self) -> RulesKey {
        self.base.rules_key(self.changes.rules_at)
    }

    /// Begins a new version of a holder whose tenant is another one under the rules that are applied now.
    pub(super) fn update_tenant(
        &mut self,
        id: &HolderId,
        known: StoredHolder,
        now: Utc,
    ) -> Result<(), Cause> {
        let rules = Some(self.rules_key());
        if known.rules == rules {
            return Ok(());
        }
        let holder = Holder { id: id.clone(), facts: counters::facts(self.connection, &known)? };
        if tenant(&holder, self.rules()) != known.tenant {
            return self.store_holder(&holder, now);
        }
        self.changes.holders.insert(id.clone(), StoredHolder { rules, ..known });
        Ok(())
    }

    /// Adds what tenants are charged for a GPU's rows of a minute to the costs of the current month, where these are known.
    pub(super) fn charge_month(&mut self, uuid: &Arc<str>, minute: Utc, rows: &[Row]) -> Result<(), Cause> {
        let base = self.base;
        let Some(known) = base.month.as_ref().filter(|known| known.month.contains(minute)) else {
            return Ok(());
        };
        // Costs do not depend on the index.
        let (gpu, model) = (GpuId { index: 0, uuid: Arc::clone(uuid) }, Arc::clone(&self.gpu(uuid)?.model));
        let mut lines = Vec::with_capacity(rows.len());
        for row in rows {
            let tenant = self.tenant_at(&row.holder, minute)?.to_string();
            let line = BillLine::empty(gpu.clone(), row.holder.clone());
            lines.push(BillLine { tenant, slot: row.slot.clone(), amounts: row.amounts, ..line });
        }
        let span = PricedSpan { schedule: &base.rates, gpu: &gpu, model: &model, at: minute };
        let costs = self.changes.month.get_or_insert_with(|| MonthCosts::new(known.month.clone()));
        costs.charge(&span.price(lines)?, &base.rates);
        Ok(())
    }

    fn tenant_at(&mut self, id: &HolderId, at: Utc) -> Result<Arc<str>, Cause> {
        let known = self.stored_holder(id)?;
        if known.rules == Some(self.base.rules_key(at)) {
            return Ok(known.tenant);
        }
        let holder = Holder { id: id.clone(), facts: counters::facts(self.connection, &known)? };
        Ok(tenant(&holder, self.base.tenant_rules.rules(at)))
    }

    /// Gives a version and its counters in memory another id. Returns the keys that the counters had.
    fn retire_version(&mut self, id: &HolderId, known: StoredHolder) -> Result<BTreeSet<CounterKey>, Cause> {
        let holder = id.with_version(write::retire_version(self.connection, &known)?);
        let keys = self.base.counters.keys().chain(self.changes.counters.keys());
        let keys: BTreeSet<CounterKey> = keys.filter(|key| key.holder == *id).cloned().collect();
        for key in &keys {
            let changed = self.changes.counters.remove(key);
            let unchanged = || self.base.counters.get(key).map(|live| live.counter.clone());
            let counter = changed.or_else(unchanged).unwrap_or_default();
            self.changes.counters.insert(CounterKey { holder: holder.clone(), ..key.clone() }, counter);
        }
        self.changes.holders.insert(holder, known);
        Ok(keys)
    }

    pub(super) fn stored_holder(&mut self, id: &HolderId) -> Result<StoredHolder, Cause> {
        self.holder(id)?.ok_or_else(|| Cause::UnknownHolder { holder: id.clone() })
    }

    /// A counter to change, of a GPU and a holder that the file has; a new one is born at `now`.
    pub(super) fn counter(&mut self, key: CounterKey, now: Utc) -> Result<&mut HolderCounter, Cause> {
        if self.changes.counters.contains_key(&key) {
            return self.changes.counters.get_mut(&key).ok_or(Cause::UnknownGpu { gpu: key.gpu });
        }
        let counter = match self.base.counters.get(&key) {
            Some(live) => live.counter.clone(),
            None => {
                self.load_versions(&key, now)?;
                self.load(&key, now)?
            }
        };
        Ok(self.changes.counters.entry(key).or_insert(counter))
    }

    /// Loads the counters of the other versions of a holder, so that their sum in memory is that of the workload.
    fn load_versions(&mut self, key: &CounterKey, now: Utc) -> Result<(), Cause> {
        let gpu = self.gpu(&key.gpu)?.id;
        if key.holder.is_remainder() || self.base.gpus.get(&key.gpu).is_none_or(|gpu| gpu.slot == 0) {
            return Ok(());
        }
        for (holder, stored) in counters::versions(self.connection, gpu, key)? {
            let other = CounterKey { holder, ..key.clone() };
            let is_loaded =
                self.base.counters.contains_key(&other) || self.changes.counters.contains_key(&other);
            if other != *key && !is_loaded {
                self.changes.holders.insert(other.holder.clone(), stored);
                let counter = self.load(&other, now)?;
                self.changes.counters.insert(other, counter);
            }
        }
        Ok(())
    }

    /// Loads a counter, or makes one, and subtracts it from the unloaded sum of its tenant.
    fn load(&mut self, key: &CounterKey, now: Utc) -> Result<HolderCounter, Cause> {
        let gpu = self.gpu(&key.gpu)?.id;
        let holder = self.stored_holder(&key.holder)?;
        let tenant = key.with_tenant(&holder.tenant);
        let unloaded_sum =
            self.changes.unloaded_sums.get(&tenant).or_else(|| self.base.unloaded_sums.get(&tenant)).cloned();
        // A GPU without settled time has no counter in the file.
        let is_new = self.base.gpus.get(&key.gpu).is_none_or(|gpu| gpu.slot == 0);
        let unloaded_sum = match unloaded_sum {
            Some(known) => Some(known),
            None if is_new => None,
            None => counters::tenant_sum(self.connection, gpu, &tenant)?,
        };
        // A tenant without counters has no holder with one.
        let stored = match unloaded_sum {
            Some(_) => counters::counter(self.connection, gpu, key.gpu_instance, &holder)?,
            None => None,
        };
        if !key.holder.is_remainder() {
            let mut unloaded_sum = unloaded_sum.unwrap_or_default();
            if let Some(stored) = &stored {
                unloaded_sum.remove(stored);
            }
            self.changes.unloaded_sums.insert(tenant, unloaded_sum);
        }
        Ok(stored.unwrap_or_else(|| HolderCounter {
            tenant: holder.tenant,
            born: now,
            ..HolderCounter::default()
        }))
    }
}

impl LedgerState {
    fn rules_key(&self, at: Utc) -> RulesKey {
        self.tenant_rules.in_force(at).map(|rules| (rules.id, rules.begin))
    }

    pub(super) fn apply(&mut self, changes: Changes, now: Utc) {
        self.gpus.extend(changes.gpus);
        self.holders.extend(changes.holders);
        let live = |counter| LiveCounter { counter, changed: now };
        self.counters.extend(changes.counters.into_iter().map(|(key, counter)| (key, live(counter))));
        self.unloaded_sums.extend(changes.unloaded_sums);
        if let Some((known, charged)) = self.month.as_mut().zip(changes.month) {
            Arc::make_mut(known).extend(charged);
        }
        let newest = self.gpus.values().map(|gpu| gpu.settled_until).max();
        // In the next month it is added up again.
        self.month = self.month.take().filter(|known| newest.is_none_or(|newest| newest <= known.month.end));
        self.rules_at = changes.rules_at;
        self.imbalance = changes.imbalance;
    }

    /// Unloads counters that have not changed for long, and their holders. Returns their keys and the new unloaded sums of
    /// their tenants.
    pub(super) fn unload(&mut self, now: Utc) -> (Vec<CounterKey>, BTreeMap<TenantKey, HolderCounter>) {
        if now < self.unloaded_at.plus(UNLOAD_EVERY) {
            return Default::default();
        }
        self.unloaded_at = now;
        let workload = |key: &CounterKey| (Arc::clone(&key.gpu), key.gpu_instance, key.holder.workload());
        let is_live = |(key, live): &(&CounterKey, &LiveCounter)| {
            key.holder.is_remainder() || now < live.changed.plus(UNLOAD_AFTER)
        };
        // All versions of a workload leave together, so that its sum in memory never falls.
        let live: HashSet<_> = self.counters.iter().filter(is_live).map(|(key, _)| workload(key)).collect();
        let unloaded: Vec<CounterKey> =
            self.counters.keys().filter(|key| !live.contains(&workload(key))).cloned().collect();
        let mut grown = BTreeSet::new();
        for key in &unloaded {
            if let Some(LiveCounter { counter, .. }) = self.counters.remove(key) {
                let tenant = key.with_tenant(&counter.tenant);
                self.unloaded_sums.entry(tenant.clone()).or_default().add(&counter);
                grown.insert(tenant);
            }
        }
        let live: BTreeSet<TenantKey> =
            self.counters.iter().map(|(key, live)| key.with_tenant(&live.counter.tenant)).collect();
        self.unloaded_sums.retain(|tenant, _| live.contains(tenant));
        let holders: HashSet<&HolderId> = self.counters.keys().map(|key| &key.holder).collect();
        self.holders.retain(|holder, _| holders.contains(holder));
        let sums = self.unloaded_sums.iter().filter(|(tenant, _)| grown.contains(*tenant));
        (unloaded, sums.map(|(tenant, sum)| (tenant.clone(), sum.clone())).collect())
    }
}
