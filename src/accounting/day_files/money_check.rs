//! Computes the money of each row of a day anew, from its rates and terms, so that none is moved from one row to another.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::columns::Sums;
use super::error::FileProblem;
use crate::accounting::billing::{
    BillRate, DayHeader, DayRow, ExactMoney, LinePrices, LineRates, RateKind, Terms,
};
use crate::model::{GpuId, HolderId, NodeIdentity, SlotId, Utc};

/// Checks the rows of a day in the order of the file, in which those of a slot follow each other.
pub(super) struct MoneyCheck<'a> {
    rates: BTreeMap<i64, &'a BillRate>,
    terms: BTreeMap<i64, Terms>,
    slot: Option<(Arc<NodeIdentity>, GpuId, SlotId)>,
    /// Of the slot, by quarter hour: the lines of differences, with what they lack so far.
    differences: BTreeMap<(Utc, &'static str, LineRates), ExactMoney>,
    /// Unavailable time less what `__unavailable__` is charged for it.
    unavailable: BTreeMap<Utc, i128>,
}

pub(super) struct RowPrices {
    holder: RowHolder,
    rates: LineRates,
    time: i64,
    gpu: i64,
    energy: i64,
}

enum RowHolder {
    Holder,
    Unavailable,
    Difference(&'static str),
}

/// A row's amounts, each below 2^60, and its money.
pub(super) struct RowMoney<'a> {
    pub(super) quarter: Utc,
    pub(super) sums: &'a Sums,
    pub(super) money: [ExactMoney; 2],
}

fn wrong(what: &str) -> FileProblem {
    FileProblem::Damaged(format!("{what} is not what its rates and terms make of it"))
}

impl<'a> MoneyCheck<'a> {
    /// # Errors
    /// The terms are none that this version knows.
    pub(super) fn new(header: &'a DayHeader) -> Result<Self, FileProblem> {
        let terms = header.terms.iter().map(|one| {
            let unknown =
                || FileProblem::Damaged(format!("its terms {:?} are none that gpumeter has", one.terms));
            Ok((one.id, Terms::described(&one.terms).ok_or_else(unknown)?))
        });
        Ok(Self {
            rates: header.rates.iter().map(|rate| (rate.id, rate)).collect(),
            terms: terms.collect::<Result<_, FileProblem>>()?,
            slot: None,
            differences: BTreeMap::new(),
            unavailable: BTreeMap::new(),
        })
    }

    /// The prices of the rows that begin with that run.
    ///
    /// # Errors
    /// The header lacks one of their rates, or the rows of the slot before do not add up.
    pub(super) fn prices(&mut self, run: &DayRow) -> Result<RowPrices, FileProblem> {
        let DayRow { node, line, gpu_rate, .. } = run;
        let is_same = |(of, gpu, slot): &(_, _, _)| (of, gpu, slot) == (node, &line.gpu, &line.slot);
        if !self.slot.as_ref().is_some_and(is_same) {
            self.finish_slot()?;
            self.slot = Some((Arc::clone(node), line.gpu.clone(), line.slot.clone()));
        }
        let find = |id: Option<i64>, is_kind: fn(RateKind) -> bool| {
            let Some(id) = id else { return Ok(None) };
            let found = self.rates.get(&id).copied().filter(|rate| is_kind(rate.unit));
            let missing = || FileProblem::Damaged(format!("its header has no rate {id} of that kind"));
            found.map(Some).ok_or_else(missing)
        };
        let nano = |found: Option<&BillRate>| found.map_or(Ok(0), BillRate::nano);
        let time = find(line.rates.time, RateKind::is_time)?;
        if let Some(id) = line.rates.terms.filter(|id| !self.terms.contains_key(id)) {
            return Err(FileProblem::Damaged(format!("its header has no terms {id}")));
        }
        Ok(RowPrices {
            holder: match line.holder.name() {
                HolderId::UNAVAILABLE => RowHolder::Unavailable,
                HolderId::TERMS => RowHolder::Difference(HolderId::TERMS),
                HolderId::RATE_VARIANCE => RowHolder::Difference(HolderId::RATE_VARIANCE),
                _ => RowHolder::Holder,
            },
            rates: line.rates,
            time: time.map_or(Ok(0), |rate| rate.nano_per_gpu_hour(line.slot.profile.as_ref()))?,
            gpu: nano(find(*gpu_rate, |kind| kind == RateKind::GpuHour)?)?,
            energy: nano(find(line.rates.energy, |kind| kind == RateKind::Kwh)?)?,
        })
    }

    /// Checks a row.
    ///
    /// # Errors
    /// Its money or its charged time is not what its rates and terms make of it.
    pub(super) fn add(&mut self, prices: &RowPrices, row: &RowMoney<'_>) -> Result<(), FileProblem> {
        let RowMoney { quarter, sums, money: [all, energy] } = *row;
        let parts = &sums.amounts.parts;
        if let RowHolder::Difference(name) = prices.holder {
            let sum = self.differences.entry((quarter, name, prices.rates)).or_default();
            *sum = sum.minus(all)?;
            return if *sums == Sums::default() && energy == ExactMoney::ZERO {
                Ok(())
            } else {
                Err(wrong(&format!("the time of {name}")))
            };
        }
        let held = parts.held() - parts.unavailable;
        let charged = if prices.rates.time.is_some() { sums.charged } else { sums.unpriced };
        let unavailable = self.unavailable.entry(quarter).or_default();
        *unavailable += i128::from(parts.unavailable);
        let full_time = match prices.holder {
            RowHolder::Unavailable => {
                *unavailable -= i128::from(charged) - i128::from(held);
                charged
            }
            _ => held,
        };
        let terms = prices.rates.terms.and_then(|id| self.terms.get(&id));
        let of_row = LinePrices { time: prices.time, gpu: prices.gpu, energy: prices.energy, terms };
        let charge = of_row.charge(&sums.amounts, full_time)?;
        if charge.time != charged || sums.charged.checked_add(sums.unpriced) != Some(charged) {
            return Err(wrong(&format!("the charged time of a row of {quarter}")));
        }
        if energy != charge.energy || all != charge.money.plus(charge.energy)? {
            return Err(wrong(&format!("the money of a row of {quarter}")));
        }
        for (name, rates, difference) in [
            (HolderId::TERMS, prices.rates.of_terms(), charge.terms_difference),
            (HolderId::RATE_VARIANCE, prices.rates.of_variance(), charge.rate_difference),
        ] {
            if difference != ExactMoney::ZERO {
                let sum = self.differences.entry((quarter, name, rates)).or_default();
                *sum = sum.plus(difference)?;
            }
        }
        Ok(())
    }

    /// Checks the last slot.
    ///
    /// # Errors
    /// Its rows do not add up.
    pub(super) fn finish_slot(&mut self) -> Result<(), FileProblem> {
        let differences = std::mem::take(&mut self.differences);
        if let Some(((quarter, name, _), _)) =
            differences.into_iter().find(|(_, money)| *money != ExactMoney::ZERO)
        {
            return Err(wrong(&format!("the money of {name} in the quarter hour {quarter}")));
        }
        let unavailable = std::mem::take(&mut self.unavailable);
        match unavailable.into_iter().find(|(_, time)| *time != 0) {
            Some((quarter, _)) => {
                Err(wrong(&format!("the time of __unavailable__ in the quarter hour {quarter}")))
            }
            None => Ok(()),
        }
    }
}
