//! Commits a batch in one transaction: all of it or nothing.
//!
//! A GPU's account has no gaps and counts nothing twice, whatever the caller passes. A window that ends before the account
//! does is skipped. One that begins later than the account ends follows a lost window, whose time is settled as
//! `__unobserved__` and counted first, so one lost batch does not stop the account. One that overlaps the end is refused.
//! Only the time in which an account was suspended is left out, since it belongs to another GPU or to none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::TransactionBehavior;

use super::error::{Cause, Error};
use super::minutes::{add_minute_part, split_at_minutes};
use super::owner::Ledger;
use super::state::{LedgerGpu, TransactionDraft};
use super::{MINUTE, column, evidence, expected, files, incidents, sticky_faults, write, xids};
use crate::accounting::batches::{
    Acknowledged, ClosedWindow, GpuRegistration, LedgerBatch, OpenSpans, Resumed, SlotTotal,
};
use crate::model::{Amounts, Carry, Holder, HolderId, Nanoseconds, Parts, Row, Settlement, Utc};

/// The most of the account that a power loss can take.
const SYNC_EVERY: Nanoseconds = Nanoseconds::from_seconds(10);

impl Ledger {
    /// Commits a batch in one transaction, and returns the account that may be published.
    ///
    /// # Errors
    /// A window or span that overlaps what is stored, an unknown GPU, the disk. Then nothing of the batch is stored.
    pub fn commit(&mut self, batch: &LedgerBatch) -> Result<Acknowledged, Error> {
        self.commit_transaction(batch).map_err(|cause| cause.at(&self.path, "commit a batch"))
    }

    fn commit_transaction(&mut self, batch: &LedgerBatch) -> Result<Acknowledged, Cause> {
        let due = self.synced_at.is_none_or(|at| batch.now.since(at) >= SYNC_EVERY);
        let synced = batch.sync || due || !batch.closed.is_empty();
        self.sync_commits(synced)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut draft = TransactionDraft::new(&self.state, &transaction);
        store_batch(&mut draft, batch)?;
        let changes = draft.changes;
        transaction.commit()?;
        if synced {
            self.synced_at = Some(batch.now);
            self.bytes = files::bytes_on_disk(&self.path);
        }
        let settled: BTreeSet<&Arc<str>> = batch.closed.iter().map(|closed| &closed.gpu).collect();
        let mut acknowledged = Acknowledged {
            slots: changes
                .gpus
                .iter()
                .filter(|(uuid, _)| settled.contains(uuid))
                .map(|(uuid, gpu)| (Arc::clone(uuid), slot_total(gpu)))
                .collect(),
            counters: changes.counters.clone(),
            unloaded_sums: changes.unloaded_sums.clone(),
            unloaded: Vec::new(),
            rates: Arc::clone(&self.state.rates),
            tenant_rules: Arc::clone(&self.state.tenant_rules),
            month: None,
            xids: changes.xids.clone(),
            synced,
            unobserved: changes.unobserved,
            bytes: self.bytes,
            imbalance: changes.imbalance,
        };
        self.state.apply(changes, batch.now);
        let (unloaded, unloaded_sums) = self.state.unload(batch.now);
        acknowledged.unloaded = unloaded;
        acknowledged.unloaded_sums.extend(unloaded_sums);
        acknowledged.month.clone_from(&self.state.month);
        Ok(acknowledged)
    }

    /// Sets whether further commits survive a power loss. A FULL commit also syncs the earlier NORMAL ones in the log.
    pub(super) fn sync_commits(&mut self, synced: bool) -> Result<(), Cause> {
        if self.syncs == Some(synced) {
            return Ok(());
        }
        // Not allowed inside a transaction.
        self.connection.execute_batch(if synced {
            "PRAGMA synchronous = FULL"
        } else {
            "PRAGMA synchronous = NORMAL"
        })?;
        self.syncs = Some(synced);
        Ok(())
    }
}

fn slot_total(gpu: &LedgerGpu) -> SlotTotal {
    SlotTotal {
        settled_until: gpu.settled_until,
        slot: Nanoseconds(gpu.slot),
        instances: gpu.instances.iter().map(|(id, time)| (*id, Nanoseconds(*time))).collect(),
    }
}

