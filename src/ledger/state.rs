//! What the owner keeps in memory of its file, and the draft of one transaction upon it.
//!
//! A draft copies what it touches; it is laid over the state when the transaction is committed and
//! forgotten when it fails, so memory never runs ahead of the disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::book::{PriceVersion, Tariff};
use super::counters;
use super::error::Cause;
use super::xids::XidSums;
use crate::model::{Amounts, HolderId, Holding, Money, Nanoseconds, Utc};

/// What a counter counts: a holder on a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// The holder.
    pub holder: HolderId,
}

/// A tenant on a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantKey {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// The tenant.
    pub tenant: Arc<str>,
}

impl CounterKey {
    /// Of a whole GPU.
    pub const fn of_gpu(gpu: Arc<str>, holder: HolderId) -> Self {
        Self { gpu, gpu_instance: None, holder }
    }

    /// The same slot with that tenant.
    pub fn with_tenant(&self, tenant: &Arc<str>) -> TenantKey {
        TenantKey { gpu: Arc::clone(&self.gpu), gpu_instance: self.gpu_instance, tenant: Arc::clone(tenant) }
    }
}

/// A counter that did not change for so long leaves memory: a minute after its series has ended.
const UNLOAD_AFTER: Nanoseconds = Nanoseconds::from_seconds(660);

/// How often counters are looked through for those that may leave memory.
const UNLOAD_EVERY: Nanoseconds = Nanoseconds::from_seconds(60);

/// The account of one holder on one GPU since the ledger was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderCounter {
    /// The tenant of the holder.
    pub tenant: Arc<str>,
    /// Time of the batch in which it was first above zero.
    pub born: Utc,
    /// What was held, used and drawn; of memory and measured time a counter keeps nothing.
    pub amounts: Amounts,
    /// Money, by currency and class; empty where no price was ever in force.
    pub costs: BTreeMap<Tariff, AccruedCost>,
}

/// Money at the prices then in force; an estimate to within a nano-unit per window, the bill counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccruedCost {
    /// Time of the batch in which it began.
    pub born: Utc,
    /// Of what was held.
    pub held: Money,
    /// Of what was used.
    pub used: Money,
}

/// Where one GPU stands.
#[derive(Clone, Debug)]
pub(super) struct LedgerGpu {
    /// Key in the file.
    pub(super) id: i64,
    /// End of its account.
    pub(super) settled_until: Utc,
    /// GPU time settled, and that of each of its instances.
    pub(super) slot: u64,
    pub(super) instances: BTreeMap<u32, u64>,
    /// The price version of the last settled minute.
    pub(super) price: Option<i64>,
    /// GPU time settled under it.
    pub(super) price_time: u64,
    /// The raw spans that are stored: from, to.
    pub(super) raw: BTreeMap<Utc, Utc>,
    /// Holdings at the end of the last of them.
    pub(super) holdings: Arc<[Holding]>,
    /// The end of the span from which `holdings` were taken.
    pub(super) seen: Utc,
}

impl HolderCounter {
    /// Adds the amounts of another one.
    pub fn add(&mut self, other: &Self) {
        self.amounts.add(&other.amounts);
        for (tariff, cost) in &other.costs {
            let sum = self.costs.entry(tariff.clone()).or_default();
            sum.held += cost.held;
            sum.used += cost.used;
        }
    }

    /// Takes away the amounts of one that is contained in it.
    pub(super) fn remove(&mut self, part: &Self) {
        self.amounts.remove(&part.amounts);
        for (tariff, cost) in &part.costs {
            if let Some(sum) = self.costs.get_mut(tariff) {
                sum.held = sum.held - cost.held;
                sum.used = sum.used - cost.used;
            }
        }
    }
}

/// A holder as the file knows it.
#[derive(Clone, Debug)]
pub(super) struct StoredHolder {
    /// Key in the file.
    pub(super) id: i64,
    pub(super) tenant: Arc<str>,
}

