//! Adds up the rows of an account to a bill, whether they come from a ledger or from the files of many.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bill::{Bill, BillGpu, BillLine, BillRate, BillTerms, LineRates, mark_measured_energy};
use super::day::{DayGpu, DayRow};
use super::local_time::{local_date, local_time, zone_name};
use super::money::SumOverflow;
use super::request::{BillRequest, LineDetail};
use super::schedule::RateSchedule;
use crate::model::{Bytes, HolderId, Nanoseconds, NodeIdentity, SlotId, Utc};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineKey {
    tenant: String,
    gpu: Arc<str>,
    slot: SlotId,
    holder: HolderId,
    labels: BTreeMap<String, String>,
    /// Cluster and name; what else a node has may change.
    node: Option<(Option<String>, String)>,
    rates: LineRates,
    day: Option<String>,
}

impl LineKey {
    /// Takes the key out of a line, so that its texts are in memory once.
    pub fn take(line: &mut BillLine) -> Self {
        Self {
            tenant: std::mem::take(&mut line.tenant),
            gpu: Arc::clone(&line.gpu.uuid),
            slot: line.slot.clone(),
            holder: line.holder.clone(),
            labels: std::mem::take(&mut line.labels),
            node: line.node.as_ref().map(|node| (node.cluster.clone(), node.name.clone())),
            rates: line.rates,
            day: line.day.take(),
        }
    }

    pub fn restore(self, line: &mut BillLine) {
        line.tenant = self.tenant;
        line.labels = self.labels;
        line.day = self.day;
    }
}

/// A bill while it is made, in memory that is bounded by its lines.
#[derive(Debug)]
pub struct BillDraft<'a> {
    request: &'a BillRequest,
    detail: LineDetail,
    lines: BTreeMap<LineKey, BillLine>,
    gpus: BTreeMap<Arc<str>, BillGpu>,
    rates: Vec<BillRate>,
    terms: Vec<BillTerms>,
    date: Option<(Utc, String)>,
}

/// The numbers in a draft of the rates and terms of one file, by their numbers there.
#[derive(Clone, Debug, Default)]
pub struct FileNumbers {
    pub rates: BTreeMap<i64, i64>,
    pub terms: BTreeMap<i64, i64>,
}

impl FileNumbers {
    pub fn of_row(&self, mut row: DayRow) -> DayRow {
        self.apply(&mut row);
        row
    }

    pub fn apply(&self, row: &mut DayRow) {
        let rate = |id: Option<i64>| id.and_then(|id| self.rates.get(&id).copied());
        let LineRates { time, energy, carbon, terms } = row.line.rates;
        row.gpu_rate = rate(row.gpu_rate);
        row.line.rates = LineRates {
            time: rate(time),
            energy: rate(energy),
            carbon: rate(carbon),
            terms: terms.and_then(|id| self.terms.get(&id).copied()),
        };
    }
}

impl<'a> BillDraft<'a> {
    pub fn new(request: &'a BillRequest) -> Self {
        Self {
            request,
            detail: request.detail.clone(),
            lines: BTreeMap::new(),
            gpus: BTreeMap::new(),
            rates: Vec::new(),
            terms: Vec::new(),
            date: None,
        }
    }

    /// A bill of one ledger, whose rates and terms keep their numbers.
    pub fn of_ledger(request: &'a BillRequest, schedule: &RateSchedule) -> Self {
        Self {
            detail: LineDetail { node: false, day: request.detail.day, ..LineDetail::whole() },
            rates: schedule.rates.entries().iter().map(BillRate::new).collect(),
            terms: schedule.terms.entries().iter().map(BillTerms::new).collect(),
            ..Self::new(request)
        }
    }

    /// The numbers here of a file's rates and terms: each ledger has numbers of its own, and what differs only in time is one.
    pub fn numbers(&mut self, rates: &[BillRate], terms: &[BillTerms]) -> FileNumbers {
        FileNumbers {
            rates: rates.iter().map(|rate| (rate.id, self.number_of_rate(rate))).collect(),
            terms: terms.iter().map(|terms| (terms.id, self.number_of_terms(terms))).collect(),
        }
    }

