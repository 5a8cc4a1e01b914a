//! The past of a node in its ledger: what an agent would have recorded, committed with the times of then.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::path::Path;
use std::sync::Arc;

use super::events::{GpuFailure, PastEvent, PastEventKind, events, failures, incidents};
use super::gpu::{NodeContext, PastGpu};
use super::runs::PastRun;
use super::times::minutes;
use crate::accounting::batches::{ClosedWindow, GpuRegistration, LedgerBatch, SeenXids, XidSums};
use crate::accounting::billing::PriceBook;
use crate::accounting::ledger::{Error, Ledger, Opening, Retention};
use crate::accounting::tenants::{Decision, TenantRules};
use crate::model::catalogue::xid;
use crate::model::{Bytes, DAY, GpuId, HowHeld, MINUTE, Nanoseconds, NodeIdentity, QUARTER_HOUR, Stamp, Utc};

/// How long before the end of a history its time is settled by minutes, and before that by quarter hours.
const BY_MINUTES: Nanoseconds = Nanoseconds(3 * DAY.0);

/// Time since boot at the begin of a history.
const BOOTED_BEFORE: Nanoseconds = minutes(60);

/// Prices and tenant rules that were recorded at a time.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) recorded: Utc,
    pub(super) book: PriceBook,
    pub(super) rules: Arc<TenantRules>,
}

/// A node whose past is to be written.
pub(super) struct NodeAccount<'a> {
    pub(super) identity: NodeIdentity,
    pub(super) how_held: HowHeld,
    pub(super) from: Utc,
    pub(super) to: Utc,
    pub(super) gpus: Vec<PastGpu>,
    pub(super) past: NodeContext<'a>,
    /// In order of time; the first is in force at the begin.
    pub(super) settings: &'a [Settings],
    pub(super) zone: jiff::tz::TimeZone,
    /// What the ledger of the node would have kept.
    pub(super) retention: Retention,
}

/// Writes a node's past to a new ledger; `progress` is told each day that is reached.
///
/// # Errors
/// The ledger cannot be written; or a defect of settlement, with the GPU.
pub(super) fn write(
    path: &Path,
    mut node: NodeAccount<'_>,
    mut progress: impl FnMut(Utc),
) -> Result<(), HistoryError> {
    let (from, to) = (node.from, node.to);
    let mut writer = NodeWriter::open(path, &node)?;
    let by_minutes = Utc(to.0.saturating_sub(BY_MINUTES.0)).floor(QUARTER_HOUR).max(from);
    writer.ledger.store_quarter_hours_until(by_minutes)?;
    let mut at = from;
    while at < to {
        let grid = if at < by_minutes { QUARTER_HOUR } else { MINUTE };
        let end = at.floor(grid).plus(grid).min(to);
        writer.note_changes(&node, at, end)?;
        for gpu in &mut node.gpus {
            let (from, to) = (at.max(gpu.from), end.min(gpu.to));
            if from < to {
                writer.settle(gpu, &node.past, from, to)?;
            }
        }
        at = end;
        if at.0 % DAY.0 == 0 {
            writer.commit(at)?;
            progress(at);
        }
    }
    writer.commit(to)?;
    while writer.ledger.retain(node.retention)? {}
    Ok(())
}

/// Why a history could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum HistoryError {
    #[error(transparent)]
    Ledger(#[from] Error),
    #[error("{gpu}: {problem}; this is a defect of gpumeter")]
    Settle { gpu: Arc<str>, problem: String },
    #[error("no prices and tenant rules are in force; this is a defect of gpumeter")]
    Settings,
}

struct NodeWriter<'a> {
    ledger: Ledger,
    /// What is not committed yet.
    batch: LedgerBatch,
    /// The settings that are not recorded yet.
    later: &'a [Settings],
    /// The events that are still to come.
    events: Peekable<std::vec::IntoIter<PastEvent>>,
    failures: Vec<GpuFailure>,
    /// The XIDs of each GPU so far.
    xids: BTreeMap<Arc<str>, XidSums>,
    /// The begin of the history, which is at a known time since boot.
    from: Utc,
}

