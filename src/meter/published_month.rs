//! The budgets of tenants, and what tenants are charged in the month, as they are published.

use std::sync::Arc;

use super::budget::{SeriesBudget, SeriesList};
use crate::accounting::batches::MonthCosts;
use crate::accounting::tenants::RuleSchedule;
use crate::model::Utc;
use crate::model::snapshot::{BudgetEntry, MonthCostEntry};

/// Budgets and costs, which stay the same `Arc`s until the ledger reports others.
#[derive(Default)]
pub(super) struct PublishedMonth {
    rules: Option<Arc<RuleSchedule>>,
    month: Option<Arc<MonthCosts>>,
    budgets: Arc<[BudgetEntry]>,
    entries: Arc<[MonthCostEntry]>,
    /// Parallel to `entries`.
    costs: Arc<[i128]>,
}

pub(super) struct MonthRows {
    pub(super) budgets: Arc<[BudgetEntry]>,
    pub(super) entries: Arc<[MonthCostEntry]>,
    pub(super) costs: Arc<[i128]>,
}

impl PublishedMonth {
    /// The budgets and costs that fit into the series, which are charged for them; tenants with a budget come first.
    pub(super) fn update(
        &mut self,
        rules: &Arc<RuleSchedule>,
        month: Option<&Arc<MonthCosts>>,
        series: &mut SeriesBudget<'_>,
    ) -> MonthRows {
        let is_same_month = self.month.as_ref().map(Arc::as_ptr) == month.map(Arc::as_ptr);
        if !is_same_month || !self.rules.as_ref().is_some_and(|known| Arc::ptr_eq(known, rules)) {
            (self.rules, self.month) = (Some(Arc::clone(rules)), month.cloned());
            self.build();
        }
        let budgets = series.admit(SeriesList::Budgets, self.budgets.len());
        let costs = series.admit(SeriesList::MonthCosts, self.entries.len());
        MonthRows {
            budgets: first(&self.budgets, budgets),
            entries: first(&self.entries, costs),
            costs: first(&self.costs, costs),
        }
    }

    fn build(&mut self) {
        let end = self.month.as_ref().map_or(Utc(u64::MAX), |costs| costs.month.end);
        let budgets = self.rules.iter().flat_map(|rules| rules.budgets_until(end));
        let budgets = budgets.map(|(tenant, budget)| BudgetEntry {
            tenant: tenant.as_str().into(),
            currency: Arc::clone(&budget.currency),
            amount: budget.amount,
        });
        self.budgets = budgets.collect();
        let Some(costs) = &self.month else {
            (self.entries, self.costs) = Default::default();
            return;
        };
        let has_budget = |tenant: &str, currency: &str| {
            self.budgets.iter().any(|own| (&*own.tenant, &*own.currency) == (tenant, currency))
        };
        let with_budget = self.budgets.iter().map(|own| (&own.tenant, &own.currency));
        let others = costs.iter().map(|(tenant, currency, _)| (tenant, currency));
        let others = others.filter(|(tenant, currency)| !has_budget(tenant, currency));
        let rows = with_budget.chain(others).map(|(tenant, currency)| {
            let (tenant, currency) = (Arc::clone(tenant), Arc::clone(currency));
            // A tenant with a budget that is charged nothing yet has 0.
            let cost = costs.of(&tenant, &currency).floor().0;
            (MonthCostEntry { tenant, month: Arc::clone(&costs.month.name), currency }, cost)
        });
        let (entries, costs): (Vec<_>, Vec<_>) = rows.unzip();
        (self.entries, self.costs) = (entries.into(), costs.into());
    }
}

fn first<T: Clone>(rows: &Arc<[T]>, count: usize) -> Arc<[T]> {
    if count < rows.len() { rows[..count].into() } else { Arc::clone(rows) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::accounting::billing::{
        BillLine, ExactMoney, LineRates, Month, PriceBook, Rate, RateKind, RateSchedule, RateSelector,
        TenantBudget,
    };
    use crate::accounting::tenants::TenantRules;
    use crate::meter::budget::DroppedSeries;
    use crate::model::catalogue::Level;
    use crate::model::{GpuId, HolderId, Money, NodeIdentity, Tariff};

    fn costs(tenants: &[&str]) -> Arc<MonthCosts> {
        let rate = Rate {
            kind: RateKind::GpuHour,
            selector: RateSelector::default(),
            from: None,
            nano: 1,
            tariff: Tariff { currency: "EUR".into(), class: "spot".into() },
            derivation: None,
        };
        let book = PriceBook { rates: vec![rate], ..PriceBook::default() };
        let line = |tenant: &&str| BillLine {
            tenant: (*tenant).to_owned(),
            rates: LineRates { time: Some(1), ..LineRates::default() },
            exact: ExactMoney::from_parts(Money(7), 0).unwrap(),
            ..BillLine::empty(GpuId { index: 0, uuid: "GPU-0".into() }, HolderId::new("user:a"))
        };
        let lines: Vec<BillLine> = tenants.iter().map(line).collect();
        let mut costs = MonthCosts::new(Month::containing(Utc(0), &TimeZone::UTC).unwrap());
        costs.charge(&lines, &RateSchedule::always(&book, &NodeIdentity::default()));
        Arc::new(costs)
    }

    #[test]
    fn tenants_with_a_budget_come_first_and_have_0_before_they_are_charged() {
        let budget = |amount| TenantBudget { amount: Money(amount), currency: "EUR".into() };
        let budgets = [("ml", 5), ("new", 6)].map(|(tenant, amount)| (tenant.to_owned(), budget(amount)));
        let rules = TenantRules { budgets: budgets.into(), ..TenantRules::default() };
        let rules = Arc::new(RuleSchedule::always(&rules));
        let mut published = PublishedMonth::default();
        let mut rows = |costs: Option<&Arc<MonthCosts>>, left| {
            let mut dropped = DroppedSeries::new();
            let mut series = SeriesBudget { level: Level::Lean, dropped: &mut dropped, left };
            let rows = published.update(&rules, costs, &mut series);
            let entries = rows.entries.iter().zip(&*rows.costs);
            let entries = entries.map(|(entry, cost)| format!("{} {} {cost}", entry.tenant, entry.month));
            (rows.budgets.len(), entries.collect::<Vec<_>>(), dropped.values().sum::<u64>())
        };
        assert_eq!(rows(None, 9), (2, vec![], 0));
        let month = costs(&["bio", "ml"]);
        let all = ["ml 1970-01 7", "new 1970-01 0", "bio 1970-01 7"].map(str::to_owned);
        assert_eq!(rows(Some(&month), 9), (2, all.to_vec(), 0));
        assert_eq!(rows(Some(&month), 4), (2, all[..2].to_vec(), 1), "bio has no room");
        assert_eq!(rows(Some(&costs(&["bio"])), 9).1[0], "ml 1970-01 0");
    }
}
