//! `gpumeter bill --over-budget`: the tenants that a node's month costs more than their budget.

use std::collections::BTreeMap;

use super::text::{align_columns, marks, period, title};
use crate::billing::{Bill, TenantBudget, print_money};
use crate::model::{Money, shown};

/// The tenants over their budget.
pub(super) struct BudgetReport {
    /// Text for the reader.
    pub(super) page: String,
    /// How many are over.
    pub(super) over: usize,
}

/// Compares what the tenants of a month's bill are charged with their budgets.
pub(super) fn report(bill: &Bill) -> BudgetReport {
    let mut costs = BTreeMap::<&str, Money>::new();
    for line in &bill.lines {
        *costs.entry(&line.tenant).or_default() += line.money.unwrap_or_default();
    }
    let currency = bill.currency.as_deref().unwrap_or_default();
    let is_over = |(tenant, budget): &(&String, &TenantBudget)| {
        *budget.currency == *currency && costs.get(&***tenant).is_some_and(|cost| *cost > budget.amount)
    };
    let over: Vec<_> = bill.tenant_budgets.iter().filter(is_over).collect();
    let mut page = format!("{}\n{}\n", title(bill), period(bill));
    page += &marks(bill).iter().map(|mark| format!("{mark}\n")).collect::<String>();
    if over.is_empty() {
        page += "\nno tenant of this node is over its monthly budget\n";
    } else {
        let mut rows = vec![["tenant", currency, "budget", "over by"].map(str::to_owned).to_vec()];
        rows.extend(over.iter().map(|(tenant, TenantBudget { amount, .. })| {
            let cost = costs.get(&***tenant).copied().unwrap_or_default();
            let money = [cost, *amount, cost - *amount].map(print_money);
            [&[(*tenant).clone()][..], &money[..]].concat()
        }));
        page += &format!("\nover their monthly budget, on this node alone\n{}", align_columns(&rows, 1));
    }
    for (tenant, budget) in &bill.tenant_budgets {
        if *budget.currency != *currency {
            page += &format!(
                "{}: not compared, because its budget is in {} and the bill is not\n",
                shown(tenant),
                budget.currency
            );
        }
    }
    BudgetReport { page, over: over.len() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::billing::made;

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
        let found = report(&bill);
        assert_eq!(found.over, 1);
        let table = "over their monthly budget, on this node alone\n\
                     tenant             EUR          budget      over by\n\
                     ml      5000.000000001  5000.000000000  0.000000001\n\
                     chem: not compared, because its budget is in USD and the bill is not\n";
        assert!(found.page.ends_with(table), "{}", found.page);
        bill.tenant_budgets.retain(|tenant, _| tenant == "bio");
        let found = report(&bill);
        assert_eq!(found.over, 0);
        assert!(
            found.page.ends_with("\nno tenant of this node is over its monthly budget\n"),
            "{}",
            found.page
        );
    }
}