/// A counter in memory, and when it last changed.
#[derive(Debug)]
pub(super) struct LiveCounter {
    pub(super) counter: HolderCounter,
    pub(super) changed: Utc,
}

/// The whole of it. Of holders and counters only those that changed lately are here; all are in the file.
#[derive(Debug, Default)]
pub(super) struct LedgerState {
    /// The boot that it is open in.
    pub(super) boot_id: String,
    pub(super) created: Utc,
    /// Account time of the last commit when the ledger was opened.
    pub(super) last_commit: Utc,
    pub(super) gpus: BTreeMap<Arc<str>, LedgerGpu>,
    pub(super) holders: HashMap<HolderId, StoredHolder>,
    pub(super) counters: BTreeMap<CounterKey, LiveCounter>,
    /// For each tenant with a counter in memory, the sum of its counters that are not.
    pub(super) unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// When counters were last looked through for those that may leave memory.
    pub(super) unloaded_at: Utc,
    /// In order of time.
    pub(super) prices: Vec<PriceVersion>,
    pub(super) imbalance: i128,
}

/// What one transaction changes.
pub(super) struct TransactionDraft<'a> {
    pub(super) base: &'a LedgerState,
    /// Where what is not in memory is loaded from.
    connection: &'a Connection,
    pub(super) changes: Changes,
}

/// The changes, free of what they are laid over.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) gpus: BTreeMap<Arc<str>, LedgerGpu>,
    pub(super) holders: HashMap<HolderId, StoredHolder>,
    pub(super) counters: BTreeMap<CounterKey, HolderCounter>,
    pub(super) unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    pub(super) xids: Vec<XidSums>,
    pub(super) imbalance: i128,
    /// GPU time of holes that were settled as unobserved.
    pub(super) unobserved: Nanoseconds,
}

impl<'a> TransactionDraft<'a> {
    pub(super) fn new(base: &'a LedgerState, connection: &'a Connection) -> Self {
        Self { base, connection, changes: Changes { imbalance: base.imbalance, ..Changes::default() } }
    }

    /// A GPU to change; none where it was never registered.
    pub(super) fn gpu(&mut self, uuid: &Arc<str>) -> Option<&mut LedgerGpu> {
        if !self.changes.gpus.contains_key(uuid) {
            let gpu = self.base.gpus.get(uuid)?.clone();
            self.changes.gpus.insert(Arc::clone(uuid), gpu);
        }
        self.changes.gpus.get_mut(uuid)
    }

    /// A holder that the file knows.
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

    /// A counter to change, of a GPU and a holder that the file knows; one that is new is born `now`.
    pub(super) fn counter(&mut self, key: CounterKey, now: Utc) -> Result<&mut HolderCounter, Cause> {
        if self.changes.counters.contains_key(&key) {
            return self.changes.counters.get_mut(&key).ok_or(Cause::UnknownGpu { gpu: key.gpu });
        }
        let counter = match self.base.counters.get(&key) {
            Some(live) => live.counter.clone(),
            None => self.load(&key, now)?,
        };
        Ok(self.changes.counters.entry(key).or_insert(counter))
    }

    /// Takes all counters of a holder, as the file knows it, among those that change.
    pub(super) fn load_counters(
        &mut self,
        id: &HolderId,
        holder: &StoredHolder,
        now: Utc,
    ) -> Result<(), Cause> {
        for (gpu, gpu_instance) in counters::slots_of(self.connection, holder)? {
            let Some(uuid) = self.base.gpus.iter().find(|(_, known)| known.id == gpu).map(|(uuid, _)| uuid)
            else {
                continue;
            };
            let (gpu, holder) = (Arc::clone(uuid), id.clone());
            self.gpu(&gpu);
            self.counter(CounterKey { gpu, gpu_instance, holder }, now)?;
        }
        Ok(())
    }

