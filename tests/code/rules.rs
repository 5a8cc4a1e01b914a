//! The rule files in `alerts/`: read as Prometheus reads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// A rule, with the file and the group that it is in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub record: Option<String>,
    pub alert: Option<String>,
    pub expr: String,
    #[serde(rename = "for")]
    pub lasts: Option<String>,
    pub keep_firing_for: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip)]
    pub file: String,
    #[serde(skip)]
    pub group: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    #[serde(rename = "interval")]
    _interval: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct RuleFile {
    #[serde(default)]
    groups: Vec<Group>,
}

/// The text of a file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The files in `alerts/` that hold rules, without their folder, sorted; the others test them.
pub fn files() -> Vec<String> {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts")).unwrap();
    let mut files: Vec<String> = folder
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|file| file.ends_with(".yaml") && !groups(file).is_empty())
        .collect();
    // Recorded series come before what reads them.
    files.sort_by_key(|file| (file != "recording.yaml", file.clone()));
    files
}

fn groups(file: &str) -> Vec<Group> {
    groups_of(&format!("alerts/{file}"))
}

fn groups_of(path: &str) -> Vec<Group> {
    let parsed: RuleFile =
        serde_yaml::from_str(&read(path)).unwrap_or_else(|problem| panic!("{path}: {problem}"));
    parsed.groups
}

/// The rules for autoscalers, which read other exporters' series too and are an example.
pub fn of_autoscaling() -> Vec<Rule> {
    groups_of("examples/autoscaling/rules.yaml").into_iter().flat_map(|group| group.rules).collect()
}

/// All rules, in the order of their files.
pub fn all() -> Vec<Rule> {
    let mut all = Vec::new();
    for file in files() {
        for group in groups(&file) {
            all.extend(group.rules.into_iter().map(|rule| Rule {
                file: file.clone(),
                group: group.name.clone(),
                ..rule
            }));
        }
    }
    all
}
