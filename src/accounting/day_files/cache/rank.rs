//! Finds which workloads cost most before any of them has a name in memory: a month of a large fleet has millions.
//!
//! A row becomes a number that is equal for rows of one group. Should two groups have one number, one of them may be named beside
//! those that are asked for; the report cuts it off again.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::CacheError;
use super::report::Labels;
use super::store::KeyReader;
use crate::accounting::billing::costs::{CostKey, CostRequest};
use crate::accounting::billing::{BillProperty, LineView, PropertyFilters};
use crate::model::{GpuId, HolderId, RESERVED};

/// The numbers by which a row names what it is of; 0 where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowNames {
    pub(super) day: i64,
    pub(super) key: i64,
    pub(super) gpu: i64,
    pub(super) holder: i64,
    pub(super) labels: i64,
}

impl From<[i64; 6]> for RowNames {
    fn from([day, key, gpu, holder, _version, labels]: [i64; 6]) -> Self {
        Self { day, key, gpu, holder, labels }
    }
}

impl From<[i64; 3]> for RowNames {
    fn from([day, key, labels]: [i64; 3]) -> Self {
        Self { day, key, gpu: 0, holder: 0, labels }
    }
}

/// What a row is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Key,
    Gpu,
    Holder,
    Labels,
}

/// Which part of a row decides on a property. Of a remainder all have the name of its tenant.
fn part_of(property: &BillProperty) -> Part {
    match property {
        BillProperty::Attribute(_) => Part::Key,
        BillProperty::Fact(_) | BillProperty::PodLabel(_) => Part::Labels,
        BillProperty::Word(_) => match property.word() {
            Some("workload") => Part::Holder,
            Some("gpu" | "uuid") => Part::Gpu,
            Some("user") => Part::Labels,
            _ => Part::Key,
        },
    }
}

/// Whether a report may have millions of groups.
pub(super) fn is_ranked(request: &CostRequest) -> bool {
    let mut parts = request.group.properties().iter().map(part_of);
    !request.group.needs_days() && parts.any(|part| matches!(part, Part::Holder | Part::Labels))
}

/// Finds the group of rows, and whether they are selected.
pub(super) struct GroupFinder<'a> {
    request: &'a CostRequest,
    attributes: &'a std::collections::BTreeMap<String, Labels>,
    filters: [(Part, PropertyFilters); 3],
    /// The numbers of the holders that are selected; none where all are.
    holders: Option<HashSet<i64>>,
    keys: HashMap<i64, Found>,
    gpus: HashMap<i64, bool>,
    labels: HashMap<i64, Found>,
}

/// The number of what a part has of the group, and whether it is selected.
#[derive(Clone, Copy, Debug)]
struct Found {
    number: u64,
    is_selected: bool,
}

const NOTHING: LineView<'static> = LineView {
    tenant: "",
    holder: None,
    labels: None,
    gpu: None,
    model: None,
    class: None,
    rate: (0, None),
    node: None,
    cluster: None,
    pool: None,
    day: None,
    attributes: None,
};

