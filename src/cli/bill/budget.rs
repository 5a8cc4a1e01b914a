//! `gpumeter bill --over-budget`: the tenants that the month of a node, or of a fleet, costs more than their budget.

use std::collections::BTreeMap;

use super::text::begin;
use crate::accounting::billing::{Bill, print_money};
use crate::cli::report::{CellUnit, Column, Report, ReportPart, ReportTable};
use crate::model::{Money, shown};

pub(super) struct OverBudget {
    tenant: String,
    cost: Money,
    budget: Money,
}

pub(super) fn over_budget(bill: &Bill) -> Vec<OverBudget> {
    let mut costs = BTreeMap::<&str, Money>::new();
    for line in &bill.lines {
        *costs.entry(&line.tenant).or_default() += line.money.unwrap_or_default();
    }
    let currency = bill.currency.as_deref().unwrap_or_default();
    let in_currency = bill.tenant_budgets.iter().filter(|(_, budget)| *budget.currency == *currency);
    let compared = in_currency.map(|(tenant, budget)| OverBudget {
        tenant: tenant.clone(),
        cost: costs.get(&**tenant).copied().unwrap_or_default(),
        budget: budget.amount,
    });
    compared.filter(|one| one.cost > one.budget).collect()
}

pub(super) fn report(bill: &Bill, over: &[OverBudget]) -> Report {
    let mut report = begin(bill);
    let currency = bill.currency.as_deref().unwrap_or_default();
    let money = |heading, of: fn(&OverBudget) -> Money| {
        Column::new(heading, CellUnit::Number, move |row| print_money(of(row)).into())
    };
    let columns = [
        Column::new("tenant", CellUnit::Text, |row: &OverBudget| row.tenant.clone().into()),
        money(currency, |row| row.cost),
        money("budget", |row| row.budget),
        money("over by", |row| row.cost - row.budget),
    ];
    let [of, on] = match bill.fleet {
        Some(_) => ["these nodes", "all these nodes together"],
        None => ["this node", "this node alone"],
    };
    report.parts.push(if over.is_empty() {
        ReportPart::Note(format!("no tenant of {of} is over its monthly budget\n"))
    } else {
        let caption = format!("over their monthly budget, on {on}\n");
        ReportPart::Table(caption, ReportTable::new(columns, over, None))
    });
    let others = bill.tenant_budgets.iter().filter(|(_, budget)| *budget.currency != *currency);
    let others = others.map(|(tenant, budget)| {
        let (tenant, currency) = (shown(tenant), &budget.currency);
        format!("{tenant}: not compared, because its budget is in {currency} and the bill is not\n")
    });
    let others: String = others.collect();
    report.parts.extend((!others.is_empty()).then_some(ReportPart::Note(others)));
    report
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accounting::billing::made;
    use crate::cli::report::text;

    #[test]
    fn only_a_tenant_that_costs_more_than_its_budget_in_that_currency_is_listed() {
        let line = |tenant: &str, gpu: u32, money: &str| {
            made::line(&json!({"tenant": tenant, "holder": format!("user:{tenant}"), "gpu": gpu,
                "uuid": format!("GPU-{gpu}"), "held_ns": 1, "idle_ns": 1, "charged_ns": 1, "money": money}))
        };
        let budget = |amount: &str, currency: &str| json!({"amount": amount, "currency": currency});
        let mut bill = made::bill(&json!({
            "node": "gpu-7", "from": "2026-11-01T00:00:00Z", "to": "2026-11-22T17:30:00Z",
            "from_local": "2026-11-01T00:00:00+00:00", "to_local": "2026-11-22T17:30:00+00:00",
            "time_zone": "UTC", "closed_until": "2026-11-22T17:30:00Z", "currency": "EUR",
            "lines": [line("ml", 0, "4000.000000000"), line("ml", 1, "1000.000000001"), line("bio", 0, "10.000000000"),
                      line("chem", 0, "9.000000000"), line("rich", 0, "9.000000000")],
            "tenant_budgets": {"ml": budget("5000.000000000", "EUR"), "bio": budget("10.000000000", "EUR"),
                               "chem": budget("1.000000000", "USD")},
        }));
        let told = |bill: &Bill| text::report(&report(bill, &over_budget(bill)));
        let table = "over their monthly budget, on this node alone\n\
                     tenant             EUR          budget      over by\n\
                     ml      5000.000000001  5000.000000000  0.000000001\n\
                     \n\
                     chem: not compared, because its budget is in USD and the bill is not\n";
        assert!(told(&bill).ends_with(table), "{}", told(&bill));
        assert_eq!(over_budget(&bill).len(), 1);
        bill.tenant_budgets.retain(|tenant, _| tenant == "bio");
        assert!(
            told(&bill).ends_with("\nno tenant of this node is over its monthly budget\n"),
            "{}",
            told(&bill)
        );
    }
}
