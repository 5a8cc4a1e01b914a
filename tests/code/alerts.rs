//! The rules in `alerts/`: they fit the catalogue, somebody can act on them, and each is tested.
//!
//! Beside our own, the checks of pint that need no server, written again; which they are is said at each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use gpumeter::model::catalogue::Level;
use promql_parser::label::MatchOp;
use promql_parser::parser::{Expr, LabelModifier};

use crate::promql::{self, Needs};
use crate::rules::{self, Rule, read};

fn alerts() -> impl Iterator<Item = (String, Rule)> {
    rules::all().into_iter().filter_map(|rule| Some((rule.alert.clone()?, rule)))
}

fn place(rule: &Rule) -> String {
    let name = rule.alert.as_ref().or(rule.record.as_ref());
    format!("alerts/{}, {}", rule.file, name.map_or("a rule without a name", String::as_str))
}

/// The rules of budgets, which are for all clusters together.
const OF_ALL_CLUSTERS: &str = "budgets.yaml";

/// The level that a file's rules may need.
fn promised(file: &str) -> Level {
    if ["standard.yaml", "unit_cost.yaml"].contains(&file) { Level::Standard } else { Level::Lean }
}

#[test]
fn expressions_fit_the_catalogue_at_the_level_that_the_file_promises() {
    for rule in rules::all() {
        promql::check(&rule.expr).unwrap_or_else(|problem| panic!("{}: {problem}", place(&rule)));
        let mut needs = Needs::default();
        needs.add(&rule.expr);
        assert!(needs.level <= promised(&rule.file), "{} needs level {}", place(&rule), needs.level.name());
    }
}

#[test]
fn a_rule_is_in_one_group_and_written_once() {
    // rule/duplicate
    let mut seen = BTreeSet::new();
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    for rule in rules::all() {
        assert!(
            seen.insert((rule.record.clone(), rule.alert.clone(), rule.labels.clone(), rule.expr.clone())),
            "{}",
            place(&rule)
        );
        let file = groups.entry(rule.group.clone()).or_insert_with(|| rule.file.clone());
        assert_eq!(*file, rule.file, "two files have a group {}", rule.group);
    }
}

#[test]
fn recorded_series_are_named_by_level_metric_and_operation() {
    // rule/name, promql/aggregate
    for rule in rules::all() {
        let Some(name) = &rule.record else { continue };
        let parts: Vec<&str> = name.split(':').collect();
        assert_eq!(parts.len(), 3, "{name}");
        let labels = promql::check(&rule.expr).unwrap().labels;
        let month = name == "month:hour_ended:group" || rule.file == OF_ALL_CLUSTERS;
        let of_all_jobs = parts[0].split('_').any(|label| ["owner", "window"].contains(&label));
        assert!(month || labels.contains("cluster"), "{name} loses cluster");
        // Prices and objectives: what they are of may be on agents of several jobs.
        assert!(month || labels.contains("job") != of_all_jobs, "{name}: its series have a job, or lose it");
        for label in parts[0].split('_') {
            let has = labels.contains(label) || rule.labels.contains_key(label);
            assert!(has, "{name}: its series have no label {label}");
        }
    }
}

#[test]
fn alerts_have_a_condition_and_say_what_to_do() {
    for (name, rule) in alerts() {
        let place = place(&rule);
        // alerts/comparison
        let expression = promql::parsed(&rule.expr);
        let mut is_conditional = false;
        promql::visit(&expression, &mut Vec::new(), &mut |node, _| match node {
            Expr::Binary(binary) => {
                is_conditional |= binary.op.is_comparison_operator() || binary.op.to_string() == "unless"
            }
            Expr::Call(call) => is_conditional |= call.func.name == "absent",
            _ => {}
        });
        let selects = rule.labels["severity"] == "none";
        assert!(is_conditional || selects, "{place} always fires");
        // alerts/annotation, rule/link
        let annotations: Vec<&str> = rule.annotations.keys().map(String::as_str).collect();
        assert_eq!(annotations, ["description", "runbook_url", "summary"], "{place}");
        assert!(rule.annotations["description"].contains("First action:"), "{place} names no first action");
        assert!(!rule.annotations["summary"].contains('\n'), "{place}");
        let runbook = format!("file:///usr/share/doc/gpumeter/runbooks/{name}.md");
        assert_eq!(rule.annotations["runbook_url"], runbook, "{place}");
        // rule/label
        let severity = &*rule.labels["severity"];
        assert!(["page", "ticket", "notice", "none"].contains(&severity), "{place}: {severity}");
        assert!(["health", "agent", "usage", "cost"].contains(&&*rule.labels["component"]), "{place}");
        let series = promql::check(&rule.expr).unwrap();
        // One GPU or one node is no page; a notice has a tenant to go to.
        assert!(severity != "page" || !series.labels.contains("instance"), "{place} pages for one node");
        assert!(severity != "notice" || series.labels.contains("tenant"), "{place} has no tenant");
        // alerts/for
        for span in [&rule.lasts, &rule.keep_firing_for].into_iter().flatten() {
            assert!(!span.starts_with('0'), "{place}: {span}");
        }
    }
}

#[test]
fn annotations_name_labels_that_the_alert_has() {
    // alerts/template
    for (_, rule) in alerts() {
        let series = promql::check(&rule.expr).unwrap();
        for text in rule.annotations.values().chain(rule.labels.values()) {
            for part in text.split("$labels.").skip(1) {
                let is_letter = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
                let label: String = part.chars().take_while(is_letter).collect();
                let has = series.labels.contains(&label) || rule.labels.contains_key(&label);
                assert!(has, "{}: it has no label {label}", place(&rule));
            }
        }
        for text in rule.labels.values() {
            assert!(!text.contains("$value"), "{}: a label that changes makes new alerts", place(&rule));
        }
    }
}

