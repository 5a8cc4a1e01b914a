//! Reads a YAML mapping by a table of keys: fills the target with values and defaults, and complains about every key that is
//! unknown, given twice, malformed, missing or of the wrong type.

use std::collections::BTreeMap;

use super::key::{Absent, Key, KeySetter};
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::tree::{YamlNode, YamlValue};
use super::values::nearest;
use crate::model::shown;

/// The position of each key that was given, valid or not.
pub(crate) struct KeyPositions {
    given: BTreeMap<&'static str, Option<FilePosition>>,
    /// Those whose list or mapping is empty, which mostly means the same as no key.
    empty: BTreeMap<&'static str, Option<FilePosition>>,
}

impl KeyPositions {
    pub(crate) fn get(&self, path: &str) -> Option<FilePosition> {
        self.given.get(path).copied().flatten()
    }

    pub(crate) fn get_empty(&self, path: &str) -> Option<FilePosition> {
        self.empty.get(path).copied().flatten()
    }

    /// Whether no key was given a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }
}

/// Reads a mapping into the target; `base` is the path of the mapping, "" at the top. `None` if it is not a mapping.
pub(crate) fn read_mapping<T>(
    node: &YamlNode,
    base: &str,
    keys: &'static [Key<T>],
    target: &mut T,
    report: &mut ProblemCollector,
) -> Option<KeyPositions> {
    let mut reader = MappingReader { base, keys, report, found: BTreeMap::new(), empty: BTreeMap::new() };
    if matches!(node.shape, YamlValue::Scalar(_) | YamlValue::List(_)) {
        reader.report_no_mapping(node, "");
        return None;
    }
    reader.read_section(node, "");
    let MappingReader { found, empty, .. } = reader;
    for key in keys {
        let path = join(base, key.path);
        match (found.get(key.path), key.absent) {
            (Some((_, value)), _) => store(key, &path, value, target, report),
            (None, Absent::Default(text)) => {
                if let Err(complaint) = key.field.set(target, text) {
                    report.add(node.place, path, complaint);
                }
            }
            (None, Absent::Required(_)) => {
                let text = format!("is missing; give {}", (key.field.accepts)());
                report.add(node.place, path, Complaint(text));
            }
            (None, Absent::Optional(_)) => {}
        }
    }
    let given = found.into_iter().map(|(path, (place, _))| (path, place)).collect();
    Some(KeyPositions { given, empty })
}

struct MappingReader<'tree, 'report, T: 'static> {
    base: &'report str,
    keys: &'static [Key<T>],
    report: &'report mut ProblemCollector,
    found: BTreeMap<&'static str, (Option<FilePosition>, &'tree YamlNode)>,
    empty: BTreeMap<&'static str, Option<FilePosition>>,
}

impl<'tree, T> MappingReader<'tree, '_, T> {
    /// Reads the entries of one mapping; `prefix` is its path within the table.
    fn read_section(&mut self, node: &'tree YamlNode, prefix: &str) {
        let entries = match &node.shape {
            YamlValue::Map(entries) => entries,
            // All keys of the section are commented out.
            YamlValue::Empty => return,
            YamlValue::Scalar(_) | YamlValue::List(_) => return self.report_no_mapping(node, prefix),
        };
        let mut seen: BTreeMap<&str, Option<FilePosition>> = BTreeMap::new();
        for (key, value) in entries {
            let YamlValue::Scalar(name) = &key.shape else {
                let complaint = Complaint("has a key that is not a word; give names only".to_owned());
                self.report.add(key.place, join(self.base, prefix), complaint);
                continue;
            };
            if let Some(first) = seen.get(name.as_str()) {
                let line = first.map_or(0, |first| first.line);
                let text = format!("is given twice, first on line {line}; keep one");
                self.report.add(key.place, join(self.base, &join(prefix, name)), Complaint(text));
                continue;
            }
            seen.insert(name, key.place);
            self.read_entry(key, name, value, prefix);
        }
    }

    fn read_entry(&mut self, key: &YamlNode, name: &str, value: &'tree YamlNode, prefix: &str) {
        let path = join(prefix, name);
        let below = |key: &Key<T>| key.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'));
        if let Some(known) = self.keys.iter().find(|key| key.path == path) {
            // An empty list or mapping means the same as no key.
            let is_nothing = match (&known.field.set, &value.shape) {
                (KeySetter::Maps { .. }, YamlValue::List(items)) => items.is_empty(),
                (KeySetter::Pairs(_) | KeySetter::NestedPairs(_), YamlValue::Map(entries)) => {
                    entries.is_empty()
                }
                (KeySetter::Maps { .. } | KeySetter::Pairs(_) | KeySetter::NestedPairs(_), shape) => {
                    *shape == YamlValue::Empty
                }
                _ => false,
            };
            if is_nothing {
                self.empty.insert(known.path, key.place);
            } else {
                self.found.insert(known.path, (key.place, value));
            }
        } else if self.keys.iter().any(below) {
            self.read_section(value, &path);
        } else {
            let complaint = self.suggest_key(name, prefix);
            self.report.add(key.place, shown(&join(self.base, &path)), complaint);
        }
    }

    fn report_no_mapping(&mut self, node: &YamlNode, prefix: &str) {
        let names = self.names(prefix).join(", ");
        let place = if prefix.is_empty() && self.base.is_empty() { "the file is" } else { "is" };
        let text = format!("{place} not a mapping; give keys with values: {names}");
        self.report.add(node.place, join(self.base, prefix), Complaint(text));
    }

    /// Suggests a sibling with similar spelling, or the same name in another section.
    fn suggest_key(&self, name: &str, prefix: &str) -> Complaint {
        let siblings = self.names(prefix);
        let elsewhere = || {
            let same = |key: &&Key<T>| key.path.rsplit('.').next() == Some(name);
            self.keys.iter().find(same).map(|key| key.path)
        };
        Complaint(match nearest(name, &siblings).or_else(elsewhere) {
            Some(near) => format!("unknown key; did you mean `{near}`?"),
            None => format!("unknown key; the keys here are {}", siblings.join(", ")),
        })
    }

    /// The names of the entries that a mapping may have, in the table's order.
    fn names(&self, prefix: &str) -> Vec<&'static str> {
        let mut names = Vec::new();
        for key in self.keys {
            let rest = match prefix {
                "" => Some(key.path),
                _ => key.path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')),
            };
            let name = rest.and_then(|rest| rest.split('.').next());
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }
}

