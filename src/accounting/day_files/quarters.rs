//! The rows of GPUs by quarter hours, where a bill is of some lines only and these are explained.

use std::collections::BTreeMap;

use crate::accounting::billing::{DayRow, LineFilter, MinuteRow};
use crate::model::{Amounts, Fact, GpuId, Utc, VisibleAccount};

/// A quarter hour of a GPU.
pub(super) struct GpuQuarter {
    pub(super) gpu: GpuId,
    pub(super) from: Utc,
    pub(super) to: Utc,
    /// All rows with time where the GPU has rows that are asked for, else those with faults or gaps.
    pub(super) rows: Vec<MinuteRow>,
    pub(super) own: Vec<OwnRow>,
}

/// A row that is asked for.
pub(super) struct OwnRow {
    /// Its place; none where it has charges alone.
    pub(super) place: Option<usize>,
    pub(super) run: DayRow,
}

pub(super) struct QuarterDraft<'a> {
    filter: &'a LineFilter,
    visible: &'a VisibleAccount,
    /// Those of the last GPU.
    last: BTreeMap<Utc, GpuQuarter>,
    quarters: Vec<GpuQuarter>,
}

impl<'a> QuarterDraft<'a> {
    pub(super) const fn new(filter: &'a LineFilter, visible: &'a VisibleAccount) -> Self {
        Self { filter, visible, last: BTreeMap::new(), quarters: Vec::new() }
    }

    /// Adds a run of one quarter hour that ends at that time.
    pub(super) fn add(&mut self, run: &DayRow, to: Utc) {
        let DayRow { from, line, .. } = run;
        if self.last.first_key_value().is_some_and(|(_, last)| last.gpu != line.gpu) {
            self.finish_gpu();
        }
        let quarter = self.last.entry(*from).or_insert_with(|| GpuQuarter {
            gpu: line.gpu.clone(),
            from: *from,
            to,
            rows: Vec::new(),
            own: Vec::new(),
        });
        let has_time = line.amounts != Amounts::default();
        let label = |fact: Fact| line.labels.get(fact.label()).map(String::as_str);
        if self.filter.is_for(line) && self.visible.shows(&line.tenant, label) {
            let place = has_time.then_some(quarter.rows.len());
            quarter.own.push(OwnRow { place, run: run.clone() });
        }
        quarter.rows.extend(has_time.then(|| MinuteRow {
            slot: line.slot.clone(),
            holder: line.holder.clone(),
            amounts: line.amounts,
            grade: line.grade,
            method: line.method,
            sources: line.sources.clone(),
            granted_by: line.granted_by.clone(),
        }));
    }

    fn finish_gpu(&mut self) {
        let mut last = std::mem::take(&mut self.last);
        if last.values().all(|quarter| quarter.own.is_empty()) {
            // What was asked for may have been there before, and come back.
            for quarter in last.values_mut() {
                quarter.rows.retain(MinuteRow::has_event);
            }
            last.retain(|_, quarter| !quarter.rows.is_empty());
        }
        self.quarters.extend(last.into_values());
    }

    /// The quarter hours of each GPU in order of time.
    pub(super) fn finish(mut self) -> Vec<GpuQuarter> {
        self.finish_gpu();
        self.quarters.sort_by(|one, other| (&one.gpu, one.from).cmp(&(&other.gpu, other.from)));
        self.quarters
    }
}