#[test]
fn alerts_keep_the_cluster() {
    // promql/aggregate
    for (_, rule) in alerts().filter(|(_, rule)| rule.file != OF_ALL_CLUSTERS) {
        let expression = promql::parsed(&rule.expr);
        promql::visit(&expression, &mut Vec::new(), &mut |node, _| {
            let Expr::Aggregate(aggregate) = node else { return };
            match &aggregate.modifier {
                Some(LabelModifier::Include(by)) => {
                    assert!(
                        by.labels.contains(&"cluster".into()),
                        "{}: {aggregate} forgets the cluster",
                        place(&rule)
                    );
                }
                Some(LabelModifier::Exclude(without)) => {
                    assert!(!without.labels.contains(&"cluster".into()), "{}: {aggregate}", place(&rule));
                }
                None => panic!("{}: {aggregate} is over all clusters", place(&rule)),
            }
        });
    }
}

#[test]
fn matchers_and_windows_are_what_they_seem() {
    for rule in rules::all() {
        let expression = promql::parsed(&rule.expr);
        promql::visit(&expression, &mut Vec::new(), &mut |node, ancestors| match node {
            Expr::VectorSelector(_) | Expr::MatrixSelector(_) => {
                for (_, matchers) in promql::selectors(node) {
                    for matcher in &matchers.matchers {
                        // promql/regexp
                        let is_plain = matcher
                            .value
                            .bytes()
                            .all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
                        let is_pattern = matches!(matcher.op, MatchOp::Re(_) | MatchOp::NotRe(_));
                        assert!(!(is_plain && is_pattern), "{}: {matcher} needs no pattern", place(&rule));
                        assert!(
                            !matcher.value.starts_with('^') && !matcher.value.ends_with('$'),
                            "{}: {matcher}",
                            place(&rule)
                        );
                    }
                }
                // promql/rate: four scrapes of 15 s, of which one may fail.
                if let (Expr::MatrixSelector(matrix), Some(Expr::Call(_))) = (node, ancestors.last()) {
                    assert!(matrix.range.as_secs() >= 60, "{}: {node}", place(&rule));
                }
            }
            // promql/nan: without a guard 0 / 0 compares as false, which is what the rules rely on.
            _ => {}
        });
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let named: BTreeSet<String> = alerts().map(|(name, _)| name).collect();
    for alert in &named {
        let runbook = read(&format!("docs/runbooks/{alert}.md"));
        assert!(runbook.starts_with(&format!("# {alert}\n")), "{alert}");
        let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, ["Meaning", "Impact", "Confirm", "Do", "Stop"], "{alert}");
        for link in runbook.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks").join(link);
            assert!(target.exists(), "{alert}: {link} leads nowhere");
        }
    }
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks")).unwrap();
    let runbooks = folder.map(|file| file.unwrap().file_name().into_string().unwrap().replace(".md", ""));
    assert_eq!(runbooks.collect::<BTreeSet<_>>(), named);
}

/// Files of tests for promtool.
fn test_files() -> Vec<String> {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts")).unwrap();
    let files = folder.map(|file| format!("alerts/{}", file.unwrap().file_name().to_str().unwrap()));
    files.filter(|file| file.ends_with(".yaml") && read(file).contains("\ntests:\n")).collect()
}

#[test]
fn every_alert_is_tested_to_fire_and_to_stay_silent() {
    let (mut fires, mut is_silent) = (BTreeSet::new(), BTreeSet::new());
    let named: BTreeSet<String> = alerts().map(|(name, _)| name).collect();
    for file in test_files() {
        let tests: serde_json::Value = serde_yaml::from_str(&read(&file)).unwrap();
        for test in tests["tests"].as_array().unwrap() {
            let list = |key: &str| test[key].as_array().cloned().unwrap_or_default();
            for one in list("alert_rule_test") {
                let name = one["alertname"].as_str().unwrap().to_owned();
                let expected = one["exp_alerts"].as_array().map_or(0, Vec::len);
                let _ = if expected > 0 { fires.insert(name) } else { is_silent.insert(name) };
            }
            for one in list("promql_expr_test") {
                let expression = one["expr"].as_str().unwrap();
                let expected = one["exp_samples"].as_array().map_or(0, Vec::len);
                for name in named.iter().filter(|name| expression.contains(&format!("alertname=\"{name}\"")))
                {
                    let _ = if expected > 0 {
                        fires.insert(name.clone())
                    } else {
                        is_silent.insert(name.clone())
                    };
                }
            }
        }
    }
    assert_eq!(named.difference(&fires).collect::<Vec<_>>(), Vec::<&String>::new(), "no test lets them fire");
    assert_eq!(
        named.difference(&is_silent).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no test keeps them silent"
    );
}

#[test]
fn the_example_for_alertmanager_names_alerts_and_severities_that_are_there() {
    let known: BTreeSet<String> = alerts().map(|(name, _)| name).collect();
    let severities: BTreeSet<String> = alerts().map(|(_, rule)| rule.labels["severity"].clone()).collect();
    let text = read("alerts/alertmanager.yml");
    let mut named = 0;
    for (label, values) in [("alertname", &known), ("severity", &severities)] {
        for matcher in text.split(&format!("{label}=")).skip(1) {
            let pattern = matcher.trim_start_matches('~').split('"').nth(1).unwrap();
            for value in pattern.split('|') {
                assert!(values.contains(value), "alerts/alertmanager.yml: there is no {label} {value}");
                named += 1;
            }
        }
    }
    assert!(named > 15, "{named}");
    for severity in severities {
        assert!(text.contains(&format!("severity=\"{severity}\"")), "no route is for {severity}");
    }
}
