//! Loads the state of the account when a ledger is opened.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;

use super::column::{loaded, loaded_json, loaded_optional};
use super::expected::Expected;
use super::state::{CounterKey, HolderCounter, LedgerGpu, LedgerState, LiveCounter, TenantKey};
use super::sticky_faults::StickyFaults;
use super::timeline::{AccountTimeline, Boot, unknown_span};
use super::xids::XidSums;
use super::{counters, rates, reader, tenant_rules};
use crate::billing::RateSchedule;
use crate::model::{
    Carry, Fraction, GpuId, Holder, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds, Presence,
    SlotState, Span, Utc,
};
use crate::tenants::RuleSchedule;

/// State of the account when the ledger was opened.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// When the ledger was created: the start time of its counters.
    pub created: Utc,
    /// Account time of the last commit, or of the creation before the first commit.
    pub last_commit: Utc,
    /// Copy of the file with its older schema, if it was upgraded.
    pub upgraded_from: Option<PathBuf>,
    /// The account's time axis in this boot.
    pub timeline: AccountTimeline,
    /// This boot; nothing is bridged from an earlier one.
    pub boot: Boot,
    /// Whether its filesystem survives a restart of the container and of the node.
    pub durable: bool,
    /// The GPUs, by UUID.
    pub gpus: BTreeMap<Arc<str>, RecoveredGpu>,
    /// The last attachment of each GPU.
    pub inventory: Vec<Expected>,
    /// What schedulers had granted at the end of the last stored spans, where these are of this boot.
    pub shares: Vec<RecoveredShare>,
    /// Sticky faults stored in this boot, by GPU.
    pub sticky_faults: Vec<StickyFaults>,
    /// XID errors, by GPU that has had any.
    pub xids: Vec<XidSums>,
    /// The last known user name of each uid, limited to the latest ones.
    pub users: Vec<(u32, Arc<str>)>,
    /// The versions of the holders that are in `gpus` or changed lately, each workload's in the order in which they began.
    pub holders: Vec<Holder>,
    /// Counters that changed lately.
    pub counters: BTreeMap<CounterKey, HolderCounter>,
    /// For each tenant with one of these, the sum of its other counters.
    pub unloaded_sums: BTreeMap<TenantKey, HolderCounter>,
    /// The recorded rates.
    pub rates: Arc<RateSchedule>,
    /// The recorded versions of the tenant rules.
    pub tenant_rules: Arc<RuleSchedule>,
    /// GPU time settled - the sum of all held counters, in nanoseconds; must be 0.
    pub imbalance: i128,
}

/// A share of a slot that a scheduler had granted when the account was last written.
#[derive(Clone, Debug)]
pub struct RecoveredShare {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    /// To whom it was granted.
    pub holder: Holder,
    /// The share of the slot.
    pub fraction: Fraction,
    /// The scheduler.
    pub source: HoldingSource,
}

/// State of the account of one GPU.
#[derive(Clone, Debug)]
pub struct RecoveredGpu {
    /// The GPU, with its last index.
    pub gpu: GpuId,
    /// Product name.
    pub model: Arc<str>,
    /// End of the account: the next window begins here.
    pub settled_until: Utc,
    /// GPU time settled since the account began.
    pub slot: Nanoseconds,
    /// Slot time settled of each GPU instance, by id.
    pub instances: BTreeMap<u32, Nanoseconds>,
    /// The carries after the last window.
    pub carry: Carry,
    /// The weights of the last window.
    pub weights: BTreeMap<HolderId, u64>,
    /// Raw spans from `settled_until` on, with unobserved spans in gaps.
    pub spans: Vec<Span>,
    /// Holdings at the end of the last stored span.
    pub holdings: Arc<[Holding]>,
    /// The driver's energy counter at that time, where it is known.
    pub energy_counter: Option<Microjoules>,
}

/// Loads the owner's state, and the GPUs as they are returned to the caller.
pub(super) fn load(
    connection: &Connection,
) -> rusqlite::Result<(LedgerState, BTreeMap<Arc<str>, RecoveredGpu>)> {
    let sql = "SELECT created_ns, last_commit_ns FROM ledger";
    let (created, last_commit) =
        connection.query_row(sql, [], |row| Ok((Utc(loaded(row, 0)?), Utc(loaded(row, 1)?))))?;
    let rates = Arc::new(rates::load(connection)?);
    let tenant_rules = Arc::new(tenant_rules::load(connection)?);
    let mut state = LedgerState { created, last_commit, rates, tenant_rules, ..LedgerState::default() };
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

/// All versions of the workloads that occur in spans and holdings, or have a counter in memory.
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
    let mut holders = Vec::new();
    for name in names {
        let sql = "SELECT name, version, facts FROM holder WHERE name = ?1 ORDER BY id";
        holders.extend(reader::holders(connection, sql, [name])?);
    }
    Ok(holders)
}

fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(LedgerGpu, RecoveredGpu)>> {
    connection
        .prepare(
            "SELECT id, uuid, gpu_index, model, settled_until_ns, slot_ns, carry, weights, holdings,
                    energy_counter_uj
             FROM gpu",
        )?
        .query_map([], |row| {
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
            };
            let gpu = LedgerGpu {
                id: row.get(0)?,
                settled_until: recovered_gpu.settled_until,
                slot: recovered_gpu.slot.0,
                instances: BTreeMap::new(),
                model: Arc::clone(&recovered_gpu.model),
                raw: BTreeMap::new(),
                holdings: Arc::clone(&recovered_gpu.holdings),
                seen: recovered_gpu.settled_until,
            };
            Ok((gpu, recovered_gpu))
        })?
        .collect()
}

fn load_spans(connection: &Connection, gpu: i64) -> rusqlite::Result<Vec<Span>> {
    connection
        .prepare_cached("SELECT span FROM raw WHERE gpu = ?1 ORDER BY from_ns")?
        .query_map([gpu], |row| loaded_json(row, 0))?
        .collect()
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
            spans.push(unknown_span(at, span.from, SlotState::Unobserved));
        }
        at = span.to;
        spans.push(span);
    }
    spans
}
