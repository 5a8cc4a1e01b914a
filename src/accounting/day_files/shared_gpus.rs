//! GPUs that two ledgers account for at one time: a GPU that moved to another node, or a ledger that was copied.
//!
//! Time that one ledger observed beats that in which the other one found the GPU gone or was not running. Where both observed it,
//! nobody knows which one is right, so the day of that GPU is set aside.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::directory::date_of;
use super::error::ExportError;
use crate::accounting::billing::{
    ConflictingLedger, DayRow, ExactMoney, GpuConflict, MoneyOverflow, SumOverflow,
};
use crate::model::{DAY, HolderId, Nanoseconds, QUARTER_HOUR, TimeSum, Utc};

#[derive(Debug, Default)]
pub(super) struct GpuOwners {
    first: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
    shared: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl GpuOwners {
    pub(super) fn add<'a>(&mut self, date: &str, ledger: &str, gpus: impl Iterator<Item = &'a Arc<str>>) {
        let (date, ledger): (Arc<str>, Arc<str>) = (date.into(), ledger.into());
        for gpu in gpus {
            let key = (Arc::clone(&date), Arc::clone(gpu));
            let first = self.first.entry(key).or_insert_with(|| Arc::clone(&ledger));
            if *first != ledger {
                self.shared.entry(Arc::clone(&date)).or_default().insert(Arc::clone(gpu));
            }
        }
    }

    /// The GPUs of more than one ledger by date; all else is forgotten.
    pub(super) fn into_shared(self) -> BTreeMap<Arc<str>, BTreeSet<Arc<str>>> {
        self.shared
    }
}

type OwnedRun = (Arc<str>, DayRow);

/// The runs of one quarter hour each of such GPUs, by GPU and quarter hour.
#[derive(Debug, Default)]
pub(super) struct SharedRuns(BTreeMap<(Arc<str>, Utc), Vec<OwnedRun>>);

impl SharedRuns {
    /// Adds a run of a ledger, `ID of NODE`.
    pub(super) fn add(&mut self, ledger: &Arc<str>, run: DayRow) {
        let key = (Arc::clone(&run.line.gpu.uuid), run.from);
        self.0.entry(key).or_default().push((Arc::clone(ledger), run));
    }

    /// Without the time that another ledger observed, and without the days of GPUs that are in conflict.
    ///
    /// # Errors
    /// A sum does not fit.
    pub(super) fn resolve(mut self, [from, to]: [Utc; 2]) -> Result<ResolvedRuns, ExportError> {
        let mut in_conflict = BTreeSet::<(Arc<str>, Utc)>::new();
        for ((gpu, quarter), runs) in &mut self.0 {
            let held: TimeSum = runs.iter().map(|(_, run)| Nanoseconds(run.line.amounts.parts.held())).sum();
            let excess = held.0.saturating_sub(QUARTER_HOUR.0.into());
            let mut excess = u64::try_from(excess).map_err(|_| SumOverflow::Gpu)?;
            for name in [HolderId::UNOBSERVED, HolderId::UNAVAILABLE] {
                for (_, run) in runs.iter_mut().filter(|(_, run)| run.line.holder.as_str() == name) {
                    excess -= cut(run, excess)?;
                }
            }
            excess -= cut_unavailable(runs, excess)?;
            let is_held = |run: &&OwnedRun| run.1.line.amounts.parts.held() > 0;
            let ledgers: BTreeSet<&Arc<str>> =
                runs.iter().filter(is_held).map(|(ledger, _)| ledger).collect();
            if excess > 0 && ledgers.len() > 1 {
                in_conflict.insert((Arc::clone(gpu), quarter.floor(DAY)));
            }
        }
        let mut resolved = ResolvedRuns::default();
        let mut held = BTreeMap::<(Arc<str>, Utc), BTreeMap<Arc<str>, TimeSum>>::new();
        // A conflict outside the period sets the whole day aside too, so that adjacent bills add up.
        for ((gpu, quarter), runs) in self.0 {
            let is_inside = from <= quarter && quarter < to;
            let day = (gpu, quarter.floor(DAY));
            if in_conflict.contains(&day) {
                let held = held.entry(day).or_default();
                for (ledger, run) in runs {
                    let time = if is_inside { run.line.amounts.parts.held() } else { 0 };
                    *held.entry(ledger).or_default() += Nanoseconds(time).into();
                }
                continue;
            }
            if !is_inside {
                continue;
            }
            let mut of_ledgers = BTreeMap::<Arc<str>, Vec<OwnedRun>>::new();
            for (ledger, run) in runs {
                of_ledgers.entry(Arc::clone(&ledger)).or_default().push((ledger, run));
            }
            resolved.runs.extend(of_ledgers.into_values());
        }
        let has_time = |held: &BTreeMap<Arc<str>, TimeSum>| held.values().any(|time| time.0 > 0);
        let held = held.into_iter().filter(|(_, held)| has_time(held));
        let conflicts = held.map(|((gpu, day), held)| GpuConflict {
            gpu: gpu.to_string(),
            date: date_of(day),
            ledgers: held
                .into_iter()
                .map(|(ledger, held)| ConflictingLedger { ledger: ledger.to_string(), held })
                .collect(),
        });
        resolved.conflicts = conflicts.collect();
        Ok(resolved)
    }
}

