//! Whether workloads would have fitted on one GPU or instance: their past added up, minute by minute, or by quarter hours where that
//! is all that is known.
//!
//! Busy time is in GPUs: a GPU that was busy for half a minute was 0.5 busy in it, and an instance counts as its part of the memory
//! slices, as in the account.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::accounting::advice::AdviceSource;
use crate::accounting::billing::{ExactMoney, optional_money, time};
use crate::model::json::{integer, optional_integer};
use crate::model::{
    Bytes, EDGES, Holder, MigProfile, Money, Nanoseconds, QUARTER_HOUR, Series, Shape, TimeSum, Utc, shown,
};

/// The version of the JSON; fields are added without a new one.
const SCHEMA: u32 = 1;

const MOST_WORKLOADS: usize = 16;

/// How many stretches are named.
const WORST: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitRequest {
    /// Each a workload id, the name that all runs of a recurring workload have, or that name without its kind.
    pub workloads: Vec<String>,
    /// The product name of a GPU, or the profile of an instance; none: a GPU as the one that they held most.
    pub on: Option<String>,
}

impl FitRequest {
    /// Reads the parameters `workload`, which may be given several times, and `on`.
    ///
    /// # Errors
    /// Another parameter; too few or too many workloads.
    pub fn parse<'a>(pairs: impl Iterator<Item = (&'a str, String)>) -> Result<Self, String> {
        let mut request = Self::default();
        for (name, value) in pairs {
            match name {
                "workload" => request.workloads.push(value),
                "on" if request.on.is_none() => request.on = Some(value).filter(|on| !on.is_empty()),
                "on" => return Err("on is given twice; give it once".to_owned()),
                _ => return Err(format!("unknown parameter {name:?}; use workload and on")),
            }
        }
        request.check()?;
        Ok(request)
    }

    /// # Errors
    /// Too few or too many workloads, one that is given twice.
    pub fn check(&self) -> Result<(), String> {
        let count = self.workloads.len();
        if count == 0 || (count == 1 && self.on.is_none()) {
            return Err("name two workloads or more, or one and what it should run on".to_owned());
        }
        if count > MOST_WORKLOADS {
            return Err(format!("{count} workloads are named; name at most {MOST_WORKLOADS}"));
        }
        let twice = |(place, name): (usize, &String)| self.workloads[..place].contains(name);
        match self.workloads.iter().enumerate().find(|one| twice(*one)) {
            Some((_, name)) => Err(format!("{name:?} is named twice; name it once")),
            None => Ok(()),
        }
    }

    /// Which of the workloads a holder is a part of.
    ///
    /// # Errors
    /// It is a part of two.
    pub fn part_of(&self, holder: &Holder, recurring_name: &str) -> Result<Option<usize>, String> {
        let (id, outer) = (holder.id.name(), holder.id.outer());
        let outer = outer.as_ref().map_or(id, |outer| outer.name());
        let without_kind = recurring_name.split_once(':').map_or(recurring_name, |(_, name)| name);
        let is_named = |name: &String| [id, outer, recurring_name, without_kind].contains(&name.as_str());
        let mut named = (0..).zip(&self.workloads).filter(|(_, name)| is_named(name));
        match (named.next(), named.next()) {
            (Some((_, one)), Some((_, other))) => {
                Err(format!("{one:?} and {other:?} both name {}; name one of them", shown(id)))
            }
            (one, _) => Ok(one.map(|(place, _)| place)),
        }
    }
}

/// What a holder of one of the workloads had of a slot in a minute or a quarter hour.
#[derive(Clone, Debug)]
pub struct FitRow {
    pub from: Utc,
    pub to: Utc,
    /// Place of the workload in the request.
    pub part: usize,
    pub uuid: Arc<str>,
    pub gpu_instance: Option<u32>,
    /// Tells holders of one workload apart.
    pub holder: Arc<str>,
    pub held: Nanoseconds,
    pub used: Nanoseconds,
    /// Held while its use could not be known.
    pub unknown: Nanoseconds,
    pub memory_peak: Bytes,
    /// Nano-units per GPU-hour before terms; none without a price.
    pub rate: Option<i64>,
}

/// The last of prices that come in any order, in nano-units per GPU-hour.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastPrice(Option<(Utc, i64)>);