fn store<T>(key: &Key<T>, shown: &str, value: &YamlNode, target: &mut T, report: &mut ProblemCollector) {
    match (&key.field.set, &value.shape) {
        (KeySetter::Maps { set, .. }, YamlValue::List(items)) => set(target, items, shown, report),
        (KeySetter::Scalars(_), YamlValue::List(items)) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                store_scalar(key, &format!("{shown}[{index}]"), item, target, report);
            }
        }
        (KeySetter::Pairs(set), YamlValue::Map(entries)) => {
            for (name, value) in entries {
                store_pair(*set, &MappingEntry { shown, name, value, entries }, target, report);
            }
        }
        (KeySetter::NestedPairs(set), YamlValue::Map(entries)) => {
            for (name, value) in entries {
                store_mapping(*set, &MappingEntry { shown, name, value, entries }, target, report);
            }
        }
        (KeySetter::Pairs(_) | KeySetter::NestedPairs(_), _) => {
            let text = format!("is not a mapping; give {}, or remove the key", (key.field.accepts)());
            report.add(value.place, shown, Complaint(text));
        }
        (KeySetter::Maps { .. }, _) => {
            let text = "is not a list; begin each entry with `- `".to_owned();
            report.add(value.place, shown, Complaint(text));
        }
        _ => store_scalar(key, shown, value, target, report),
    }
}

/// An entry of a mapping with arbitrary names.
struct MappingEntry<'a> {
    shown: &'a str,
    name: &'a YamlNode,
    value: &'a YamlNode,
    entries: &'a [(YamlNode, YamlNode)],
}

impl<'a> MappingEntry<'a> {
    /// The name with its path; none, and a complaint, where it is no word or was given before.
    fn name(&self, report: &mut ProblemCollector) -> Option<(&'a str, String)> {
        let Self { shown: base, name, entries, .. } = self;
        let YamlValue::Scalar(word) = &name.shape else {
            let complaint = Complaint("has a key that is not a word; give names only".to_owned());
            report.add(name.place, *base, complaint);
            return None;
        };
        let path = join(base, &shown(word));
        let first = entries.iter().find(|(other, _)| other.shape == name.shape);
        if first.is_some_and(|(other, _)| other != *name) {
            report.add(name.place, path, Complaint("is given twice; keep one".to_owned()));
            return None;
        }
        Some((word, path))
    }
}

fn store_mapping<T>(
    set: fn(&mut T, &str, &str, &str) -> Result<(), Complaint>,
    entry: &MappingEntry<'_>,
    target: &mut T,
    report: &mut ProblemCollector,
) {
    let Some((outer, path)) = entry.name(report) else { return };
    let YamlValue::Map(entries) = &entry.value.shape else {
        let complaint = Complaint("is not a mapping; give names with values, or remove the entry".to_owned());
        return report.add(entry.value.place, path, complaint);
    };
    for (name, value) in entries {
        let inner = MappingEntry { shown: &path, name, value, entries };
        store_pair(|target, name, text| set(target, outer, name, text), &inner, target, report);
    }
}

fn store_pair<T>(
    set: impl Fn(&mut T, &str, &str) -> Result<(), Complaint>,
    entry: &MappingEntry<'_>,
    target: &mut T,
    report: &mut ProblemCollector,
) {
    let Some((word, path)) = entry.name(report) else { return };
    let value = entry.value;
    let values = match &value.shape {
        YamlValue::List(items) if !items.is_empty() => &**items,
        _ => std::slice::from_ref(value),
    };
    for value in values {
        let outcome = match &value.shape {
            YamlValue::Scalar(text) => set(target, word, text),
            _ => Err(Complaint("has no plain value; give one, or remove the entry".to_owned())),
        };
        if let Err(complaint) = outcome {
            report.add(value.place, &*path, complaint);
        }
    }
}

fn store_scalar<T>(
    key: &Key<T>,
    shown: &str,
    value: &YamlNode,
    target: &mut T,
    report: &mut ProblemCollector,
) {
    let wrong = match &value.shape {
        YamlValue::Scalar(text) => {
            if let Err(complaint) = key.field.set(target, text) {
                report.add(value.place, shown, complaint);
            }
            return;
        }
        YamlValue::Empty => "has no value",
        YamlValue::List(items) if items.is_empty() => "is an empty list",
        YamlValue::List(_) => "is a list",
        YamlValue::Map(_) => "is a mapping",
    };
    let text = format!("{wrong}; give {}, or remove the key", (key.field.accepts)());
    report.add(value.place, shown, Complaint(text));
}

fn join(base: &str, name: &str) -> String {
    match (base, name) {
        ("", _) => name.to_owned(),
        (_, "") => base.to_owned(),
        _ => format!("{base}.{name}"),
    }
}