    fn number_of_rate(&mut self, rate: &BillRate) -> i64 {
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

    /// Adds a GPU, or a later account of it.
    pub fn add_gpu(&mut self, added: &DayGpu) {
        let DayGpu { gpu, model, memory, accounted_since, settled_until } = added;
        let known = self.gpus.entry(Arc::clone(&gpu.uuid)).or_insert_with(|| BillGpu {
            gpu: gpu.clone(),
            model: model.clone(),
            accounted_since: *accounted_since,
            settled_until: *settled_until,
            ..BillGpu::default()
        });
        known.memory = memory.or(known.memory);
        known.accounted_since = known.accounted_since.min(*accounted_since);
        if *settled_until > known.settled_until {
            (known.gpu.index, known.settled_until) = (gpu.index, *settled_until);
        }
    }

    pub fn model(&self, uuid: &str) -> &str {
        self.gpus.get(uuid).map_or("", |gpu| &gpu.model)
    }

    pub fn memory(&self, uuid: &str) -> Option<Bytes> {
        self.gpus.get(uuid)?.memory
    }

    /// The rate with that number here.
    pub fn rate(&self, id: i64) -> Option<&BillRate> {
        self.rates.iter().find(|rate| rate.id == id)
    }

    /// The price of the rate with that number, in nano-units.
    pub fn price_of(&self, id: i64) -> i64 {
        self.rate(id).and_then(|rate| i64::try_from(rate.price.0).ok()).unwrap_or(0)
    }

    /// Adds time of a GPU under the rate of that number.
    ///
    /// # Errors
    /// The money or the time does not fit.
    pub fn add_time(&mut self, gpu: &str, time: Nanoseconds, rate: Option<i64>) -> Result<(), SumOverflow> {
        let rate = rate.map(|rate| (rate, self.price_of(rate)));
        match self.gpus.get_mut(gpu) {
            Some(gpu) if time.0 > 0 => gpu.add(time, rate),
            _ => Ok(()),
        }
    }

    /// Adds a priced line of that time and node, whose rates have the numbers of the draft. The time of its GPU is added by
    /// [`BillDraft::add_time`], so that the sums of both prove each other.
    ///
    /// # Errors
    /// The money, the time or the energy does not fit.
    pub fn add_line(
        &mut self,
        from: Utc,
        node: Option<&Arc<NodeIdentity>>,
        mut line: BillLine,
    ) -> Result<(), SumOverflow> {
        if let Some(gpu) = self.gpus.get_mut(&line.gpu.uuid) {
            gpu.energy_money = gpu.energy_money.plus(line.exact_energy)?;
        }
        let key = self.key_of(from, node, &mut line);
        match self.lines.entry(key) {
            Entry::Occupied(mut sum) => sum.get_mut().add(&line),
            Entry::Vacant(vacant) => {
                vacant.insert(line);
                Ok(())
            }
        }
    }

    /// Takes the key of a line of that time and node out of it, after what the bill does not tell apart is removed.
    pub fn key_of(&mut self, from: Utc, node: Option<&Arc<NodeIdentity>>, line: &mut BillLine) -> LineKey {
        self.detail.reduce(line);
        line.node = node.filter(|_| self.detail.node).cloned();
        line.day = self.detail.day.then(|| self.date_of(from));
        LineKey::take(line)
    }

    /// The local date of a time; most lines have that of the line before.
    fn date_of(&mut self, at: Utc) -> String {
        match &self.date {
            Some((known, date)) if *known == at => date.clone(),
            _ => {
                let date = local_date(at, &self.request.zone);
                self.date = Some((at, date.clone()));
                date
            }
        }
    }

    /// The bill of a period in an account that ends at `closed_until`, in the order of its lines' keys and without sums. Its
    /// owner, currency, and what is known of its tenants are for the caller to fill in.
    pub fn finish(self, [from, to]: [Utc; 2], closed_until: Utc) -> Bill {
        let Self { request: BillRequest { zone, to: asked, .. }, mut rates, mut terms, .. } = self;
        let mut gpus: Vec<BillGpu> = self.gpus.into_values().filter(|gpu| gpu.slot.0 > 0).collect();
        gpus.sort_by(|one, other| one.gpu.cmp(&other.gpu));
        // The index of a GPU may be another one after a boot.
        let indices: BTreeMap<&str, u32> = gpus.iter().map(|gpu| (&*gpu.gpu.uuid, gpu.gpu.index)).collect();
        let lines = self.lines.into_iter().map(|(key, mut line)| {
            line.gpu.index = indices.get(&*line.gpu.uuid).copied().unwrap_or(line.gpu.index);
            key.restore(&mut line);
            line
        });
        let mut lines: Vec<BillLine> = lines.collect();
        mark_measured_energy(&mut lines, |line| line);
        let of_lines = lines.iter().flat_map(|line| [line.rates.time, line.rates.energy, line.rates.carbon]);
        let of_gpus = gpus.iter().flat_map(|gpu| &gpu.intervals).map(|interval| interval.rate);
        let used: BTreeSet<i64> = of_lines.chain(of_gpus).flatten().collect();
        rates.retain(|rate| used.contains(&rate.id));
        rates.sort_by_key(|rate| (rate.unit, rate.since, rate.price));
        let used: BTreeSet<i64> = lines.iter().filter_map(|line| line.rates.terms).collect();
        terms.retain(|terms| used.contains(&terms.id));
        Bill {
            from,
            to,
            from_local: local_time(from, zone),
            to_local: local_time(to, zone),
            time_zone: zone_name(zone, to),
            asked_to: asked.filter(|asked| *asked > to).map(|asked| local_time(asked, zone)),
            closed_until,
            example_prices: rates.iter().any(BillRate::is_example),
            unpriced: Some(gpus.iter().map(BillGpu::unpriced).sum()),
            rates,
            terms,
            lines,
            gpus,
            ..Bill::default()
        }
    }
}
