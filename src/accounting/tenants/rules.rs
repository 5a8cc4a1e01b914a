//! The operator's tenant rules, and the attributes of tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ClassRule;
use crate::accounting::billing::{TenantBudget, optional_time};
use crate::model::{Fact, Facts, Holder, HolderKind, PodLabel, RESERVED, Utc, matches_pattern};

/// The operator's rules in order of precedence, and what else is known of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantRules {
    /// The first that matches a holder yields its tenant.
    pub rules: Vec<TenantRule>,
    /// Attributes, such as a cost center, by tenant and name.
    pub attributes: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub budgets: BTreeMap<String, TenantBudget>,
    /// The first that matches a holder says what it is for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantRule {
    /// Patterns by label of `gpu_workload_info`; all must match.
    #[serde(rename = "match")]
    pub patterns: BTreeMap<String, String>,
    /// The tenant; `{label}` stands for the value of that label.
    pub tenant: String,
    /// The tenants that it may yield; empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// When it begins, also in the past; none: when it was first recorded.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_time")]
    pub from: Option<Utc>,
}

impl TenantRules {
    /// The tenant that the first matching rule yields; none without one, and for remainders.
    pub fn matched(&self, holder: &Holder) -> Option<Arc<str>> {
        self.rule_of(holder).map(|(_, tenant)| tenant)
    }

    pub fn rule_of(&self, holder: &Holder) -> Option<(usize, Arc<str>)> {
        let mut rules = self.rules.iter().enumerate().filter(|_| can_have_rule(holder));
        rules.find_map(|(place, rule)| Some((place, rule.tenant_of(&holder.facts)?.into())))
    }
}

impl TenantRule {
    /// The tenant of a holder with these facts; none if the rule does not match, or would yield no valid name.
    fn tenant_of(&self, facts: &Facts) -> Option<String> {
        if !matches(&self.patterns, facts) {
            return None;
        }
        let mut tenant = String::new();
        for part in template(&self.tenant)? {
            match part {
                TemplatePart::Text(text) => tenant.push_str(text),
                TemplatePart::Label(label) => tenant.push_str(facts.labelled(label)?),
            }
        }
        let may_yield = self.tenants.is_empty() || self.tenants.contains(&tenant);
        (may_yield && !tenant.is_empty() && !tenant.starts_with(RESERVED)).then_some(tenant)
    }

    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let parts = template(&self.tenant).unwrap_or_default();
        self.patterns.keys().map(String::as_str).chain(parts.into_iter().filter_map(TemplatePart::label))
    }

    pub fn is_literal(&self) -> bool {
        template(&self.tenant).is_some_and(|parts| parts.into_iter().all(|part| part.label().is_none()))
    }

    /// Whether each pair of braces in the tenant has the name of a label.
    pub fn is_well_formed(&self) -> bool {
        template(&self.tenant).is_some()
    }

    /// A label that it reads whose values users can choose.
    pub fn forgeable_label(&self) -> Option<&str> {
        let is_forgeable = |label: &&str| {
            FORGEABLE.iter().any(|fact| fact.label() == *label) || label.starts_with(PodLabel::PREFIX)
        };
        self.labels().find(is_forgeable)
    }

    /// Whether it names a namespace or a Slurm account by more than wildcards.
    pub fn is_confined(&self) -> bool {
        [Fact::Namespace, Fact::SlurmAccount].into_iter().any(|fact| {
            let pattern = self.patterns.get(fact.label());
            pattern.is_some_and(|pattern| pattern.contains(|one| one != '*' && one != '?'))
        })
    }
}

/// Facts that users choose, beside labels of pods.
const FORGEABLE: [Fact; 2] = [Fact::ContainerImage, Fact::SlurmJobName];

/// Whether rules are asked about a holder; they are not about remainders.
pub(super) fn can_have_rule(holder: &Holder) -> bool {
    !matches!(holder.id.kind(), HolderKind::Remainder | HolderKind::Other)
}

/// Whether all patterns, by label, match these facts.
pub(super) fn matches(patterns: &BTreeMap<String, String>, facts: &Facts) -> bool {
    patterns
        .iter()
        .all(|(label, pattern)| facts.labelled(label).is_some_and(|text| matches_pattern(pattern, text)))
}

pub fn is_label(name: &str) -> bool {
    Fact::ALL.iter().any(|fact| fact.label() == name)
        || name.strip_prefix(PodLabel::PREFIX).is_some_and(|rest| !rest.is_empty())
}

#[derive(Clone, Copy)]
enum TemplatePart<'a> {
    Text(&'a str),
    Label(&'a str),
}

impl<'a> TemplatePart<'a> {
    fn label(self) -> Option<&'a str> {
        match self {
            Self::Text(_) => None,
            Self::Label(label) => Some(label),
        }
    }
}

