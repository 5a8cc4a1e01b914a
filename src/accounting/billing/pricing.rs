//! Prices the lines of a GPU in a span in which no rate and no terms begin or end.

use std::collections::BTreeMap;

use super::bill::{BillLine, LineRates};
use super::charge::{Charge, ChargedSlot, charges};
use super::money::{ExactMoney, MoneyOverflow};
use super::rate::{PricedSlot, Rate, RateKind};
use super::schedule::{RateSchedule, Recorded};
use super::terms::Terms;
use crate::model::{Amounts, GpuId, HolderId, MigProfile, Nanoseconds, SlotId, Tariff, Utc};

#[derive(Clone, Copy, Debug)]
pub struct SlotRates<'a> {
    pub gpu: Option<&'a Recorded<Rate>>,
    /// The rate of the instance, which replaces that of the GPU.
    instance: Option<(&'a Recorded<Rate>, &'a MigProfile)>,
    /// That of energy; none where it is included in the others.
    pub energy: Option<&'a Recorded<Rate>>,
    carbon: Option<&'a Recorded<Rate>>,
}

impl<'a> SlotRates<'a> {
    /// The rates of a slot at a time. One of instances holds only beside one of the GPU, from which it differs by a known
    /// amount.
    pub fn find(schedule: &'a RateSchedule, slot: PricedSlot<'a>, at: Utc) -> Self {
        let rate = |kind| schedule.rate(kind, slot, at);
        let gpu = rate(RateKind::GpuHour);
        let instance = slot.profile.filter(|_| gpu.is_some());
        Self {
            gpu,
            instance: instance.and_then(|profile| Some((rate(RateKind::InstanceHour)?, profile))),
            energy: rate(RateKind::Kwh),
            carbon: rate(RateKind::CarbonKwh),
        }
    }

    pub fn time(&self) -> Option<&'a Recorded<Rate>> {
        self.instance.map(|(rate, _)| rate).or(self.gpu)
    }

    /// Nano-units per GPU-hour of its time, 0 without a rate. The time of an instance is its part of the GPU's, so its
    /// price counts for the whole GPU in proportion; sizes are powers of two, so that is exact.
    pub fn nano_per_gpu_hour(&self) -> i64 {
        match self.instance {
            Some((rate, profile)) => nano_per_gpu_hour(rate.entry.nano, profile),
            None => self.gpu.map_or(0, |rate| rate.entry.nano),
        }
    }

    pub fn numbers(&self, terms: Option<&Recorded<Terms>>) -> LineRates {
        LineRates {
            time: self.time().map(|rate| rate.id),
            energy: self.energy.map(|rate| rate.id),
            carbon: self.carbon.map(|rate| rate.id),
            terms: terms.map(|terms| terms.id),
        }
    }

    /// Currency and class of its time; none without a price.
    pub fn tariff(&self) -> Option<&'a Tariff> {
        self.time().map(|rate| &rate.entry.tariff)
    }
}

/// Nano-units per GPU-hour where an instance of a profile costs so much per hour. Sizes are powers of two, so that it is exact.
pub(super) fn nano_per_gpu_hour(nano_per_instance_hour: i64, profile: &MigProfile) -> i64 {
    let (size, total) = (i128::from(profile.size.max(1)), i128::from(profile.total));
    let nano = (i128::from(nano_per_instance_hour) * total + size / 2) / size;
    i64::try_from(nano).unwrap_or(i64::MAX)
}

/// The prices of a line in nano-units per hour or kWh, 0 without a rate.
#[derive(Clone, Copy, Debug)]
pub struct LinePrices<'a> {
    /// Of its time, per GPU-hour.
    pub time: i64,
    pub gpu: i64,
    pub energy: i64,
    pub terms: Option<&'a Terms>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCharge {
    /// The charged time in nanoseconds.
    pub time: u64,
    pub money: ExactMoney,
    pub energy: ExactMoney,
    /// What terms take off; it is charged to `__terms__`.
    pub terms_difference: ExactMoney,
    /// How much less the price of an instance is than that of the GPU; it is charged to `__rate_variance__`.
    pub rate_difference: ExactMoney,
}