impl<'a> NodeWriter<'a> {
    /// Makes the ledger at the begin of the history.
    fn open(path: &Path, node: &NodeAccount<'a>) -> Result<Self, HistoryError> {
        let (first, later) = node.settings.split_first().ok_or(HistoryError::Settings)?;
        let opening = Opening {
            // A boot of its own: that of the demo begins when this one ends.
            boot_id: format!("history-{:016x}", node.from.0),
            now: Stamp { boottime: BOOTED_BEFORE, utc: node.from },
            book: first.book.clone(),
            tenant_rules: Arc::clone(&first.rules),
            node: node.identity.clone(),
            zone: Some(node.zone.clone()),
            ..Opening::default()
        };
        let (mut ledger, _) = Ledger::open(path, &opening)?;
        ledger.record_how_held(node.how_held)?;
        let failures = failures(&node.past, &node.gpus);
        let events = events(&node.past, &node.gpus, &failures, node.from).into_iter().peekable();
        let (batch, xids) = Default::default();
        Ok(Self { ledger, batch, later, events, failures, xids, from: node.from })
    }

    /// Records what was new between two times, before that time is settled: settings, GPUs, faults and holders.
    fn note_changes(&mut self, node: &NodeAccount<'_>, from: Utc, to: Utc) -> Result<(), HistoryError> {
        while let Some((next, later)) = self.later.split_first().filter(|(next, _)| next.recorded <= from) {
            self.decide(from, next)?;
            self.later = later;
        }
        while let Some(event) = self.events.next_if(|event| event.at < to) {
            self.note(node, &event)?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        gpu: &mut PastGpu,
        past: &NodeContext<'_>,
        from: Utc,
        to: Utc,
    ) -> Result<(), HistoryError> {
        let uuid = Arc::clone(&gpu.session.uuid);
        let settled = gpu.settle(past, from, to);
        let settlement =
            settled.map_err(|problem| HistoryError::Settle { gpu: Arc::clone(&uuid), problem })?;
        self.batch.closed.push(ClosedWindow { gpu: uuid, settlement, coarse: false });
        Ok(())
    }

    /// Commits everything up to now.
    fn commit(&mut self, now: Utc) -> Result<(), HistoryError> {
        let batch = LedgerBatch { now, ..std::mem::take(&mut self.batch) };
        self.ledger.commit(&batch)?;
        Ok(())
    }

    /// Records other prices and tenant rules.
    fn decide(&mut self, now: Utc, settings: &Settings) -> Result<(), HistoryError> {
        self.commit(now)?;
        self.ledger.decide(&Decision {
            book: Some(settings.book.clone()),
            rules: Some(Arc::clone(&settings.rules)),
            decided: BOOTED_BEFORE + settings.recorded.max(self.from).since(self.from),
        })?;
        Ok(())
    }

    /// Records an event. Each is committed with its own time, but for a GPU that comes and a failure that ends.
    fn note(&mut self, node: &NodeAccount<'_>, event: &PastEvent) -> Result<(), HistoryError> {
        match event.kind {
            PastEventKind::Gpu(place) => {
                let PastGpu { session, board, .. } = &node.gpus[place];
                self.batch.registrations.push(GpuRegistration {
                    gpu: GpuId { index: session.index.unwrap_or(0), uuid: Arc::clone(&session.uuid) },
                    model: board.model.into(),
                    memory: Some(Bytes(board.memory_gib << 30)),
                    at: event.at,
                });
                Ok(())
            }
            PastEventKind::Repaired(place) => {
                let ended = incidents(&self.failures, &self.failures[place].gpu, event.at);
                self.batch.incidents.push(ended);
                Ok(())
            }
            PastEventKind::Failed(place) => self.report(place, event.at),
            PastEventKind::Run(place) => self.begin(event.at, &node.past.runs[place]),
        }
    }

    /// Counts the XID of a failure that begins, and stores its incident.
    fn report(&mut self, place: usize, now: Utc) -> Result<(), HistoryError> {
        self.commit(now)?;
        let GpuFailure { gpu, xid: code, .. } = &self.failures[place];
        self.batch.incidents.push(incidents(&self.failures, gpu, now));
        let sums = self.xids.entry(Arc::clone(gpu)).or_default();
        sums.gpu = Arc::clone(gpu);
        *sums.actions.entry(xid::find(*code).action.name().into()).or_default() += 1;
        let seen = sums.codes.entry(*code).or_default();
        (seen.count, seen.last) = (seen.count + 1, now);
        self.batch.seen_xids.push(SeenXids { gpu: Arc::clone(gpu), code: *code, from: now, to: now });
        self.batch.xids.push(sums.clone());
        self.commit(now)
    }

    /// Stores the holders of a run at its begin, so that they are first seen then.
    fn begin(&mut self, now: Utc, run: &PastRun) -> Result<(), HistoryError> {
        self.commit(now)?;
        self.batch.holders.push((*run.holder).clone());
        if run.user.id != run.holder.id {
            self.batch.holders.push((*run.user).clone());
        }
        self.commit(now)
    }
}
