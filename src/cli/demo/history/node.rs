//! The past of a node in its ledger: what an agent would have recorded, committed with the times of then.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::gpu::{NodeContext, PastGpu};
use super::times::minutes;
use crate::accounting::batches::{ClosedWindow, GpuRegistration, LedgerBatch};
use crate::accounting::billing::PriceBook;
use crate::accounting::ledger::{Error, Ledger, Opening};
use crate::accounting::tenants::{Decision, TenantRules};
use crate::model::{DAY, GpuId, HowHeld, MINUTE, Nanoseconds, NodeIdentity, QUARTER_HOUR, Stamp, Utc};

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
}

/// Writes a node's past to a new ledger; `progress` is told each day that is reached.
///
/// # Errors
/// The ledger cannot be written; or a defect of settlement, with the GPU.
pub(super) fn write(
    path: &Path,
    node: NodeAccount<'_>,
    mut progress: impl FnMut(Utc),
) -> Result<(), HistoryError> {
    let NodeAccount { identity, how_held, from, to, mut gpus, past, settings, zone } = node;
    let now = Stamp { boottime: BOOTED_BEFORE, utc: from };
    let (first, later) = settings.split_first().ok_or(HistoryError::Settings)?;
    let opening = Opening {
        // A boot of its own: that of the demo begins when this one ends.
        boot_id: format!("history-{:016x}", from.0),
        now,
        book: first.book.clone(),
        tenant_rules: Arc::clone(&first.rules),
        node: identity,
        zone: Some(zone),
        ..Opening::default()
    };
    let (mut ledger, _) = Ledger::open(path, &opening)?;
    ledger.record_how_held(how_held)?;
    let by_minutes = Utc(to.0.saturating_sub(BY_MINUTES.0)).floor(QUARTER_HOUR).max(from);
    ledger.store_quarter_hours_until(by_minutes)?;
    let mut writer = NodeWriter { ledger, batch: LedgerBatch::default(), later: later.iter(), from };
    let mut settings = writer.later.next();
    let mut begun: BTreeSet<usize> = BTreeSet::new();
    let mut at = from;
    while at < to {
        let grid = if at < by_minutes { QUARTER_HOUR } else { MINUTE };
        let end = at.floor(grid).plus(grid).min(to);
        while let Some(next) = settings.filter(|next| next.recorded <= at) {
            writer.decide(at, next)?;
            settings = writer.later.next();
        }
        writer.register(&gpus, at, end);
        let is_new = |place: &usize| !begun.contains(place) && past.runs[*place].from < end;
        let new: Vec<usize> = (0..past.runs.len()).filter(is_new).collect();
        for run in new {
            writer.begin(at.max(past.runs[run].from), &past, run)?;
            begun.insert(run);
        }
        for gpu in &mut gpus {
            let (from, to) = (at.max(gpu.from), end.min(gpu.to));
            if from < to {
                let uuid = Arc::clone(&gpu.session.uuid);
                let settlement = gpu
                    .settle(&past, from, to)
                    .map_err(|problem| HistoryError::Settle { gpu: Arc::clone(&uuid), problem })?;
                writer.batch.closed.push(ClosedWindow { gpu: uuid, settlement, coarse: false });
            }
        }
        at = end;
        if at.0 % DAY.0 == 0 {
            writer.commit(at)?;
            progress(at);
        }
    }
    writer.commit(to)
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
    later: std::slice::Iter<'a, Settings>,
    /// The begin of the history, which is at a known time since boot.
    from: Utc,
}

impl NodeWriter<'_> {
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

    /// Adds the GPUs that come.
    fn register(&mut self, gpus: &[PastGpu], from: Utc, to: Utc) {
        for gpu in gpus.iter().filter(|gpu| from <= gpu.from && gpu.from < to) {
            self.batch.registrations.push(GpuRegistration {
                gpu: GpuId { index: gpu.session.index.unwrap_or(0), uuid: Arc::clone(&gpu.session.uuid) },
                model: gpu.board.model.into(),
                at: gpu.from,
            });
        }
    }

    /// Stores the holders of a run at its begin, so that they are first seen then.
    fn begin(&mut self, now: Utc, past: &NodeContext<'_>, run: usize) -> Result<(), HistoryError> {
        self.commit(now)?;
        let run = &past.runs[run];
        self.batch.holders.push((*run.holder).clone());
        if run.user.id != run.holder.id {
            self.batch.holders.push((*run.user).clone());
        }
        self.commit(now)
    }
}
