//! The recorded versions of the tenant rules, and which of them is in force at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use super::{TenantRule, TenantRules, tenant};
use crate::accounting::billing::{Dated, Recorded, RecordedAt, Schedule, TenantBudget};
use crate::model::{Holder, NodeIdentity, QUARTER_HOUR, Utc};

static NO_RULES: LazyLock<Arc<TenantRules>> = LazyLock::new(Arc::default);

/// All rules together are one entry, a version: their order matters.
impl Dated for TenantRules {}

/// The versions that a node has recorded, in order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSchedule {
    /// A version is in force until the next one begins, its rules with a given begin also before.
    versions: Schedule<TenantRules>,
    /// What follows from them, in order of time: the rules between two changes, each with the last version that decides on them.
    in_force: Schedule<Arc<TenantRules>>,
}

impl RuleSchedule {
    pub fn new(versions: Schedule<TenantRules>) -> Self {
        let given = versions.entries().iter().flat_map(|version| {
            let rules = version.entry.rules.iter().filter_map(|rule| begin_of(rule, version));
            rules.chain([version.begin])
        });
        let begins: BTreeSet<Utc> = given.collect();
        let mut in_force = Vec::<Recorded<Arc<TenantRules>>>::new();
        for begin in begins {
            let Some(next) = rules_at(versions.entries(), begin) else { continue };
            if let Some(last) = in_force.last_mut() {
                if (last.id, &last.entry) == (next.id, &next.entry) {
                    continue;
                }
                last.end = Some(begin);
            }
            in_force.push(next);
        }
        Self { versions, in_force: Schedule::new(in_force) }
    }

    pub fn always(rules: &TenantRules) -> Self {
        let mut schedule = Self::default();
        schedule.record(rules, RecordedAt::first(&NodeIdentity::default()));
        schedule
    }

    pub const fn versions(&self) -> &Schedule<TenantRules> {
        &self.versions
    }

    pub fn rules(&self, at: Utc) -> &Arc<TenantRules> {
        self.in_force(at).map_or(&NO_RULES, |known| &known.entry)
    }

    /// The rules at a time, with the last version that decides on them; none before the first.
    pub fn in_force(&self, at: Utc) -> Option<&Recorded<Arc<TenantRules>>> {
        self.in_force.in_force(at).next()
    }

    /// The budgets of a month that ends at that time: those in force at its end, or recorded last.
    pub fn budgets_until(&self, end: Utc) -> &BTreeMap<String, TenantBudget> {
        &self.rules(Utc(end.0.saturating_sub(1))).budgets
    }

    /// Whether a holder has the same tenant with other facts, at any time.
    pub fn keeps_tenant(&self, known: &Holder, other: &Holder) -> bool {
        let all = self.in_force.entries();
        let is_always = all.first().is_some_and(|first| first.begin == Utc(0));
        let rules = all.iter().map(|rules| &*rules.entry);
        let mut rules = rules.chain(Some(&**NO_RULES).filter(|_| !is_always));
        rules.all(|rules| tenant(known, rules) == tenant(other, rules))
    }

    /// The times inside a span at which the rules change, in order.
    pub fn changes_between(&self, from: Utc, to: Utc) -> Vec<Utc> {
        let begins = self.in_force.entries().iter().map(|rules| rules.begin);
        begins.filter(|at| from < *at && *at < to).collect()
    }

    /// When the last version was recorded that decides on a time between two times.
    pub fn last_recorded(&self, from: Utc, to: Utc) -> Utc {
        self.in_force.last_recorded(from, to)
    }

    /// Records rules in place of the last ones. They begin at the quarter hour after they are recorded; where no time is
    /// settled yet, they are in force from the beginning. Returns whether they differ from the last ones.
    pub fn record(&mut self, rules: &TenantRules, at: RecordedAt<'_>) -> bool {
        // No rules are no version, unless there were some.
        let is_none = self.versions.entries().is_empty() && *rules == **NO_RULES;
        let is_changed = !is_none && self.versions.record(std::slice::from_ref(rules), at);
        if is_changed {
            *self = Self::new(std::mem::take(&mut self.versions));
        }
        is_changed
    }
}