fn store_batch(draft: &mut TransactionDraft<'_>, batch: &LedgerBatch) -> Result<(), Cause> {
    let connection = draft.connection;
    for registration in &batch.registrations {
        register_gpu(draft, registration)?;
    }
    for expected in &batch.expected {
        expected::store(connection, expected)?;
    }
    for faults in &batch.sticky_faults {
        sticky_faults::store(connection, faults, &draft.base.boot_id)?;
    }
    for open in &batch.incidents {
        incidents::store_open(connection, open)?;
    }
    for seen in &batch.seen_xids {
        incidents::store_xids(connection, seen)?;
    }
    for sums in &batch.xids {
        if xids::store(connection, sums, &draft.base.boot_id)? {
            draft.changes.xids.push(sums.clone());
        }
    }
    for holder in &batch.holders {
        draft.store_holder(holder, batch.now)?;
    }
    let mut last: BTreeMap<&Arc<str>, &ClosedWindow> = BTreeMap::new();
    for closed in &batch.closed {
        if close_window(draft, closed, batch)? {
            last.insert(&closed.gpu, closed);
        }
    }
    for (uuid, closed) in last {
        let gpu = draft.gpu(uuid)?;
        write::update_settled_gpu(connection, gpu, &closed.settlement)?;
        write::delete_settled_spans(connection, gpu)?;
        let until = gpu.settled_until;
        gpu.raw.retain(|from, _| *from >= until);
    }
    for resumed in &batch.resumed {
        resume_account(draft, resumed, batch.now)?;
    }
    evidence::end_of_gone(draft, batch.now)?;
    for open in &batch.open {
        store_spans(draft, open)?;
    }
    for (uuid, gpu) in &draft.changes.gpus {
        check_disjoint(uuid, gpu)?;
    }
    let counters = std::mem::take(&mut draft.changes.counters);
    for (key, counter) in &counters {
        let (gpu, holder) = (draft.gpu(&key.gpu)?.id, draft.stored_holder(&key.holder)?.id);
        write::replace_counter(connection, gpu, holder, key.gpu_instance, counter)?;
    }
    draft.changes.counters = counters;
    let sql = "UPDATE ledger SET last_commit_ns = max(last_commit_ns, ?1)";
    Ok(column::put(connection, sql, [column::stored(batch.now.0)?])?)
}

/// Opens a GPU's account; of a GPU that has one, updates index, product name and memory.
fn register_gpu(draft: &mut TransactionDraft<'_>, registration: &GpuRegistration) -> Result<(), Cause> {
    let id = write::upsert_gpu(draft.connection, registration)?;
    if let Ok(gpu) = draft.gpu(&registration.gpu.uuid) {
        if !registration.model.is_empty() {
            gpu.model = Arc::clone(&registration.model);
        }
    } else {
        let gpu = LedgerGpu::new(id, &registration.model, registration.at);
        draft.changes.gpus.insert(Arc::clone(&registration.gpu.uuid), gpu);
    }
    Ok(())
}

/// Stores a window, and first, as unobserved, the time of a lost window before it. Returns false for a window that was
/// stored before.
fn close_window(
    draft: &mut TransactionDraft<'_>,
    closed: &ClosedWindow,
    batch: &LedgerBatch,
) -> Result<bool, Cause> {
    let now = batch.now;
    let (from, to) = (closed.settlement.from, closed.settlement.to);
    for resumed in batch.resumed.iter().filter(|resumed| resumed.gpu == closed.gpu && resumed.at <= from) {
        resume_account(draft, resumed, now)?;
    }
    let settled_until = draft.gpu(&closed.gpu)?.settled_until;
    if to <= from || (from < settled_until && settled_until < to) {
        let gpu = Arc::clone(&closed.gpu);
        return Err(Cause::Window { gpu, from, to, settled_until });
    }
    if to <= settled_until {
        return Ok(false);
    }
    if settled_until < from {
        let settlement = unobserved_window(settled_until, from);
        draft.changes.unobserved += from.since(settled_until);
        let gap = ClosedWindow { gpu: Arc::clone(&closed.gpu), settlement, coarse: false };
        store_window(draft, &gap, now)?;
    }
    store_window(draft, closed, now)?;
    Ok(true)
}