#[derive(Debug, Default)]
pub(super) struct ResolvedRuns {
    /// By GPU, quarter hour and ledger.
    pub(super) runs: Vec<Vec<OwnedRun>>,
    pub(super) conflicts: Vec<GpuConflict>,
}

/// Takes up to that much time from a remainder, with its money; returns how much it took.
fn cut(run: &mut DayRow, most: u64) -> Result<u64, MoneyOverflow> {
    let parts = &mut run.line.amounts.parts;
    let time = most.min(parts.held());
    let mut rest = time;
    for part in
        [&mut parts.unmeasured, &mut parts.unavailable, &mut parts.idle, &mut parts.lent, &mut parts.within]
    {
        let taken = rest.min(*part);
        (*part, rest) = (*part - taken, rest - taken);
    }
    cut_charge(run, time)?;
    Ok(time)
}

/// Takes up to that much time in which the GPU was lost from those who held it; `__unavailable__` of their ledgers is charged for
/// it, and is no longer.
fn cut_unavailable(runs: &mut [OwnedRun], most: u64) -> Result<u64, MoneyOverflow> {
    let mut taken = BTreeMap::<Arc<str>, u64>::new();
    let mut rest = most;
    for (ledger, run) in runs.iter_mut() {
        let part = &mut run.line.amounts.parts.unavailable;
        let time = rest.min(*part);
        (*part, rest) = (*part - time, rest - time);
        *taken.entry(Arc::clone(ledger)).or_default() += time;
    }
    for (ledger, time) in &taken {
        let payer = |(owner, run): &&mut OwnedRun| {
            owner == ledger && run.line.holder.as_str() == HolderId::UNAVAILABLE
        };
        if let Some((_, run)) = runs.iter_mut().find(payer) {
            cut_charge(run, *time)?;
        }
    }
    Ok(most - rest)
}

fn cut_charge(run: &mut DayRow, time: u64) -> Result<(), MoneyOverflow> {
    let line = &mut run.line;
    let charged = line.charged.0;
    let priced = time.min(charged);
    if priced > 0 {
        let of_time = line.exact.minus(line.exact_energy)?;
        let kept = of_time.divide(&[charged - priced, priced])?.first().copied().unwrap_or(ExactMoney::ZERO);
        line.exact = kept.plus(line.exact_energy)?;
        line.charged = Nanoseconds(charged - priced);
    }
    line.unpriced = Nanoseconds(line.unpriced.0.saturating_sub(time - priced));
    Ok(())
}
