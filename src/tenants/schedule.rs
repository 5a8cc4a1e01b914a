//! The recorded versions of the tenant rules, and which of them is in force at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::{TenantRules, tenant};
use crate::billing::TenantBudget;
use crate::model::{Holder, QUARTER_HOUR, Utc};

/// The rules of a time without any.
static NO_RULES: LazyLock<Arc<TenantRules>> = LazyLock::new(Arc::default);

/// A version of the rules. It is in force until the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRules {
    /// Its number; a version that was recorded later has a greater one.
    pub id: i64,
    /// When it is first in force.
    pub begin: Utc,
    /// When it was recorded.
    pub recorded: Utc,
    /// The rules.
    pub rules: Arc<TenantRules>,
}

/// The versions that a node has recorded, in order of their ids; none begins before an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSchedule {
    versions: Vec<RecordedRules>,
}

impl RuleSchedule {
    /// A schedule of recorded versions, in order of their ids.
    pub const fn new(versions: Vec<RecordedRules>) -> Self {
        Self { versions }
    }

    /// The schedule of a node that has always had these rules.
    pub fn always(rules: TenantRules) -> Self {
        let mut schedule = Self::default();
        schedule.record(&rules, Utc(0), true);
        schedule
    }

    /// The recorded versions, in order of their ids.
    pub fn versions(&self) -> &[RecordedRules] {
        &self.versions
    }

    /// The rules at a time.
    pub fn in_force(&self, at: Utc) -> &Arc<TenantRules> {
        self.version_at(at).map_or(&NO_RULES, |version| &version.rules)
    }

    /// The version at a time; none before the first.
    pub fn version_at(&self, at: Utc) -> Option<&RecordedRules> {
        self.versions.iter().rev().find(|version| version.begin <= at)
    }

    /// The budgets of a month that ends at that time: those in force at its end, or recorded last.
    pub fn budgets_until(&self, end: Utc) -> &BTreeMap<String, TenantBudget> {
        &self.in_force(Utc(end.0.saturating_sub(1))).budgets
    }

    /// Whether a holder has the same tenant with other facts, at any time.
    pub fn keeps_tenant(&self, known: &Holder, other: &Holder) -> bool {
        let is_always = self.versions.first().is_some_and(|first| first.begin == Utc(0));
        let rules = self.versions.iter().map(|version| &*version.rules);
        let mut rules = rules.chain(Some(&**NO_RULES).filter(|_| !is_always));
        rules.all(|rules| tenant(known, rules) == tenant(other, rules))
    }

    /// The times inside a span at which a version begins, in order.
    pub fn changes_between(&self, from: Utc, to: Utc) -> Vec<Utc> {
        let begins = self.versions.iter().map(|version| version.begin);
        let mut changes: Vec<Utc> = begins.filter(|at| from < *at && *at < to).collect();
        changes.dedup();
        changes
    }

    /// Records rules in place of the last ones. They begin at the quarter hour after `now`; where no time is settled yet, they
    /// are in force from the beginning. Returns whether they differ from the last ones.
    pub fn record(&mut self, rules: &TenantRules, now: Utc, is_new: bool) -> bool {
        let last = self.versions.last();
        if last.map_or(&**NO_RULES, |last| &*last.rules) == rules {
            return false;
        }
        let begin = if is_new { Utc(0) } else { now.floor(QUARTER_HOUR).plus(QUARTER_HOUR) };
        self.versions.push(RecordedRules {
            id: last.map_or(1, |last| last.id + 1),
            begin: begin.max(last.map_or(Utc(0), |last| last.begin)),
            recorded: now,
            rules: Arc::new(rules.clone()),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::TenantRule;

    fn rules(tenant: &str) -> TenantRules {
        let rule = TenantRule { tenant: tenant.to_owned(), ..TenantRule::default() };
        TenantRules { rules: vec![rule], ..TenantRules::default() }
    }

    /// A second after the begin of a quarter hour.
    const fn during(quarter: u64) -> Utc {
        Utc(quarter * QUARTER_HOUR.0 + 1_000_000_000)
    }

    #[test]
    fn a_change_begins_at_the_next_quarter_hour_and_leaves_the_past_as_it_was() {
        let mut schedule = RuleSchedule::default();
        assert!(!schedule.record(&TenantRules::default(), during(1), false));
        assert!(schedule.record(&rules("a"), during(3), true));
        assert!(!schedule.record(&rules("a"), during(4), false));
        assert!(schedule.record(&rules("b"), during(5), false));
        assert!(schedule.record(&rules("c"), during(5), false));
        assert!(schedule.record(&TenantRules::default(), during(7), false));
        let tenant = |quarter| {
            schedule.in_force(during(quarter)).rules.first().map_or("", |rule| rule.tenant.as_str())
        };
        assert_eq!([0, 5, 6, 7, 8].map(tenant), ["a", "a", "c", "c", ""]);
        let changes = schedule.changes_between(during(0), during(9));
        assert_eq!(changes, [6, 8].map(|quarter| Utc(quarter * QUARTER_HOUR.0)));
        assert_eq!(schedule.versions().len(), 4);
    }
}