impl LastPrice {
    /// What was paid at a time, if a price was in force.
    pub fn at(at: Utc, rate: Option<i64>) -> Self {
        Self(rate.map(|rate| (at, rate)))
    }

    /// Keeps the later one; of the same time the one that came last.
    pub fn add(&mut self, other: Self) {
        if other.0.is_some_and(|(at, _)| self.0.is_none_or(|(last, _)| last <= at)) {
            *self = other;
        }
    }

    fn rate(self) -> Option<i64> {
        self.0.map(|(_, rate)| rate)
    }
}

/// A product or a profile.
#[derive(Clone, Debug, Default)]
struct KnownTarget {
    memory: Option<Bytes>,
    /// Of an instance.
    profile: Option<MigProfile>,
    price: LastPrice,
}

/// The rows up to now.
#[derive(Debug)]
pub struct FitDraft {
    request: FitRequest,
    period: [Utc; 2],
    cells: BTreeMap<Utc, FitCell>,
    parts: Vec<PartDraft>,
    /// By product name.
    targets: BTreeMap<String, KnownTarget>,
    /// By name of the profile, then by product: two products may have a profile of one name.
    profiles: BTreeMap<String, BTreeMap<String, KnownTarget>>,
    /// The product of a GPU.
    models: BTreeMap<Arc<str>, String>,
    /// What the workloads themselves paid for whole GPUs at last, by product: others may have it dearer or cheaper.
    own_prices: BTreeMap<String, LastPrice>,
    /// The memory of a workload by slot and holder, in the cell of the last row.
    memory: BTreeMap<MemoryPlace, Bytes>,
    last: Utc,
    pub currency: Option<String>,
    /// What could not be looked at.
    pub notes: Vec<String>,
}

/// Who had memory where, in a cell.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemoryPlace {
    part: usize,
    uuid: Arc<str>,
    gpu_instance: Option<u32>,
    holder: Arc<str>,
}

#[derive(Clone, Debug, Default)]
struct PartDraft {
    held: TimeSum,
    used: TimeSum,
    /// None where a part of it has no price.
    money: Option<ExactMoney>,
    held_on: BTreeMap<Arc<str>, Nanoseconds>,
    dram: Shape,
}

/// A minute, or a quarter hour.
#[derive(Clone, Debug)]
struct FitCell {
    to: Utc,
    /// By workload; none of one that was not there.
    parts: Vec<Option<PartOfCell>>,
    is_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct PartOfCell {
    used: Nanoseconds,
    memory: Bytes,
}

impl FitCell {
    fn used(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.used.0).sum()
    }

    fn memory(&self) -> Bytes {
        Bytes(self.parts.iter().flatten().fold(0, |sum, part| part.memory.0.saturating_add(sum)))
    }

    fn is_shared(&self) -> bool {
        self.parts.len() == 1 || self.parts.iter().flatten().count() > 1
    }
}

impl FitDraft {
    pub fn new(request: FitRequest, period: [Utc; 2]) -> Self {
        let part = PartDraft { money: Some(ExactMoney::ZERO), ..PartDraft::default() };
        Self {
            period,
            cells: BTreeMap::new(),
            parts: vec![part; request.workloads.len()],
            request,
            targets: BTreeMap::new(),
            profiles: BTreeMap::new(),
            models: BTreeMap::new(),
            own_prices: BTreeMap::new(),
            memory: BTreeMap::new(),
            last: Utc(0),
            currency: None,
            notes: Vec::new(),
        }
    }

    pub fn add_gpu(&mut self, uuid: &Arc<str>, model: &str, memory: Option<Bytes>) {
        let known = self.targets.entry(model.to_owned()).or_default();
        known.memory = memory.or(known.memory);
        self.models.insert(Arc::clone(uuid), model.to_owned());
    }

    /// What a GPU-hour on a product, or on an instance of a profile, cost.
    pub fn add_price(&mut self, model: &str, profile: Option<&MigProfile>, price: LastPrice) {
        let known = match profile {
            Some(profile) => self.profiles.entry(profile.name.to_string()).or_default(),
            None => &mut self.targets,
        };
        if !known.contains_key(model) {
            known.insert(model.to_owned(), KnownTarget::default());
        }
        let Some(known) = known.get_mut(model) else { return };
        known.profile = profile.cloned().or_else(|| known.profile.take());
        known.price.add(price);
    }

