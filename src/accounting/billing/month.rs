//! Calendar months in a time zone, and the budgets that tenants have in each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

use super::json;
use crate::model::{Decimal, Money, Utc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Month {
    /// Its name, such as `2026-11`.
    pub name: Arc<str>,
    pub begin: Utc,
    /// The first moment of the next month.
    pub end: Utc,
}

impl Month {
    /// The month that contains a time; none in 2554, in which times of 64 bits end.
    pub fn containing(at: Utc, zone: &TimeZone) -> Option<Self> {
        let date = Timestamp::from(at).to_zoned(zone.clone()).date();
        let first = date.first_of_month();
        let moment = |date: jiff::civil::Date| {
            let begin = date.to_zoned(zone.clone()).ok()?.timestamp();
            // The month of 1970-01-01 begins before all times of 64 bits in zones east of UTC.
            Utc::try_from(begin.max(Timestamp::UNIX_EPOCH)).ok()
        };
        Some(Self {
            name: first.strftime("%Y-%m").to_string().into(),
            begin: moment(first)?,
            end: moment(first.checked_add(1.month()).ok()?)?,
        })
    }

    pub fn contains(&self, at: Utc) -> bool {
        (self.begin..self.end).contains(&at)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantBudget {
    #[serde(with = "json::money")]
    pub amount: Money,
    /// Its currency: that of the prices beside which it was given.
    pub currency: Arc<str>,
}

/// The budgets that nodes say a tenant has, on the last day on which any of them says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatedBudgets {
    #[serde(with = "json::time")]
    day: Utc,
    stated: Vec<StatedBudget>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatedBudget {
    #[serde(flatten)]
    pub budget: TenantBudget,
    pub nodes: BTreeSet<String>,
}

/// Budgets of one tenant that differ between nodes on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingBudgets {
    pub tenant: String,
    /// The one that counts is the first.
    pub budgets: Vec<StatedBudget>,
}

impl StatedBudgets {
    pub fn add(&mut self, day: Utc, node: &str, budget: &TenantBudget) {
        let nodes = [node.to_owned()].into();
        self.merge(Self { day, stated: vec![StatedBudget { budget: budget.clone(), nodes }] });
    }

    /// Adds what was said on some day; that of a day before the last one is history.
    pub fn merge(&mut self, other: Self) {
        if other.day < self.day {
            return;
        }
        if other.day > self.day {
            *self = other;
            return;
        }
        for StatedBudget { budget, nodes } in other.stated {
            match self.stated.iter_mut().find(|known| known.budget == budget) {
                Some(known) => known.nodes.extend(nodes),
                None => self.stated.push(StatedBudget { budget, nodes }),
            }
        }
    }

    /// The lowest one in a currency, so that no order of nodes decides; one in another currency if there is no other.
    pub fn counting(&self, currency: Option<&str>) -> Option<&TenantBudget> {
        self.ordered(currency).first().map(|first| &first.budget)
    }

    /// Of each tenant.
    pub fn all_counting(
        all: &BTreeMap<String, Self>,
        currency: Option<&str>,
    ) -> BTreeMap<String, TenantBudget> {
        all.iter()
            .filter_map(|(tenant, stated)| Some((tenant.clone(), stated.counting(currency)?.clone())))
            .collect()
    }

    /// What a reader must know if they differ.
    pub fn difference(&self, tenant: &str, currency: Option<&str>) -> Option<DifferingBudgets> {
        let budgets = self.ordered(currency).into_iter().cloned().collect();
        (self.stated.len() > 1).then(|| DifferingBudgets { tenant: tenant.to_owned(), budgets })
    }

    fn ordered(&self, currency: Option<&str>) -> Vec<&StatedBudget> {
        let mut ordered: Vec<&StatedBudget> = self.stated.iter().collect();
        ordered.sort_by_key(|one| {
            (Some(&*one.budget.currency) != currency, one.budget.amount, Arc::clone(&one.budget.currency))
        });
        ordered
    }
}

/// The first five names, and how many more there are.
pub fn list_first(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const NAMED: usize = 5;
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(NAMED).map(|name| name.as_ref().to_owned()).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl std::fmt::Display for DifferingBudgets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let budgets = self.budgets.iter().map(|StatedBudget { budget, nodes }| {
            let amount = Decimal::of_nano(budget.amount.0);
            format!("{amount} {} on {}", budget.currency, list_first(nodes))
        });
        let budgets: Vec<String> = budgets.collect();
        write!(
            f,
            "the budget of {} differs between nodes, and the first counts: {}",
            self.tenant,
            budgets.join("; ")
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn month(at: &str, zone: &str) -> [String; 3] {
        let at = at.parse::<Timestamp>().unwrap().as_nanosecond();
        let zone = TimeZone::get(zone).unwrap();
        let Month { name, begin, end } = Month::containing(Utc(at as u64), &zone).unwrap();
        [name.to_string(), begin.to_string(), end.to_string()]
    }

    #[test]
    fn a_month_begins_and_ends_at_midnight_in_its_zone() {
        assert_eq!(
            month("2026-10-31T22:59:59Z", "Europe/Zurich"),
            ["2026-10", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"],
            "an hour longer than 31 days"
        );
        assert_eq!(
            month("2026-10-31T23:00:00Z", "Europe/Zurich"),
            ["2026-11", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z"]
        );
        assert_eq!(
            month("2026-12-31T18:15:00Z", "Asia/Kathmandu"),
            ["2027-01", "2026-12-31T18:15:00Z", "2027-01-31T18:15:00Z"]
        );
        assert_eq!(month("1970-01-01T00:00:00Z", "Asia/Kolkata")[1], "1970-01-01T00:00:00Z");
        assert_eq!(Month::containing(Utc(u64::MAX), &TimeZone::UTC), None);
    }

    #[test]
    fn of_differing_budgets_of_the_last_day_the_lowest_counts_in_whatever_order_they_come() {
        let budget = |amount: i128, currency: &str| TenantBudget {
            amount: Money(amount * 1_000_000_000),
            currency: currency.into(),
        };
        let said = [
            (2, "n1", budget(50, "EUR")),
            (2, "n2", budget(40, "EUR")),
            (1, "n3", budget(1, "EUR")),
            (2, "n4", budget(3, "USD")),
            (2, "n5", budget(50, "EUR")),
        ];
        let mut orders = [said.clone(), said];
        orders[1].reverse();
        for order in orders {
            let mut stated = StatedBudgets::default();
            order.iter().for_each(|(day, node, budget)| stated.add(Utc(*day), node, budget));
            assert_eq!(stated.counting(Some("EUR")), Some(&budget(40, "EUR")));
            assert_eq!(stated.counting(Some("USD")), Some(&budget(3, "USD")));
            assert_eq!(
                stated.difference("ml", Some("EUR")).unwrap().to_string(),
                "the budget of ml differs between nodes, and the first counts: 40 EUR on n2; 50 EUR on n1, n5; 3 USD on n4"
            );
        }
        let mut one = StatedBudgets::default();
        one.add(Utc(1), "n1", &budget(5, "EUR"));
        one.add(Utc(1), "n2", &budget(5, "EUR"));
        assert_eq!(one.difference("ml", Some("EUR")), None);
    }
}
