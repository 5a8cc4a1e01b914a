//! Adds up the lines of many ledgers to those of one bill.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::day_file::{DayRun, RunLimits};
use crate::billing::{
    BillGpu, BillLine, BillRate, BillTerms, DayGpu, DayHeader, ExactMoney, LineRates, SumOverflow,
    mark_measured_energy,
};
use crate::model::{HolderId, Nanoseconds, NodeIdentity, SlotId, Utc};

/// How finely a bill over exports tells lines apart. The less it does, the less memory it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineDetail {
    /// By workload.
    pub workload: bool,
    /// By these labels; none: by all.
    pub labels: Option<Vec<String>>,
    /// By node.
    pub node: bool,
    /// By local day.
    pub day: bool,
}

impl LineDetail {
    /// As finely as a bill of one ledger does, and by node.
    pub const fn whole() -> Self {
        Self { workload: true, labels: None, node: true, day: false }
    }

    /// As finely as both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let labels = self.labels.zip(other.labels).map(|(one, other)| [one, other].concat());
        Self {
            workload: self.workload || other.workload,
            labels,
            node: self.node || other.node,
            day: self.day || other.day,
        }
    }

    fn keeps(&self, label: &str) -> bool {
        self.labels.as_ref().is_none_or(|labels| labels.iter().any(|kept| kept == label))
    }

    /// Takes from a line what does not tell lines apart.
    fn reduce(&self, line: &mut BillLine) {
        // The time of a remainder is the tenant's, whatever is told apart.
        if !self.workload && !line.holder.is_remainder() {
            line.holder = HolderId::new("");
        }
        line.labels.retain(|label, _| self.keeps(label));
    }
}

/// What tells lines apart.
type FleetLineKey = (
    String,
    Arc<str>,
    SlotId,
    HolderId,
    BTreeMap<String, String>,
    Option<(Option<String>, String)>,
    LineRates,
    Option<String>,
);

fn key_of(line: &BillLine) -> FleetLineKey {
    (
        line.tenant.clone(),
        Arc::clone(&line.gpu.uuid),
        line.slot.clone(),
        line.holder.clone(),
        line.labels.clone(),
        line.node.as_ref().map(|node| (node.cluster.clone(), node.name.clone())),
        line.rates,
        line.day.clone(),
    )
}

/// The runs of one file, added up where the bill does not tell them apart.
pub(super) struct RunSums<'a> {
    detail: &'a LineDetail,
    limits: RunLimits<'a>,
    /// By what tells lines apart, node, rate of the GPU, and the last cut before.
    runs: BTreeMap<(FleetLineKey, Arc<NodeIdentity>, Option<i64>, Utc), DayRun>,
}

