//! What the owner keeps in memory of its file, and the draft of one transaction upon it.
//!
//! A draft copies what it touches; it is laid over the state when the transaction is committed and
//! forgotten when it fails, so memory never runs ahead of the disk.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::book::{Tariff, Version};
use crate::model::{HolderId, Holding, Microjoules, Money, Nanoseconds, Parts, Use, Utc};

/// UUID of the GPU, and the holder.
pub type CounterKey = (Arc<str>, HolderId);

/// The account of one holder on one GPU since the ledger was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Time of the batch in which it was first above zero.
    pub born: Utc,
    /// What was held.
    pub parts: Parts,
    /// What was used.
    pub used: Use,
    /// Share of the idle floor.
    pub energy_static: Microjoules,
    /// Share of the rest.
    pub energy_dynamic: Microjoules,
    /// Money, by currency and class; empty where no price was ever in force.
    pub costs: BTreeMap<Tariff, Cost>,
}

/// Money at the prices then in force; an estimate to within a nano-unit per window, the bill counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time of the batch in which it began.
    pub born: Utc,
    /// Of what was held.
    pub held: Money,
    /// Of what was used.
    pub used: Money,
}

/// Where one GPU stands.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    /// Key in the file.
    pub(super) id: i64,
    /// End of its account.
    pub(super) settled_until: Utc,
    /// GPU time settled.
    pub(super) slot: u64,
    /// The price version of the last settled minute.
    pub(super) price: Option<i64>,
    /// GPU time settled under it.
    pub(super) price_time: u64,
    /// The raw spans that are stored: from, to.
    pub(super) raw: BTreeMap<Utc, Utc>,
    /// Holdings at the end of the last of them.
    pub(super) holdings: Arc<[Holding]>,
    /// The end of the span that told them.
    pub(super) seen: Utc,
}

/// The whole of it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The boot that it is open in.
    pub(super) boot_id: String,
    pub(super) created: Utc,
    pub(super) gpus: BTreeMap<Arc<str>, Gpu>,
    pub(super) holders: HashMap<HolderId, i64>,
    pub(super) counters: BTreeMap<CounterKey, Counter>,
    /// In order of time.
    pub(super) prices: Vec<Version>,
    pub(super) imbalance: i128,
}

/// What one transaction changes.
pub(super) struct Draft<'a> {
    pub(super) base: &'a State,
    pub(super) changes: Changes,
}

/// The changes, free of what they are laid over.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) gpus: BTreeMap<Arc<str>, Gpu>,
    pub(super) holders: HashMap<HolderId, i64>,
    pub(super) counters: BTreeMap<CounterKey, Counter>,
    pub(super) imbalance: i128,
    /// GPU time of holes that were settled as unobserved.
    pub(super) unobserved: Nanoseconds,
}

impl<'a> Draft<'a> {
    pub(super) fn new(base: &'a State) -> Self {
        Self { base, changes: Changes { imbalance: base.imbalance, ..Changes::default() } }
    }

    /// A GPU to change, `None` where it was never introduced.
    pub(super) fn gpu(&mut self, uuid: &Arc<str>) -> Option<&mut Gpu> {
        if !self.changes.gpus.contains_key(uuid) {
            let gpu = self.base.gpus.get(uuid)?.clone();
            self.changes.gpus.insert(Arc::clone(uuid), gpu);
        }
        self.changes.gpus.get_mut(uuid)
    }

    /// The key of a holder, where it has one.
    pub(super) fn holder(&self, id: &HolderId) -> Option<i64> {
        self.changes.holders.get(id).or_else(|| self.base.holders.get(id)).copied()
    }

    /// A counter to change; one that is new is born `now`.
    pub(super) fn counter(&mut self, key: CounterKey, now: Utc) -> &mut Counter {
        let base = self.base;
        self.changes.counters.entry(key).or_insert_with_key(|key| {
            base.counters.get(key).cloned().unwrap_or_else(|| Counter { born: now, ..Counter::default() })
        })
    }
}

impl State {
    /// Lays a committed draft over the state.
    pub(super) fn apply(&mut self, changes: Changes) {
        self.gpus.extend(changes.gpus);
        self.holders.extend(changes.holders);
        self.counters.extend(changes.counters);
        self.imbalance = changes.imbalance;
    }
}
