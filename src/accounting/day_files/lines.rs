//! Adds up the rows of one file where the bill does not tell them apart.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::day_file::RunLimits;
use crate::accounting::billing::{DayRow, LineDetail, LineKey, SumOverflow};
use crate::model::{NodeIdentity, Utc};

/// The runs of one file; those that the bill does not distinguish are added up.
pub(super) struct RunSums<'a> {
    detail: &'a LineDetail,
    limits: RunLimits<'a>,
    /// By the key of the line, the node, the rate of the GPU, and the last cut before.
    runs: BTreeMap<(LineKey, Arc<NodeIdentity>, Option<i64>, Utc), DayRow>,
}

impl<'a> RunSums<'a> {
    pub(super) const fn new(detail: &'a LineDetail, limits: RunLimits<'a>) -> Self {
        Self { detail, limits, runs: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, mut run: DayRow) -> Result<(), SumOverflow> {
        self.detail.reduce(&mut run.line);
        let begin = if self.limits.by_quarter.contains(&run.line.gpu.uuid) {
            run.from
        } else {
            let cut = self.limits.cuts.partition_point(|cut| *cut <= run.from).checked_sub(1);
            cut.map_or(Utc(0), |cut| self.limits.cuts[cut])
        };
        let key = LineKey::take(&mut run.line);
        match self.runs.entry((key, Arc::clone(&run.node), run.gpu_rate, begin)) {
            Entry::Occupied(sum) => {
                let sum = sum.into_mut();
                (sum.from, sum.to) = (sum.from.min(run.from), sum.to.max(run.to));
                sum.line.add(&run.line)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(run);
                Ok(())
            }
        }
    }

    pub(super) fn into_runs(self) -> impl Iterator<Item = DayRow> {
        self.runs.into_iter().map(|((key, ..), mut run)| {
            key.restore(&mut run.line);
            run
        })
    }
}
