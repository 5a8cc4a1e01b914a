//! `docs/alerts.md`: every rule with its level and severity.

use std::collections::BTreeMap;

use gpumeter::model::catalogue::Level;

use super::check::{Outcome, check};
use crate::promql::Needs;
use crate::rules::{self, Rule};

/// What each file is for, and when it may be left out.
const FILES: &[(&str, &str)] = &[
    ("lean.yaml", "what somebody should look at"),
    ("standard.yaml", "what needs level standard; without it these rules stay silent"),
    ("tenants.yaml", "for the owners of work"),
    ("absence.yaml", "no agent at all, and targets that were never scraped"),
    (
        "maintenance.yaml",
        "nodes that a scheduler takes no work to, by kube-state-metrics or an exporter of Slurm's nodes",
    ),
    ("pushed.yaml", "for agents that only push OTLP, instead of absence.yaml"),
    (
        "unit_cost.yaml",
        "what tokens, requests and other units of work cost; needs sampling.workload_counters",
    ),
    ("recording.yaml", "sums that the dashboards of a fleet read, and hours and months of tenants"),
];

fn document() -> String {
    let mut text = String::from(
        "# Rules\n\nGenerated from `alerts/` by `UPDATE=1 cargo test generated`. [monitoring.md](monitoring.md#rules) installs them. \
         [monitoring.md](monitoring.md#who-gets-which-alert) explains the severities. Each alert has a runbook in \
         [runbooks](runbooks/). `promtool test rules alerts/tests.yaml` lets each alert fire and stay silent.\n",
    );
    let mut by_file: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
    for rule in rules::all() {
        by_file.entry(rule.file.clone()).or_default().push(rule);
    }
    let known = FILES.iter().map(|(file, _)| (*file).to_owned());
    let further = by_file.keys().filter(|file| !FILES.iter().any(|(known, _)| known == file)).cloned();
    for file in known.chain(further.collect::<Vec<_>>()) {
        let purpose = FILES
            .iter()
            .find(|(known, _)| *known == file)
            .map_or(String::new(), |(_, purpose)| format!(": {purpose}"));
        text += &format!("\n## `alerts/{file}`{purpose}\n");
        let rules = by_file.get(&file).map_or(&[][..], Vec::as_slice);
        text += &alerts(rules);
        text += &recorded(rules);
    }
    text
}

fn level(rule: &Rule) -> Level {
    let mut needs = Needs::default();
    needs.add(&rule.expr);
    needs.level
}

fn alerts(rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        let Some(name) = &rule.alert else { continue };
        if text.is_empty() {
            text += "\n| alert | severity | level | after | what it says |\n|---|---|---|---|---|\n";
        }
        let summary = rule.annotations["summary"].replace('|', "\\|");
        let row = format!(
            "| [{name}](runbooks/{name}.md) | {} | {} | {} | {} |\n",
            rule.labels["severity"],
            level(rule).name(),
            rule.lasts.as_deref().unwrap_or("at once"),
            readable(&summary)
        );
        // An objective has an alert for each pair of windows.
        if !text.ends_with(&row) {
            text += &row;
        }
    }
    text
}

/// A summary without the template language: a label by its name, and of two alternatives the first.
fn readable(summary: &str) -> String {
    let (mut text, mut is_alternative) = (String::new(), false);
    for (at, part) in summary.split("{{").enumerate() {
        let (inside, after) = if at == 0 { ("", part) } else { part.split_once("}}").unwrap_or((part, "")) };
        is_alternative = inside.trim() == "else" || is_alternative && inside.trim() != "end";
        if is_alternative {
            continue;
        }
        if let Some(label) = inside.trim().strip_prefix("$labels.") {
            text += &format!("*{label}*");
        } else if inside.contains("$value") {
            text += "*value*";
        } else if inside.trim() == "." {
            text += "*name*";
        }
        text += after;
    }
    text
}

fn recorded(rules: &[Rule]) -> String {
    let mut names: Vec<String> = Vec::new();
    for rule in rules {
        let Some(name) = &rule.record else { continue };
        let row = format!("| `{name}` | {} | {} |\n", rule.group, level(rule).name());
        if !names.contains(&row) {
            names.push(row);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    format!("\n| recorded | group | level |\n|---|---|---|\n{}", names.concat())
}

#[test]
fn the_list_of_rules_is_what_the_files_have() -> Outcome {
    check("docs/alerts.md", &document())
}
