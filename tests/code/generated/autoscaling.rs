//! `docs/autoscaling.md` shows the files of `examples/autoscaling`, and their queries fit the catalogue.

use serde_json::Value;

use super::check::{Outcome, check};
use crate::promql;
use crate::rules::{self, read};

const PAGE: &str = "docs/autoscaling.md";
const FOLDER: &str = "examples/autoscaling/";

#[test]
fn the_page_about_autoscaling_shows_the_files_it_names() -> Outcome {
    let text = read(PAGE);
    let mut parts = text.split("```yaml\n");
    let mut page = parts.next().unwrap_or_default().to_owned();
    let mut shown = 0;
    for part in parts {
        let (_, named) = page.rsplit_once(&format!("](../{FOLDER}")).ok_or("a block without a file")?;
        let file = named.split(')').next().unwrap_or_default();
        let (_, rest) = part.split_once("```\n").ok_or("a block without an end")?;
        let contents = read(&format!("{FOLDER}{file}"));
        page += &format!("```yaml\n{contents}```\n{rest}");
        shown += 1;
    }
    assert_eq!(shown, 5);
    check(PAGE, &page)
}

/// Every `query` of a manifest's triggers, and the names of external metrics with their labels, as the selectors that ask for them.
fn queries(manifest: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let asked = |metric: &Value| {
        let labels = metric["selector"]["matchLabels"].as_object().unwrap().iter();
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}{{{}}}", metric["name"].as_str().unwrap(), labels.join(", "))
    };
    let triggers = list(&manifest["spec"]["triggers"]).into_iter();
    let metrics = list(&manifest["spec"]["metrics"]).into_iter();
    triggers
        .map(|trigger| trigger["metadata"]["query"].as_str().unwrap().to_owned())
        .chain(metrics.map(|metric| asked(&metric["external"]["metric"])))
        .collect()
}

#[test]
fn rules_manifests_and_questions_about_autoscaling_fit_the_catalogue() {
    let mut expressions: Vec<String> = rules::of_autoscaling().into_iter().map(|rule| rule.expr).collect();
    for file in ["scaledobject-requests", "scaledobject-activity", "hpa-requests"] {
        expressions.extend(queries(&serde_yaml::from_str(&read(&format!("{FOLDER}{file}.yaml"))).unwrap()));
    }
    let page = read(PAGE);
    let shown = page.split("```promql\n").nth(1).unwrap().split("```").next().unwrap();
    expressions.extend(shown.lines().filter(|line| !line.starts_with('#')).map(str::to_owned));
    assert_eq!(expressions.len(), 8 + 5 + 3, "{expressions:#?}");
    for expression in expressions {
        promql::check(&expression).unwrap_or_else(|problem| panic!("{expression}: {problem}"));
    }
}

/// What autoscalers do with the number is the same in the manifests and in the tests.
#[test]
fn the_tests_of_the_formula_have_the_queries_and_thresholds_of_the_manifests() {
    let tests = read(&format!("{FOLDER}tests.yaml"));
    for file in ["scaledobject-requests", "scaledobject-activity"] {
        let manifest: Value = serde_yaml::from_str(&read(&format!("{FOLDER}{file}.yaml"))).unwrap();
        for trigger in manifest["spec"]["triggers"].as_array().unwrap() {
            let asked = &trigger["metadata"];
            let formula = format!(
                "ceil({} / {})",
                asked["query"].as_str().unwrap(),
                asked["threshold"].as_str().unwrap()
            );
            assert!(tests.contains(&formula), "{file}: no test of {formula}");
            assert_eq!(asked["ignoreNullValues"], "false", "{file}");
        }
    }
    let hpa: Value = serde_yaml::from_str(&read(&format!("{FOLDER}hpa-requests.yaml"))).unwrap();
    for metric in hpa["spec"]["metrics"].as_array().unwrap() {
        assert_eq!(metric["external"]["target"]["averageValue"], "14");
    }
}
