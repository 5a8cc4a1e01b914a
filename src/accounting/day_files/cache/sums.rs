//! The sums of one date: by local day and workload, and by local hour and tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::civil::Date;

use crate::accounting::billing::costs::{CostKey, CostSums, CostWorkload, LocalHour};
use crate::accounting::billing::{BillDraft, BillLine, BillRate, DayRow, LineRates, SumOverflow};
use crate::model::{GpuId, HolderId, NodeIdentity, Utc};

/// By local day.
pub(super) type WorkloadSums = BTreeMap<(Date, CostKey), CostSums>;

/// Sums by key, of local days, and of local hours by tenant.
#[derive(Debug, Default)]
pub(in crate::accounting::day_files) struct DateSums {
    hours: Vec<LocalHour>,
    pub(super) workloads: WorkloadSums,
    pub(super) by_hour: BTreeMap<(Utc, Arc<str>), CostSums>,
    /// Whether a rate in force is one of gpumeter's examples.
    pub(super) has_example: bool,
    current: Option<CurrentKey>,
}

/// What the last runs have in common: those of a file are in order, so that most are of the key of the run before.
#[derive(Debug)]
struct CurrentKey {
    parts: RunKey,
    key: CostKey,
    nanograms_per_kwh: Option<i64>,
    day: Date,
    sums: CostSums,
}

#[derive(Debug, PartialEq, Eq)]
struct RunKey {
    node: Arc<NodeIdentity>,
    tenant: String,
    gpu: GpuId,
    holder: HolderId,
    labels: BTreeMap<String, String>,
    rates: LineRates,
}

impl RunKey {
    fn is_of(&self, run: &DayRow) -> bool {
        let line = &run.line;
        (&self.tenant, &self.gpu, &self.holder, &self.labels, self.rates, &self.node)
            == (&line.tenant, &line.gpu, &line.holder, &line.labels, line.rates, &run.node)
    }
}

impl DateSums {
    pub(in crate::accounting::day_files) fn new(hours: Vec<LocalHour>) -> Self {
        Self { hours, ..Self::default() }
    }

    /// Adds a run that is within one local hour, with the rates of the draft.
    pub(in crate::accounting::day_files) fn add(
        &mut self,
        run: DayRow,
        draft: &BillDraft<'_>,
    ) -> Result<(), SumOverflow> {
        let place = self.hours.partition_point(|hour| hour.begin <= run.from).saturating_sub(1);
        let Some(hour) = self.hours.get(place).copied() else { return Ok(()) };
        if self.current.as_ref().is_none_or(|current| current.day != hour.day || !current.parts.is_of(&run)) {
            self.add_current()?;
            self.current = Some(CurrentKey::new(&run, hour.day, draft));
            self.has_example |=
                run.line.rates.time.and_then(|id| draft.rate(id)).is_some_and(BillRate::is_example);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        // Which GPUs were measured is known once all of their runs are.
        let line = BillLine { has_energy: true, ..run.line };
        let sums = CostSums::of_line(&line, current.nanograms_per_kwh);
        current.sums.add(&sums)?;
        let of_hour = self.by_hour.entry((hour.begin, Arc::clone(&current.key.tenant))).or_default();
        let has_energy = line.energy() > 0;
        of_hour.add(&if has_energy { sums } else { without_energy(sums) })?;
        Ok(())
    }

    fn add_current(&mut self) -> Result<(), SumOverflow> {
        if let Some(CurrentKey { key, day, sums, .. }) = self.current.take() {
            self.workloads.entry((day, key)).or_default().add(&sums)?;
        }
        Ok(())
    }

    /// Marks what was not measured, once all runs are added.
    pub(in crate::accounting::day_files) fn finish(&mut self) -> Result<(), SumOverflow> {
        self.add_current()?;
        let uuid = |key: &CostKey| key.workload.as_ref().map(|workload| Arc::clone(&workload.gpu.uuid));
        let mut measured = BTreeSet::new();
        for ((_, key), sums) in &self.workloads {
            // Every GPU draws power, so one without energy was not measured.
            if sums.energy.is_some_and(|energy| energy.0 > 0) {
                measured.extend(uuid(key));
            }
        }
        for ((_, key), sums) in &mut self.workloads {
            if uuid(key).is_none_or(|uuid| !measured.contains(&uuid)) {
                *sums = without_energy(*sums);
            }
        }
        Ok(())
    }

    /// Held time and money of all.
    pub(super) fn totals(&self) -> Result<CostSums, SumOverflow> {
        let mut total = CostSums::default();
        self.workloads.values().try_for_each(|sums| total.add(sums))?;
        Ok(total)
    }

    /// Puts the sums of these GPUs in the place of what they have now.
    pub(super) fn replace(&mut self, gpus: &BTreeSet<Arc<str>>, kept: WorkloadSums) {
        let is_kept = |key: &CostKey| key.workload.as_ref().is_some_and(|one| gpus.contains(&one.gpu.uuid));
        self.workloads.retain(|(_, key), _| !is_kept(key));
        self.workloads.extend(kept.into_iter().filter(|((_, key), _)| is_kept(key)));
    }
}

impl CurrentKey {
    fn new(run: &DayRow, day: Date, draft: &BillDraft<'_>) -> Self {
        let line = &run.line;
        let class = line.rates.time.and_then(|id| draft.rate(id)).map(|rate| Arc::from(&*rate.class));
        let labels = Arc::new(line.labels.clone());
        let workload = CostWorkload { gpu: line.gpu.clone(), holder: line.holder.clone(), labels };
        Self {
            parts: RunKey {
                node: Arc::clone(&run.node),
                tenant: line.tenant.clone(),
                gpu: line.gpu.clone(),
                holder: line.holder.clone(),
                labels: line.labels.clone(),
                rates: line.rates,
            },
            key: CostKey {
                node: Arc::clone(&run.node),
                model: draft.model(&line.gpu.uuid).into(),
                tenant: line.tenant.as_str().into(),
                class,
                workload: Some(workload),
            },
            nanograms_per_kwh: line.rates.carbon.map(|id| draft.price_of(id)),
            day,
            sums: CostSums::default(),
        }
    }
}

fn without_energy(sums: CostSums) -> CostSums {
    CostSums { energy: None, energy_money: None, emissions: None, ..sums }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TimeSum;

    #[test]
    fn sums_of_a_gpu_are_replaced_whole() {
        let key = |uuid: &str, tenant: &str| {
            let gpu = GpuId { index: 0, uuid: uuid.into() };
            let workload = CostWorkload { gpu, holder: HolderId::new("x"), labels: Arc::default() };
            (Date::MIN, CostKey { tenant: tenant.into(), workload: Some(workload), ..CostKey::default() })
        };
        let held = |time: u128| CostSums { charged: TimeSum(time), ..CostSums::default() };
        let mut sums = DateSums::default();
        sums.workloads.extend([(key("a", "new"), held(1)), (key("b", "own"), held(2))]);
        sums.replace(&["a".into()].into(), [(key("a", "old"), held(3)), (key("b", "old"), held(4))].into());
        assert!(sums.workloads.into_iter().eq([(key("a", "old"), held(3)), (key("b", "own"), held(2))]));
    }
}
