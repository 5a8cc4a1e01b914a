//! Reads back what a restart goes on from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;

use super::column::{loaded, loaded_json};
use super::expected::Expected;
use super::state::{CounterKey, HolderCounter, LedgerGpu, LedgerState, TenantKey};
use super::sticky_faults::StickyFaults;
use super::timeline::{AccountTimeline, Boot, unknown_span};
use super::xids::XidSums;
use super::{book, counters};
use crate::model::{Carry, GpuId, HolderId, Holding, Microjoules, Nanoseconds, SlotState, Span, Utc};

/// Where the account stands.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// When the ledger was created: the start time of its counters.
    pub created: Utc,
    /// Account time of the last commit; of the creation before the first one.
    pub last_commit: Utc,
    /// The copy that was saved because the file had an older schema; none where it had not.
    pub upgraded_from: Option<PathBuf>,
    /// The account's time axis in this boot.
    pub timeline: AccountTimeline,
    /// When this boot began: over a boot nothing is bridged.
    pub boot: Boot,
    /// Whether its filesystem outlives the container and the boot.
    pub durable: bool,
    /// The GPUs, by UUID.
    pub gpus: BTreeMap<Arc<str>, RecoveredGpu>,
    /// Where each of them was last.
    pub inventory: Vec<Expected>,
    /// Their sticky faults that were stored in this boot.
    pub sticky_faults: Vec<StickyFaults>,
    /// The XID errors of each GPU that has had any.
    pub xids: Vec<XidSums>,
    /// The last name of each uid that processes ran under, as far as there is one; of the latest only, where they are
    /// many.
    pub users: Vec<(u32, Arc<str>)>,
    /// The counters that changed lately.
    pub counters: BTreeMap<CounterKey, HolderCounter>,
    /// For each tenant that has one of these, the sum of its other counters.
    pub unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// GPU time settled - the sum of all held counters; must be 0.
    pub imbalance: i128,
}

/// Where the account of one GPU stands.
#[derive(Clone, Debug)]
pub struct RecoveredGpu {
    /// Which GPU, with the index under which it was last seen.
    pub gpu: GpuId,
    /// Product name.
    pub model: Arc<str>,
    /// End of the account: the next window begins here.
    pub settled_until: Utc,
    /// GPU time settled since the account began.
    pub slot: Nanoseconds,
    /// That of each of its GPU instances, by id.
    pub instances: BTreeMap<u32, Nanoseconds>,
    /// The carries after the last window.
    pub carry: Carry,
    /// The weights of the last window.
    pub weights: BTreeMap<HolderId, u64>,
    /// Raw spans from `settled_until` on, without holes: where one was lost, a span says that nobody looked.
    pub spans: Vec<Span>,
    /// Holdings at the end of the last span that was ever stored.
    pub holdings: Arc<[Holding]>,
    /// The driver's energy counter at that time, where it was known.
    pub energy_counter: Option<Microjoules>,
}

/// The owner's state, and the GPUs for the caller.
pub(super) fn load(
    connection: &Connection,
) -> rusqlite::Result<(LedgerState, BTreeMap<Arc<str>, RecoveredGpu>)> {
    let mut state = LedgerState {
        created: connection.query_row("SELECT created_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))?,
        last_commit: connection
            .query_row("SELECT last_commit_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))?,
        prices: book::versions(connection)?,
        ..LedgerState::default()
    };
    let mut recovered = BTreeMap::new();
    let instances = counters::instances(connection)?;
    for (mut gpu, mut told) in load_gpus(connection)? {
        let own = instances.iter().filter(|(key, ..)| *key == gpu.id);
        gpu.instances = own.map(|(_, id, time)| (*id, *time)).collect();
        told.instances = gpu.instances.iter().map(|(id, time)| (*id, Nanoseconds(*time))).collect();
        let stored = load_spans(connection, gpu.id)?;
        gpu.seen = stored.last().map_or(gpu.seen, |span| span.to);
        gpu.raw = stored.iter().map(|span| (span.from, span.to)).collect();
        told.spans = fill_holes(told.settled_until, stored);
        state.gpus.insert(Arc::clone(&told.gpu.uuid), gpu);
        recovered.insert(Arc::clone(&told.gpu.uuid), told);
    }
    let uuids = state.gpus.iter().map(|(uuid, gpu)| (gpu.id, Arc::clone(uuid))).collect();
    for (key, gpu, holder) in counters::recent(connection, &uuids)? {
        let Some(counter) = counters::counter(connection, gpu, key.gpu_instance, &holder)? else {
            continue;
        };
        state.add_stored_counter(key, counter, holder, |tenant| {
            counters::tenant_sum(connection, gpu, tenant)
        })?;
    }
    let slots: i128 = state.gpus.values().map(|gpu| i128::from(gpu.slot)).sum();
    state.imbalance = slots - counters::held(connection)?;
    Ok((state, recovered))
}

fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(LedgerGpu, RecoveredGpu)>> {
    connection
        .prepare(
            "SELECT id, uuid, gpu_index, model, settled_until_ns, slot_ns, price, price_time_ns, carry,
                    weights, holdings, energy_counter_uj
             FROM gpu",
        )?
        .query_map([], |row| {
            let uuid: Arc<str> = row.get::<_, String>(1)?.into();
            let told = RecoveredGpu {
                gpu: GpuId { index: row.get(2)?, uuid },
                model: row.get::<_, String>(3)?.into(),
                settled_until: Utc(loaded(row, 4)?),
                slot: Nanoseconds(loaded(row, 5)?),
                instances: BTreeMap::new(),
                carry: loaded_json(row, 8)?,
                weights: loaded_json(row, 9)?,
                spans: Vec::new(),
                holdings: loaded_json::<Vec<Holding>>(row, 10)?.into(),
                energy_counter: match row.get::<_, Option<i64>>(11)? {
                    Some(_) => Some(Microjoules(loaded(row, 11)?)),
                    None => None,
                },
            };
            let gpu = LedgerGpu {
                id: row.get(0)?,
                settled_until: told.settled_until,
                slot: told.slot.0,
                instances: BTreeMap::new(),
                price: row.get(6)?,
                price_time: loaded(row, 7)?,
                raw: BTreeMap::new(),
                holdings: Arc::clone(&told.holdings),
                seen: told.settled_until,
            };
            Ok((gpu, told))
        })?
        .collect()
}

fn load_spans(connection: &Connection, gpu: i64) -> rusqlite::Result<Vec<Span>> {
    connection
        .prepare_cached("SELECT span FROM raw WHERE gpu = ?1 ORDER BY from_ns")?
        .query_map([gpu], |row| loaded_json(row, 0))?
        .collect()
}

/// The spans with their holes named; one that overlaps its forerunner, which no commit stores, is left out.
fn fill_holes(settled_until: Utc, stored: Vec<Span>) -> Vec<Span> {
    let mut at = settled_until;
    let mut spans = Vec::with_capacity(stored.len());
    for span in stored {
        if span.from < at {
            continue;
        }
        if at < span.from {
            spans.push(unknown_span(at, span.from, SlotState::Unobserved));
        }
        at = span.to;
        spans.push(span);
    }
    spans
}
