//! Loads the state of the account when a ledger is opened.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::column::{loaded, loaded_json, loaded_optional, rows};
use super::rolled::RolledTime;
use super::state::{LedgerGpu, LedgerState, LiveCounter};
use super::{counters, history, reader};
use crate::accounting::batches::{Boot, RecoveredGpu, RecoveredShare};
use crate::model::{
    GpuId, Holder, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds, Presence, SlotState, Span, Utc,
};

pub(super) fn load(
    connection: &Connection,
) -> rusqlite::Result<(LedgerState, BTreeMap<Arc<str>, RecoveredGpu>)> {
    let sql = "SELECT created_ns, last_commit_ns FROM ledger";
    let (created, last_commit) =
        connection.query_row(sql, [], |row| Ok((Utc(loaded(row, 0)?), Utc(loaded(row, 1)?))))?;
    let (rates, tenant_rules) = history::load(connection)?;
    let (rates, tenant_rules) = (Arc::new(rates), Arc::new(tenant_rules));
    let rolled = RolledTime::load(connection)?;
    let mut state =
        LedgerState { created, last_commit, rates, tenant_rules, rolled, ..LedgerState::default() };
    let mut recovered = BTreeMap::new();
    let instances = counters::instances(connection)?;
    for (mut gpu, mut recovered_gpu) in load_gpus(connection)? {
        let own = instances.iter().filter(|(key, ..)| *key == gpu.id);
        gpu.instances = own.map(|(_, id, time)| (*id, *time)).collect();
        recovered_gpu.instances = gpu.instances.iter().map(|(id, time)| (*id, Nanoseconds(*time))).collect();
        let stored = load_spans(connection, gpu.id)?;
        gpu.seen = stored.last().map_or(gpu.seen, |span| span.to);
        gpu.raw = stored.iter().map(|span| (span.from, span.to)).collect();
        recovered_gpu.spans = fill_gaps(recovered_gpu.settled_until, stored);
        state.gpus.insert(Arc::clone(&recovered_gpu.gpu.uuid), gpu);
        recovered.insert(Arc::clone(&recovered_gpu.gpu.uuid), recovered_gpu);
    }
    let uuids = state.gpus.iter().map(|(uuid, gpu)| (gpu.id, Arc::clone(uuid))).collect();
    for (key, gpu, holder) in counters::recent(connection, &uuids)? {
        let Some(counter) = counters::counter(connection, gpu, key.gpu_instance, &holder)? else {
            continue;
        };
        if !key.holder.is_remainder() {
            let sum = match state.unloaded_sums.entry(key.with_tenant(&holder.tenant)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(vacant) => {
                    let sum = counters::tenant_sum(connection, gpu, vacant.key())?;
                    vacant.insert(sum.unwrap_or_default())
                }
            };
            sum.remove(&counter);
        }
        state.holders.insert(key.holder.clone(), holder);
        // As on the page, the series of a holder that is gone is still shown for some time.
        state.counters.insert(key, LiveCounter { counter, changed: last_commit });
    }
    let slots: i128 = state.gpus.values().map(|gpu| i128::from(gpu.slot)).sum();
    state.imbalance = slots - counters::held(connection)?;
    Ok((state, recovered))
}

/// What schedulers had granted at the end of the last spans that are of this boot.
pub(super) fn load_shares(
    connection: &Connection,
    gpus: &BTreeMap<Arc<str>, RecoveredGpu>,
    boot: Boot,
) -> rusqlite::Result<Vec<RecoveredShare>> {
    let mut shares = Vec::new();
    for (uuid, gpu) in gpus {
        let last = gpu.spans.last();
        if last.map_or(gpu.settled_until, |span| span.to) <= boot.first_seen {
            continue;
        }
        let slots = last.and_then(|span| span.instances.as_ref()).into_iter().flat_map(|mig| &mig.slots);
        let slots = slots.filter_map(|(id, slot)| Some((Some(id.parse().ok()?), &slot.holdings)));
        for (gpu_instance, holdings) in std::iter::once((None, &gpu.holdings)).chain(slots) {
            for Holding { holder, fraction, source, .. } in holdings.iter() {
                if !matches!(source, HoldingSource::Kubernetes | HoldingSource::Slurm) {
                    continue;
                }
                let Some(stored) = counters::holder(connection, holder)? else { continue };
                let facts = counters::facts(connection, &stored)?;
                shares.push(RecoveredShare {
                    gpu: Arc::clone(uuid),
                    gpu_instance,
                    holder: Holder { id: holder.with_version(0), facts },
                    fraction: *fraction,
                    source: *source,
                });
            }
        }
    }
    Ok(shares)
}