    /// Adds a row. Those of a GPU come in order of time.
    pub fn add(&mut self, row: &FitRow) {
        let part = &mut self.parts[row.part];
        part.held += row.held.into();
        part.used += row.used.into();
        let priced = row.rate.map(|rate| ExactMoney::of_time(rate, row.held.0));
        part.money = match priced {
            Some(more) => part.money.map(|sum| sum.saturating_plus(more)),
            None => part.money.filter(|_| row.held.0 == 0),
        };
        *part.held_on.entry(Arc::clone(&row.uuid)).or_default() += row.held;
        let model = self.models.get(&row.uuid).filter(|_| row.gpu_instance.is_none() && row.held.0 > 0);
        if let Some(model) = model {
            let known = self.own_prices.entry(model.clone()).or_default();
            known.add(LastPrice::at(row.from, row.rate));
        }
        let count = self.parts.len();
        let empty = || FitCell { to: row.to, parts: vec![None; count], is_unknown: false };
        let cell = self.cells.entry(row.from).or_insert_with(empty);
        cell.to = cell.to.max(row.to);
        cell.is_unknown |= row.unknown.0 > 0;
        let sums = cell.parts[row.part].get_or_insert_default();
        sums.used += row.used;
        // A quarter hour in which a rate begins has two rows of one holder: the larger memory counts.
        if self.last != row.from {
            self.memory.clear();
            self.last = row.from;
        }
        let (uuid, holder) = (Arc::clone(&row.uuid), Arc::clone(&row.holder));
        let place = MemoryPlace { part: row.part, uuid, gpu_instance: row.gpu_instance, holder };
        let known = self.memory.entry(place).or_insert(Bytes(0));
        sums.memory.0 = sums.memory.0.saturating_add(row.memory_peak.0.saturating_sub(known.0));
        known.0 = known.0.max(row.memory_peak.0);
    }

    /// Adds how a workload was on a slot while it was there alone.
    pub fn add_shape(&mut self, part: usize, series: Series, shape: &Shape) {
        if series == Series::Dram {
            self.parts[part].dram.add(shape);
        }
    }

    /// # Errors
    /// Nothing is known of a workload, or of what they should run on.
    pub fn finish(self, source: AdviceSource) -> Result<Fit, String> {
        for (name, part) in self.request.workloads.iter().zip(&self.parts) {
            if part.held.0 == 0 && part.used.0 == 0 {
                return Err(format!(
                    "{name:?} held and used no GPU in the last four weeks; name a workload as gpumeter bill --by workload or gpumeter \
                     advise does"
                ));
            }
        }
        let on = self.target()?;
        let workloads: Vec<FittedWorkload> =
            (0..self.parts.len()).map(|place| self.workload(place)).collect();
        let together = self.together(&on);
        let has_price = self.currency.is_some();
        let apart: Option<ExactMoney> = self
            .parts
            .iter()
            .map(|part| part.money.filter(|_| has_price))
            .try_fold(ExactMoney::ZERO, |sum, money| Some(sum.saturating_plus(money?)));
        let joined =
            on.rate.filter(|_| has_price).map(|rate| ExactMoney::of_time(rate, on.part(together.any)));
        let notes = self.notes(&workloads, &on, &together);
        Ok(Fit {
            schema: SCHEMA,
            source,
            from: self.period[0],
            to: self.period[1],
            currency: self.currency,
            workloads,
            on: FitTarget { rate: on.rate.filter(|_| has_price), ..on },
            together,
            apart: apart.map(ExactMoney::floor),
            joined: joined.map(ExactMoney::floor),
            notes,
        })
    }

    fn workload(&self, place: usize) -> FittedWorkload {
        let part = &self.parts[place];
        let (mut present, mut peak) = (Nanoseconds(0), Bytes(0));
        for (from, cell) in &self.cells {
            if let Some(of_cell) = cell.parts[place] {
                present += cell.to.since(*from);
                peak = peak.max(of_cell.memory);
            }
        }
        FittedWorkload {
            name: self.request.workloads[place].clone(),
            held: part.held,
            used: part.used,
            present,
            busy: ratio(part.used.0, present),
            memory_peak: Some(peak).filter(|peak| peak.0 > 0),
            dram: mean(&part.dram),
            amount: part.money.filter(|_| self.currency.is_some()).map(ExactMoney::floor),
        }
    }

