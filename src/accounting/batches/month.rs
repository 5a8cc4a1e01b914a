//! What tenants are charged in a calendar month, as far as it is settled.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounting::billing::{BillLine, ExactMoney, Month, RateSchedule};
use crate::model::HolderId;

/// The most tenants of a month with an amount of their own; the others together are `__other__`. Units and users that come
/// only once would otherwise fill the memory.
const MOST_TENANTS: usize = 4_096;

/// What each tenant is charged in a month so far. A bill of the same time has the same amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonthCosts {
    pub month: Month,
    /// By tenant and currency.
    costs: BTreeMap<(Arc<str>, Arc<str>), ExactMoney>,
}

impl MonthCosts {
    pub const fn new(month: Month) -> Self {
        Self { month, costs: BTreeMap::new() }
    }

    pub fn charge(&mut self, lines: &[BillLine], schedule: &RateSchedule) {
        for line in lines.iter().filter(|line| line.exact != ExactMoney::ZERO) {
            if let Some(currency) = schedule.currency_of(&line.rates) {
                self.add(line.tenant.as_str().into(), currency, line.exact);
            }
        }
    }

    pub fn extend(&mut self, other: Self) {
        for ((tenant, currency), money) in other.costs {
            self.add(tenant, &currency, money);
        }
    }

    fn add(&mut self, tenant: Arc<str>, currency: &Arc<str>, money: ExactMoney) {
        let mut key = (tenant, Arc::clone(currency));
        if self.costs.len() >= MOST_TENANTS && !self.costs.contains_key(&key) {
            key.0 = HolderId::OTHER.into();
        }
        let sum = self.costs.entry(key).or_default();
        *sum = sum.saturating_plus(money);
    }

    pub fn is_empty(&self) -> bool {
        self.costs.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, ExactMoney)> {
        self.costs.iter().map(|((tenant, currency), money)| (tenant, currency, *money))
    }

    pub fn of(&self, tenant: &Arc<str>, currency: &Arc<str>) -> ExactMoney {
        self.costs.get(&(Arc::clone(tenant), Arc::clone(currency))).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::accounting::billing::{LineRates, PriceBook, Rate, RateKind, RateSelector};
    use crate::model::{GpuId, Money, NodeIdentity, Tariff, Utc};

    #[test]
    fn one_off_tenants_above_the_limit_are_charged_together() {
        let rate = Rate {
            kind: RateKind::GpuHour,
            selector: RateSelector::default(),
            from: None,
            nano: 1,
            tariff: Tariff { currency: "EUR".into(), class: "spot".into() },
            derivation: None,
        };
        let book = PriceBook { rates: vec![rate], ..PriceBook::default() };
        let schedule = RateSchedule::always(&book, &NodeIdentity::default());
        let mut costs = MonthCosts::new(Month::containing(Utc(0), &TimeZone::UTC).unwrap());
        let line = |number: usize| BillLine {
            tenant: number.to_string(),
            rates: LineRates { time: Some(1), ..LineRates::default() },
            exact: ExactMoney::from_parts(Money(3), 0).unwrap(),
            ..BillLine::empty(GpuId { index: 0, uuid: "GPU-0".into() }, HolderId::new("user:a"))
        };
        let lines: Vec<BillLine> = (0..MOST_TENANTS + 10).chain([0]).map(line).collect();
        costs.charge(&lines, &schedule);
        let of = |tenant: &str| costs.of(&tenant.into(), &"EUR".into()).floor().0;
        assert_eq!(["0", "1", HolderId::OTHER, "4100"].map(of), [6, 3, 30, 0]);
        assert_eq!(costs.iter().count(), MOST_TENANTS + 1);
    }
}
