//! GPUs that two ledgers account for at one time: a GPU that moved to another node, or a ledger that was copied.
//!
//! Time that one ledger observed beats that in which the other one found the GPU gone or was not running.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::day_file::DayRun;
use super::error::ExportError;
use crate::billing::{ExactMoney, MoneyOverflow, print_time};
use crate::model::{HolderId, Nanoseconds, QUARTER_HOUR, Utc};

/// Which GPUs occur in more than one ledger.
#[derive(Debug, Default)]
pub(super) struct GpuOwners {
    first: BTreeMap<Arc<str>, Arc<str>>,
    shared: BTreeSet<Arc<str>>,
}

impl GpuOwners {
    /// Notes that a ledger has an account of a GPU.
    pub(super) fn add(&mut self, gpu: &Arc<str>, ledger: &str) {
        match self.first.get(gpu) {
            Some(first) if **first != *ledger => drop(self.shared.insert(Arc::clone(gpu))),
            Some(_) => {}
            None => drop(self.first.insert(Arc::clone(gpu), ledger.into())),
        }
    }

    /// The GPUs of more than one ledger.
    pub(super) const fn shared(&self) -> &BTreeSet<Arc<str>> {
        &self.shared
    }
}

/// A run with the name of its ledger.
type OwnedRun = (Arc<str>, DayRun);

/// The runs of one quarter hour each of such GPUs, by GPU and quarter hour.
#[derive(Debug, Default)]
pub(super) struct SharedRuns(BTreeMap<(Arc<str>, Utc), Vec<OwnedRun>>);

impl SharedRuns {
    /// Adds a run of a ledger, which is named in errors.
    pub(super) fn add(&mut self, ledger: &Arc<str>, run: DayRun) {
        let key = (Arc::clone(&run.line.gpu.uuid), run.from);
        self.0.entry(key).or_default().push((Arc::clone(ledger), run));
    }

    /// The runs without time that another ledger observed, by GPU, quarter hour and ledger.
    ///
    /// # Errors
    /// Two ledgers observed more than the time that there was.
    pub(super) fn resolve(self) -> Result<Vec<Vec<OwnedRun>>, ExportError> {
        let mut resolved = Vec::new();
        for ((gpu, quarter), mut runs) in self.0 {
            let held: u64 = runs.iter().map(|(_, run)| run.line.amounts.parts.held()).sum();
            let mut excess = held.saturating_sub(QUARTER_HOUR.0);
            for name in [HolderId::UNOBSERVED, HolderId::UNAVAILABLE] {
                for (_, run) in runs.iter_mut().filter(|(_, run)| run.line.holder.as_str() == name) {
                    excess -= cut(run, excess)?;
                }
            }
            let ledgers: BTreeSet<&Arc<str>> = runs.iter().map(|(ledger, _)| ledger).collect();
            if excess > 0
                && let [first, second, ..] = ledgers.iter().collect::<Vec<_>>().as_slice()
            {
                return Err(ExportError::SharedGpu {
                    gpu: gpu.to_string(),
                    at: print_time(quarter),
                    first: first.to_string(),
                    second: second.to_string(),
                });
            }
            let mut of_ledgers = BTreeMap::<Arc<str>, Vec<OwnedRun>>::new();
            for (ledger, run) in runs {
                of_ledgers.entry(Arc::clone(&ledger)).or_default().push((ledger, run));
            }
            resolved.extend(of_ledgers.into_values());
        }
        Ok(resolved)
    }
}

/// Takes up to that much time from a run, with its money; returns how much it took.
fn cut(run: &mut DayRun, most: u64) -> Result<u64, MoneyOverflow> {
    let line = &mut run.line;
    let held = line.amounts.parts.held();
    let time = most.min(held);
    if time == 0 {
        return Ok(0);
    }
    let parts = &mut line.amounts.parts;
    let mut rest = time;
    for part in
        [&mut parts.unmeasured, &mut parts.unavailable, &mut parts.idle, &mut parts.lent, &mut parts.within]
    {
        let taken = rest.min(*part);
        (*part, rest) = (*part - taken, rest - taken);
    }
    let charged = line.charged.0;
    let priced = time.min(charged);
    let of_time = line.exact.minus(line.exact_energy)?;
    if priced > 0 {
        let kept = of_time.divide(&[charged - priced, priced])?.first().copied().unwrap_or(ExactMoney::ZERO);
        line.exact = kept.plus(line.exact_energy)?;
        line.charged = Nanoseconds(charged - priced);
    }
    line.unpriced = Nanoseconds(line.unpriced.0.saturating_sub(time - priced));
    Ok(time)
}