impl<'a> GroupFinder<'a> {
    pub(super) fn new(
        request: &'a CostRequest,
        attributes: &'a std::collections::BTreeMap<String, Labels>,
        keys: &KeyReader<'_>,
    ) -> Result<Self, CacheError> {
        let mut filters = [Part::Key, Part::Gpu, Part::Labels].map(|part| (part, PropertyFilters::default()));
        let mut holders = None;
        for (property, (_, values)) in request.filters.properties().zip(request.filters.asked()) {
            let part = part_of(property);
            if part == Part::Holder {
                holders = Some(values.iter().map(|name| keys.find(name)).collect::<Result<HashSet<_>, _>>()?);
            }
            for (_, filters) in filters.iter_mut().filter(|(of, _)| *of == part) {
                for value in &values {
                    filters.add(property.clone(), value.clone()).map_err(CacheError::Request)?;
                }
            }
        }
        let (keys, gpus, labels) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { request, attributes, filters, holders, keys, gpus, labels })
    }

    /// The number of the group of a row; none where the row is not selected. That of a remainder is odd.
    pub(super) fn group(
        &mut self,
        keys: &mut KeyReader<'_>,
        of_tenant: &Arc<CostKey>,
        row: RowNames,
    ) -> Result<Option<u64>, CacheError> {
        let is_remainder = of_tenant.tenant.starts_with(RESERVED);
        let of_key = self.of_key(of_tenant, row.key, is_remainder);
        if !of_key.is_selected || !self.selects_gpu(keys, row.gpu)? {
            return Ok(None);
        }
        let of_labels = if is_remainder { None } else { Some(self.of_labels(keys, row.labels)?) };
        let is_selected = is_remainder
            || (of_labels.is_none_or(|found| found.is_selected)
                && self.holders.as_ref().is_none_or(|holders| holders.contains(&row.holder)));
        if !is_selected {
            return Ok(None);
        }
        let mut hasher = DefaultHasher::new();
        of_key.number.hash(&mut hasher);
        for property in self.request.group.properties() {
            match part_of(property) {
                Part::Gpu => row.gpu.hash(&mut hasher),
                // A workload with several tenants is several.
                Part::Holder if !is_remainder => (row.holder, &of_tenant.tenant).hash(&mut hasher),
                Part::Holder | Part::Labels | Part::Key => {}
            }
        }
        of_labels.map(|found| found.number).hash(&mut hasher);
        Ok(Some((hasher.finish() & !1) | u64::from(is_remainder)))
    }

    fn of_key(&mut self, key: &Arc<CostKey>, id: i64, is_remainder: bool) -> Found {
        if let Some(found) = self.keys.get(&id) {
            return *found;
        }
        let view = key.view(self.attributes.get(&*key.tenant));
        // A remainder has neither holder nor labels, so that all properties but the GPU are those of its key.
        let is_of_key = |part| part == Part::Key || (is_remainder && part != Part::Gpu);
        let selected = self.filters.iter().filter(|(part, _)| is_of_key(*part));
        let mut is_selected = selected.fold(true, |all, (_, filters)| all && filters.selects(&view));
        if is_remainder && self.holders.is_some() {
            is_selected &= self.request.filters.asked().iter().all(|(name, values)| {
                name != "workload" || values.iter().any(|value| **value == *key.tenant)
            });
        }
        let mut hasher = DefaultHasher::new();
        for property in self.request.group.properties().iter().filter(|one| is_of_key(part_of(one))) {
            property.value(&view).hash(&mut hasher);
        }
        let found = Found { number: hasher.finish(), is_selected };
        self.keys.insert(id, found);
        found
    }

    fn selects_gpu(&mut self, keys: &mut KeyReader<'_>, id: i64) -> Result<bool, CacheError> {
        let Some((_, filters)) = self.filters.iter().find(|(part, _)| *part == Part::Gpu) else {
            return Ok(true);
        };
        if filters.properties().next().is_none() {
            return Ok(true);
        }
        if let Some(is_selected) = self.gpus.get(&id) {
            return Ok(*is_selected);
        }
        let gpu = GpuId { index: keys.gpu_index(id)?, uuid: keys.name(id)? };
        let is_selected = filters.selects(&LineView { gpu: Some(&gpu), ..NOTHING });
        self.gpus.insert(id, is_selected);
        Ok(is_selected)
    }

    fn of_labels(&mut self, keys: &KeyReader<'_>, id: i64) -> Result<Found, CacheError> {
        let of_group = || self.request.group.properties().iter().filter(|one| part_of(one) == Part::Labels);
        let filters = self.filters.iter().find(|(part, _)| *part == Part::Labels).map(|(_, filters)| filters);
        let filters = filters.filter(|filters| filters.properties().next().is_some());
        if filters.is_none() && of_group().next().is_none() {
            return Ok(Found { number: 0, is_selected: true });
        }
        if let Some(found) = self.labels.get(&id) {
            return Ok(*found);
        }
        let labels: Labels = serde_json::from_str(&keys.text(id)?)?;
        let holder = HolderId::default();
        let view = LineView { holder: Some(&holder), labels: Some(&labels), ..NOTHING };
        let mut hasher = DefaultHasher::new();
        of_group().for_each(|property| property.value(&view).hash(&mut hasher));
        let is_selected = filters.is_none_or(|filters| filters.selects(&view));
        let found = Found { number: hasher.finish(), is_selected };
        self.labels.insert(id, found);
        Ok(found)
    }
}

/// What groups cost, by number.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    amounts: HashMap<u64, i64>,
    rows: i64,
}

/// The groups that are named.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    named: HashSet<u64>,
    /// How many are not.
    pub(super) others: usize,
}

impl Ranking {
    /// Adds what decides on the order: whole nano-units, or held time where nothing is priced.
    pub(super) fn add(&mut self, group: u64, amount: i64) {
        let sum = self.amounts.entry(group).or_default();
        *sum = sum.saturating_add(amount);
        self.rows += 1;
    }

    /// The groups among which are the first `top` ones, remainders last.
    pub(super) fn finish(self, top: usize) -> Ranked {
        let order = |group: u64, amount: i64| (group & 1, Reverse(amount));
        let mut all: Vec<_> = self.amounts.iter().map(|(group, amount)| order(*group, *amount)).collect();
        let limit = match top.checked_sub(1).filter(|last| *last < all.len()) {
            Some(last) => *all.select_nth_unstable(last).1,
            None => (1, Reverse(i64::MIN)),
        };
        // Each row was rounded down by less than a nano-unit.
        let limit = (limit.0, Reverse(limit.1.0.saturating_sub(self.rows)));
        let named = self.amounts.iter().filter(|(group, amount)| order(**group, **amount) <= limit);
        let named: HashSet<u64> = named.map(|(group, _)| *group).collect();
        Ranked { others: self.amounts.len() - named.len(), named }
    }
}

impl Ranked {
    pub(super) fn names(&self, group: u64) -> bool {
        self.named.contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_cost_most_are_named_with_those_that_may_cost_as_much_and_remainders_come_last() {
        let mut ranking = Ranking::default();
        for (group, nano) in [(2, 900), (4, 1_000), (2, 900), (6, 1_799), (8, 5), (11, 90_000)] {
            ranking.add(group, nano);
        }
        let ranked = ranking.finish(1);
        assert_eq!([2, 4, 6, 8, 11].map(|group| ranked.names(group)), [true, false, true, false, false]);
        assert_eq!(ranked.others, 3);
        let mut few = Ranking::default();
        few.add(11, 0);
        assert!(few.finish(200).names(11));
    }
}