    /// Makes the counters of a holder that change those of its tenant, which the file has already.
    pub(super) fn move_counters(&mut self, id: &HolderId, holder: &StoredHolder) -> Result<(), Cause> {
        let keys: Vec<CounterKey> =
            self.changes.counters.keys().filter(|key| key.holder == *id).cloned().collect();
        for key in keys {
            let tenant = key.with_tenant(&holder.tenant);
            let sums = [&self.changes.unloaded_sums, &self.base.unloaded_sums];
            if !sums.iter().any(|sums| sums.contains_key(&tenant)) {
                let gpu =
                    self.gpu(&key.gpu).ok_or_else(|| Cause::UnknownGpu { gpu: Arc::clone(&key.gpu) })?.id;
                let mut sum = counters::tenant_sum(self.connection, gpu, &tenant)?.unwrap_or_default();
                if let Some(own) = counters::counter(self.connection, gpu, key.gpu_instance, holder)? {
                    sum.remove(&own);
                }
                self.changes.unloaded_sums.insert(tenant, sum);
            }
            if let Some(counter) = self.changes.counters.get_mut(&key) {
                counter.tenant = Arc::clone(&holder.tenant);
            }
        }
        Ok(())
    }

    /// Loads a counter, or makes one; the unloaded sum of its tenant is less by that.
    fn load(&mut self, key: &CounterKey, now: Utc) -> Result<HolderCounter, Cause> {
        let unknown = || Cause::UnknownGpu { gpu: Arc::clone(&key.gpu) };
        let gpu = self.gpu(&key.gpu).ok_or_else(unknown)?.id;
        let holder = self.holder(&key.holder)?.ok_or_else(unknown)?;
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
        // Where the tenant has no counter this holder has none.
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
    /// Takes a stored counter into memory, when the ledger is opened.
    pub(super) fn add_stored_counter<E>(
        &mut self,
        key: CounterKey,
        counter: HolderCounter,
        holder: StoredHolder,
        tenant_sum: impl FnOnce(&TenantKey) -> Result<Option<HolderCounter>, E>,
    ) -> Result<(), E> {
        if !key.holder.is_remainder() {
            match self.unloaded_sums.entry(key.with_tenant(&holder.tenant)) {
                Entry::Occupied(mut known) => known.get_mut().remove(&counter),
                Entry::Vacant(vacant) => {
                    let sum = tenant_sum(vacant.key())?.unwrap_or_default();
                    vacant.insert(sum).remove(&counter);
                }
            }
        }
        self.holders.insert(key.holder.clone(), holder);
        // Its series lingers from now on, as the page's does.
        self.counters.insert(key, LiveCounter { counter, changed: self.last_commit });
        Ok(())
    }

    /// Lays a committed draft over the state.
    pub(super) fn apply(&mut self, changes: Changes, now: Utc) {
        self.gpus.extend(changes.gpus);
        self.holders.extend(changes.holders);
        let live = |counter| LiveCounter { counter, changed: now };
        self.counters.extend(changes.counters.into_iter().map(|(key, counter)| (key, live(counter))));
        self.unloaded_sums.extend(changes.unloaded_sums);
        self.imbalance = changes.imbalance;
    }

    /// Lets counters that did not change for long leave memory, with their holders; which, and the new unloaded
    /// sums of their tenants.
    pub(super) fn unload(&mut self, now: Utc) -> (Vec<CounterKey>, BTreeMap<TenantKey, HolderCounter>) {
        if now < self.unloaded_at.plus(UNLOAD_EVERY) {
            return Default::default();
        }
        self.unloaded_at = now;
        let is_over = |(key, live): &(&CounterKey, &LiveCounter)| {
            !key.holder.is_remainder() && now >= live.changed.plus(UNLOAD_AFTER)
        };
        let unloaded: Vec<CounterKey> =
            self.counters.iter().filter(is_over).map(|(key, _)| key.clone()).collect();
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