    /// What they should run on.
    fn target(&self) -> Result<FitTarget, String> {
        let held = self.held_by_model();
        let most = held.iter().max_by_key(|(_, held)| **held).map(|(model, _)| *model).unwrap_or_default();
        let name = self.request.on.as_deref().unwrap_or(most);
        let known = self.targets.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let model = self.targets.get(most).cloned().unwrap_or_default();
        match (known, MigProfile::memory_by_name(name)) {
            (_, Some(memory)) => {
                let of_name = self.profiles.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                let known = of_name.and_then(|(_, of)| of.get(most).or_else(|| of.values().next()));
                let known = known.cloned().unwrap_or_default();
                let profile = known.profile.or_else(|| MigProfile::by_name(name, model.memory?));
                let Some(MigProfile { size, total, .. }) = profile else {
                    return Err(format!(
                        "{name} is no part of a known size of {most}: its memory is not recorded, or is smaller"
                    ));
                };
                Ok(FitTarget {
                    name: name.to_owned(),
                    memory: Some(memory),
                    slices: size,
                    of_slices: total.max(1),
                    rate: known.price.rate().or_else(|| model.price.rate()),
                })
            }
            (Some((name, known)), None) => Ok(FitTarget {
                name: name.clone(),
                memory: known.memory,
                slices: 1,
                of_slices: 1,
                rate: self.own_prices.get(name).and_then(|price| price.rate()).or_else(|| known.price.rate()),
            }),
            (None, None) => {
                let names: Vec<&str> =
                    self.targets.keys().map(String::as_str).filter(|known| !known.is_empty()).collect();
                Err(format!(
                    "{name:?} is no product of the account, nor a profile such as 1g.10gb; the account has {}",
                    names.join(", ")
                ))
            }
        }
    }

    fn held_by_model(&self) -> BTreeMap<&str, TimeSum> {
        let mut held = BTreeMap::<&str, TimeSum>::new();
        for (uuid, time) in self.parts.iter().flat_map(|part| &part.held_on) {
            if let Some(model) = self.models.get(uuid) {
                *held.entry(model).or_default() += (*time).into();
            }
        }
        held
    }

    fn together(&self, on: &FitTarget) -> Placement {
        let mut placement = Placement::default();
        let mut stretches: Vec<FitStretch> = Vec::new();
        for (from, cell) in &self.cells {
            let length = cell.to.since(*from);
            let (used, memory) = (cell.used(), cell.memory());
            placement.any += length;
            placement.by_quarters |= length >= QUARTER_HOUR;
            if !cell.is_shared() {
                continue;
            }
            placement.shared += length;
            if cell.is_unknown {
                placement.unmeasured += length;
            }
            let (busy, limit) = (ratio(u128::from(used), length), on.gpus());
            placement.busy_peak = placement.busy_peak.max(busy);
            placement.used += Nanoseconds(used).into();
            placement.memory_peak = placement.memory_peak.max(Some(memory).filter(|memory| memory.0 > 0));
            let is_busy =
                u128::from(used) * u128::from(on.of_slices) > u128::from(length.0) * u128::from(on.slices);
            let is_full = on.memory.is_some_and(|of| memory > of);
            placement.too_busy += if is_busy { length } else { Nanoseconds(0) };
            placement.too_full += if is_full { length } else { Nanoseconds(0) };
            if !(is_busy || is_full) {
                continue;
            }
            placement.too_much += length;
            let share = on.memory.map_or(0.0, |of| memory.0 as f64 / of.0.max(1) as f64);
            let next =
                FitStretch { from: *from, to: cell.to, busy, memory, excess: (busy / limit).max(share) };
            match stretches.last_mut().filter(|last| last.to == next.from) {
                Some(last) => last.append(&next),
                None => stretches.push(next),
            }
        }
        placement.busy = ratio(placement.used.0, placement.shared);
        placement.stretches = stretches.len();
        stretches.sort_by(|one, other| other.excess.total_cmp(&one.excess).then(one.from.cmp(&other.from)));
        stretches.truncate(WORST);
        placement.worst = stretches;
        placement
    }