/// Continues a suspended account, without anything from before.
fn resume_account(draft: &mut TransactionDraft<'_>, resumed: &Resumed, now: Utc) -> Result<(), Cause> {
    if resumed.at <= draft.gpu(&resumed.gpu)?.settled_until {
        return Ok(());
    }
    evidence::end(draft, &resumed.gpu, now)?;
    let connection = draft.connection;
    let gpu = draft.gpu(&resumed.gpu)?;
    (gpu.settled_until, gpu.seen, gpu.holdings) = (resumed.at, resumed.at, Arc::new([]));
    gpu.raw.retain(|from, _| *from >= resumed.at);
    write::update_resumed_gpu(connection, gpu)?;
    Ok(write::delete_settled_spans(connection, gpu)?)
}

/// The settlement of a lost window: neither holdings nor activity are known, and its energy is lost. Its method is
/// `observed`, since `bridged` means that a holding was assumed for a gap.
fn unobserved_window(from: Utc, to: Utc) -> Settlement {
    let time = to.since(from);
    let row = Row {
        amounts: Amounts { parts: Parts { unmeasured: time.0, ..Parts::default() }, ..Amounts::default() },
        ..Row::empty(HolderId::new(HolderId::UNOBSERVED))
    };
    let flags = vec![format!(
        "{} ns from {} on: no settled window was received; booked as __unobserved__",
        time.0, from.0
    )];
    Settlement {
        from,
        to,
        rows: vec![row],
        carry: Carry::new(),
        weights: BTreeMap::new(),
        flags,
        ..Settlement::default()
    }
}

/// Stores a window that begins where the account ends, minute by minute.
fn store_window(draft: &mut TransactionDraft<'_>, closed: &ClosedWindow, now: Utc) -> Result<(), Cause> {
    let window = &closed.settlement;
    // `__unavailable__` is charged for the unavailable time of holders, even where it has no row.
    let unavailable = window.rows.iter().any(|row| row.amounts.parts.unavailable > 0);
    let payer = unavailable.then(|| HolderId::new(HolderId::UNAVAILABLE));
    draft.apply_tenant_rules(window.from);
    for holder in window.rows.iter().map(|row| &row.holder).chain(&payer) {
        match draft.holder(holder)? {
            Some(known) => draft.update_tenant(holder, known, now)?,
            None => draft.store_holder(&Holder::from_id(holder.clone()), now)?,
        }
    }
    for part in split_at_minutes(window, draft.base.rolled) {
        add_minute_part(draft, closed, &part, now)?;
    }
    evidence::add_window(draft, &closed.gpu, window, now)?;
    let connection = draft.connection;
    let gpu = draft.gpu(&closed.gpu)?;
    gpu.settled_until = window.to;
    let id = gpu.id;
    let row = draft.base.rolled.row_of(window.from.floor(MINUTE));
    Ok(write::insert_remarks(connection, (row, id), window)?)
}

fn store_spans(draft: &mut TransactionDraft<'_>, open: &OpenSpans) -> Result<(), Cause> {
    let connection = draft.connection;
    let gpu = draft.gpu(&open.gpu)?;
    for span in &open.spans {
        if span.to <= gpu.settled_until {
            continue;
        }
        let replaces = gpu.raw.insert(span.from, span.to).is_some();
        write::insert_span(connection, gpu.id, span, replaces)?;
    }
    // A span stored again after late identification is older than `seen`; it must not overwrite the current holdings.
    if let Some(last) = open.spans.last().filter(|last| last.to >= gpu.seen) {
        gpu.seen = last.to;
        if last.holdings != gpu.holdings {
            write::update_holdings(connection, gpu.id, &last.holdings)?;
            gpu.holdings = Arc::clone(&last.holdings);
        }
    }
    if let Some(counter) = open.energy_counter {
        write::update_energy_counter(connection, gpu.id, counter)?;
    }
    Ok(())
}

/// Refuses stored spans that overlap the account or each other. Gaps are allowed: windows decide about them, and a restart
/// before the window closes fills them with unobserved spans.
fn check_disjoint(uuid: &Arc<str>, gpu: &LedgerGpu) -> Result<(), Cause> {
    let mut at = gpu.settled_until;
    for (from, to) in &gpu.raw {
        if *from < at || to <= from {
            return Err(Cause::Spans { gpu: Arc::clone(uuid), at });
        }
        at = *to;
    }
    Ok(())
}
