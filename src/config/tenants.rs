//! Reads the tenant rules (`tenants.rules`), and the attributes and budgets of tenants.

use std::collections::BTreeMap;

use super::entries::{EntryPlace, Mistake, entries_of, read_entries};
use super::problem::{Complaint, ProblemCollector};
use super::time::moment;
use super::tree::YamlNode;
use super::values::{billionths, name, nearest};
use crate::accounting::tenants::{TenantRule, is_label};
use crate::model::{Fact, Money, PodLabel, RESERVED};

pub(crate) type TenantAttributes = BTreeMap<String, BTreeMap<String, String>>;

const MOST_ATTRIBUTES: usize = 16;

#[derive(Default)]
pub(crate) struct RuleDraft {
    rule: TenantRule,
    trust_labels: bool,
}

entry_keys! { RuleDraft;
    r#match => rule.patterns, pairs("labels of gpu_workload_info with patterns", add_pattern),
        Required("{slurm_account: \"phys*\"}"),
        "Labels of a holder, each with a pattern in which * stands for anything; all must match.";
    tenant => rule.tenant, text("a name, with {label} for the value of a label", name), Required("physics-{slurm_partition}"),
        "The tenant; a rule with a {label} that a holder lacks does not match it.";
    tenants => rule.tenants, texts("a tenant", name), Optional("physics-a100"),
        "The tenants that a name with placeholders may yield; by default any.";
    from => rule.from, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"),
        "Its start, also in the past; by default the next quarter hour.";
    trust_labels => trust_labels, flag(), Default("false"),
        "Accept labels and images that users can forge, without a namespace or account.";
}

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<TenantRule> {
    entries_of(read_entries(items, base, TABLE.keys, report, |draft: RuleDraft, at, _| {
        let RuleDraft { rule, trust_labels } = draft;
        // Mistakes in the patterns and the tenant were reported.
        if rule.patterns.is_empty() || rule.tenant.is_empty() {
            return Err(None);
        }
        match check(&rule, trust_labels, at) {
            Ok(()) => Ok(rule),
            Err(mistake) => Err(Some(mistake)),
        }
    }))
}

fn check(rule: &TenantRule, trust_labels: bool, at: &EntryPlace) -> Result<(), Mistake> {
    let tenant = |wrong: &str, remedy: &str| {
        Err(Mistake::new("tenant", Complaint::about(&rule.tenant, wrong, remedy)))
    };
    if !rule.is_well_formed() {
        return tenant("has a brace without its pair", "give placeholders such as {slurm_account}");
    }
    if let Some(label) = rule.labels().find(|label| !is_label(label)) {
        return Err(Mistake::new("tenant", unknown_label(label)));
    }
    for name in std::iter::once(&rule.tenant).chain(&rule.tenants) {
        if name.starts_with(RESERVED) {
            let key = if *name == rule.tenant { "tenant" } else { "tenants" };
            let remedy = "give one that does not begin with __";
            return Err(Mistake::new(key, Complaint::about(name, "is a reserved name", remedy)));
        }
    }
    if rule.is_literal() && at.has("tenants") {
        let text = "belongs to a tenant with placeholders; remove it, or give tenant: \"{label}\"";
        return Err(Mistake::of("tenants", text));
    }
    let Some(label) = rule.forgeable_label().filter(|_| !trust_labels) else { return Ok(()) };
    if !rule.is_confined() {
        return Err(Mistake::of(
            "match",
            format!(
                "reads {label}, which users can forge; match also k8s_namespace_name or slurm_account by more than \
                 wildcards, or give trust_labels: true"
            ),
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

pub(super) fn add_pattern(
    patterns: &mut BTreeMap<String, String>,
    label: &str,
    pattern: &str,
) -> Result<(), Complaint> {
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
