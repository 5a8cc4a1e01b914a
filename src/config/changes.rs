//! The keys that differ between two versions of a configuration file. Texts are compared and not values, so `60s` instead of
//! `1m` is a change.

use std::collections::BTreeMap;
use std::fmt;

use super::key::Absent;
use super::settings::TABLE;
use super::tree::{self, YamlNode, YamlValue};
use crate::model::shown;

/// The text of each key of a file, by its path; entries of a list have a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyTexts {
    by_path: BTreeMap<String, String>,
    /// Whether the file is `{}`, which says that no key is meant.
    none_is_meant: bool,
}

/// A key whose text has changed. No key holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    path: String,
    old: Option<String>,
    new: Option<String>,
}

impl KeyTexts {
    pub(super) fn of(text: &str) -> Self {
        let mut texts = Self::default();
        if let Ok(tree) = tree::read(text, "") {
            texts.collect("", &tree);
            texts.none_is_meant = tree.shape == YamlValue::Map(Vec::new());
        }
        texts
    }

    /// Whether no key has a value.
    pub(super) fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// Whether no key has a value and nothing says that this is meant, as after a write that a full disk cut off.
    pub(super) fn is_blank(&self) -> bool {
        self.is_empty() && !self.none_is_meant
    }

    fn collect(&mut self, path: &str, node: &YamlNode) {
        match &node.shape {
            YamlValue::Empty => {}
            YamlValue::Scalar(text) => {
                self.by_path.insert(path.to_owned(), text.clone());
            }
            YamlValue::List(entries) => {
                for (place, entry) in entries.iter().enumerate() {
                    self.collect(&format!("{path}[{place}]"), entry);
                }
            }
            YamlValue::Map(pairs) => {
                for (key, value) in pairs {
                    let YamlValue::Scalar(name) = &key.shape else { continue };
                    let dot = if path.is_empty() { "" } else { "." };
                    self.collect(&format!("{path}{dot}{name}"), value);
                }
            }
        }
    }

    /// The keys that differ in `later`, by path.
    pub(super) fn changes(&self, later: &Self) -> Vec<KeyChange> {
        let mut paths: Vec<&String> = self.by_path.keys().chain(later.by_path.keys()).collect();
        paths.sort_unstable();
        paths.dedup();
        let change = |path: &String| {
            let (old, new) = (self.by_path.get(path).cloned(), later.by_path.get(path).cloned());
            (old != new).then(|| KeyChange { path: path.clone(), old, new })
        };
        paths.into_iter().filter_map(change).collect()
    }
}

impl KeyChange {
    /// The value, or the default if the key is not given.
    fn describe(&self, value: Option<&String>) -> String {
        let default = TABLE.keys.iter().find(|key| key.path == self.path).and_then(|key| match key.absent {
            Absent::Default(text) => Some(text),
            _ => None,
        });
        match (value, default) {
            (Some(value), _) => shown(value).into_owned(),
            (None, Some(text)) => format!("{text} (default)"),
            (None, None) => "not set".to_owned(),
        }
    }
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} -> {}",
            self.path,
            self.describe(self.old.as_ref()),
            self.describe(self.new.as_ref())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(old: &str, new: &str) -> Vec<String> {
        KeyTexts::of(old).changes(&KeyTexts::of(new)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changed_keys_have_their_old_and_new_values() {
        let old =
            "sampling: {interval: 1s}\nattribution: {standing: [{gpu: 0, user: alice, fraction: 1/2}]}\n";
        let new = "sampling: {interval: 2s, level: lean}\nattribution:\n  standing:\n    - {gpu: 0, user: bob, fraction: 1/2}\n";
        assert_eq!(
            changes(old, new),
            [
                "attribution.standing[0].user: alice -> bob",
                "sampling.interval: 1s -> 2s",
                "sampling.level: standard (default) -> lean",
            ]
        );
        assert_eq!(changes("otlp: {endpoint: \"http://a:1\"}", ""), ["otlp.endpoint: http://a:1 -> not set"]);
        assert!(changes(old, &format!("# A comment.\n{old}")).is_empty());
    }

    #[test]
    fn a_long_value_is_cut_and_a_line_stays_one() {
        let told = changes("", &format!("node: {{name: \"a\\nb{}\"}}", "x".repeat(200)));
        assert!(told[0].starts_with("node.name: not set -> a\\nbx") && told[0].ends_with("x…"), "{told:?}");
        assert!(told[0].chars().count() < 160, "{told:?}");
    }
}
