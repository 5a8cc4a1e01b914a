//! The keys that differ between two versions of a configuration file. Texts are compared and not values, so `60s` instead of
//! `1m` is a change.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{YamlNode, YamlValue};

/// The text of each key, by its path; entries of a list have a number. No key without a value is in it.
pub(super) fn key_texts(tree: &YamlNode) -> BTreeMap<String, &str> {
    let mut texts = BTreeMap::new();
    collect(&mut texts, String::new(), tree);
    texts
}

fn collect<'a>(texts: &mut BTreeMap<String, &'a str>, path: String, node: &'a YamlNode) {
    match &node.shape {
        YamlValue::Empty => {}
        YamlValue::Scalar(text) => drop(texts.insert(path, text)),
        YamlValue::List(entries) => {
            for (place, entry) in entries.iter().enumerate() {
                collect(texts, format!("{path}[{place}]"), entry);
            }
        }
        YamlValue::Map(pairs) => {
            for (key, value) in pairs {
                let YamlValue::Scalar(name) = &key.shape else { continue };
                let dot = if path.is_empty() { "" } else { "." };
                collect(texts, format!("{path}{dot}{name}"), value);
            }
        }
    }
}

pub(super) fn changed_keys(old: &YamlNode, new: &YamlNode) -> Vec<String> {
    let (old, new) = (key_texts(old), key_texts(new));
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    paths.into_iter().filter(|path| old.get(*path) != new.get(*path)).cloned().collect()
}