fn begin_of(rule: &TenantRule, version: &Recorded<TenantRules>) -> Option<Utc> {
    Some(rule.from?.max(version.covered_until.ceil(QUARTER_HOUR)))
}

/// The rules at a time; none before the first.
fn rules_at(versions: &[Recorded<TenantRules>], at: Utc) -> Option<Recorded<Arc<TenantRules>>> {
    let place = versions.iter().rposition(|version| version.begin <= at);
    let version = place.map(|place| &versions[place]);
    let mut deciding = version;
    let mut rules = Vec::new();
    // What a later version added for this time, the last recorded first.
    for place in (place.map_or(0, |place| place + 1)..versions.len()).rev() {
        let later = &versions[place];
        let before = place.checked_sub(1).map(|before| &versions[before].entry.rules);
        let added =
            later.entry.rules.iter().filter(|rule| before.is_none_or(|before| !before.contains(rule)));
        let added = added.filter(|rule| begin_of(rule, later).is_some_and(|begin| begin <= at));
        let count = rules.len();
        rules.extend(added.cloned());
        if rules.len() > count && deciding.is_none_or(|known| known.id < later.id) {
            deciding = Some(later);
        }
    }
    let own = version.into_iter().flat_map(|version| &version.entry.rules);
    rules.extend(own.filter(|rule| rule.from.is_none_or(|from| from <= at)).cloned());
    let Recorded { id, recorded, covered_until, .. } = *deciding?;
    let rest = version.map(|version| version.entry.clone()).unwrap_or_default();
    let entry = Arc::new(TenantRules { rules, ..rest });
    Some(Recorded { id, entry, begin: at, end: None, recorded, covered_until })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Nanoseconds;

    fn rules(tenant: &str) -> TenantRules {
        let rule = TenantRule { tenant: tenant.to_owned(), ..TenantRule::default() };
        TenantRules { rules: vec![rule], ..TenantRules::default() }
    }

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
    fn during(count: u64) -> RecordedAt<'static> {
        static NODE: LazyLock<NodeIdentity> = LazyLock::new(NodeIdentity::default);
        let now = quarter(count).plus(Nanoseconds::SECOND);
        RecordedAt { now, is_new: false, ..RecordedAt::first(&NODE) }
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
        assert!(schedule.record(&rules("a"), RecordedAt { is_new: true, ..during(3) }));
        assert!(!schedule.record(&rules("a"), during(4)));
        assert!(schedule.record(&rules("b"), during(5)));
        assert!(schedule.record(&rules("c"), during(5)));
        assert!(schedule.record(&TenantRules::default(), during(7)));
        assert_eq!(tenants(&schedule, 0..9), ["a", "a", "a", "a", "a", "a", "c", "c", ""]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(9)), [6, 8].map(quarter));
        assert_eq!(schedule.versions().entries().len(), 4);
    }

    #[test]
    fn a_rule_with_a_begin_precedes_what_was_in_force_then_but_not_in_covered_time() {
        let mut schedule = RuleSchedule::default();
        schedule.record(
            &with_begins([("a", None), ("later", Some(4))]),
            RecordedAt { is_new: true, ..during(0) },
        );
        assert_eq!(tenants(&schedule, 3..5), ["a", "a later"]);
        let late = with_begins([("a", None), ("late", Some(2)), ("later", Some(4))]);
        schedule.record(&late, RecordedAt { covered_until: Utc(1), ..during(5) });
        assert_eq!(
            tenants(&schedule, 0..7),
            ["a", "a", "late a", "late a", "late a later", "late a later", "a late later"]
        );
        // A correction repeats the begin; what is covered keeps its tenant.
        let corrected = with_begins([("a", None), ("right", Some(2))]);
        schedule.record(&corrected, RecordedAt { covered_until: Utc(quarter(3).0 + 1), ..during(6) });
        assert_eq!(
            tenants(&schedule, 2..8),
            ["late a", "late a", "right late a later", "right late a later", "right a late later", "a right"]
        );
        let decided = [1, 3, 4, 7].map(|count| schedule.in_force(quarter(count)).map(|rules| rules.id));
        assert_eq!(decided, [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(9)), [2, 4, 6, 7].map(quarter));
    }
}