/// The latest units of the ledger, whose first user must be known.
const UNITS: &str =
    "SELECT name FROM holder WHERE kind = 'unit' GROUP BY name ORDER BY max(id) DESC LIMIT 4096";

/// All versions of the workloads that occur in spans and holdings, or have a counter in memory, and of units.
pub(super) fn load_holders(
    connection: &Connection,
    state: &LedgerState,
    gpus: &BTreeMap<Arc<str>, RecoveredGpu>,
) -> rusqlite::Result<Vec<Holder>> {
    let mut names: BTreeSet<Arc<str>> = state.counters.keys().map(|key| key.holder.workload()).collect();
    let mut add = |holdings: &[Holding], present: &BTreeMap<HolderId, Presence>| {
        let holders = holdings.iter().map(|holding| &holding.holder).chain(present.keys());
        names.extend(holders.map(HolderId::workload));
    };
    for gpu in gpus.values() {
        add(&gpu.holdings, &BTreeMap::new());
        for span in &gpu.spans {
            add(&span.holdings, &span.present);
            let slots = span.instances.iter().flat_map(|mig| mig.slots.values());
            slots.for_each(|slot| add(&slot.holdings, &slot.present));
        }
    }
    let mut units = connection.prepare(UNITS)?;
    for unit in units.query_map([], |row| row.get::<_, String>(0))? {
        names.insert(unit?.into());
    }
    let mut holders = Vec::new();
    for name in names {
        let sql = "SELECT name, version, facts FROM holder WHERE name = ?1 ORDER BY id";
        holders.extend(reader::holders(connection, sql, [name])?);
    }
    Ok(holders)
}

fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(LedgerGpu, RecoveredGpu)>> {
    let sql = "SELECT id, uuid, gpu_index, model, settled_until_ns, slot_ns, carry, weights, holdings, energy_counter_uj, evidence
               FROM gpu";
    rows(connection, sql, [], |row| {
        let uuid: Arc<str> = row.get::<_, String>(1)?.into();
        let recovered_gpu = RecoveredGpu {
            gpu: GpuId { index: row.get(2)?, uuid },
            model: row.get::<_, String>(3)?.into(),
            settled_until: Utc(loaded(row, 4)?),
            slot: Nanoseconds(loaded(row, 5)?),
            instances: BTreeMap::new(),
            carry: loaded_json(row, 6)?,
            weights: loaded_json(row, 7)?,
            spans: Vec::new(),
            holdings: loaded_json::<Vec<Holding>>(row, 8)?.into(),
            energy_counter: loaded_optional(row, 9)?.map(Microjoules),
            evidence: Arc::new(loaded_json(row, 10)?),
        };
        let gpu = LedgerGpu {
            slot: recovered_gpu.slot.0,
            holdings: Arc::clone(&recovered_gpu.holdings),
            evidence: Arc::clone(&recovered_gpu.evidence),
            ..LedgerGpu::new(row.get(0)?, &recovered_gpu.model, recovered_gpu.settled_until)
        };
        Ok((gpu, recovered_gpu))
    })
}

fn load_spans(connection: &Connection, gpu: i64) -> rusqlite::Result<Vec<Span>> {
    let sql = "SELECT span FROM raw WHERE gpu = ?1 ORDER BY from_ns";
    rows(connection, sql, [gpu], |row| loaded_json(row, 0))
}

/// The stored spans with unobserved spans in gaps. A span that overlaps the one before, which no commit stores, is left out.
fn fill_gaps(settled_until: Utc, stored: Vec<Span>) -> Vec<Span> {
    let mut at = settled_until;
    let mut spans = Vec::with_capacity(stored.len());
    for span in stored {
        if span.from < at {
            continue;
        }
        if at < span.from {
            spans.push(Span::empty(at, span.from, SlotState::Unobserved));
        }
        at = span.to;
        spans.push(span);
    }
    spans
}
