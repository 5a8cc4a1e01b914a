//! Reads what fit and demand are answered from out of the files of many ledgers, by quarter hours, one file after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::day_file::{DayFile, RunLimits};
use super::day_walk::read_days;
use super::directory::DayPath;
use super::error::{ExportError, FileProblem};
use super::fleet::ExportSource;
use crate::accounting::advice::{AdviceSource, PERIOD};
use crate::accounting::billing::{BillLine, DayHeader, DayRow, ExactMoney};
use crate::accounting::planning::{
    Demand, DemandDraft, DemandQuarter, DemandRequest, DemandRun, Fit, FitDraft, FitRequest, FitRow,
    LastPrice,
};
use crate::accounting::tenants::recurring_name;
use crate::model::{Bytes, DAY, Fact, Facts, Holder, HolderId, MigProfile, Nanoseconds, Series, Shape, Utc};

/// Whether workloads would have fitted together, over the files of a directory; tells after each file how many were read, and how
/// many there are.
///
/// # Errors
/// A file that cannot be read; it is cancelled; a request to which there is no answer.
pub fn make_fit(
    source: &ExportSource<'_>,
    request: &FitRequest,
    step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Fit, ExportError> {
    let to = source.exported_until()?;
    let period = [Utc(to.0.saturating_sub(PERIOD.0)).floor(DAY), to];
    let mut draft = FitDraft::new(request.clone(), period);
    let mut facts = FilesFacts::default();
    let read = |day: &DayPath, shared: &BTreeSet<Arc<str>>| FitDay::read(source, day, shared, request);
    let read = read_days(source, period, step, read, |(header, day)| {
        facts.add(&header);
        let FitDay { rows, prices, shapes, ambiguous } = day;
        if let Some(text) = ambiguous {
            return Err(ExportError::Request(text));
        }
        for gpu in &header.gpus {
            draft.add_gpu(&gpu.gpu.uuid, &gpu.model, gpu.memory);
        }
        for ((model, profile), price) in prices {
            draft.add_price(&model, profile.as_ref(), price);
        }
        rows.iter().for_each(|row| draft.add(row));
        shapes.iter().for_each(|(part, series, shape)| draft.add_shape(*part, *series, shape));
        Ok(())
    })?;
    facts.skipped = read.skipped;
    (draft.currency, draft.notes) = (facts.currency(), facts.notes());
    draft.finish(facts.source()).map_err(ExportError::Request)
}

/// How many GPUs were wanted when, likewise.
///
/// # Errors
/// Those of [`make_fit`].
pub fn make_demand(
    source: &ExportSource<'_>,
    request: &DemandRequest,
    step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Demand, ExportError> {
    let period = request.period(source.exported_until()?);
    let mut draft = DemandDraft::new(request.clone(), period);
    let mut facts = FilesFacts::default();
    let read = |day: &DayPath, shared: &BTreeSet<Arc<str>>| DemandDay::read(source, day, shared, request);
    let read = read_days(source, period, step, read, |(header, day)| {
        facts.add(&header);
        day.quarters.iter().for_each(|(from, quarter)| draft.add(*from, quarter));
        day.runs.into_iter().for_each(|run| draft.add_run(run));
        Ok(())
    })?;
    facts.skipped = read.skipped;
    (draft.currency, draft.notes) = (facts.currency(), facts.notes());
    draft.finish(facts.source()).map_err(ExportError::Request)
}

/// Opens a file, and takes its rows by quarter hours, without those of GPUs that several ledgers have.
fn read_rows(
    day: &DayPath,
    shared: &BTreeSet<Arc<str>>,
    mut take: impl FnMut(&DayHeader, &DayRow),
) -> Result<DayHeader, FileProblem> {
    let file = DayFile::open(&day.path)?;
    file.check_place(day)?;
    let (begin, none) = (file.header().day, BTreeSet::new());
    let limits =
        RunLimits { from: begin, to: begin.plus(DAY), cuts: &[], by_quarter: &none, all_by_quarter: true };
    file.read_runs(limits, |run| {
        if !shared.contains(&run.line.gpu.uuid) {
            take(file.header(), &run);
        }
        Ok(())
    })?;
    Ok(file.into_header())
}

/// The product of a GPU in a header.
fn model<'a>(header: &'a DayHeader, uuid: &str) -> &'a str {
    header.gpus.iter().find(|gpu| *gpu.gpu.uuid == *uuid).map_or("", |gpu| &gpu.model)
}

/// Nano-units per GPU-hour of the time of a line, before terms.
fn rate(header: &DayHeader, line: &BillLine) -> Option<i64> {
    let rate = line.rates.time.and_then(|id| header.rates.iter().find(|rate| rate.id == id))?;
    rate.nano_per_gpu_hour(line.slot.profile.as_ref()).ok()
}

#[derive(Default)]
struct FitDay {
    rows: Vec<FitRow>,
    /// By product and profile.
    prices: BTreeMap<(String, Option<MigProfile>), LastPrice>,
    shapes: Vec<(usize, Series, Shape)>,
    /// A holder that two names mean.
    ambiguous: Option<String>,
}

