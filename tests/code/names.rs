//! Every metric that an alert, a panel or a document names is a family of the catalogue; alerts need no more than
//! level lean, panels no more than standard unless they say so; and names follow `docs/names.md`, where each
//! exception is listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpumeter::catalogue::{Family, Kind, Level, Rows, families, family, values_of};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The words of a text that look like our metrics.
fn names(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'))
        .filter(|word| ["gpu_", "gpumeter_", "process_"].iter().any(|prefix| word.starts_with(prefix)))
        .filter(|word| !["gpu_instance", "process_"].contains(word))
        .map(ToOwned::to_owned)
        .collect()
}

/// All alerting rules.
fn rules() -> String {
    read("alerts/gpumeter.yaml") + &read("alerts/absence.yaml")
}

fn known(name: &str) -> &'static Family {
    let histogram = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|end| family(name.strip_suffix(end)?).filter(|family| family.kind == Kind::Histogram));
    family(name).or(histogram).unwrap_or_else(|| panic!("{name} is no family of the catalogue"))
}

#[test]
fn alerts_use_metrics_of_level_lean() {
    let rules: Vec<String> =
        rules().lines().filter(|line| !line.trim_start().starts_with('#')).map(Into::into).collect();
    let names = names(&rules.join("\n"));
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert_eq!(known(&name).level, Level::Lean, "{name}");
    }
}

#[test]
fn panels_use_existing_metrics_and_state_their_level() {
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

#[test]
fn every_alert_has_a_runbook_and_a_test_and_every_runbook_an_alert() {
    let (rules, tests) = (rules(), read("alerts/tests.yaml"));
    let alerts: BTreeSet<String> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(Into::into).collect();
    for alert in &alerts {
        let link = format!("runbook_url: file:///usr/share/doc/gpumeter/runbooks/{alert}.md\n");
        assert!(rules.contains(&link), "{alert}");
        assert!(
            tests.contains(&format!("alertname: {alert}\n")) || tests.contains(&format!("\"{alert}\"")),
            "{alert}"
        );
        assert!(read(&format!("docs/runbooks/{alert}.md")).starts_with(&format!("# {alert}\n")), "{alert}");
    }
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks")).unwrap();
    let runbooks = folder.map(|file| file.unwrap().file_name().into_string().unwrap().replace(".md", ""));
    assert_eq!(runbooks.collect::<BTreeSet<_>>(), alerts);
}

/// Metric, label and value of every `metric{label="value"}` of an expression; matchers of other kinds and with a
/// template as value have no value.
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
const OF_THE_TARGET: [&str; 3] = ["cluster", "job", "instance"];

#[test]
fn expressions_use_existing_labels_and_values() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboards/node.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions: Vec<String> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    // Annotations have braces of the template language.
    let rules = rules();
    expressions.extend(rules.lines().filter(|line| !line.contains("{{")).map(ToOwned::to_owned));
    let mut checked = 0;
    for (metric, label, value) in expressions.iter().flat_map(|expression| matchers(expression)) {
        if OF_THE_TARGET.contains(&&*label)
            || !(metric.starts_with("gpu_") || metric.starts_with("gpumeter_"))
        {
            continue;
        }
        assert!(known(&metric).labels.contains(&&*label), "{metric} has no label {label}");
        let set = values_of(known(&metric), &label);
        if let Some(value) = value.filter(|_| !set.is_empty()) {
            assert!(set.contains(&&*value), "{metric}: {label} is never {value}");
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked}");
}

#[test]
fn documents_name_existing_metrics_and_alerts() {
    let mut documents = vec!["README.md".to_owned(), "docs/monitoring.md".to_owned()];
    for runbook in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks")).unwrap() {
        documents.push(format!("docs/runbooks/{}", runbook.unwrap().file_name().to_str().unwrap()));
    }
    assert!(documents.len() > 3, "{documents:?}");
    for name in documents.iter().flat_map(|document| names(&read(document))) {
        known(&name);
    }
    for document in documents {
        let text = read(&document);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        for word in words.filter(|word| word.starts_with("Gpu") && *word != "Gpu") {
            assert!(rules().contains(&format!("- alert: {word}\n")), "{document}: there is no alert {word}");
        }
    }
}