impl<'a> RunSums<'a> {
    pub(super) const fn new(detail: &'a LineDetail, limits: RunLimits<'a>) -> Self {
        Self { detail, limits, runs: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, mut run: DayRun) -> Result<(), SumOverflow> {
        self.detail.reduce(&mut run.line);
        let begin = if self.limits.by_quarter.contains(&run.line.gpu.uuid) {
            run.from
        } else {
            let cut = self.limits.cuts.partition_point(|cut| *cut <= run.from).checked_sub(1);
            cut.map_or(Utc(0), |cut| self.limits.cuts[cut])
        };
        match self.runs.entry((key_of(&run.line), Arc::clone(&run.node), run.gpu_rate, begin)) {
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

    pub(super) fn into_runs(self) -> impl Iterator<Item = DayRun> {
        self.runs.into_values()
    }
}

/// The sums of a bill over many ledgers while it is made.
#[derive(Debug, Default)]
pub(super) struct FleetLines {
    lines: BTreeMap<FleetLineKey, BillLine>,
    gpus: BTreeMap<Arc<str>, BillGpu>,
    rates: RateNumbers,
    terms: Vec<BillTerms>,
}

/// The rates of a bill, numbered anew, since each ledger has numbers of its own.
#[derive(Debug, Default)]
struct RateNumbers {
    rates: Vec<BillRate>,
}

impl RateNumbers {
    /// The number of a rate here. Rates that differ only in time are one.
    fn number(&mut self, rate: &BillRate) -> i64 {
        let is_same = |known: &BillRate| {
            (known.unit, known.price, &known.class, &known.selector, &known.derivation)
                == (rate.unit, rate.price, &rate.class, &rate.selector, &rate.derivation)
        };
        if let Some(known) = self.rates.iter_mut().find(|known| is_same(known)) {
            known.since = known.since.zip(rate.since).map(|(one, other)| one.min(other));
            known.until = known.until.zip(rate.until).map(|(one, other)| one.max(other));
            known.recorded = known.recorded.min(rate.recorded);
            return known.id;
        }
        let id = self.rates.len() as i64 + 1;
        self.rates.push(BillRate { id, ..rate.clone() });
        id
    }

    /// The price of the rate with that number, in nano-units.
    fn price_of(&self, id: i64) -> i64 {
        let rate = self.rates.iter().find(|rate| rate.id == id);
        rate.and_then(|rate| i64::try_from(rate.price.0).ok()).unwrap_or(0)
    }
}

/// The rates and terms of a file by the numbers of its ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNumbers {
    rates: BTreeMap<i64, i64>,
    terms: BTreeMap<i64, i64>,
}

impl FileNumbers {
    /// That rate has its number already.
    pub(super) fn same(rate: Option<i64>) -> Self {
        Self { rates: rate.map(|id| (id, id)).into_iter().collect(), terms: BTreeMap::new() }
    }

    /// The number in the bill of a rate of the file.
    pub(super) fn rate(&self, id: i64) -> Option<i64> {
        self.rates.get(&id).copied()
    }

    /// These numbers and those of another file of the ledger.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.rates.extend(&other.rates);
        all.terms.extend(&other.terms);
        all
    }
}

impl FleetLines {
    /// The numbers of a file's rates and terms.
    pub(super) fn numbers(&mut self, rates: &[BillRate], terms: &[BillTerms]) -> FileNumbers {
        let rates = rates.iter().map(|rate| (rate.id, self.rates.number(rate))).collect();
        let terms = terms.iter().map(|terms| (terms.id, self.number_of_terms(terms))).collect();
        FileNumbers { rates, terms }
    }

    fn number_of_terms(&mut self, terms: &BillTerms) -> i64 {
        let is_same = |known: &BillTerms| (&known.tenant, &known.terms) == (&terms.tenant, &terms.terms);
        if let Some(known) = self.terms.iter_mut().find(|known| is_same(known)) {
            known.since = known.since.zip(terms.since).map(|(one, other)| one.min(other));
            known.recorded = known.recorded.min(terms.recorded);
            return known.id;
        }
        let id = self.terms.len() as i64 + 1;
        self.terms.push(BillTerms { id, ..terms.clone() });
        id
    }

    /// Adds the GPUs of a file.
    pub(super) fn add_gpus(&mut self, header: &DayHeader) {
        header.gpus.iter().for_each(|gpu| self.add_gpu(gpu));
    }

    pub(super) fn add_gpu(&mut self, added: &DayGpu) {
        let DayGpu { gpu, model, accounted_since, settled_until } = added;
        let known = self.gpus.entry(Arc::clone(&gpu.uuid)).or_insert_with(|| BillGpu {
            gpu: gpu.clone(),
            model: model.clone(),
            slot: Nanoseconds(0),
            accounted_since: *accounted_since,
            settled_until: *settled_until,
            money: None,
            intervals: Vec::new(),
            energy_money: ExactMoney::ZERO,
        });
        known.accounted_since = known.accounted_since.min(*accounted_since);
        if *settled_until > known.settled_until {
            (known.gpu.index, known.settled_until) = (gpu.index, *settled_until);
        }
    }

    /// The product name of a GPU.
    pub(super) fn model(&self, uuid: &str) -> &str {
        self.gpus.get(uuid).map_or("", |gpu| &gpu.model)
    }

    /// The price of the rate with that number, in nano-units.
    pub(super) fn price_of(&self, rate: i64) -> i64 {
        self.rates.price_of(rate)
    }