impl LinePrices<'_> {
    /// What a line with these amounts costs, where `full_time` is charged without terms.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn charge(&self, amounts: &Amounts, full_time: u64) -> Result<LineCharge, MoneyOverflow> {
        let full = ExactMoney::of_time(self.time, full_time);
        let (time, money) = match self.terms {
            Some(terms) => {
                let time = terms.charged_time(amounts, full_time);
                (time, ExactMoney::of_time(terms.discounted(self.time), time))
            }
            None => (full_time, full),
        };
        let energy = amounts.energy_static.0.saturating_add(amounts.energy_dynamic.0);
        Ok(LineCharge {
            time,
            money,
            energy: ExactMoney::of_energy(self.energy, energy),
            terms_difference: full.minus(money)?,
            rate_difference: ExactMoney::of_time(self.gpu, full_time).minus(full)?,
        })
    }
}

/// What the lines of a GPU's span cost. The lines have their tenants, and no charges yet.
#[derive(Clone, Copy, Debug)]
pub struct PricedSpan<'a> {
    pub schedule: &'a RateSchedule,
    pub gpu: &'a GpuId,
    pub model: &'a str,
    pub at: Utc,
}

/// The money of a slot that its lines are not charged.
type Differences = BTreeMap<(&'static str, SlotId, LineRates), ExactMoney>;

impl PricedSpan<'_> {
    /// Charges each line, and adds lines for what differs from GPU time x the rate of the GPU: `__terms__` for what terms take
    /// off or add, and `__rate_variance__` for the prices of MIG instances.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn price(self, mut lines: Vec<BillLine>) -> Result<Vec<BillLine>, MoneyOverflow> {
        let charged = charges(lines.iter().map(|line| ChargedSlot {
            slot: &line.slot,
            holder: &line.holder,
            parts: &line.amounts.parts,
        }));
        for Charge { slot, holder, .. } in &charged[lines.len()..] {
            // `__unavailable__` is charged for holders' unavailable time without time of its own.
            lines.push(self.remainder(holder.as_str(), slot.clone()));
        }
        let mut differences = Differences::new();
        for (line, Charge { time, .. }) in lines.iter_mut().zip(charged) {
            self.price_line(line, time, &mut differences)?;
        }
        for ((name, slot, rates), money) in differences {
            if money != ExactMoney::ZERO {
                lines.push(BillLine { rates, exact: money, ..self.remainder(name, slot) });
            }
        }
        Ok(lines)
    }

    fn price_line(
        &self,
        line: &mut BillLine,
        full_time: u64,
        differences: &mut Differences,
    ) -> Result<(), MoneyOverflow> {
        let slot =
            PricedSlot { uuid: &self.gpu.uuid, model: self.model, profile: line.slot.profile.as_ref() };
        let rates = SlotRates::find(self.schedule, slot, self.at);
        let terms = self.schedule.terms_of(&line.tenant, self.at);
        line.rates = rates.numbers(terms);
        let nano = |rate: Option<&Recorded<Rate>>| rate.map_or(0, |rate| rate.entry.nano);
        let prices = LinePrices {
            time: rates.nano_per_gpu_hour(),
            gpu: nano(rates.gpu),
            energy: nano(rates.energy),
            terms: terms.map(|terms| &terms.entry),
        };
        let charge = prices.charge(&line.amounts, full_time)?;
        *if rates.time().is_some() { &mut line.charged } else { &mut line.unpriced } =
            Nanoseconds(charge.time);
        line.exact_energy = charge.energy;
        line.exact = charge.money.plus(charge.energy)?;
        for (name, rates, difference) in [
            (HolderId::TERMS, line.rates.of_terms(), charge.terms_difference),
            (HolderId::RATE_VARIANCE, line.rates.of_variance(), charge.rate_difference),
        ] {
            let sum = differences.entry((name, line.slot.clone(), rates)).or_default();
            *sum = sum.plus(difference)?;
        }
        Ok(())
    }

    fn remainder(&self, name: &str, slot: SlotId) -> BillLine {
        let empty = BillLine::empty(self.gpu.clone(), HolderId::new(name));
        BillLine { tenant: name.to_owned(), slot, ..empty }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::accounting::billing::{Basis, PriceBook, RateSelector};
    use crate::model::{Microjoules, Money, NodeIdentity, Parts, Use};

    const HOUR: u64 = 3_600_000_000_000;

    fn rate(kind: RateKind, nano: i64, mig_profile: Option<&str>) -> Rate {
        let selector =
            RateSelector { mig_profile: mig_profile.map(str::to_owned), ..RateSelector::default() };
        let tariff = Tariff { currency: "EUR".into(), class: "on_demand".into() };
        Rate { kind, selector, from: None, nano, tariff, derivation: None }
    }

    fn line(tenant: &str, slot: SlotId, within: u64, idle: u64) -> BillLine {
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let mut line =
            BillLine { tenant: tenant.into(), slot, ..BillLine::empty(gpu, HolderId::new(tenant)) };
        line.amounts.parts = Parts { within, idle, ..Parts::default() };
        line.amounts.used = Use { within, ..Use::default() };
        line.amounts.energy_static = Microjoules(HOUR / 2);
        line
    }

    fn priced(book: &PriceBook, lines: Vec<BillLine>) -> Vec<(String, u64, i128)> {
        let schedule = RateSchedule::always(book, &NodeIdentity::default());
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let span = PricedSpan { schedule: &schedule, gpu: &gpu, model: "H100", at: Utc(1) };
        let lines = span.price(lines).unwrap();
        lines.into_iter().map(|line| (line.tenant, line.charged.0, line.exact.floor().0)).collect()
    }

    fn expected(lines: &[(&str, u64, i128)]) -> Vec<(String, u64, i128)> {
        lines.iter().map(|(tenant, time, nano)| ((*tenant).to_owned(), *time, *nano)).collect()
    }

    #[test]
    fn what_terms_take_off_stands_beside_so_that_the_sum_is_the_full_rate() {
        let terms =
            Terms { tenant: "ml".into(), basis: Basis::Used, discount: 100_000_000, ..Terms::default() };
        let book = PriceBook { rates: vec![rate(RateKind::GpuHour, 1_000, None)], terms: vec![terms] };
        let whole = SlotId::default;
        let lines = vec![line("ml", whole(), HOUR / 4, HOUR / 4), line("bio", whole(), 0, HOUR / 2)];
        let priced = priced(&book, lines);
        assert_eq!(priced, expected(&[("ml", HOUR / 4, 225), ("bio", HOUR / 2, 500), ("__terms__", 0, 275)]));
        assert_eq!(priced.iter().map(|line| line.2).sum::<i128>(), 1_000);
    }

    #[test]
    fn an_instance_has_its_list_price_and_the_difference_to_the_gpu_is_a_line() {
        let book = PriceBook {
            rates: vec![rate(RateKind::GpuHour, 800, None), rate(RateKind::InstanceHour, 150, Some("1g.*"))],
            ..PriceBook::default()
        };
        let slot = |id, name: &str, size| SlotId {
            gpu_instance: Some(id),
            profile: Some(MigProfile { name: name.into(), size, total: 8 }),
        };
        let lines = vec![
            line("a", slot(7, "1g.10gb", 1), HOUR / 8, 0),
            line("b", slot(1, "3g.40gb", 4), HOUR / 2, 0),
            line("__unallocated__", SlotId::default(), 0, HOUR * 3 / 8),
        ];
        let priced = priced(&book, lines);
        let lines = [
            ("a", HOUR / 8, 150),
            ("b", HOUR / 2, 400),
            ("__unallocated__", HOUR * 3 / 8, 300),
            ("__rate_variance__", 0, -50),
        ];
        assert_eq!(priced, expected(&lines));
        assert_eq!(priced.iter().map(|line| line.2).sum::<i128>(), 800);
    }

    #[test]
    fn energy_with_a_price_of_its_own_is_added_without_a_discount() {
        let terms = Terms { tenant: "*".into(), discount: 500_000_000, ..Terms::default() };
        let rates = vec![rate(RateKind::GpuHour, 1_000, None), rate(RateKind::Kwh, 200, None)];
        let book = PriceBook { rates, terms: vec![terms] };
        let priced = priced(&book, vec![line("ml", SlotId::default(), HOUR, 0)]);
        assert_eq!(priced, expected(&[("ml", HOUR, 600), ("__terms__", 0, 500)]));
        assert_eq!(Money(priced.iter().map(|line| line.2).sum()), Money(1_100));
    }

    #[test]
    fn without_a_price_time_is_unpriced_and_costs_nothing() {
        let book =
            PriceBook { rates: vec![rate(RateKind::InstanceHour, 150, Some("*"))], ..PriceBook::default() };
        let profile = Some(MigProfile { name: "1g.10gb".into(), size: 1, total: 8 });
        let slot = SlotId { gpu_instance: Some(7), profile };
        assert_eq!(priced(&book, vec![line("a", slot, HOUR, 0)]), expected(&[("a", 0, 0)]));
    }
}
