//! Reads the tenant rules (`tenants.rules`), and the attributes and budgets of tenants.

use std::collections::BTreeMap;

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, ProblemCollector};
use super::read_mapping::{self, KeyPositions};
use super::time::moment;
use super::tree::YamlNode;
use super::values::{add, billionths, name, nearest, put};
use crate::model::{Fact, Money, PodLabel, RESERVED, Utc};
use crate::tenants::{TenantRule, is_label};

/// Attributes by name, of each tenant.
pub(crate) type TenantAttributes = BTreeMap<String, BTreeMap<String, String>>;

/// The most attributes of a tenant.
const MOST_ATTRIBUTES: usize = 16;

keys! { RuleDraft;
"A rule while it is read."
pub(crate) struct RuleDraft () {
    r#match: BTreeMap<String, String>, pairs("labels of gpu_workload_info with patterns", add_pattern),
        Required("{slurm_account: \"phys*\"}"), Reload,
        "Labels of a holder, each with a pattern in which * stands for anything; all must match.";
    tenant: Option<String>, text("a name, with {label} for the value of a label", name), Required("physics-{slurm_partition}"), Reload,
        "The tenant; a rule with a {label} that a holder lacks does not match it.";
    tenants: Vec<String>, texts("a tenant", name), Optional("physics-a100"), Reload,
        "The tenants that a name with placeholders may yield; by default any.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "Its start, also in the past; by default the next quarter hour.";
    trust_labels: bool, flag(), Default("false"), Reload,
        "Accept labels and images that users can forge, without a namespace or account.";
}
}

/// Reads the list and returns the valid rules.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<TenantRule> {
    let mut rules = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = RuleDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        let RuleDraft { r#match: patterns, tenant: Some(tenant), tenants, from, trust_labels } = draft else {
            continue;
        };
        // Mistakes in the patterns were reported.
        if patterns.is_empty() {
            continue;
        }
        let rule = TenantRule { patterns, tenant, tenants, from };
        match check(&rule, trust_labels, &places) {
            Ok(()) => rules.push(rule),
            Err((key, complaint)) => {
                report.add(places.get(key).or(item.place), format!("{path}.{key}"), complaint)
            }
        }
    }
    rules
}

/// Checks a rule; the key that is wrong, and why.
fn check(
    rule: &TenantRule,
    trust_labels: bool,
    places: &KeyPositions,
) -> Result<(), (&'static str, Complaint)> {
    let tenant = |wrong: &str, remedy: &str| Err(("tenant", Complaint::about(&rule.tenant, wrong, remedy)));
    if !rule.is_well_formed() {
        return tenant("has a brace without its pair", "give placeholders such as {slurm_account}");
    }
    for label in rule.labels() {
        if !is_label(label) {
            return Err(("tenant", unknown_label(label)));
        }
    }
    for name in std::iter::once(&rule.tenant).chain(&rule.tenants) {
        if name.starts_with(RESERVED) {
            let key = if *name == rule.tenant { "tenant" } else { "tenants" };
            let remedy = "give one that does not begin with __";
            return Err((key, Complaint::about(name, "is a reserved name", remedy)));
        }
    }
    if rule.is_literal() && places.get("tenants").is_some() {
        let text = "belongs to a tenant with placeholders; remove it, or give tenant: \"{label}\"";
        return Err(("tenants", Complaint(text.to_owned())));
    }
    let Some(label) = rule.forgeable_label().filter(|_| !trust_labels) else { return Ok(()) };
    if !rule.is_confined() {
        return Err((
            "match",
            Complaint(format!(
                "reads {label}, which users can forge; match also k8s_namespace_name or slurm_account by more than \
                 wildcards, or give trust_labels: true"
            )),
        ));
    }
    if !rule.is_literal() && rule.tenants.is_empty() {
        let remedy = "list the tenants that it may yield (tenants: [a, b]), or give trust_labels: true";
        return tenant(
            &format!("has a placeholder in a rule that reads {label}, which users can forge"),
            remedy,
        );
    }
    Ok(())
}

/// Adds a pattern for a label.
fn add_pattern(patterns: &mut BTreeMap<String, String>, label: &str, pattern: &str) -> Result<(), Complaint> {
    if !is_label(label) {
        return Err(unknown_label(label));
    }
    if patterns.contains_key(label) {
        return Err(Complaint::about(pattern, "is a second pattern", "give one, or a rule for each"));
    }
    patterns.insert(label.to_owned(), name(pattern)?);
    Ok(())
}

fn unknown_label(label: &str) -> Complaint {
    let labels: Vec<&str> = Fact::ALL.iter().map(|fact| fact.label()).collect();
    let remedy = match nearest(label, &labels) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("give one such as k8s_namespace_name, slurm_account or {}<name>", PodLabel::PREFIX),
    };
    Complaint::about(label, "is not a label of gpu_workload_info", &remedy)
}

/// Adds an attribute of a tenant.
pub(crate) fn add_attribute(
    attributes: &mut TenantAttributes,
    tenant: &str,
    key: &str,
    value: &str,
) -> Result<(), Complaint> {
    let tenant = name(tenant)?;
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !(1..=40).contains(&key.len()) || !key.bytes().all(is_plain) {
        let remedy = "give at most 40 of a-z, 0-9 and _, such as cost_center";
        return Err(Complaint::about(key, "is not the name of an attribute", remedy));
    }
    let own = attributes.entry(tenant).or_default();
    if own.contains_key(key) {
        return Err(Complaint::about(value, "is a second value", "give one"));
    }
    if own.len() == MOST_ATTRIBUTES {
        return Err(Complaint::about(key, "is one attribute too many", "keep at most 16 of a tenant"));
    }
    own.insert(key.to_owned(), name(value)?);
    Ok(())
}

/// Adds the monthly budget of a tenant.
pub(crate) fn add_budget(
    budgets: &mut BTreeMap<String, Money>,
    tenant: &str,
    amount: &str,
) -> Result<(), Complaint> {
    if tenant.starts_with(RESERVED) {
        return Err(Complaint::about(
            tenant,
            "is a reserved name",
            "give a tenant that does not begin with __",
        ));
    }
    let tenant = name(tenant)?;
    if budgets.contains_key(&tenant) {
        return Err(Complaint::about(amount, "is a second budget of this tenant", "give one"));
    }
    budgets.insert(tenant, Money(billionths(amount, 1_000_000_000_000_000)?));
    Ok(())
}
