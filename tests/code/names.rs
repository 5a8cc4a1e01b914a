//! Every metric that a document names is a family of the catalogue, and names follow `docs/contributing/names.md`, where each exception
//! is listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpumeter::model::catalogue::{Family, Kind, Rows, families};

use crate::promql::known_family;
use crate::rules::{self, read};

/// The words of a text that look like our metrics.
fn names(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'))
        .filter(|word| ["gpu_", "gpumeter_", "process_"].iter().any(|prefix| word.starts_with(prefix)))
        .filter(|word| !["gpu_instance", "process_"].contains(word))
        .map(ToOwned::to_owned)
        .collect()
}

fn known(name: &str) -> &'static Family {
    known_family(name).unwrap_or_else(|| panic!("{name} is no family of the catalogue"))
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
    let alerts: BTreeSet<String> = rules::all().into_iter().filter_map(|rule| rule.alert).collect();
    for document in documents {
        let text = read(&document);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        for word in words.filter(|word| word.starts_with("Gpu") && *word != "Gpu") {
            assert!(alerts.contains(word), "{document}: there is no alert {word}");
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
    ("gpu_nvswitch_sxid_errors_total", "sxid"),
    ("gpu_nvswitch_sxid_last_timestamp_seconds", "sxid"),
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
    let text = read("docs/contributing/names.md");
    let found: BTreeSet<(&str, &str)> = families()
        .filter(|family| !later(family))
        .flat_map(|family| {
            let words = family.name.split('_').skip(1);
            words.filter(|word| family.labels.contains(word)).map(|word| (family.name, word))
        })
        .collect();
    assert_eq!(found, SUBJECTS.iter().copied().collect());
    for (_, label) in SUBJECTS {
        assert!(text.contains(&format!("`{label}`")), "docs/contributing/names.md does not mention {label}");
    }
}