    fn notes(&self, workloads: &[FittedWorkload], on: &FitTarget, together: &Placement) -> Vec<String> {
        let mut notes = self.notes.clone();
        let mut note = |is_so: bool, text: &str| notes.extend(is_so.then(|| text.to_owned()));
        let is_small = workloads.iter().map(|one| one.busy).sum::<f64>() <= on.gpus();
        note(
            is_small && together.too_busy.0 > 0,
            "by their means they would have fitted; by their busiest times they would not",
        );
        note(
            together.shared.0 == 0,
            "they were never there at one time, so that one could always have followed the other",
        );
        note(
            together.by_quarters,
            "some of the past is known by quarter hours: work within one may have come one after the other or at once, the memory of all is \
             taken as if their peaks were at once, and who was there for a minute counts as there for all of it",
        );
        note(
            on.memory.is_none(),
            "how much memory it has is not recorded, so that only busy time was compared",
        );
        note(
            together.memory_peak.is_none() && together.shared.0 > 0,
            "no memory of these workloads was reported, so that only busy time was compared",
        );
        note(
            self.held_by_model().keys().any(|model| *model != on.name) && on.of_slices == 1,
            "they ran on another product too, whose busy time counts as if this one were as fast",
        );
        note(
            on.slices < on.of_slices,
            "an instance counts as its part of the GPU's memory slices: work that kept all of a GPU busy is taken to need as much there",
        );
        note(
            true,
            "servers such as vLLM and frameworks such as JAX take memory in advance: a peak says what was taken, not what was needed",
        );
        note(true, "nothing is known of latency: work of two that shares a GPU waits for each other");
        notes
    }
}

/// GPUs on average.
fn ratio(used: u128, time: Nanoseconds) -> f64 {
    if time.0 == 0 { 0.0 } else { used as f64 / time.0 as f64 }
}

/// The mean share of a series, of the middle of each bin; none where it is not known.
fn mean(shape: &Shape) -> Option<f64> {
    let edges = EDGES.iter().chain(&[100]);
    let middles = edges.clone().zip(edges.skip(1)).map(|(from, to)| f64::from(from + to) / 200.0);
    let bins = &shape.0[..EDGES.len()];
    let time: u64 = bins.iter().sum();
    let sum: f64 = bins.iter().zip(middles).map(|(time, middle)| *time as f64 * middle).sum();
    (time > 0).then(|| sum / time as f64)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub schema: u32,
    pub source: AdviceSource,
    #[serde(with = "time")]
    pub from: Utc,
    #[serde(with = "time")]
    pub to: Utc,
    pub currency: Option<String>,
    pub workloads: Vec<FittedWorkload>,
    pub on: FitTarget,
    pub together: Placement,
    /// What they held at the prices then in force, before terms; none where a part of it has none.
    #[serde(with = "optional_money")]
    pub apart: Option<Money>,
    /// What `on` would have cost at its last price for the time in which any of them was there.
    #[serde(with = "optional_money")]
    pub joined: Option<Money>,
    /// What is not known.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FittedWorkload {
    pub name: String,
    /// GPU time.
    #[serde(rename = "held_ns", with = "integer")]
    pub held: TimeSum,
    #[serde(rename = "used_ns", with = "integer")]
    pub used: TimeSum,
    /// Time in which it was there, on one GPU or many.
    #[serde(rename = "present_ns", with = "integer")]
    pub present: Nanoseconds,
    /// GPUs that it kept busy on average while it was there.
    pub busy: f64,
    /// Over all its GPUs at one time; none where none was reported.
    #[serde(rename = "memory_peak_bytes")]
    pub memory_peak: Option<Bytes>,
    /// Mean share of the memory bandwidth while it was alone; none where it is not known.
    pub dram: Option<f64>,
    #[serde(with = "optional_money")]
    pub amount: Option<Money>,
}

