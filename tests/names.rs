//! Every metric that an alert, a panel or the README names is a family of the catalogue, and alerts need no more
//! than level lean, panels no more than standard unless they say so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpumeter::catalogue::{Family, Kind, LABELS, Level, family};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The words of a text that look like metrics of ours.
fn names(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'))
        .filter(|word| ["gpu_", "gpumeter_", "process_"].iter().any(|prefix| word.starts_with(prefix)))
        .filter(|word| !["gpu_instance", "process_"].contains(word))
        .map(ToOwned::to_owned)
        .collect()
}

fn known(name: &str) -> &'static Family {
    let histogram = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|end| family(name.strip_suffix(end)?).filter(|family| family.kind == Kind::Histogram));
    family(name).or(histogram).unwrap_or_else(|| panic!("{name} is no family of the catalogue"))
}

#[test]
fn alerts_name_what_exists_at_level_lean() {
    let rules: Vec<String> = read("alerts/gpumeter.yaml")
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(Into::into)
        .collect();
    let names = names(&rules.join("\n"));
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert_eq!(known(&name).level, Level::Lean, "{name}");
    }
}

#[test]
fn panels_name_what_exists_and_say_what_they_need() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboards/node.json")).unwrap();
    let mut panels = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let description = panel["description"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            panels += 1;
            for name in names(target["expr"].as_str().unwrap()) {
                let needs = known(&name).level;
                assert!(
                    needs <= Level::Standard || description.contains("full"),
                    "{}: {name} needs level {}",
                    panel["title"],
                    needs.name()
                );
            }
        }
    }
    assert!(panels > 10);
}

/// Metric, label and value of every `metric{label="value"}` of an expression; matchers by regular expression
/// or of another kind have no value.
fn matchers(expression: &str) -> Vec<(String, String, Option<String>)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('{') {
        let name = expression[..at].rsplit(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        let (Some(name), Some(end)) = (name.into_iter().next(), expression[at..].find('}')) else { continue };
        for matcher in expression[at + 1..at + end].split(',') {
            let Some((label, rest)) = matcher.split_once(['=', '!']) else { continue };
            let value = rest.strip_prefix('=').unwrap_or(rest).strip_prefix('"');
            let value = value.and_then(|value| value.strip_suffix('"')).filter(|value| !value.contains('$'));
            found.push((name.to_owned(), label.trim().to_owned(), value.map(ToOwned::to_owned)));
        }
    }
    found
}

/// Labels that a target adds to every series.
const OF_THE_TARGET: [&str; 2] = ["job", "instance"];

#[test]
fn expressions_choose_by_labels_and_values_that_exist() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboards/node.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions: Vec<String> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    // Annotations hold braces of another language.
    let rules = read("alerts/gpumeter.yaml");
    expressions.extend(rules.lines().filter(|line| !line.contains("{{")).map(ToOwned::to_owned));
    let mut checked = 0;
    for (metric, label, value) in expressions.iter().flat_map(|expression| matchers(expression)) {
        if OF_THE_TARGET.contains(&&*label)
            || !(metric.starts_with("gpu_") || metric.starts_with("gpumeter_"))
        {
            continue;
        }
        assert!(known(&metric).labels.contains(&&*label), "{metric} has no label {label}");
        let set = LABELS.iter().find(|known| known.name == label).unwrap().values;
        if let Some(value) = value.filter(|_| !set.is_empty()) {
            assert!(set.contains(&&*value), "{metric}: {label} is never {value}");
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked}");
}

#[test]
fn the_readme_names_what_exists() {
    for name in names(&read("README.md")) {
        known(&name);
    }
}
