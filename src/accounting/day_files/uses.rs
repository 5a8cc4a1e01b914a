//! What workloads did on GPUs by quarter hours, where a bill is of some lines only.

use std::collections::BTreeMap;

use crate::accounting::billing::{DayRow, LineFilter, MinuteUses};
use crate::model::{GpuId, Utc};

pub(super) struct FileUses<'a> {
    filter: &'a LineFilter,
    quarters: BTreeMap<(GpuId, Utc), MinuteUses>,
}

impl<'a> FileUses<'a> {
    pub(super) const fn new(filter: &'a LineFilter) -> Self {
        Self { filter, quarters: BTreeMap::new() }
    }

    /// Adds a run of one quarter hour that ends at that time.
    pub(super) fn add(&mut self, run: &DayRow, to: Utc) {
        let DayRow { from, line, .. } = run;
        let quarter = self.quarters.entry((line.gpu.clone(), *from)).or_default();
        (quarter.from, quarter.to) = (*from, to);
        quarter.slot.0 += line.amounts.parts.held();
        quarter.add(&line.slot, &line.holder, &line.amounts, self.filter.is_for(line));
    }

    pub(super) fn finish(self) -> Vec<(GpuId, MinuteUses)> {
        let found = self.quarters.into_iter().filter(|(_, quarter)| !quarter.is_empty());
        found.map(|((gpu, _), quarter)| (gpu, quarter)).collect()
    }
}