impl FitDay {
    fn read(
        source: &ExportSource<'_>,
        path: &DayPath,
        shared: &BTreeSet<Arc<str>>,
        request: &FitRequest,
    ) -> Result<(DayHeader, Self), FileProblem> {
        let mut day = Self::default();
        let mut parts = BTreeMap::<HolderId, Option<usize>>::new();
        let header = read_rows(path, shared, |header, run| {
            let line = &run.line;
            let rate = rate(header, line);
            let key = (model(header, &line.gpu.uuid).to_owned(), line.slot.profile.clone());
            day.prices.entry(key).or_default().add(LastPrice::at(run.from, rate));
            let part = parts.entry(line.holder.clone()).or_insert_with(|| {
                part_of(request, line).unwrap_or_else(|text| {
                    day.ambiguous = Some(text);
                    None
                })
            });
            if let Some(part) = *part {
                let parts = &line.amounts.parts;
                day.rows.push(FitRow {
                    from: run.from,
                    to: run.to,
                    part,
                    uuid: Arc::clone(&line.gpu.uuid),
                    gpu_instance: line.slot.gpu_instance,
                    holder: line.holder.name().into(),
                    held: Nanoseconds(parts.held()),
                    used: Nanoseconds(line.amounts.used.total()),
                    unknown: Nanoseconds(parts.unmeasured + parts.unavailable),
                    memory_peak: Bytes(line.amounts.memory_peak),
                    rate,
                });
            }
        })?;
        day.rows.sort_by_key(|row| row.from);
        let shapes = source.shapes(path, &header.revision)?;
        for shape in shapes.into_iter().filter(|shape| !shared.contains(&shape.owner.gpu.uuid)) {
            if let Some(part) = parts.get(&shape.owner.holder).copied().flatten() {
                day.shapes.push((part, shape.series, shape.shape));
            }
        }
        Ok((header, day))
    }
}

fn part_of(request: &FitRequest, line: &BillLine) -> Result<Option<usize>, String> {
    if line.holder.is_remainder() {
        return Ok(None);
    }
    let facts = Fact::ALL.iter().filter_map(|fact| Some((*fact, line.labels.get(fact.label())?.as_str())));
    let holder = Holder { id: line.holder.clone(), facts: Facts::new(facts) };
    request.part_of(&holder, &recurring_name(&holder))
}

#[derive(Default)]
struct DemandDay {
    quarters: BTreeMap<Utc, DemandQuarter>,
    runs: Vec<DemandRun>,
}

impl DemandDay {
    fn read(
        source: &ExportSource<'_>,
        path: &DayPath,
        shared: &BTreeSet<Arc<str>>,
        request: &DemandRequest,
    ) -> Result<(DayHeader, Self), FileProblem> {
        let mut day = Self::default();
        let mut counted = BTreeSet::<Arc<str>>::new();
        let header = read_rows(path, shared, |header, run| {
            if !request.counts(run.node.pool.as_deref()) {
                return;
            }
            let line = &run.line;
            if !counted.contains(&line.gpu.uuid) {
                counted.insert(Arc::clone(&line.gpu.uuid));
            }
            let held = line.amounts.parts.held();
            let is_tenant = !line.holder.is_remainder();
            // The price is that of the GPU, so that instances do not change it.
            let rate = run.gpu_rate.and_then(|id| header.rates.iter().find(|rate| rate.id == id));
            let nano = rate.and_then(|rate| rate.nano().ok());
            day.quarters.entry(run.from).or_default().add(&DemandQuarter {
                held: if is_tenant { held } else { 0 },
                used: line.amounts.used.total(),
                idle: if is_tenant { line.amounts.parts.idle } else { 0 },
                unallocated: if line.holder.as_str() == HolderId::UNALLOCATED { held } else { 0 },
                all: held,
                priced: nano.map_or(0, |_| held),
                money: ExactMoney::of_time(nano.unwrap_or_default(), held),
            });
        })?;
        let evidence = source.evidence(path, &header.revision)?;
        let runs = evidence.into_iter().flat_map(|evidence| evidence.runs);
        day.runs = runs
            .filter(|run| counted.contains(&run.owner.gpu.uuid))
            .map(|run| DemandRun {
                workload: run.owner.holder.name().to_owned(),
                begin: run.run.begin,
                first_use: run.run.first_use,
                name: run.name,
            })
            .collect();
        Ok((header, day))
    }
}

/// What the headers of the files say.
#[derive(Default)]
struct FilesFacts {
    nodes: BTreeSet<String>,
    is_simulated: bool,
    currencies: BTreeSet<String>,
    skipped: usize,
}

impl FilesFacts {
    fn add(&mut self, header: &DayHeader) {
        self.nodes.insert(header.node.clone());
        self.is_simulated |= header.simulated;
        self.currencies.extend(header.currency.clone());
    }

    /// The currency of all prices; none where there are several.
    fn currency(&self) -> Option<String> {
        self.currencies.first().filter(|_| self.currencies.len() == 1).cloned()
    }

    fn notes(&self) -> Vec<String> {
        let currencies = self.currencies.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let several = (self.currencies.len() > 1)
            .then(|| format!("prices are in {currencies}, so no amount is added up"));
        let skipped = (self.skipped > 0).then(|| format!("{} damaged files were left out", self.skipped));
        several.into_iter().chain(skipped).collect()
    }

    fn source(&self) -> AdviceSource {
        AdviceSource {
            kind: "fleet".to_owned(),
            node: None,
            nodes: self.nodes.len(),
            simulated: self.is_simulated,
        }
    }
}
