//! The recorded versions of the tenant rules, and which of them is in force at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use super::{TenantRule, TenantRules, tenant};
use crate::billing::TenantBudget;
use crate::model::{Holder, QUARTER_HOUR, Utc};

/// The rules of a time without any.
static NO_RULES: LazyLock<Arc<TenantRules>> = LazyLock::new(Arc::default);

/// A version of the rules. It is in force until the next one begins, its rules with a given begin also before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRules {
    /// Its number; a version that was recorded later has a greater one.
    pub id: i64,
    /// When it is first in force.
    pub begin: Utc,
    /// When it was recorded.
    pub recorded: Utc,
    /// Its rules hold at no time before this one, whatever begin was given.
    pub covered_until: Utc,
    /// The rules.
    pub rules: Arc<TenantRules>,
}

impl RecordedRules {
    /// When a rule that this version adds begins, if a begin was given.
    fn begin_of(&self, rule: &TenantRule) -> Option<Utc> {
        Some(rule.from?.max(self.covered_until.ceil(QUARTER_HOUR)))
    }
}

/// The rules between two changes: those of a version, after the rules that later versions gave for that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesInForce {
    /// The number of the last version that decides on them.
    pub id: i64,
    /// When they are first in force.
    pub begin: Utc,
    /// When that version was recorded.
    pub recorded: Utc,
    /// The rules.
    pub rules: Arc<TenantRules>,
}

/// The versions that a node has recorded, in order of their ids; none begins before an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSchedule {
    versions: Vec<RecordedRules>,
    /// What follows from them, in order of time.
    in_force: Vec<RulesInForce>,
}

impl RuleSchedule {
    /// A schedule of recorded versions, in order of their ids.
    pub fn new(versions: Vec<RecordedRules>) -> Self {
        let given = versions.iter().flat_map(|version| {
            let rules = version.rules.rules.iter().filter_map(|rule| version.begin_of(rule));
            rules.chain([version.begin])
        });
        let begins: BTreeSet<Utc> = given.collect();
        let mut in_force = Vec::<RulesInForce>::new();
        for begin in begins {
            let Some(next) = rules_at(&versions, begin) else { continue };
            if in_force.last().is_none_or(|last| (last.id, &last.rules) != (next.id, &next.rules)) {
                in_force.push(next);
            }
        }
        Self { versions, in_force }
    }

    /// The schedule of a node that has always had these rules.
    pub fn always(rules: TenantRules) -> Self {
        let mut schedule = Self::default();
        schedule.record(&rules, RulesAt { now: Utc(0), is_new: true, covered_until: Utc(0) });
        schedule
    }

    /// The recorded versions, in order of their ids.
    pub fn versions(&self) -> &[RecordedRules] {
        &self.versions
    }

    /// The rules at a time.
    pub fn rules(&self, at: Utc) -> &Arc<TenantRules> {
        self.in_force(at).map_or(&NO_RULES, |known| &known.rules)
    }

    /// The rules at a time, with what decides on them; none before the first.
    pub fn in_force(&self, at: Utc) -> Option<&RulesInForce> {
        self.in_force.iter().rev().find(|rules| rules.begin <= at)
    }

    /// The budgets of a month that ends at that time: those in force at its end, or recorded last.
    pub fn budgets_until(&self, end: Utc) -> &BTreeMap<String, TenantBudget> {
        &self.rules(Utc(end.0.saturating_sub(1))).budgets
    }

    /// Whether a holder has the same tenant with other facts, at any time.
    pub fn keeps_tenant(&self, known: &Holder, other: &Holder) -> bool {
        let is_always = self.in_force.first().is_some_and(|first| first.begin == Utc(0));
        let rules = self.in_force.iter().map(|rules| &*rules.rules);
        let mut rules = rules.chain(Some(&**NO_RULES).filter(|_| !is_always));
        rules.all(|rules| tenant(known, rules) == tenant(other, rules))
    }

    /// The times inside a span at which the rules change, in order.
    pub fn changes_between(&self, from: Utc, to: Utc) -> Vec<Utc> {
        let begins = self.in_force.iter().map(|rules| rules.begin);
        begins.filter(|at| from < *at && *at < to).collect()
    }

    /// When the last version was recorded that decides on a time between two times.
    pub fn last_between(&self, from: Utc, to: Utc) -> Utc {
        let ends = self.in_force.iter().skip(1).map(|next| Some(next.begin)).chain([None]);
        let inside = self.in_force.iter().zip(ends);
        let inside = inside.filter(|(rules, end)| rules.begin < to && end.is_none_or(|end| end > from));
        inside.map(|(rules, _)| rules.recorded).max().unwrap_or_default()
    }

    /// Records rules in place of the last ones. They begin at the quarter hour after they are recorded; where no time is
    /// settled yet, they are in force from the beginning. Returns whether they differ from the last ones.
    pub fn record(&mut self, rules: &TenantRules, at: RulesAt) -> bool {
        let last = self.versions.last();
        if last.map_or(&**NO_RULES, |last| &*last.rules) == rules {
            return false;
        }
        let begin = if at.is_new { Utc(0) } else { at.now.floor(QUARTER_HOUR).plus(QUARTER_HOUR) };
        let version = RecordedRules {
            id: last.map_or(1, |last| last.id + 1),
            begin: begin.max(last.map_or(Utc(0), |last| last.begin)),
            recorded: at.now,
            covered_until: at.covered_until,
            rules: Arc::new(rules.clone()),
        };
        self.versions.push(version);
        *self = Self::new(std::mem::take(&mut self.versions));
        true
    }
}