/// What they should run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitTarget {
    pub name: String,
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Bytes>,
    /// Memory slices of an instance, of those of its GPU; of a GPU 1 of 1.
    pub slices: u64,
    pub of_slices: u64,
    /// Nano-units per GPU-hour.
    #[serde(rename = "rate_nano", with = "optional_integer")]
    pub rate: Option<i64>,
}

impl FitTarget {
    fn gpus(&self) -> f64 {
        self.slices as f64 / self.of_slices as f64
    }

    /// GPU time of so much time on it.
    fn part(&self, time: Nanoseconds) -> u64 {
        let part = u128::from(time.0) * u128::from(self.slices) / u128::from(self.of_slices);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// All of them on one GPU or instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Time in which any was there.
    #[serde(rename = "any_ns", with = "integer")]
    pub any: Nanoseconds,
    /// Time in which two or more were there; of one workload all its time. The rest of this is of that time.
    #[serde(rename = "shared_ns", with = "integer")]
    pub shared: Nanoseconds,
    #[serde(rename = "used_ns", with = "integer")]
    pub used: TimeSum,
    /// GPUs on average, and in the busiest minute or quarter hour.
    pub busy: f64,
    pub busy_peak: f64,
    #[serde(rename = "memory_peak_bytes")]
    pub memory_peak: Option<Bytes>,
    /// Time with more work than it could have done.
    #[serde(rename = "too_busy_ns", with = "integer")]
    pub too_busy: Nanoseconds,
    /// Time with more memory than it has.
    #[serde(rename = "too_full_ns", with = "integer")]
    pub too_full: Nanoseconds,
    /// Time of either, and in how many stretches.
    #[serde(rename = "too_much_ns", with = "integer")]
    pub too_much: Nanoseconds,
    pub stretches: usize,
    /// Time in which the use of one was not known in whole.
    #[serde(rename = "unmeasured_ns", with = "integer")]
    pub unmeasured: Nanoseconds,
    /// Whether some of it is known by quarter hours.
    pub by_quarters: bool,
    /// The worst first.
    pub worst: Vec<FitStretch>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitStretch {
    #[serde(with = "time")]
    pub from: Utc,
    #[serde(with = "time")]
    pub to: Utc,
    /// GPUs in its busiest minute or quarter hour.
    pub busy: f64,
    #[serde(rename = "memory_bytes")]
    pub memory: Bytes,
    /// Of what it has, the larger of work and memory; above 1.
    pub excess: f64,
}

impl FitStretch {
    fn append(&mut self, next: &Self) {
        self.to = next.to;
        self.busy = self.busy.max(next.busy);
        self.memory = self.memory.max(next.memory);
        self.excess = self.excess.max(next.excess);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{HOUR, MINUTE};

    const GIB: u64 = 1 << 30;

    fn draft(on: Option<&str>) -> FitDraft {
        let request =
            FitRequest { workloads: ["a", "b"].map(str::to_owned).to_vec(), on: on.map(str::to_owned) };
        let mut draft = FitDraft::new(request, [Utc(0), Utc(HOUR.0)]);
        draft.currency = Some("EUR".to_owned());
        for uuid in ["GPU-0", "GPU-1"] {
            draft.add_gpu(&uuid.into(), "NVIDIA H100 80GB HBM3", Some(Bytes(80 * GIB)));
        }
        draft.add_price("NVIDIA H100 80GB HBM3", None, LastPrice::at(Utc(0), Some(4_000_000_000)));
        draft
    }

    /// A minute of a workload with that percentage of busy time.
    fn minute(part: usize, at: u64, busy: u64, gibibytes: u64) -> FitRow {
        FitRow {
            from: Utc(at * MINUTE.0),
            to: Utc((at + 1) * MINUTE.0),
            part,
            uuid: format!("GPU-{part}").into(),
            gpu_instance: None,
            holder: "it".into(),
            held: MINUTE,
            used: Nanoseconds(MINUTE.0 / 100 * busy),
            unknown: Nanoseconds(0),
            memory_peak: Bytes(gibibytes * GIB),
            rate: Some(4_000_000_000),
        }
    }

    fn fit(draft: FitDraft) -> Fit {
        draft.finish(AdviceSource::default()).unwrap()
    }

    #[test]
    fn two_that_fit_by_their_means_and_not_by_their_peaks_are_told() {
        let mut draft = draft(None);
        // Both work in the same ten minutes of the hour, and one of them for a while later.
        for at in 0..60 {
            draft.add(&minute(0, at, if at < 10 { 90 } else { 10 }, 20));
            draft.add(&minute(1, at, if (5..20).contains(&at) { 80 } else { 0 }, 30));
        }
        let fit = fit(draft);
        assert_eq!(fit.on.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(
            (fit.together.too_busy, fit.together.too_full),
            (Nanoseconds(5 * MINUTE.0), Nanoseconds(0))
        );
        assert_eq!((fit.together.stretches, fit.together.worst.len()), (1, 1));
        let worst = &fit.together.worst[0];
        assert_eq!((worst.from, worst.to), (Utc(5 * MINUTE.0), Utc(10 * MINUTE.0)));
        assert!((fit.together.busy_peak - 1.7).abs() < 1e-9, "{}", fit.together.busy_peak);
        assert_eq!(fit.together.memory_peak, Some(Bytes(50 * GIB)));
        assert!(fit.notes.iter().any(|note| note.starts_with("by their means they would have fitted")));
        let money = |units: i128| Some(Money(units * 1_000_000_000));
        assert_eq!((fit.apart, fit.joined), (money(8), money(4)));
    }

    #[test]
    fn a_gpu_costs_what_the_workloads_paid_for_one_and_not_what_others_do() {
        let mut draft = draft(None);
        (0..2).for_each(|part| draft.add(&minute(part, 0, 10, 1)));
        draft.add_price("NVIDIA H100 80GB HBM3", None, LastPrice::at(Utc(HOUR.0), Some(1_000_000_000)));
        assert_eq!(fit(draft).on.rate, Some(4_000_000_000));
    }

    #[test]
    fn an_instance_has_its_part_of_busy_time_memory_and_price() {
        let mut draft = draft(Some("1g.10gb"));
        for at in 0..60 {
            draft.add(&minute(0, at, 5, 4));
            draft.add(&minute(1, at, if at == 30 { 9 } else { 2 }, if at > 50 { 7 } else { 3 }));
        }
        let fit = fit(draft);
        assert_eq!((fit.on.slices, fit.on.of_slices), (1, 8));
        assert_eq!(fit.together.too_busy, MINUTE, "14 % of a GPU");
        assert_eq!(fit.together.too_full, Nanoseconds(9 * MINUTE.0), "11 GiB");
        assert_eq!((fit.together.stretches, fit.together.worst.len()), (2, 2));
        assert_eq!(fit.joined, Some(Money(500_000_000)));
        assert!(fit.notes.iter().all(|note| !note.starts_with("by their means they would have fitted,")));
    }

    #[test]
    fn memory_of_a_holder_with_two_rows_of_a_time_counts_once() {
        let mut draft = draft(None);
        for gibibytes in [10, 30] {
            draft.add(&minute(0, 0, 1, gibibytes));
        }
        draft.add(&minute(1, 0, 1, 5));
        assert_eq!(fit(draft).together.memory_peak, Some(Bytes(35 * GIB)));
    }

    #[test]
    fn what_is_not_known_is_an_error_that_names_it() {
        let mut one = draft(None);
        one.add(&minute(0, 0, 1, 1));
        let error = one.finish(AdviceSource::default()).unwrap_err();
        assert!(error.starts_with("\"b\" held and used no GPU"), "{error}");
        for (on, told) in [
            (
                "L40S",
                "is no product of the account, nor a profile such as 1g.10gb; the account has NVIDIA H100",
            ),
            ("1g.200gb", "is no part of a known size of NVIDIA H100"),
            ("xg.10gb", "is no product of the account"),
        ] {
            let mut draft = draft(Some(on));
            (0..2).for_each(|part| draft.add(&minute(part, 0, 1, 1)));
            let error = draft.finish(AdviceSource::default()).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        for (workloads, told) in [
            (vec![], "name two workloads or more"),
            (vec!["a"], "name two workloads or more"),
            (vec!["a", "a"], "is named twice"),
        ] {
            let pairs = workloads.into_iter().map(|name| ("workload", name.to_owned()));
            assert!(FitRequest::parse(pairs).unwrap_err().contains(told));
        }
    }
}