    /// Adds a run, whose rates have the numbers of its file.
    pub(super) fn add(
        &mut self,
        run: DayRun,
        numbers: &FileNumbers,
        detail: &LineDetail,
        day: Option<&str>,
    ) -> Result<(), SumOverflow> {
        let rate = |id: Option<i64>| id.and_then(|id| numbers.rate(id));
        let DayRun { node, gpu_rate, mut line, .. } = run;
        let LineRates { time, energy, carbon, terms } = line.rates;
        line.rates = LineRates {
            time: rate(time),
            energy: rate(energy),
            carbon: rate(carbon),
            terms: terms.and_then(|id| numbers.terms.get(&id).copied()),
        };
        self.add_gpu_time(&line, rate(gpu_rate))?;
        self.add_line(line, &node, detail, day)
    }

    /// Adds the time of a line to its GPU, under the rate of the GPU.
    fn add_gpu_time(&mut self, line: &BillLine, rate: Option<i64>) -> Result<(), SumOverflow> {
        let Some(gpu) = self.gpus.get_mut(&line.gpu.uuid) else { return Ok(()) };
        let held = Nanoseconds(line.amounts.parts.held());
        gpu.energy_money = gpu.energy_money.plus(line.exact_energy)?;
        if held.0 == 0 {
            return Ok(());
        }
        gpu.add(held, rate.map(|rate| (rate, self.rates.price_of(rate))))
    }

    fn add_line(
        &mut self,
        mut line: BillLine,
        node: &Arc<NodeIdentity>,
        detail: &LineDetail,
        day: Option<&str>,
    ) -> Result<(), SumOverflow> {
        detail.reduce(&mut line);
        line.node = detail.node.then(|| Arc::clone(node));
        line.day = day.filter(|_| detail.day).map(str::to_owned);
        let key = key_of(&line);
        match self.lines.entry(key) {
            Entry::Occupied(mut sum) => sum.get_mut().add(&line),
            Entry::Vacant(vacant) => {
                vacant.insert(line);
                Ok(())
            }
        }
    }

    /// The sums, with the rates and terms that were used.
    pub(super) fn finish(self) -> FleetSums {
        let mut gpus: Vec<BillGpu> = self.gpus.into_values().filter(|gpu| gpu.slot.0 > 0).collect();
        gpus.sort_by(|one, other| one.gpu.cmp(&other.gpu));
        let mut lines: Vec<BillLine> = self.lines.into_values().collect();
        // The index of a GPU may be another one after a boot.
        let indices: BTreeMap<Arc<str>, u32> =
            gpus.iter().map(|gpu| (Arc::clone(&gpu.gpu.uuid), gpu.gpu.index)).collect();
        for line in &mut lines {
            line.gpu.index = indices.get(&line.gpu.uuid).copied().unwrap_or(line.gpu.index);
        }
        mark_measured_energy(&mut lines);
        let of_gpus = gpus.iter().flat_map(|gpu| &gpu.intervals).filter_map(|interval| interval.rate);
        let of_lines = lines.iter().flat_map(|line| [line.rates.time, line.rates.energy, line.rates.carbon]);
        let used: BTreeSet<i64> = of_lines.flatten().chain(of_gpus).collect();
        let mut rates = self.rates.rates;
        rates.retain(|rate| used.contains(&rate.id));
        rates.sort_by_key(|rate| (rate.unit, rate.since, rate.price));
        let used: BTreeSet<i64> = lines.iter().filter_map(|line| line.rates.terms).collect();
        let mut terms = self.terms;
        terms.retain(|terms| used.contains(&terms.id));
        FleetSums { lines, gpus, rates, terms }
    }
}

/// What the lines of many ledgers add up to.
pub(super) struct FleetSums {
    /// By tenant, GPU and holder.
    pub(super) lines: Vec<BillLine>,
    pub(super) gpus: Vec<BillGpu>,
    pub(super) rates: Vec<BillRate>,
    pub(super) terms: Vec<BillTerms>,
}