/// When rules are recorded.
#[derive(Clone, Copy, Debug)]
pub struct RulesAt {
    /// The time of the record.
    pub now: Utc,
    /// Whether no time is settled yet.
    pub is_new: bool,
    /// Rules hold at no time before this one, whatever begin was given.
    pub covered_until: Utc,
}

/// The rules at a time; none before the first.
fn rules_at(versions: &[RecordedRules], at: Utc) -> Option<RulesInForce> {
    let known = versions.iter().take_while(|version| version.begin <= at).count();
    let version = known.checked_sub(1).map(|place| &versions[place]);
    let mut deciding = version;
    let mut rules = Vec::new();
    // What a later version added for this time, the last recorded first.
    for place in (known..versions.len()).rev() {
        let (later, before) =
            (&versions[place], place.checked_sub(1).map(|before| &versions[before].rules.rules));
        let added =
            later.rules.rules.iter().filter(|rule| before.is_none_or(|before| !before.contains(rule)));
        let added = added.filter(|rule| later.begin_of(rule).is_some_and(|begin| begin <= at));
        let count = rules.len();
        rules.extend(added.cloned());
        if rules.len() > count && deciding.is_none_or(|known| known.id < later.id) {
            deciding = Some(later);
        }
    }
    let own = version.into_iter().flat_map(|version| &version.rules.rules);
    rules.extend(own.filter(|rule| rule.from.is_none_or(|from| from <= at)).cloned());
    let (deciding, rest) = (deciding?, version.map(|version| (*version.rules).clone()).unwrap_or_default());
    Some(RulesInForce {
        id: deciding.id,
        begin: at,
        recorded: deciding.recorded,
        rules: Arc::new(TenantRules { rules, ..rest }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Nanoseconds;

    fn rules(tenant: &str) -> TenantRules {
        let rule = TenantRule { tenant: tenant.to_owned(), ..TenantRule::default() };
        TenantRules { rules: vec![rule], ..TenantRules::default() }
    }

    /// Rules with begins in quarter hours.
    fn with_begins<const N: usize>(given: [(&str, Option<u64>); N]) -> TenantRules {
        let rule = |(tenant, from): (&str, Option<u64>)| TenantRule {
            tenant: tenant.to_owned(),
            from: from.map(quarter),
            ..TenantRule::default()
        };
        TenantRules { rules: given.map(rule).into(), ..TenantRules::default() }
    }

    const fn quarter(count: u64) -> Utc {
        Utc(count * QUARTER_HOUR.0)
    }

    /// Recorded a second after the begin of a quarter hour.
    fn during(count: u64) -> RulesAt {
        RulesAt { now: quarter(count).plus(Nanoseconds::SECOND), is_new: false, covered_until: Utc(0) }
    }

    fn tenants(schedule: &RuleSchedule, quarters: std::ops::Range<u64>) -> Vec<String> {
        let rules = quarters.map(|count| schedule.rules(quarter(count)).rules.clone());
        rules
            .map(|rules| rules.iter().map(|rule| rule.tenant.as_str()).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn a_change_begins_at_the_next_quarter_hour_and_leaves_the_past_as_it_was() {
        let mut schedule = RuleSchedule::default();
        assert!(!schedule.record(&TenantRules::default(), during(1)));
        assert!(schedule.record(&rules("a"), RulesAt { is_new: true, ..during(3) }));
        assert!(!schedule.record(&rules("a"), during(4)));
        assert!(schedule.record(&rules("b"), during(5)));
        assert!(schedule.record(&rules("c"), during(5)));
        assert!(schedule.record(&TenantRules::default(), during(7)));
        assert_eq!(tenants(&schedule, 0..9), ["a", "a", "a", "a", "a", "a", "c", "c", ""]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(9)), [6, 8].map(quarter));
        assert_eq!(schedule.versions().len(), 4);
    }

    #[test]
    fn a_rule_with_a_begin_precedes_what_was_in_force_then_but_not_in_covered_time() {
        let mut schedule = RuleSchedule::default();
        schedule
            .record(&with_begins([("a", None), ("later", Some(4))]), RulesAt { is_new: true, ..during(0) });
        assert_eq!(tenants(&schedule, 3..5), ["a", "a later"]);
        let late = with_begins([("a", None), ("late", Some(2)), ("later", Some(4))]);
        schedule.record(&late, RulesAt { covered_until: Utc(1), ..during(5) });
        assert_eq!(
            tenants(&schedule, 0..7),
            ["a", "a", "late a", "late a", "late a later", "late a later", "a late later"]
        );
        // A correction repeats the begin; what is covered keeps its tenant.
        let corrected = with_begins([("a", None), ("right", Some(2))]);
        schedule.record(&corrected, RulesAt { covered_until: Utc(quarter(3).0 + 1), ..during(6) });
        assert_eq!(
            tenants(&schedule, 2..8),
            ["late a", "late a", "right late a later", "right late a later", "right a late later", "a right"]
        );
        let decided = [1, 3, 4, 7].map(|count| schedule.in_force(quarter(count)).map(|rules| rules.id));
        assert_eq!(decided, [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(9)), [2, 4, 6, 7].map(quarter));
    }
}