/// The parts of a tenant with placeholders; none if its braces are not pairs with a name.
fn template(tenant: &str) -> Option<Vec<TemplatePart<'_>>> {
    let mut parts = Vec::new();
    let mut rest = tenant;
    while let Some((before, after)) = rest.split_once('{') {
        let (label, behind) = after.split_once('}')?;
        if before.contains('}') || label.is_empty() || label.contains('{') {
            return None;
        }
        parts.extend([TemplatePart::Text(before), TemplatePart::Label(label)]);
        rest = behind;
    }
    if rest.contains('}') {
        return None;
    }
    parts.push(TemplatePart::Text(rest));
    Some(parts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::Money;

    fn rule(patterns: &[(&str, &str)], tenant: &str) -> TenantRule {
        let patterns = patterns.iter().map(|(label, pattern)| (label.to_string(), pattern.to_string()));
        TenantRule { patterns: patterns.collect(), tenant: tenant.to_owned(), ..TenantRule::default() }
    }

    fn rules(rules: Vec<TenantRule>) -> TenantRules {
        TenantRules { rules, ..TenantRules::default() }
    }

    fn job(account: &str, partition: &str) -> Holder {
        let known = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, "7"), (Fact::SlurmAccount, account)];
        let partition = Some((Fact::SlurmPartition, partition)).filter(|(_, text)| !text.is_empty());
        Holder::new(HolderKind::Slurm, Facts::new(known.into_iter().chain(partition)))
    }

    #[test]
    fn the_first_rule_of_which_all_patterns_match_yields_the_tenant() {
        let rules = rules(vec![
            rule(&[("slurm_account", "phys*"), ("slurm_partition", "a?00")], "fast"),
            rule(&[("slurm_account", "phys*")], "physics"),
            rule(&[("slurm_account", "*")], "rest"),
        ]);
        let tenant = |account, partition| rules.matched(&job(account, partition));
        assert_eq!(tenant("phys1", "a100").as_deref(), Some("fast"));
        assert_eq!(tenant("phys1", "h100").as_deref(), Some("physics"));
        assert_eq!(tenant("phys1", "").as_deref(), Some("physics"));
        assert_eq!(tenant("bio", "a100").as_deref(), Some("rest"));
        assert_eq!(rules.matched(&Holder::user("alice", None)), None);
    }

    #[test]
    fn a_placeholder_is_replaced_by_its_fact_and_without_it_the_rule_does_not_match() {
        let rules = rules(vec![
            rule(&[("slurm_account", "phys*")], "{slurm_account}-{slurm_partition}x"),
            rule(&[("slurm_account", "phys*")], "other"),
        ]);
        assert_eq!(rules.matched(&job("phys", "h100")).as_deref(), Some("phys-h100x"));
        assert_eq!(rules.matched(&job("phys", "")).as_deref(), Some("other"));
        for (tenant, is_well_formed) in
            [("a", true), ("a{b}", true), ("{b", false), ("b}", false), ("{}", false), ("{a{b}}", false)]
        {
            assert_eq!(rule(&[], tenant).is_well_formed(), is_well_formed, "{tenant}");
        }
    }

    #[test]
    fn a_rule_yields_neither_a_reserved_name_nor_one_that_is_not_listed() {
        let derived = rules(vec![rule(&[("slurm_account", "*")], "{slurm_account}")]);
        assert_eq!(derived.matched(&job("__system__", "")), None);
        assert_eq!(derived.matched(&job("_x", "")).as_deref(), Some("_x"));
        let listed = TenantRule { tenants: vec!["a".into()], ..derived.rules[0].clone() };
        let listed = rules(vec![listed]);
        assert_eq!(listed.matched(&job("a", "")).as_deref(), Some("a"));
        assert_eq!(listed.matched(&job("b", "")), None);
    }

    #[test]
    fn labels_of_pods_are_read_by_their_names_in_metrics_and_count_as_forgeable() {
        let mut pod = Holder::new(
            HolderKind::Pod,
            Facts::new([(Fact::PodUid, "1"), (Fact::PodContainer, "c"), (Fact::Namespace, "lab")]),
        );
        pod.facts.set_pod_labels([PodLabel::new("example.com/team", "vision")]);
        let by_label = rule(&[("k8s_pod_label_example_com_team", "vis*")], "vision");
        assert_eq!(rules(vec![by_label.clone()]).matched(&pod).as_deref(), Some("vision"));
        assert_eq!(by_label.forgeable_label(), Some("k8s_pod_label_example_com_team"));
        assert!(!by_label.is_confined());
        assert!(rule(&[("k8s_namespace_name", "ml-*")], "x").is_confined());
        assert!(!rule(&[("k8s_namespace_name", "*?")], "x").is_confined());
        assert_eq!(rule(&[], "{container_image}").forgeable_label(), Some("container_image"));
        assert_eq!(rule(&[("k8s_pod_name", "*")], "x").forgeable_label(), None);
    }

    #[test]
    fn remainders_have_no_other_tenant() {
        let all = rules(vec![rule(&[], "mine")]);
        assert_eq!(all.matched(&Holder::remainder(crate::model::HolderId::new("__unallocated__"))), None);
        assert_eq!(all.matched(&Holder::user("alice", None)).as_deref(), Some("mine"));
    }

    #[test]
    fn rules_are_stored_as_the_configuration_names_them() {
        let rules = rules(vec![rule(&[("slurm_account", "phys*")], "physics")]);
        let json = r#"{"rules":[{"match":{"slurm_account":"phys*"},"tenant":"physics"}],"attributes":{}}"#;
        assert_eq!(serde_json::to_string(&rules).unwrap(), json);
        assert_eq!(serde_json::from_str::<TenantRules>(json).unwrap(), rules);
        let budget = TenantBudget { amount: Money(5_000_500_000_000), currency: "EUR".into() };
        let rules = TenantRules { budgets: [("ml".to_owned(), budget)].into(), ..TenantRules::default() };
        let json =
            r#"{"rules":[],"attributes":{},"budgets":{"ml":{"amount":"5000.500000000","currency":"EUR"}}}"#;
        assert_eq!(serde_json::to_string(&rules).unwrap(), json);
        assert_eq!(serde_json::from_str::<TenantRules>(json).unwrap(), rules);
    }
}
