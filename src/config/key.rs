//! The declaration of a configuration key.
//!
//! A [`Key`] has a path, what it accepts, where its value is stored, its default, and one sentence of help; a
//! [`KeyDescription`] has the same for users. Parsing, the printed default configuration and the documentation follow
//! from it.

use super::problem::{Complaint, ProblemCollector};
use super::settings::Config;
use super::tree::YamlNode;

/// The keys of a mapping that fills a `T`, and the mappings within it, each with its path and one sentence.
pub(crate) struct Table<T: 'static> {
    pub(crate) keys: &'static [Key<T>],
    pub(crate) mappings: &'static [(&'static str, &'static str)],
}

pub(crate) struct Key<T> {
    /// Dotted path within the mapping.
    pub(crate) path: &'static str,
    pub(crate) field: KeyType<T>,
    pub(crate) absent: Absent,
    pub(crate) change: ChangeEffect,
    /// The unit where the value does not carry it, else "".
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
}

/// The value of a key that is not given.
#[derive(Clone, Copy)]
pub(crate) enum Absent {
    /// This text is parsed.
    Default(&'static str),
    /// None; the text is an example.
    Optional(&'static str),
    /// The key must be given; the text is an example.
    Required(&'static str),
}

/// When a running agent applies a changed value.
#[derive(Clone, Copy)]
pub(crate) enum ChangeEffect {
    Reload,
    /// At the next start. The function copies the value from the second configuration to the first and returns whether
    /// they differed.
    Restart(fn(&mut Config, &Config) -> bool),
}

/// What a key accepts, in words, and how a value is stored.
pub(crate) struct KeyType<T> {
    pub(crate) accepts: fn() -> String,
    pub(crate) set: KeySetter<T>,
}

/// How the value of a key is stored, by its form in the file.
pub(crate) enum KeySetter<T> {
    Scalar(fn(&mut T, &str) -> Result<(), Complaint>),
    /// A scalar or a list of scalars, passed on one by one.
    Scalars(fn(&mut T, &str) -> Result<(), Complaint>),
    /// A mapping of names to scalars or lists of scalars, passed on one by one.
    Pairs(fn(&mut T, &str, &str) -> Result<(), Complaint>),
    /// A mapping of names to mappings of names to scalars, passed on one by one.
    NestedPairs(fn(&mut T, &str, &str, &str) -> Result<(), Complaint>),
    /// A list of mappings with keys of their own.
    Maps {
        set: fn(&mut T, &[YamlNode], &str, &mut ProblemCollector),
        rows: fn(&str) -> Vec<KeyDescription>,
    },
}

impl<T> KeyType<T> {
    /// Parses and stores a scalar.
    pub(crate) fn set(&self, target: &mut T, text: &str) -> Result<(), Complaint> {
        match self.set {
            KeySetter::Scalar(set) | KeySetter::Scalars(set) => set(target, text),
            // `read_mapping` has refused a scalar for these.
            KeySetter::Maps { .. } | KeySetter::Pairs(_) | KeySetter::NestedPairs(_) => Ok(()),
        }
    }
}

impl<T> Key<T> {
    /// The description for users, with its path below a prefix, followed by those of its entries if it is a list.
    pub(crate) fn rows(&self, prefix: &str) -> Vec<KeyDescription> {
        let path = format!("{prefix}{}", self.path);
        let (default, example, required) = match self.absent {
            Absent::Default(text) => (Some(text), text, false),
            Absent::Optional(text) => (None, text, false),
            Absent::Required(text) => (None, text, true),
        };
        let nested = match self.field.set {
            KeySetter::Maps { rows, .. } => rows(&format!("{path}[].")),
            _ => Vec::new(),
        };
        let is_list = !nested.is_empty();
        let needs_restart = matches!(self.change, ChangeEffect::Restart(_));
        let (accepts, unit, help) = ((self.field.accepts)(), self.unit, self.help);
        let row =
            KeyDescription { path, accepts, default, example, required, needs_restart, is_list, unit, help };
        let mut rows = vec![row];
        rows.extend(nested);
        rows
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// Dotted path; `[]` stands for each entry of a list.
    pub path: String,
    pub accepts: String,
    pub default: Option<&'static str>,
    /// A value that is accepted, "" for a list of mappings.
    pub example: &'static str,
    /// Whether each entry must have it.
    pub required: bool,
    /// Whether a changed value needs a restart of the agent; others are applied by a reload.
    pub needs_restart: bool,
    /// Whether it is a list of mappings, whose keys follow.
    pub is_list: bool,
    /// The unit where the value does not carry it, else "".
    pub unit: &'static str,
    pub help: &'static str,
}