/// The names of all families; histograms with all their series.
fn series() -> BTreeSet<String> {
    families()
        .flat_map(|family| {
            let ends: &[&str] = match family.kind {
                Kind::Histogram => &["_bucket", "_count", "_sum", "_created"],
                Kind::Counter => &["", "_created"],
                Kind::Gauge => &[""],
            };
            let stem = match family.kind {
                Kind::Counter => family.name.strip_suffix("_total").unwrap(),
                _ => family.name,
            };
            let own = (family.kind == Kind::Counter).then(|| family.name.to_owned());
            ends.iter().map(move |end| format!("{stem}{end}")).chain(own).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn no_family_writes_a_series_of_another() {
    let expected: usize = families()
        .map(|family| match family.kind {
            Kind::Histogram => 4,
            Kind::Counter => 3,
            Kind::Gauge => 1,
        })
        .sum();
    assert_eq!(series().len(), expected);
    for family in families() {
        let reserved = ["_bucket", "_count", "_sum", "_created", "_gcount", "_gsum"];
        assert!(!reserved.iter().any(|end| family.name.ends_with(end)), "{}", family.name);
    }
}

#[test]
fn a_metric_name_is_lower_case_without_repeated_words() {
    for family in families() {
        let words: Vec<&str> = family.name.split('_').collect();
        let distinct: BTreeSet<&str> = words.iter().copied().collect();
        assert_eq!(words.len(), distinct.len(), "{}", family.name);
        let plain = |word: &&str| {
            !word.is_empty()
                && word.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        };
        assert!(words.iter().all(plain), "{}", family.name);
        for unit in
            ["milliseconds", "ms", "mib", "kib", "percent", "mhz", "milliwatts", "fahrenheit", "millijoules"]
        {
            assert!(!distinct.contains(unit), "{}: {unit} is no base unit", family.name);
        }
    }
}

#[test]
fn info_and_state_metrics_are_always_1_and_no_others() {
    for family in families() {
        let help = family.help.starts_with("Always 1; ");
        let named = family.name.ends_with("_info");
        assert!(help || !named, "{}", family.name);
        let state = ["state", "action"].iter().any(|label| family.labels.last() == Some(label));
        assert!(!help || named || state || family.name == "gpu_unsupported", "{}", family.name);
    }
}

/// Words of a name that are also labels of the family, where the label selects one of what the word names.
const SUBJECTS: &[(&str, &str)] = &[
    ("gpu_engine_utilization_ratio", "engine"),
    ("gpu_engine_busy_seconds_total", "engine"),
    ("gpu_video_engine_active_ratio", "engine"),
    ("gpu_video_engine_active_seconds_total", "engine"),
    ("gpu_pipe_active_ratio", "pipe"),
    ("gpu_pipe_active_seconds_total", "pipe"),
    ("gpu_mig_pipe_active_ratio", "pipe"),
    ("gpu_mig_pipe_active_seconds_total", "pipe"),
    ("gpu_power_limit_watts", "limit"),
    ("gpu_module_power_limit_watts", "limit"),
    ("gpu_temperature_limit_celsius", "limit"),
    ("gpu_fan_speed_ratio", "fan"),
    ("gpu_clock_hertz", "clock"),
    ("gpu_clock_max_hertz", "clock"),
    ("gpu_fabric_state", "state"),
    ("gpu_nvlink_link_up", "link"),
    ("gpu_nvlink_link_bytes_total", "link"),
    ("gpu_nvlink_link_errors_total", "link"),
    ("gpu_xid_errors_total", "xid"),
    ("gpu_xid_action_errors_total", "action"),
    ("gpu_xid_last_timestamp_seconds", "xid"),
    ("gpu_xid_info", "xid"),
    ("gpu_recovery_action", "action"),
    ("gpumeter_collector_success", "collector"),
    ("gpumeter_collector_duration_seconds", "collector"),
    ("gpumeter_collector_errors_total", "collector"),
    ("gpumeter_driver_call_in_flight_seconds", "call"),
    ("gpumeter_source_info", "source"),
    ("gpumeter_resolver_success", "resolver"),
    ("gpumeter_resolver_age_seconds", "resolver"),
];

#[test]
fn a_metric_name_contains_no_label_except_its_subject() {
    let later = |family: &Family| matches!(family.rows, Rows::Account(_) | Rows::Process(_));
    let text = read("docs/names.md");
    let found: BTreeSet<(&str, &str)> = families()
        .filter(|family| !later(family))
        .flat_map(|family| {
            let words = family.name.split('_').skip(1);
            words.filter(|word| family.labels.contains(word)).map(|word| (family.name, word))
        })
        .collect();
    assert_eq!(found, SUBJECTS.iter().copied().collect());
    for (_, label) in SUBJECTS {
        assert!(text.contains(&format!("`{label}`")), "docs/names.md does not mention {label}");
    }
}
